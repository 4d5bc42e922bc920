"""SCATTER_ND, SEGMENT_SUM, UNSORTED_SEGMENT ops, SPARSE_TO_DENSE: combine rows by index."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from litegpu.codegen import FLOAT, Register, register_of
from litegpu.graph import DType, EpilogueOp, Graph, Node
from litegpu.ops.base import (
    COPY,
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    add,
    constant_list,
    register,
)
from litegpu.ops.common import checks, facts
from litegpu.ops.common.functions import FUNCTIONS, cast_name, wraps
from litegpu.ops.common.types import (
    BYTES,
    INTEGERS,
    MOVED,
    SHORT_NUMBERS,
    STORABLE,
    Types,
    computed_as,
)
from litegpu.ops.index_map import Source, index_map_node, plain, strides
from litegpu.ops.reshape import reshape_node, reshaped

MAX_ROWS = 1 << 16
"""Maximum number of rows: each result loops over all rows, and Mesa's devices abort long loops."""
_PLACES = (DType.INT32,)
_VALUES = (*checks.READABLE_CONSTANTS, *MOVED.dtypes)
_SCATTERED = Types(STORABLE.dtypes | BYTES, common=True)
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class SegmentAttributes:
    """How rows are scattered; `steps` are strides in elements along each indexed axis.

    If `sizes` has the sizes of the indexed axes, the kernel skips rows with indices out of range.
    The function `combine` combines a row with the current result; if `combine` is empty, the row
    replaces the result. The initial result is `start` or, if `start` is None, the third input.
    """

    steps: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    combine: str = ""
    start: float | None = None


@dataclass(frozen=True, slots=True)
class _Operands:
    """The operands of a node: the positions of rows and indices, and the result's shape."""

    rows: int
    indices: int
    axes: tuple[int, ...]
    """The sizes of the result's indexed axes."""
    joined: int
    """Number of leading axes of the input that enumerate the combined rows."""
    result: Shape


