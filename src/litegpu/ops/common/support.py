"""Decides, before any partitioning, which nodes of a model can run on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy.typing as npt

from litegpu.errors import OperationError
from litegpu.graph import ABSENT, PACKED_TYPES, DType, Graph, Node, Value
from litegpu.host.large_arrays import LARGE, LEAST
from litegpu.numeric_policy import QuantizedMode
from litegpu.ops.base import Op, Shape, facts_of, find
from litegpu.ops.common import checks, dynamic, float_view, fold, types
from litegpu.ops.common.traits import Trait

CpuShapes = Callable[[Node, Mapping[int, Value]], Sequence[Shape | None] | None]
"""A function that infers the result shapes of a CPU node through the runtime.

A shape is None if it is known only at run time. The function returns None instead of a list if the
runtime cannot infer any shape.
"""


@dataclass(frozen=True, slots=True)
class SupportCheck:
    """The graph with inferred shapes, and the reason for each unsupported node (by node index).

    If a graph is not `divisible`, the runtime cannot partition the graph, and no node is supported.
    If the interpreter has resized inputs with dynamic sizes, `stated` is the check for the shapes
    in the file.
    """

    graph: Graph
    reasons: Mapping[int, str]
    divisible: bool = True
    stated: SupportCheck | None = None

    def graph_for(self, nodes: Collection[int]) -> Graph:
        """Return the graph with shapes for which the nodes can run, preferably the file's."""
        if self.stated is None or not self.stated.reasons.keys().isdisjoint(nodes):
            return self.graph
        return self.stated.graph


def check_support(
    graph: Graph,
    quantized: QuantizedMode | None = "exact",
    on_cpu: Mapping[int, str] | None = None,
    cpu_shapes: CpuShapes | None = None,
) -> SupportCheck:
    """Check every node in order, with shapes inferred from the nodes before it.

    `quantized` selects how quantized tensors are computed: exactly in integers, or as floats. If
    `quantized` is None, nodes with 8-bit tensors (including weights) stay on the CPU. `on_cpu` maps
    nodes that must stay on the CPU to the reasons. `cpu_shapes` infers the result shapes of CPU
    nodes.

    The runtime may call a delegate before it has computed any shape, so inferred shapes replace the
    shapes in the file. Nodes that depend on a shape known only at run time stay on the CPU, since
    kernels might not support that shape.
    """
    if quantized == "float":
        view = float_view.as_floats(graph, large=False)
        found = _check(view, quantized, on_cpu or {}, cpu_shapes)
        return replace(found, graph=_with_shapes_of(graph, found.graph))
    if quantized == "exact":
        _read_weights(graph)
    return _check(graph, quantized, on_cpu or {}, cpu_shapes)


def _read_weights(graph: Graph) -> None:
    """Compute on all cores what checks of dynamic-range quantization ask of large weights."""
    found: list[npt.NDArray[Any]] = []
    for node in graph.nodes:
        source, weights = (graph.values.get(v) for v in (*node.inputs, ABSENT, ABSENT)[:2])
        if source is None or source.dtype is not DType.FLOAT32 or weights is None:
            continue
        is_integer = weights.dtype is DType.INT8 or weights.dtype in PACKED_TYPES
        if is_integer and weights.data is not None and weights.data.nbytes >= LARGE:
            found.append(weights.data)
    LEAST.of_all(found)


def _with_shapes_of(graph: Graph, view: Graph) -> Graph:
    """Return a graph with the shapes and constants of its float view.

    In the float view, a float32 tensor may be a float16 constant if its DEQUANTIZE needs no kernel.
    """
    values = {
        v: view.values[v]
        if value.dtype in (view.values[v].dtype, DType.FLOAT32)
        else replace(value, shape=view.values[v].shape)
        for v, value in graph.values.items()
    }
    return replace(graph, values=values)


