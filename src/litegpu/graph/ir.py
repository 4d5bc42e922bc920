"""Data classes of the model: values (tensors), nodes (operations) and the graph.

All objects of a graph are immutable. A pass creates modified copies with `dataclasses.replace`.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

ABSENT = -1
"""The placeholder id of an optional input that a node does not have."""

SELF = -2
"""The placeholder id of the running result among the operands of an epilogue op."""


class DType(enum.Enum):
    """The element type of a value; member names are the type names that the runtime prints."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    FLOAT64 = "float64"
    INT2 = "int2"
    INT4 = "int4"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    UINT32 = "uint32"
    INT64 = "int64"
    UINT64 = "uint64"
    BOOL = "bool"
    COMPLEX64 = "complex64"
    OTHER = "other"

    @property
    def size(self) -> int:
        """The size of an element in bytes; 0 for packed types and for types that are never read."""
        return _SIZES[self]

    @property
    def packed_bits(self) -> int:
        """The number of bits of an element of a packed type; 0 if the type is not packed."""
        return _PACKED_BITS.get(self, 0)

    __hash__ = object.__hash__  # each member is one object; hashing its name would be slow


_PACKED_BITS = {DType.INT2: 2, DType.INT4: 4}
PACKED_TYPES = frozenset(_PACKED_BITS)
"""Packed types of constants: several elements share a byte in the file, but not in `Value.data`."""
_SIZES = {
    dtype: 0 if dtype in (DType.OTHER, *PACKED_TYPES) else np.dtype(dtype.value).itemsize
    for dtype in DType
}


@dataclass(frozen=True, slots=True)
class Quantization:
    """Affine quantization: real = scale * (q - zero_point), per tensor or along one dimension."""

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    dimension: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Blockwise:
    """Blockwise quantization of a matrix [O, I]: one scale for each block of a row.

    The array `scales` has the shape [O, I / size]: one scale for each block of `size` adjacent
    elements. Blockwise quantization has no zero points.
    """

    scales: npt.NDArray[np.float16]
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One tensor. Only constants have `data`. `shape` is not padded to 4 dimensions.

    A `precise` value is never stored as float16. A constant that `is_sparse` is stored in a sparse
    format in the file, but `data` is dense. `siblings` is the number of values that a pass has
    concatenated into this value. The precision of a concatenated value depends on the size of a
    single sibling, so the concatenation does not reduce precision. `signature` is the shape in the
    model file with -1 for each dynamic size, or () if all sizes are static. A constant with
    `blockwise` quantization has no `quantization`.
    """

    id: int
    name: str
    shape: tuple[int, ...]
    dtype: DType
    data: npt.NDArray[Any] | None = None
    is_variable: bool = False
    quantization: Quantization | None = None
    precise: bool = False
    is_sparse: bool = False
    siblings: int = 1
    signature: tuple[int, ...] = ()
    blockwise: Blockwise | None = None

    @property
    def is_constant(self) -> bool:
        return self.data is not None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def shape4(self) -> tuple[int, int, int, int]:
        """The shape as [N, H, W, C].

        Shapes with fewer than 4 dimensions get leading dimensions of size 1, as in NumPy's
        broadcasting. N is the product of all dimensions before the last three.
        """
        outer = len(self.shape) - 3
        if outer < 1:
            n, h, w, c = (1,) * (1 - outer) + self.shape
        else:
            n, h, w, c = math.prod(self.shape[:outer]), *self.shape[outer:]
        return n, h, w, c


@dataclass(frozen=True, slots=True)
class Step:
    """One function in an epilogue op that consists of several functions.

    `inputs` are numbers of earlier results: 0 is the running result, then follow the operands of
    the epilogue op, then the results of the earlier steps.
    """

    function: str
    inputs: tuple[int, ...] = (0,)
    attributes: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class EpilogueOp:
    """One elementwise op that is applied to a node's result before the kernel stores this result.

    The running result is the op's input at `position`; `operands` are the other inputs. The kernel
    reads zeros for missing trailing channels of an operand that `extend` marks. An op with `steps`
    applies several functions, each to any earlier results; the last step has the op's result.
    """

    function: str
    operands: tuple[int, ...] = ()
    position: int = 0
    attributes: tuple[tuple[str, float], ...] = ()
    extend: bool = False
    steps: tuple[Step, ...] = ()

    def with_operands(self, find: Callable[[int], int]) -> EpilogueOp:
        """Return the op with each operand but SELF replaced by what `find` returns for it."""
        operands = tuple(v if v == SELF else find(v) for v in self.operands)
        return replace(self, operands=operands)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operation.

    `index` is the node's number in the runtime's graph. `params` are the fields of the C parameter
    struct. `attributes` contains data that the op derives from `params`, such as explicit padding.
    `epilogue` lists the elementwise ops that were fused into the node, and `merged` lists the
    indices of their original nodes. `graphs` are the subgraphs that the node runs, such as the
    condition and the body of a WHILE. The value ids of a subgraph are separate from those of the
    main graph.
    """

    index: int
    op: str
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    custom: bytes = b""
    attributes: Any = None
    epilogue: tuple[EpilogueOp, ...] = ()
    merged: tuple[int, ...] = ()
    graphs: tuple[Graph, ...] = ()

    @property
    def operands(self) -> tuple[int, ...]:
        """All values that the node reads: the node's inputs, then the inputs of its epilogue."""
        extra = tuple(v for epilogue_op in self.epilogue for v in epilogue_op.operands if v != SELF)
        return tuple(v for v in self.inputs if v != ABSENT) + extra

    def reading(self, names: Mapping[int, int]) -> Node:
        """Return the node with its input values replaced as the mapping `names` specifies."""
        if not any(v in names for v in self.operands):
            return self
        epilogue = tuple(each.with_operands(lambda v: names.get(v, v)) for each in self.epilogue)
        return replace(self, inputs=tuple(names.get(v, v) for v in self.inputs), epilogue=epilogue)


