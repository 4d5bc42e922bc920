"""Elementwise ops, which become epilogue ops of the kernel that computes their input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from litegpu.graph import SELF, DType, EpilogueOp, Graph, Node
from litegpu.ops.base import COPY, NewValue, Op, Shape, add, as_float32
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
    function_of,
    wraps,
)
from litegpu.ops.common.types import is_quantized
from litegpu.ops.exact.elementwise import EXACT_BINARY
from litegpu.ops.exact.unary import EXACT_UNARY


class _Elementwise(Op):
    """Base of ops that become an epilogue op of the kernel that computes their input."""

    launches = 0
    arity: ClassVar[int]
    function: Function

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        exact = self.function.exact
        if exact is None or len(operands) != self.arity or is_quantized(graph, node):
            return None
        return facts.integers(exact, graph, node, operands)

    def attributes(self, graph: Graph, node: Node) -> tuple[tuple[str, float], ...]:
        """Return the attributes that the expression refers to by name."""
        bits = 8 * np.dtype(graph.values[node.inputs[0]].dtype.value).itemsize
        shapes = [graph.values[v].shape for v in node.inputs]
        # The CPU multiplies by the base in turn where one exponent belongs to several bases.
        one = shapes[0] != shapes[-1] and graph.values[node.inputs[-1]].elements == 1
        known = {"last_bit": bits - 1, "wraps": int(one)}
        return tuple(
            (name, known[name] if name in known else float(node.params[name]))
            for name in self.function.params
        )

    def wraps(self, graph: Graph, node: Node) -> tuple[EpilogueOp, ...]:
        """Return the epilogue ops that wrap or round results of fewer than 32 bits."""
        dtype = graph.values[node.outputs[0]].dtype
        if not self.function.grows and dtype is not DType.FLOAT16:
            return ()
        clamps = dtype is DType.FLOAT16 and "activation" in node.params
        return (*wraps(dtype), *((EpilogueOp(FINITE_HALF),) if clamps else ()))


class Unary(_Elementwise):
    """An elementwise op of one input; the result has the input's shape."""

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
        attributes = self.attributes(graph, node)
        epilogue_op = EpilogueOp(function_of(graph, node), attributes=attributes)
        epilogue = (epilogue_op, *self.wraps(graph, node))
        return (Node(node.index, COPY, 1, node.inputs, node.outputs, epilogue=epilogue),)


class Binary(_Elementwise):
    """An elementwise op of two inputs, broadcast as in NumPy; either input may be constant."""

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
        attributes = self.attributes(graph, node)
        epilogue_op = EpilogueOp(function, (operand,), position, attributes)
        epilogue = (epilogue_op, *self.wraps(graph, node), *bounds)
        return fit.around(Node(node.index, COPY, 1, (running,), node.outputs, epilogue=epilogue))


_REAL_TYPES = (DType.FLOAT32, DType.FLOAT16, DType.BOOL)


def _check_integers(graph: Graph, node: Node) -> str:
    """Require a fused activation that the CPU applies to integers."""
    found = node.params.get("activation", "none")
    dtype = graph.values[node.inputs[0]].dtype
    bounded = ACTIVATIONS[found] in BOUNDED_INTEGERS and dtype is not DType.UINT32
    if dtype in _REAL_TYPES or found == "none" or bounded:
        return ""
    return f"The CPU ignores the fused activation {found} of integers."


class Gelu(Unary):
    """Multiplies x by the normal distribution function, which `approximate` computes by tanh."""

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        name = "GELU_TANH" if node.params["approximate"] else "GELU"
        epilogue = (EpilogueOp(name), *self.wraps(graph, node))
        return (Node(node.index, COPY, 1, node.inputs, node.outputs, epilogue=epilogue),)


_PRODUCTS = {2.0: "SQUARE", 3.0: "CUBE"}


class Power(Binary):
    """Raises elements to powers; of floats, the exponents 2 and 3 become products."""

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        base, exponent = (graph.values[v] for v in node.inputs)
        if exponent.is_constant and exponent.elements == 1 and base.dtype is DType.FLOAT32:
            product = _PRODUCTS.get(float(as_float32(exponent).item()))
            if product and base.shape == graph.values[node.outputs[0]].shape:
                epilogue = (EpilogueOp(product),)
                return (Node(node.index, COPY, 1, (base.id,), node.outputs, epilogue=epilogue),)
        return super().normalize(graph, node, new_value)


class Prelu(Binary):
    """Multiplies negative elements by slopes, which are broadcast to the input."""

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(super().check(graph, node), lambda: check_slopes(graph, node))


class Stablehlo(Binary):
    """An elementwise op of two inputs of equal shape; integers wrap around within their type."""

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            super().check(graph, node),
            lambda: _check_shapes(graph, node),
            lambda: checks.unscaled(graph, node),
        )


def _check_shapes(graph: Graph, node: Node) -> str:
    first, second = (graph.values[v].shape for v in node.inputs)
    if first == second:
        return ""
    return f"The operands have different shapes, {list(first)} and {list(second)}."


for _name, _function in UNARY.items():
    add((Gelu if _name == "GELU" else Unary)(_name, _function))
_BINARY: dict[str, type[Binary]] = {"POW": Power, "PRELU": Prelu}
for _name, _function in BINARY.items():
    add(_BINARY.get(_name, Binary)(_name, _function))
for _name, _function in STABLEHLO.items():
    add(Stablehlo(_name, _function))