def _check(
    graph: Graph,
    quantized: QuantizedMode | None,
    on_cpu: Mapping[int, str],
    cpu_shapes: CpuShapes | None,
) -> SupportCheck:
    values = dict(graph.values)
    reasons: dict[int, str] = {}
    from_shapes: set[int] = set()
    made_dense: set[int] = set()
    budget, listed = fold.Budget.of(graph), _ListBudget()
    overwritten = _written_twice(graph)
    present = replace(graph, values=values)  # which change while the nodes are checked
    for node in graph.nodes:
        known = fold.evaluate(present, node, budget)
        if known is not None:
            # Consumers that are checked later must already see the constant.
            for v, array in zip(node.outputs, known, strict=True):
                values[v] = fold.constant(values[v], array)
            continue
        fixed = [v for v in node.outputs if v in values and values[v].is_constant]
        overwritten = overwritten or (_overwrites(node, fixed[0]) if fixed else "")
        too_much = listed.take(present, node)
        reason, shapes = (too_much, ()) if too_much else check_node(present, node, quantized)
        reason = reason or on_cpu.get(node.index, "")
        if quantized is None and _is_of_bytes(present, node, reason):
            reason = "8-bit tensors are left to the CPU: experimental_flags lacks ENABLE_QUANT (1)."
        if not reason and not made_dense.isdisjoint(node.inputs):
            reason = "The node reads sparse weights, which the CPU expands in each run."
        if not reason and _computes_shapes(present, node, from_shapes):
            reason = "The node computes only with shapes, which are known before the model runs."
        if reason:
            reasons[node.index] = reason
            made_dense.update(node.outputs if node.op == "DENSIFY" else ())
            _follow_cpu(graph, values, node, from_shapes, cpu_shapes)
            continue
        for v, shape in zip(node.outputs, shapes, strict=True):
            values[v] = replace(values[v], shape=shape)
    if overwritten:
        reasons = dict.fromkeys((node.index for node in graph.nodes), overwritten)
    return SupportCheck(present, reasons, divisible=not overwritten)


@dataclass
class _ListBudget:
    """Limits the integers (indices, sizes, paddings) that nodes read from shared constants.

    A node needs only a few bytes in the file, but expands the shared constant into a separate list.
    """

    left: int = 1 << 20
    seen: set[int] = field(default_factory=set)

    def take(self, graph: Graph, node: Node) -> str:
        """Return why a node's shared constants exceed the limit, or an empty text."""
        values = (graph.values[v] for v in node.inputs if v in graph.values)
        arrays = [v.data for v in values if v.data is not None and v.dtype in types.INTEGER_TYPES]
        places = {array.__array_interface__["data"][0]: array.size for array in arrays}
        again = sum(size for place, size in places.items() if place in self.seen)
        self.seen.update(places)
        if again > self.left:
            return (
                "The node's constants, which other nodes also read, have too many integers to be "
                "expanded."
            )
        self.left -= again
        return ""


def _written_twice(graph: Graph) -> str:
    """Return why no node of a graph that the runtime cannot partition can be delegated."""
    seen: set[int] = set()
    for node in graph.nodes:
        seen.update(node.inputs)
        for v in node.outputs:
            if v in seen and v != ABSENT:
                return _overwrites(node, v)
            seen.add(v)
    return ""


def _overwrites(node: Node, value: int) -> str:
    return (
        f"Node {node.index} ({node.op}) overwrites tensor {value}: such a model cannot be divided "
        "between the CPU and a device."
    )


def computes_with_bytes(graph: Graph, node: Node) -> bool:
    """Whether a node reads or writes a computed tensor of 8-bit integers."""
    return any(not value.is_constant for value in _bytes_of(graph, node))


def _is_of_bytes(graph: Graph, node: Node, reason: str) -> bool:
    """Whether a node has 8-bit tensors; if it has a `reason`, 8-bit constants do not count."""
    weights = not reason and has_byte_constants(graph, node)
    return weights or computes_with_bytes(graph, node)


def has_byte_constants(graph: Graph, node: Node) -> bool:
    """Whether a node has constants of 8-bit integers, such as quantized weights."""
    return any(value.is_constant for value in _bytes_of(graph, node))


def _bytes_of(graph: Graph, node: Node) -> list[Value]:
    values = (graph.values.get(v) for v in (*node.inputs, *node.outputs))
    return [value for value in values if value is not None and value.dtype in types.BYTES]


