"""Lowers the nodes of a graph with a layout to kernel launches and packed constants."""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from litegpu.backends.base import Compilation
from litegpu.backends.constant_blocks import BLOCK_BYTES, BLOCK_THREADS, ConstantBlock
from litegpu.backends.program import BufferRange
from litegpu.codegen import (
    FLOAT,
    KINDS,
    RANGE,
    Argument,
    Epilogue,
    EpilogueText,
    KernelText,
    Register,
    Storage,
    TensorRef,
    register_of,
    render,
    round_up,
)
from litegpu.engine.budget import ConstantBudget
from litegpu.engine.choices import Choices
from litegpu.engine.groups import group_for, with_registers
from litegpu.engine.selected import Selected
from litegpu.engine.target import DeviceTarget
from litegpu.graph import SELF, EpilogueOp, Node, Value
from litegpu.kernels.base import Plan
from litegpu.ops.base import COPY, KernelRequest, get
from litegpu.ops.common.functions import (
    element_operands,
    expressions,
    is_bounded,
    keeps_sum,
    limits_of,
    registers,
)
from litegpu.ops.common.lazy_array import LazyArray
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.units import Operations

_T = TypeVar("_T")
RANGE_BINDING = -1
"""Placeholder for a base value in the binding of a kernel's range words."""
_PACKED_AHEAD = 256 << 20
"""Maximum number of bytes of large constants that are packed while compilers run.

The host packs more constants one after another when it uploads them.
"""
_PACKED_KINDS = {
    **{"float16": "F16", "float32": "F32"},
    **{"int8": "S8", "int16": "S16", "int32": "I32", "uint32": "U32"},
}


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One kernel launch of a partition, with its bindings and its work."""

    node: Node
    template: str
    kernel: KernelText
    bindings: tuple[tuple[int, bool], ...]
    """For each argument, the base value id, RANGE_BINDING (False), or the index of a constant
    (True).
    """
    offsets: tuple[int, ...]
    """For each argument, the byte offset in the base value or the constant."""
    storages: tuple[Storage | None, ...]
    """For each argument, the storage of the accessed value; None for constants and range words."""
    global_size: tuple[int, int, int]
    shape: tuple[int, int, int, int]
    """Shape of the output, [N, H, W, C]."""
    work: Operations
    """The minimum number of operations, as in KernelRequest."""
    nbytes: int
    """The minimum number of bytes to move: each buffer read once, and the output written once."""
    products: int
    """Number of matrix-unit products per product of values, as in KernelRequest."""
    problems: tuple[str, ...]
    """The launch's problems with the selected candidates, as in Choices."""
    noted: tuple[int, ...]
    """The values that the kernel rounds to half and whose range it records."""

    @property
    def bases(self) -> set[int]:
        found = {index for index, constant in self.bindings if not constant}
        return found - {RANGE_BINDING}


class PackedConstants(NamedTuple):
    """The constants of a program, as in `Program`, and the range of each array."""

    small: npt.NDArray[np.uint8]
    blocks: tuple[ConstantBlock, ...]
    ranges: Sequence[BufferRange]