class ValueIds(tuple[int, ...]):
    """A sequence of value ids with a set for fast membership tests."""

    @cached_property
    def _members(self) -> frozenset[int]:
        return frozenset(self)

    def __contains__(self, value_id: object) -> bool:
        return value_id in self._members


@dataclass(frozen=True, eq=False)
class Graph:
    """A table of values, and nodes in execution order; `inputs` and `outputs` are value ids."""

    values: Mapping[int, Value]
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def __post_init__(self) -> None:
        """Convert `inputs` and `outputs` to ValueIds, for fast membership tests."""
        for name, ids in (("inputs", self.inputs), ("outputs", self.outputs)):
            if not isinstance(ids, ValueIds):
                object.__setattr__(self, name, ValueIds(ids))

    def producers(self) -> Mapping[int, Node]:
        """Map each computed value id to the node that computes it."""
        return self._producers

    def consumers(self) -> Mapping[int, list[Node]]:
        """Map each value id to the nodes that read it, once per node."""
        return self._consumers

    def reads(self) -> Counter[int]:
        """Count how often each value id occurs among the inputs of nodes."""
        return self._reads

    @cached_property
    def _reads(self) -> Counter[int]:
        return Counter(v for node in self.nodes for v in node.inputs)

    @cached_property
    def _producers(self) -> Mapping[int, Node]:
        return {v: node for node in self.nodes for v in node.outputs}

    @cached_property
    def _consumers(self) -> Mapping[int, list[Node]]:
        found: dict[int, list[Node]] = {}
        for node in self.nodes:
            for v in dict.fromkeys(node.operands):
                found.setdefault(v, []).append(node)
        return found

    def fresh_ids(self) -> Iterable[int]:
        """Yield value ids that the graph does not use."""
        start = max(self.values, default=0) + 1
        while True:
            yield start
            start += 1

    def verify(self) -> None:
        """Raise ValueError if a value is read before it is computed, or computed twice."""
        ready = set(self.inputs) | {v.id for v in self.values.values() if v.is_constant}
        for node in self.nodes:
            for v in node.operands:
                if v not in ready:
                    raise ValueError(
                        f"node {node.index} ({node.op}) reads value {v} before a node produces it"
                    )
            for v in node.outputs:
                if v in ready:
                    raise ValueError(
                        f"node {node.index} ({node.op}) produces value {v} a second time"
                    )
                ready.add(v)
        for v in self.outputs:
            if v not in ready:
                raise ValueError(f"graph output {v} is never produced")