def check_node(
    graph: Graph, node: Node, quantized: QuantizedMode | None
) -> tuple[str, Sequence[Shape]]:
    """Return (reason why a node cannot run or an empty text, shapes of its outputs)."""
    op = find(node.op)
    if Trait.READS_SHAPES in facts_of(node.op).traits and (late := _late(graph, node)):
        return late, ()
    if quantized == "float" and float_view.is_conversion(graph, node):
        return _late(graph, node), (graph.values[node.inputs[0]].shape,)
    if op is None or op.internal:
        return facts_of(node.op).no_kernel, ()
    if _missing(node, graph.values):
        return "The node refers to tensors that the model does not have.", ()
    try:
        reason = _reason(graph, node, op)
        shapes = () if reason else op.infer(graph, node)
    except OperationError as error:
        return str(error), ()
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # Malformed nodes that converters never write but the runtime accepts, for example without
        # an input.
        return f"The node's operands are invalid ({type(error).__name__}: {error}).", ()
    if not reason and (len(shapes) != len(node.outputs) or ABSENT in node.outputs):
        present = sum(v != ABSENT for v in node.outputs)
        return f"Expected {len(shapes)} output tensor(s), but node has {present} output(s).", ()
    reason = checks.first_of(reason, *map(checks.size, node.outputs, shapes))
    return reason, shapes


def _reason(graph: Graph, node: Node, op: Op) -> str:
    if late := _late(graph, node):
        return late
    reason = checks.first_of(
        checks.version(node, op.max_version), checks.shapes(graph, node, op.may_be_empty)
    )
    if not reason and op.exact is not None and types.is_quantized(graph, node):
        return op.exact.check(graph, node)
    if not reason:
        reason = op.check(graph, node)
    if not reason:
        reason = types.check(graph, node, op.takes, op.gives, op.states(node))
    return reason


def _computes_shapes(graph: Graph, node: Node, from_shapes: Set[int]) -> bool:
    """Whether a node continues a shape computation on the CPU, for example of a RESHAPE's size.

    If a shape computation ran on the GPU, shapes that depend on the result would be known too late.
    """
    return (
        not from_shapes.isdisjoint(node.inputs)
        and all(graph.values[v].dtype in types.INTEGER_TYPES for v in node.outputs)
        and dynamic.follows_from_shapes(node, graph.values, from_shapes)
    )


def _late(graph: Graph, node: Node) -> str:
    values = (graph.values.get(v) for v in node.inputs)
    late = [value.id for value in values if value is not None and value.shape == dynamic.UNKNOWN]
    return f"The shape of tensor {late[0]} is known only when the model runs." if late else ""


def _is_uncertain(graph: Graph, values: Mapping[int, Value], node: Node) -> bool:
    """Whether the actual result shapes of a node may differ from those stated in the file."""
    if ABSENT in node.outputs or any(
        values[v].shape == dynamic.UNKNOWN for v in node.inputs if v != ABSENT
    ):
        return False
    return any(values[v].shape == () for v in node.outputs) or any(
        values[v].signature or values[v].shape != graph.values[v].shape
        for v in (*node.inputs, *node.outputs)
        if v != ABSENT
    )


def _missing(node: Node, values: Mapping[int, Value]) -> bool:
    return any(v != ABSENT and v not in values for v in (*node.inputs, *node.outputs))


def _follow_cpu(
    graph: Graph,
    values: dict[int, Value],
    node: Node,
    from_shapes: set[int],
    cpu_shapes: CpuShapes | None,
) -> None:
    """Record inferred shapes and constants of the results of a node that stays on the CPU."""
    if _missing(node, values):
        return
    if dynamic.follows_from_shapes(node, values, from_shapes):
        from_shapes.update(node.outputs)
    unknown = dynamic.has_unknown_result(node, values, from_shapes)
    shapes = None
    if cpu_shapes is not None and _is_uncertain(graph, values, node):
        shapes = cpu_shapes(node, values)
    if shapes is not None:
        unknown = False
        for v, shape in zip(node.outputs, shapes, strict=True):
            values[v] = replace(values[v], shape=dynamic.UNKNOWN if shape is None else shape)
    for v in node.outputs:
        # Files represent unknown shapes as those of scalars.
        if v != ABSENT and (
            unknown or (shapes is None and values[v].shape == () and v not in from_shapes)
        ):
            values[v] = replace(values[v], shape=dynamic.UNKNOWN)
    op = find(node.op)
    if op is not None and op.gives == types.BOOLS:
        # The CPU's kernel returns bools, even if the file states another type.
        for v in node.outputs:
            if v != ABSENT and values[v].dtype is not DType.BOOL:
                values[v] = replace(values[v], dtype=DType.OTHER)