@dataclass
class Constants:
    """Packed constants of a partition; a constant that several kernels read is packed once."""

    arrays: list[LazyArray] = field(default_factory=list)
    by_value: dict[int, int] = field(default_factory=dict)
    budget: ConstantBudget = field(default_factory=ConstantBudget)

    def add(self, array: npt.NDArray[Any] | LazyArray) -> int:
        """Add an array to the constants and return its index.

        Raises DeviceMemoryError if the constants exceed the budget.
        """
        self.budget.take(array.nbytes)
        self.arrays.append(array if isinstance(array, LazyArray) else LazyArray.of(array))
        return len(self.arrays) - 1

    def add_value(self, value: Value, storage: Storage) -> int:
        """Add a constant value once, in the layout of its storage."""
        if value.id not in self.by_value:
            data, rows = value.data, value.elements // storage.channels
            dtype = np.dtype(storage.dtype.value)

            def fill(out: npt.NDArray[Any]) -> None:
                whole = np.asarray(data).reshape(rows, storage.channels)
                out.reshape(rows, storage.pitch)[:, : storage.channels] = whole

            array = LazyArray(dtype, rows * storage.pitch, fill)
            self.by_value[value.id] = self.add(array)
        return self.by_value[value.id]

    def pack(self, alignment: int) -> PackedConstants:
        """Pack the small arrays, and the large ones unless they would need much host memory."""
        ranges, small, blocks, end = [], list[tuple[int, LazyArray]](), list[ConstantBlock](), 0
        for array in self.arrays:
            if array.nbytes >= BLOCK_BYTES:
                ranges.append(BufferRange(True, 0, array.nbytes, len(blocks)))
                nbytes = round_up(array.nbytes, alignment)
                blocks.append(ConstantBlock(nbytes, partial(_packed, array, nbytes)))
            else:
                ranges.append(BufferRange(True, end, array.nbytes))
                small.append((end, array))
                end = round_up(end + array.nbytes, alignment)
        whole = np.zeros(end, np.uint8)
        for start, array in small:
            array.fill(whole[start : start + array.nbytes].view(array.dtype))
        if 0 < sum(block.nbytes for block in blocks) <= _PACKED_AHEAD:
            with ThreadPoolExecutor(BLOCK_THREADS, "litegpu-pack") as pool:
                blocks = [*pool.map(ConstantBlock.packed, blocks)]
        return PackedConstants(whole, tuple(blocks), ranges)


def _packed(array: LazyArray, nbytes: int) -> npt.NDArray[np.uint8]:
    """Return the bytes of an array, with zeros up to `nbytes`."""
    block = np.zeros(nbytes, np.uint8)
    array.fill(block[: array.nbytes].view(array.dtype))
    return block