class Segments(Op):
    """Combines rows of a value into the rows of the result that their indices select."""

    max_version = 1
    cpu_bytes_per_second = 15e9

    def __init__(
        self,
        name: str,
        operands: Callable[[Graph, Node], _Operands],
        *,
        rows: int = 0,
        sizes: int | None = 2,
        combine: str = "ADD",
        start: Callable[[Register], float] = lambda register: 0,
        types: Types = SHORT_NUMBERS,
    ) -> None:
        self.name = name  # type: ignore[misc]
        self.takes = (types, INTEGERS, INTEGERS) if rows == 0 else (INTEGERS, types, INTEGERS)  # type: ignore[misc]
        self.gives = None  # type: ignore[misc]
        self.shape_operands = () if sizes is None else (sizes,)  # type: ignore[misc]
        self.shape_unknown = sizes is None  # type: ignore[misc]
        self._operands, self._rows, self._sizes = operands, rows, sizes
        self._combine, self._start = combine, start

    def flops(self, graph: Graph, node: Node) -> int:
        return facts.elements(graph, facts.operand(node.inputs, self._rows))

    def check(self, graph: Graph, node: Node) -> str:
        count = 2 if self._sizes is None else 3
        return checks.first_of(
            checks.input_count(node, count, count),
            checks.operands(graph, node, (1, 2)),
            checks.operand(graph, node, self._rows, "The rows", (*self.takes[self._rows].dtypes,)),
            checks.integers(
                *(graph, node, 1 - self._rows, "The indices"),
                constant=self._sizes is None,
                kinds=_PLACES,
            ),
            checks.integers(graph, node, 2, "The shape", kinds=_PLACES) if self._sizes else "",
            lambda: _check_shapes(graph, node, self._operands(graph, node)),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (self._operands(graph, node).result,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        found = self._operands(graph, node)
        shape = graph.values[node.inputs[found.rows]].shape
        inner = math.prod(shape[found.joined :])
        flat = (math.prod(shape[: found.joined]), inner)
        (rows,), nodes = reshaped(graph, node, [node.inputs[found.rows]], [flat], new_value)
        dtype = graph.values[node.inputs[found.rows]].dtype
        target = new_value((math.prod(found.axes), inner))
        joined = replace(
            node,
            inputs=(rows, node.inputs[found.indices]),
            outputs=(target,),
            attributes=SegmentAttributes(
                tuple(strides(found.axes)),
                combine="LOGICAL_OR" if dtype is DType.BOOL else self._combine,
                start=self._start(register_of(dtype)),
            ),
            epilogue=wraps(dtype),
        )
        return (*nodes, joined, reshape_node(node, target, node.outputs[0]))

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        return (segments_kernel(node, ctx),)


@register
class SparseToDense(Op):
    """Replaces elements of a constant tensor by position; the last of several elements applies."""

    name = "SPARSE_TO_DENSE"
    max_version = 3
    shape_operands = (1,)
    takes = (INTEGERS, INTEGERS, MOVED, MOVED)
    gives = None

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 4, 4),
            checks.operands(graph, node, (1, 2, 3)),
            checks.integers(graph, node, 0, "The indices", constant=False),
            checks.integers(graph, node, 1, "The shape"),
            checks.operand(graph, node, 2, "The values", _VALUES),
            checks.constant(graph, node, 3, "The value elsewhere", MOVED),
            lambda: _check_sparse(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (tuple(constant_list(graph, node.inputs[1])),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        indices, _, values, start = (graph.values[v] for v in node.inputs)
        count, places, nodes = indices.shape[0], indices.id, list[Node]()
        if indices.dtype is not DType.INT32:
            places = new_value(indices.shape, dtype=DType.INT32)
            cast = EpilogueOp(cast_name(register_of(indices.dtype), DType.INT32))
            nodes.append(Node(node.index, COPY, 1, (indices.id,), (places,), epilogue=(cast,)))
        rows = new_value((count, 1), dtype=computed_as(values))
        source = (
            (Source(((0, 1),)),) if values.shape == (count,) else (Source(),) * len(values.shape)
        )
        spread = replace(node, inputs=(values.id,), outputs=(rows,))
        nodes.append(index_map_node(graph, spread, plain((count, 1)), source))
        shape = graph.values[node.outputs[0]].shape
        target = new_value((math.prod(shape), 1), dtype=computed_as(values))
        attributes = SegmentAttributes(
            tuple(strides(shape)), start=constant_list(graph, start.id)[0]
        )
        nodes.append(replace(node, inputs=(rows, places), outputs=(target,), attributes=attributes))
        return (*nodes, reshape_node(node, target, node.outputs[0]))

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        return (segments_kernel(node, ctx),)


def _check_sparse(graph: Graph, node: Node) -> str:
    indices, values = (graph.values[node.inputs[p]].shape for p in (0, 2))
    shape = constant_list(graph, node.inputs[1])
    if (
        (*indices, 1)[:2] != (indices[0], len(shape))
        or len(indices) > 2
        or values not in ((), indices[:1])
    ):
        return (
            f"Values of {list(values)} at indices of {list(indices)} do not fit a result of "
            f"{shape}."
        )
    if indices[0] > MAX_ROWS:
        return f"The node scatters {indices[0]} values; at most {MAX_ROWS} are supported."
    return ""


def segments_kernel(node: Node, ctx: LowerContext) -> KernelRequest:
    """Return the kernel that combines rows by index; see SegmentAttributes."""
    attributes: SegmentAttributes = node.attributes
    src, dst = ctx.storage(node.inputs[0]), ctx.storage(node.outputs[0])
    register = register_of(src.dtype)
    function = FUNCTIONS[attributes.combine] if attributes.combine else None
    start = attributes.start
    return KernelRequest(
        template="segments",
        grid=(dst.channel_blocks, dst.rows, 1),
        output=node.outputs[0],
        reads=dict(zip(("src", "indices", "initial"), node.inputs, strict=False)),
        variables={
            "rows": src.rows,
            "steps": attributes.steps,
            "sizes": attributes.sizes,
            "start": None if start is None else register.literal(start),
            "combine": "{b}"
            if function is None
            else function.expression
            if register is FLOAT
            else function.integer,
        },
        accumulator=register,
    )


def _check_shapes(graph: Graph, node: Node, found: _Operands) -> str:
    rows, indices = (graph.values[node.inputs[p]].shape for p in (found.rows, found.indices))
    inner = found.result[len(found.axes) :]
    joined = rows[: found.joined]
    named = len(found.axes) == (indices[-1] if found.rows else 1)
    if (
        not named
        or joined != (indices[:-1] if found.rows else indices)
        or rows[found.joined :] != inner
    ):
        return (
            f"Rows of {list(rows)} with indices of {list(indices)} do not fit a result of "
            f"{list(found.result)}."
        )
    if math.prod(joined) > MAX_ROWS:
        return f"The node combines {math.prod(joined)} rows; at most {MAX_ROWS} are supported."
    return ""


def _scattered(graph: Graph, node: Node) -> _Operands:
    shape, indices = constant_list(graph, node.inputs[2]), graph.values[node.inputs[0]].shape
    axes = tuple(shape[: indices[-1]])
    return _Operands(1, 0, axes, len(indices) - 1, tuple(shape))


def _sorted(graph: Graph, node: Node) -> _Operands:
    numbers = constant_list(graph, node.inputs[1])
    return _of_segments(graph, node, numbers[-1] + 1)


def _unsorted(graph: Graph, node: Node) -> _Operands:
    (count,) = constant_list(graph, node.inputs[2])
    return _of_segments(graph, node, count)


def _of_segments(graph: Graph, node: Node, count: int) -> _Operands:
    rows, indices = (graph.values[v].shape for v in node.inputs[:2])
    return _Operands(0, 1, (count,), len(indices), (count, *rows[len(indices) :]))


def _least(register: Register) -> float:
    return -_LARGEST if register is FLOAT else -(2**31)


def _most(register: Register) -> float:
    return _LARGEST if register is FLOAT else 2**31 - 1


for _op in (
    Segments("SCATTER_ND", _scattered, rows=1, types=_SCATTERED),
    Segments("SEGMENT_SUM", _sorted, sizes=None),
    Segments("UNSORTED_SEGMENT_SUM", _unsorted),
    Segments("UNSORTED_SEGMENT_PROD", _unsorted, combine="MUL", start=lambda register: 1),
    Segments("UNSORTED_SEGMENT_MAX", _unsorted, combine="MAXIMUM", start=_least),
    Segments("UNSORTED_SEGMENT_MIN", _unsorted, combine="MINIMUM", start=_most),
):
    add(_op)
