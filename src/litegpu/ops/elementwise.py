"""Element-wise ops: each becomes an epilogue op of the kernel before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from litegpu.codegen import register_of
from litegpu.graph import SELF, DType, EpilogueOp, Graph, Node
from litegpu.ops.base import COPY, NewValue, Op, Shape, add
from litegpu.ops.common import checks, facts
from litegpu.ops.common.broadcast import check_broadcast, check_slopes, fitted, running_input
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.function import Function
from litegpu.ops.common.functions import (
    ACTIVATIONS,
    BINARY,
    BOUNDED_INTEGERS,
    FINITE_HALF,
    STABLEHLO,
    UNARY,
    activation_epilogue,
    cast_name,
    function_of,
)
from litegpu.ops.common.types import STORABLE, is_quantized
from litegpu.ops.exact.elementwise import EXACT_BINARY
from litegpu.ops.exact.unary import EXACT_UNARY


class _Elementwise(Op):
    """What becomes an epilogue op of the kernel before it."""

    launches = 0
    arity: ClassVar[int]
    function: Function

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        exact = self.function.exact
        if exact is None or len(operands) != self.arity or is_quantized(graph, node):
            return None
        return facts.integers(exact, graph, node, operands)

    def wraps(self, graph: Graph, node: Node) -> tuple[EpilogueOp, ...]:
        """Return how results of fewer than 32 bits wrap around or are rounded."""
        dtype = graph.values[node.outputs[0]].dtype
        grows = self.function.grows or dtype is DType.FLOAT16
        if dtype in STORABLE.dtypes or not grows:
            return ()
        wrap = EpilogueOp(cast_name(register_of(dtype), dtype))
        clamps = dtype is DType.FLOAT16 and "activation" in node.params
        return (wrap, EpilogueOp(FINITE_HALF)) if clamps else (wrap,)


class Unary(_Elementwise):
    """One input; same shape out."""

    arity = 1

    def __init__(self, name: str, function: Function) -> None:
        self.name = name  # type: ignore[misc]
        self.max_version = function.max_version  # type: ignore[misc]
        self.takes = (function.takes,)  # type: ignore[misc]
        self.gives = function.gives  # type: ignore[misc]
        self.exact = EXACT_UNARY.get(name)  # type: ignore[misc]
        self.function = function

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(checks.input_count(node, 1, 1), checks.operands(graph, node, (1,)))

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        attributes = tuple((name, float(node.params[name])) for name in self.function.params)
        epilogue_op = EpilogueOp(function_of(graph, node), attributes=attributes)
        epilogue = (epilogue_op, *self.wraps(graph, node))
        return (Node(node.index, COPY, 1, node.inputs, node.outputs, epilogue=epilogue),)


class Binary(_Elementwise):
    """Two inputs, broadcast as NumPy does; either may be constant."""

    arity = 2

    def __init__(self, name: str, function: Function) -> None:
        self.name = name  # type: ignore[misc]
        self.max_version = function.max_version  # type: ignore[misc]
        self.takes = (function.takes,)  # type: ignore[misc]
        self.gives = function.gives  # type: ignore[misc]
        self.exact = EXACT_BINARY.get(name)  # type: ignore[misc]
        self.function = function

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1, 2)),
            checks.activation(node),
            checks.constants(graph, node, "The operand", self.takes[0]),
            lambda: check_broadcast(graph, node),
            lambda: _check_integers(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (np.broadcast_shapes(*(graph.values[v].shape for v in node.inputs)),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        fit, position = fitted(graph, node, new_value), running_input(graph, node)
        running, other = fit.inputs[position], fit.inputs[1 - position]
        operand = SELF if running == other else other
        function = function_of(graph, node)
        bounds = activation_epilogue(node.params, integer=function != node.op)
        epilogue_op = EpilogueOp(function, (operand,), position)
        epilogue = (epilogue_op, *self.wraps(graph, node), *bounds)
        return fit.around(Node(node.index, COPY, 1, (running,), node.outputs, epilogue=epilogue))


def _check_integers(graph: Graph, node: Node) -> str:
    """Require of integers an activation that the CPU applies to them."""
    found = node.params.get("activation", "none")
    integer = function_of(graph, node) != node.op
    if not integer or found == "none" or ACTIVATIONS[found] in BOUNDED_INTEGERS:
        return ""
    return f"Fused activation {found} of integers, which the CPU leaves out."


class Gelu(Unary):
    """x times the normal distribution function; `approximate` computes that by tanh."""

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        epilogue_op = EpilogueOp("GELU_TANH" if node.params["approximate"] else "GELU")
        return (Node(node.index, COPY, 1, node.inputs, node.outputs, epilogue=(epilogue_op,)),)


class Prelu(Binary):
    """Slopes for what is negative, broadcast to the input."""

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(super().check(graph, node), lambda: check_slopes(graph, node))


class Stablehlo(Binary):
    """Two inputs of one shape; integers wrap around within their type."""

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            super().check(graph, node),
            lambda: _check_shapes(graph, node),
            lambda: check_unscaled(graph, node),
        )


def _check_shapes(graph: Graph, node: Node) -> str:
    first, second = (graph.values[v].shape for v in node.inputs)
    if first == second:
        return ""
    return f"Operands of {list(first)} and {list(second)} are not of one shape."


def check_unscaled(graph: Graph, node: Node) -> str:
    """Require tensors without scales, which the CPU ignores."""
    scaled = [v for v in (*node.inputs, *node.outputs) if graph.values[v].quantization is not None]
    return f"tensor {scaled[0]} has a scale, which this operation ignores." if scaled else ""


for _name, _function in UNARY.items():
    add((Gelu if _name == "GELU" else Unary)(_name, _function))
for _name, _function in BINARY.items():
    add((Prelu if _name == "PRELU" else Binary)(_name, _function))
for _name, _function in STABLEHLO.items():
    add(Stablehlo(_name, _function))