@dataclass
class Lowering:
    """Lowers a graph node by node; ops use it as their LowerContext."""

    selected: Selected
    target: DeviceTarget
    choices: Choices
    compilation: Compilation | None = None
    constants: Constants = field(default_factory=Constants)
    _problems: list[str] = field(default_factory=list)
    """Problems of the node that is currently lowered."""
    _rendered: dict[str, tuple[object, KernelText]] = field(default_factory=dict)
    """Rendered kernel texts, by all data that determine a text. The keys keep objects alive that
    are identified by address.

    Nodes that differ only in their values share a kernel text.
    """

    def value(self, value_id: int) -> Value:
        """Return a value of the graph."""
        return self.selected.value(value_id)

    def storage(self, value_id: int) -> Storage:
        """Return the storage of a value."""
        return self.selected.storage(value_id)

    def plans(self, node: Node) -> Sequence[Plan]:
        """Return the plan selected for each spec of a node."""
        return self.selected.plans(node)

    def choose(self, problem: Hashable, candidates: Sequence[_T]) -> _T:
        """Return one of the candidates, as LowerContext.choose specifies."""
        self._problems.append(repr(problem))
        return self.choices.choose(self._problems[-1], candidates)

    def lower_all(self) -> list[KernelLaunch]:
        """Lower every node in order."""
        nodes = self.selected.layout.graph.nodes
        return [launch for node in nodes for launch in self._launches(node, node.op)]

    def _launches(self, node: Node, op: str) -> Iterator[KernelLaunch]:
        """Lower a node; epilogue ops that exceed the kernel's buffer limit become copies."""
        self._problems.clear()
        requests = get(op).lower(node, self)
        problems = tuple(self._problems)
        epilogue = node.epilogue
        count = min((self._fitting(epilogue, each) for each in requests), default=len(epilogue))
        for request in requests:
            yield self._launch(replace(node, epilogue=epilogue[:count]), request, problems)
        if count < len(epilogue):
            # Only after everything is written: a kernel may have computed only a part of the
            # output.
            in_place = node.outputs[:1]
            copy = Node(node.index, COPY, 1, in_place, in_place, epilogue=epilogue[count:])
            yield from self._launches(copy, COPY)

    def _fitting(self, epilogue: Sequence[EpilogueOp], request: KernelRequest) -> int:
        """Return how many of a kernel's epilogue ops have operands that fit its buffer limit."""
        own = 1 + len(request.writes) + len(request.reads) + len(request.parts)
        own += len(request.constants)
        inner = (*request.inner_epilogue, *request.innermost_epilogue)
        room = self.target.max_arguments - own - sum(map(self._buffers_of, inner))
        ends = accumulate(map(self._buffers_of, epilogue))
        return sum(end <= room for end in ends)

    def _buffers_of(self, epilogue_op: EpilogueOp) -> int:
        reads = (v for v in epilogue_op.operands if v != SELF)
        return sum(not self.is_text(v, epilogue_op.extend) for v in reads)

    def is_text(self, value_id: int, extend: bool) -> bool:
        """Whether an operand is a single number, which becomes a literal in the kernel's text."""
        value = self.value(value_id)
        return value.is_constant and value.elements == 1 and not extend

    def _launch(
        self, node: Node, request: KernelRequest, problems: tuple[str, ...]
    ) -> KernelLaunch:
        buffers = _Buffers(self)
        dst_storage = request.destination or self.storage(request.output)
        dst = buffers.destination(request.output, dst_storage, written=request.written)
        tensors: dict[str, Any] = {"dst": dst}
        for name, value_id in request.writes.items():
            tensors[name] = buffers.destination(value_id, self.storage(value_id), name)
        for name, value_id in request.reads.items():
            tensors[name] = buffers.value(name, value_id, needed=request.needed.get(name))
        if request.parts:
            tensors["parts"] = [buffers.value(f"part{i}", v) for i, v in enumerate(request.parts)]
        variables = dict(request.variables)
        for name, array in request.constants.items():
            variables[f"{name}_kind"] = buffers.packed(name, array)
        sums = Trait.SUMS_PRODUCTS in get(node.op).traits
        epilogue = buffers.epilogue("e", node.epilogue, sums, request.accumulator)
        inner = buffers.epilogue("i", request.inner_epilogue, of_sum=True)
        innermost = buffers.epilogue("j", request.innermost_epilogue, of_sum=True)
        buffers.range_words()
        local = request.local or group_for(request.grid, self.target, not request.work)
        sizes = [round_up(g, b) for g, b in zip(request.grid, local, strict=True)]
        groups, items = math.prod(sizes) // math.prod(local), math.prod(local)
        words = (
            request.template,
            variables,
            tensors,
            Epilogue(dst, epilogue, request.accumulator),
            tuple(buffers.arguments),
            local,
            request.shared,
            (inner, innermost),
            groups,
            with_registers(request.attributes, groups, items, self.target),
        )
        # Equal numbers may have different texts: 1, 1.0 and True.
        key = repr(words)
        if key not in self._rendered:
            self._rendered[key] = words, render(*words)
        kernel = self._rendered[key][1]
        if self.compilation is not None:
            self.compilation.add(kernel)
        x, y, z = sizes
        return KernelLaunch(
            node,
            request.template,
            kernel,
            tuple(buffers.bindings),
            tuple(buffers.offsets),
            tuple(buffers.storages),
            (x, y, z),
            dst.shape,
            request.work,
            sum(buffers.moved.values()),
            request.products,
            problems,
            tuple(buffers.noted),
        )


