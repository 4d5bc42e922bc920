"""Operations whose results are known before the model runs: shapes, and what is made of them.

No kernel runs for them. All is exact: they move elements or compute with integers and bools.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.graph import ABSENT, DType, Graph, Node, Value
from litegpu.ops.base import get
from litegpu.ops.dynamic import UNKNOWN
from litegpu.ops.slices import ranges_of
from litegpu.ops.split import Parts
from litegpu.ops.types import TYPE_CODES

Array = npt.NDArray[Any]

_MOST_ELEMENTS = 1 << 16
"""Larger operands and results stay with the model: folding would keep them in memory once more."""
_MOST_BYTES = 1 << 24


@dataclass
class Budget:
    """Bytes that the results of a graph's folded nodes may take, all in all.

    A small file can ask for much: each operation may make a large constant of small ones, and each
    costs the file some bytes. What exceeds this is left to kernels, or to the CPU.
    """

    left: int = _MOST_BYTES

    def take(self, nbytes: int) -> None:
        """Spend some of it. Raises ValueError when it is used up."""
        if nbytes > self.left:
            raise ValueError("the results of folding would take too much memory")
        self.left -= nbytes


def evaluate(graph: Graph, node: Node, budget: Budget) -> list[Array] | None:
    """Return the results of a node that are known already, or None.

    What they take is spent from the budget before they are made.
    """
    inputs = [graph.values.get(v) for v in node.inputs if v != ABSENT]
    outputs = [graph.values.get(v) for v in node.outputs]
    if not inputs or None in inputs or None in outputs:
        return None
    try:
        with np.errstate(divide="raise"):
            found = _evaluate(graph, node, [each for each in inputs if each is not None], budget)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
        return None  # the checks, or the runtime, will say what is wrong
    return found if found is not None and _fits(found, outputs) else None


def constant(value: Value, array: Array) -> Value:
    """Return a value that holds the elements of an array, of its type."""
    return replace(value, shape=array.shape, dtype=DType(array.dtype.name), data=array)


def is_folded(node: Node, values: Mapping[int, Value]) -> bool:
    """Whether an examined node needs no kernel, for its results are constants."""
    return bool(node.outputs) and all(v in values and values[v].is_constant for v in node.outputs)


def _fits(found: Sequence[Array], outputs: Sequence[Value | None]) -> bool:
    """Whether results are of the types that the file states; float16 weights stay what they are."""
    types = [value.dtype for value in outputs if value is not None]
    return len(found) == len(types) and all(
        array.dtype.name == dtype.value or (array.dtype.name, dtype) == ("float16", DType.FLOAT32)
        for array, dtype in zip(found, types, strict=True)
    )


def _evaluate(
    graph: Graph, node: Node, inputs: Sequence[Value], budget: Budget
) -> list[Array] | None:
    first, target = inputs[0], graph.values[node.outputs[0]].dtype
    if node.op in ("SHAPE", "RANK") and first.shape != UNKNOWN:
        given = DType.INT32 if node.op == "RANK" else TYPE_CODES.get(node.params["out_type"])
        if given is not target:
            return None  # the CPU gives the result this type, whatever the file says
        sizes = first.shape if node.op == "SHAPE" else len(first.shape)
        return [np.asarray(sizes, target.value)]
    arrays = [value.data for value in inputs if value.data is not None]
    if len(arrays) < len(inputs):
        return None
    if node.op == "DENSIFY":
        return [arrays[0]]  # spread out when the file was read
    if node.op == "DEQUANTIZE":
        # float16 weights stay float16 until a kernel packs them: half the memory to read.
        return [arrays[0]] if first.dtype is DType.FLOAT16 else None
    if any(value.elements > _MOST_ELEMENTS for value in inputs):
        return None
    if node.op in _MOVES or node.op in _NUMBERS:
        count = _COUNTS.get(node.op, _as_many)(node, arrays)
        if count > _MOST_ELEMENTS:
            return None
        budget.take(count * target.size)
    if node.op in _MOVES:
        moved = _MOVES[node.op](graph, node, arrays)
        return [np.ascontiguousarray(each).reshape(each.shape) for each in moved]
    whole = all(array.dtype.kind in "ib" for array in arrays)
    if node.op in _NUMBERS and whole and node.params.get("activation", "none") == "none":
        return [np.asarray(_NUMBERS[node.op](*arrays)).astype(target.value)]
    return None


def _reduced(reduce: Callable[..., Any]) -> Callable[[Graph, Node, Sequence[Array]], list[Array]]:
    def apply(_: Graph, node: Node, arrays: Sequence[Array]) -> list[Array]:
        data, axes = arrays
        if data.dtype.kind not in "ib":
            raise TypeError("sums of floats depend on their order")
        found = reduce(data, axis=tuple(np.ravel(axes)), keepdims=bool(node.params["keep_dims"]))
        return [np.asarray(found, data.dtype)]

    return apply


def _reshaped(graph: Graph, node: Node, arrays: Sequence[Array]) -> list[Array]:
    return [arrays[0].reshape(get(node.op).infer(graph, node)[0])]


def _sliced(graph: Graph, node: Node, arrays: Sequence[Array]) -> list[Array]:
    ranges = ranges_of(graph, node)
    for chosen, size in zip(ranges, arrays[0].shape, strict=True):
        if chosen and not 0 <= min(chosen[0], chosen[-1]) <= max(chosen[0], chosen[-1]) < size:
            raise ValueError("the slice reaches out of what it is cut from")
    taken = arrays[0][np.ix_(*ranges)] if ranges else arrays[0]
    return [taken.reshape(get(node.op).infer(graph, node)[0])]


def _parts(graph: Graph, node: Node, arrays: Sequence[Array]) -> list[Array]:
    op = get(node.op)
    if not isinstance(op, Parts):
        raise TypeError(f"{node.op} does not cut")
    source, axis, sizes = op.parts(graph, node)
    shapes = op.infer(graph, node)
    data = np.asarray(graph.values[source].data)
    cut = np.split(data, np.cumsum(sizes)[:-1], axis)
    return [part.reshape(shape) for part, shape in zip(cut, shapes, strict=True)]


def _gathered(_: Graph, node: Node, arrays: Sequence[Array]) -> list[Array]:
    if node.params.get("batch_dims", 0):
        raise ValueError("batches are left to the device")
    data, indices = arrays
    return [np.take(data, indices, axis=node.params["axis"])]


def _filled(_: Graph, __: Node, arrays: Sequence[Array]) -> list[Array]:
    sizes, value = arrays
    return [np.full(sizes, value)]


# How many elements all results have, told before any is made.


def _as_many(_: Node, arrays: Sequence[Array]) -> int:
    return sum(array.size for array in arrays)


def _broadcast(_: Node, arrays: Sequence[Array]) -> int:
    return math.prod(map(int, np.broadcast_shapes(*(array.shape for array in arrays))))


def _count_gathered(node: Node, arrays: Sequence[Array]) -> int:
    data, indices = arrays
    return int(data.size // max(data.shape[node.params["axis"]], 1) * indices.size)


def _count_filled(_: Node, arrays: Sequence[Array]) -> int:
    return math.prod(map(int, arrays[0].ravel()))


def _count_range(_: Node, arrays: Sequence[Array]) -> int:
    start, limit, delta = (int(array) for array in arrays)
    return max(0, -((start - limit) // delta))


_MOVES: Mapping[str, Callable[[Graph, Node, Sequence[Array]], list[Array]]] = {
    "CONCATENATION": lambda _, node, arrays: [np.concatenate(arrays, node.params["axis"])],
    "EXPAND_DIMS": _reshaped,
    "FILL": _filled,
    "GATHER": _gathered,
    "PACK": lambda _, node, arrays: [np.stack(arrays, node.params["axis"])],
    "REDUCE_ALL": _reduced(np.all),
    "REDUCE_ANY": _reduced(np.any),
    "REDUCE_MAX": _reduced(np.max),
    "REDUCE_MIN": _reduced(np.min),
    "REDUCE_PROD": _reduced(np.prod),
    "RESHAPE": _reshaped,
    "SLICE": _sliced,
    "SPLIT": _parts,
    "SPLIT_V": _parts,
    "SQUEEZE": _reshaped,
    "STRIDED_SLICE": _sliced,
    "SUM": _reduced(np.sum),
    "TRANSPOSE": lambda _, __, arrays: [np.transpose(arrays[0], np.ravel(arrays[1]))],
    "UNPACK": _parts,
}
"""Operations on elements of any type."""

_NUMBERS: Mapping[str, Callable[..., Any]] = {
    "ABS": np.abs,
    "ADD": np.add,
    "CAST": np.asarray,
    "DIV": lambda a, b: np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)),
    "EQUAL": np.equal,
    "FLOOR_DIV": np.floor_divide,
    "FLOOR_MOD": np.mod,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "LOGICAL_AND": np.logical_and,
    "LOGICAL_NOT": np.logical_not,
    "LOGICAL_OR": np.logical_or,
    "MAXIMUM": lambda a, b: np.maximum(a, b),
    "MINIMUM": lambda a, b: np.minimum(a, b),
    "MUL": np.multiply,
    "NEG": np.negative,
    "NOT_EQUAL": np.not_equal,
    "RANGE": np.arange,
    "SELECT": np.where,
    "SELECT_V2": np.where,
    "SUB": np.subtract,
}
"""Operations on integers and bools."""

_COUNTS: Mapping[str, Callable[[Node, Sequence[Array]], int]] = {
    **dict.fromkeys(_NUMBERS, _broadcast),
    "FILL": _count_filled,
    "GATHER": _count_gathered,
    "RANGE": _count_range,
}
"""Operations whose results may have more elements than their operands."""