@dataclass
class _Buffers:
    """Collects the buffers of one kernel: their names in the kernel text, and their bindings."""

    lowering: Lowering
    arguments: list[Argument] = field(default_factory=list)
    bindings: list[tuple[int, bool]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    storages: list[Storage | None] = field(default_factory=list)
    moved: dict[tuple[int, bool, Storage | None], int] = field(default_factory=dict)
    """Bytes to move for each part of a buffer; a kernel counts each part once."""
    noted: list[int] = field(default_factory=list)

    def destination(
        self, value_id: int, storage: Storage, name: str = "dst", written: int | None = None
    ) -> TensorRef:
        """Bind the kernel's output; `written` has the same meaning as in KernelRequest."""
        self._move((storage.base, False, storage), written)
        storage = self._bind(name, storage, storage.base, constant=False, written=True)
        noted = self.lowering.selected.layout.is_rounded(value_id)
        if noted:
            self.noted.append(value_id)
        return TensorRef(name, storage, noted=noted)

    def range_words(self) -> None:
        """Bind the range words, if the kernel rounds values to half."""
        if self.noted:
            self.arguments.append(Argument(RANGE, "U32", vector=False, written=True))
            self.bindings.append((RANGE_BINDING, False))
            self.offsets.append(0)
            self.storages.append(None)

    def value(
        self, name: str, value_id: int, extend: bool = False, needed: int | None = None
    ) -> TensorRef:
        """Bind a value that the kernel reads; `needed` has the same meaning as in KernelRequest."""
        storage, value = self.lowering.storage(value_id), self.lowering.value(value_id)
        index = storage.base
        if value.is_constant:
            index = self.lowering.constants.add_value(value, storage)
        self._move((index, value.is_constant, storage), needed)
        storage = self._bind(name, storage, index, value.is_constant, written=False)
        return TensorRef(name, storage, extend)

    def packed(self, name: str, array: npt.NDArray[Any] | LazyArray) -> str:
        """Bind an array that an op packed; return the element type of the array."""
        kind = _PACKED_KINDS[array.dtype.name]
        self.arguments.append(Argument(name, kind, True, False, True))
        number = self.lowering.constants.add(array)
        self.bindings.append((number, True))
        self.offsets.append(0)
        self.storages.append(None)
        self.moved[number, True, None] = array.nbytes
        return kind

    def epilogue(
        self, prefix: str, epilogue: Sequence[EpilogueOp], of_sum: bool, running: Register = FLOAT
    ) -> tuple[EpilogueText, ...]:
        """Bind the operands of elementwise ops; scalars become literals in the kernel's text.

        `of_sum`: whether the first op's operand is a sum of products; `running`: the register type
        of the accumulator.
        """
        sums = accumulate(map(keeps_sum, epilogue), operator.and_, initial=of_sum)
        texts = []
        for i, (epilogue_op, is_sum) in enumerate(zip(epilogue, sums, strict=False)):
            read = [running if v == SELF else self._register(v) for v in epilogue_op.operands]
            typed, result = registers(epilogue_op, running, read)
            elements = len(element_operands(epilogue_op))
            operands = (
                self._operand(f"{prefix}{i}_{k}", v, epilogue_op.extend, k >= elements)
                for k, v in enumerate(epilogue_op.operands)
                if v != SELF
            )
            *steps, text = expressions(epilogue_op, is_sum, typed)
            facts = (is_bounded(epilogue_op), result, limits_of(epilogue_op))
            texts.append(EpilogueText(text, tuple(operands), *facts, tuple(steps)))
            running = result
        return tuple(texts)

    def _register(self, value_id: int) -> Register:
        return register_of(self.lowering.storage(value_id).dtype)

    def _operand(self, name: str, value_id: int, extend: bool, table: bool) -> TensorRef | str:
        if table:
            return self.value(name, value_id).name
        if self.lowering.is_text(value_id, extend):
            register = self._register(value_id)
            number = np.ravel(np.asarray(self.lowering.value(value_id).data)).tolist()[0]
            return register.splat(register.literal(number))
        return self.value(name, value_id, extend)

    def _bind(
        self, name: str, storage: Storage, index: int, constant: bool, written: bool
    ) -> Storage:
        """Bind a buffer; return the storage of the value in that buffer.

        If the device's alignment permits, the bound range of the buffer begins at the value, so
        that kernels which differ only in offsets share one text.
        """
        offset, storage = storage.split(self.lowering.target.offset_alignment)
        kind = KINDS[storage.dtype]
        self.arguments.append(Argument(name, kind, storage.vector, written, constant))
        self.bindings.append((index, constant))
        self.offsets.append(offset)
        self.storages.append(None if constant else storage)
        return replace(storage, base=0)  # no text depends on which value it is

    def _move(self, part: tuple[int, bool, Storage], needed: int | None) -> None:
        storage = part[2]
        elements = storage.rows * storage.padded_channels  # not the gaps between the rows
        nbytes = storage.dtype.size * (elements if needed is None else min(elements, needed))
        self.moved[part] = max(nbytes, self.moved.get(part, 0))
