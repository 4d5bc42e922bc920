"""From a rewritten graph to a device program: kernels, memory plan, constants, launches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.backends.base import DeviceInfo, Dispatch, Program, Slot
from litegpu.codegen import (
    Argument,
    Epilogue,
    KernelText,
    StageText,
    Storage,
    TensorRef,
    render,
    round_up,
)
from litegpu.engine import memory
from litegpu.engine.layout import Layout
from litegpu.engine.target import DeviceTarget
from litegpu.graph import SELF, DType, Node, Stage, Value
from litegpu.ops import find
from litegpu.ops.base import HALF_MAX, KernelRequest, as_float32
from litegpu.ops.elementwise import expression, literal

_CONSTANT_ALIGNMENT = 256
_KINDS = {"float16": "F16", "float32": "F32", "uint32": "U32"}


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch of a partition, and what it costs at least."""

    node: Node
    kernel: KernelText
    bindings: tuple[tuple[int, bool], ...]
    """Per argument: root value id (False), or number of a packed constant (True)."""
    global_size: tuple[int, int, int]
    flops: int
    nbytes: int

    @property
    def roots(self) -> set[int]:
        return {index for index, constant in self.bindings if not constant}


@dataclass
class Constants:
    """Packed constants of a partition; equal value ids are packed once."""

    arrays: list[npt.NDArray[Any]] = field(default_factory=list)
    by_value: dict[int, int] = field(default_factory=dict)

    def add(self, array: npt.NDArray[Any]) -> int:
        """Keep an array and return its number."""
        self.arrays.append(np.ascontiguousarray(array))
        return len(self.arrays) - 1

    def add_value(self, value: Value, storage: Storage) -> int:
        """Keep a constant value as its storage lays it out, once."""
        if value.id not in self.by_value:
            rows = as_float32(value).reshape(-1, storage.channels)
            if storage.dtype is DType.FLOAT16:
                rows = np.clip(rows, -HALF_MAX, HALF_MAX)
            padded = np.zeros((rows.shape[0], storage.pitch), storage.dtype.value)
            padded[:, : storage.channels] = rows
            self.by_value[value.id] = self.add(padded)
        return self.by_value[value.id]

    def pack(self, alignment: int) -> tuple[npt.NDArray[np.uint8], list[Slot]]:
        """Return all arrays in one block, and the range of each."""
        slots, end = [], 0
        for array in self.arrays:
            slots.append(Slot(True, end, array.nbytes))
            end = round_up(end + array.nbytes, alignment)
        block = np.zeros(end, np.uint8)
        for slot, array in zip(slots, self.arrays, strict=True):
            block[slot.offset : slot.offset + slot.size] = array.reshape(-1).view(np.uint8)
        return block, slots


@dataclass
class Lowering:
    """Chooses kernels node by node; the ops see it as their LowerContext."""

    layout: Layout
    target: DeviceTarget
    constants: Constants = field(default_factory=Constants)
    launches: list[Launch] = field(default_factory=list)

    def value(self, value_id: int) -> Value:
        """Return a value of the graph."""
        return self.layout.graph.values[value_id]

    def storage(self, value_id: int) -> Storage:
        """Return where a value lies."""
        return self.layout.storages[value_id]

    def lower_all(self) -> None:
        """Lower every node in order."""
        for node in self.layout.graph.nodes:
            op = find(node.op)
            if op is None:
                raise KeyError(f"no op is registered for {node.op}")
            for request in op.lower(node, self):
                self.launches.append(self._launch(node, request))

    def _launch(self, node: Node, request: KernelRequest) -> Launch:
        arguments: list[Argument] = []
        bindings: list[tuple[int, bool]] = []

        def bind(name: str, storage: Storage, index: int, constant: bool, written: bool) -> None:
            kind = "F16" if storage.dtype.size == 2 else "F32"
            arguments.append(Argument(name, kind, storage.vector, written, constant))
            bindings.append((index, constant))

        def bind_value(name: str, value_id: int, extend: bool = False) -> TensorRef:
            storage, value = self.storage(value_id), self.value(value_id)
            if value.is_constant:
                bind(name, storage, self.constants.add_value(value, storage), True, False)
            else:
                bind(name, storage, storage.root, False, False)
            return TensorRef(name, storage, extend)

        destination = request.destination or self.storage(request.output)
        bind("dst", destination, destination.root, False, True)
        dst = TensorRef("dst", destination)
        tensors: dict[str, Any] = {"dst": dst}
        for name, value_id in request.reads.items():
            tensors[name] = bind_value(name, value_id)
        if request.parts:
            tensors["parts"] = [bind_value(f"part{i}", v) for i, v in enumerate(request.parts)]
        variables = dict(request.variables)
        for name, array in request.constants.items():
            kind = _KINDS[array.dtype.name]
            arguments.append(Argument(name, kind, True, False, True))
            bindings.append((self.constants.add(array), True))
            variables[f"{name}_kind"] = kind
        stages = [self._stage(f"e{i}", s, bind_value) for i, s in enumerate(node.stages)]
        inner = [self._stage(f"i{i}", s, bind_value) for i, s in enumerate(request.inner_stages)]
        kernel = render(
            request.template,
            variables,
            tensors,
            Epilogue(dst, tuple(stages)),
            tuple(arguments),
            request.local,
            request.shared,
            tuple(inner),
        )
        sizes = [round_up(g, b) for g, b in zip(request.grid, request.local, strict=True)]
        read = [self.storage(v).nbytes for v in (*request.reads.values(), *request.parts)]
        packed = sum(array.nbytes for array in request.constants.values())
        return Launch(
            node,
            kernel,
            tuple(bindings),
            (sizes[0], sizes[1], sizes[2]),
            request.flops,
            destination.nbytes + sum(read) + packed,
        )

    def _stage(
        self, name: str, stage: Stage, bind_value: Callable[[str, int, bool], TensorRef]
    ) -> StageText:
        operands: list[TensorRef | str] = []
        for i, value_id in enumerate(v for v in stage.operands if v != SELF):
            value = self.value(value_id)
            if value.is_constant and value.elements == 1 and not stage.extend:
                operands.append(f"SPLAT4({literal(float(as_float32(value).ravel()[0]))})")
            else:
                operands.append(bind_value(f"{name}_{i}", value_id, stage.extend))
        return StageText(expression(stage), tuple(operands))


@dataclass(frozen=True, slots=True)
class BuiltProgram:
    """A program with the launches behind it and its memory figures in bytes."""

    program: Program
    launches: tuple[Launch, ...]
    lower_bound: int
    offsets: Mapping[int, int]
    """Byte offset of each root value in the partition's memory."""


def build_program(
    layout: Layout,
    info: DeviceInfo,
    inputs: Sequence[int],
    outputs: Sequence[int],
    share_memory: bool = True,
) -> BuiltProgram:
    """Lower a placed graph for a device. `inputs` and `outputs` are the values to transfer."""
    lowering = Lowering(layout, DeviceTarget(info, layout.half_from))
    lowering.lower_all()
    roots = list(layout.roots)
    usages = list(_usages(layout, lowering.launches, roots))
    planner = memory.plan_shared if share_memory else memory.plan_separate
    plan = planner(usages, info.buffer_alignment)
    offsets = dict(zip(roots, plan.offsets, strict=True))
    slots = {
        root: Slot(False, offsets[root], usage.size)
        for root, usage in zip(roots, usages, strict=True)
    }
    block, constant_slots = lowering.constants.pack(max(info.buffer_alignment, _CONSTANT_ALIGNMENT))
    dispatches = tuple(
        Dispatch(
            launch.kernel.name,
            tuple(constant_slots[i] if fixed else slots[i] for i, fixed in launch.bindings),
            launch.global_size,
            launch.kernel.local_size,
        )
        for launch in lowering.launches
    )
    kernels = {launch.kernel.name: launch.kernel for launch in lowering.launches}
    program = Program(
        tuple(kernels.values()),
        dispatches,
        max(plan.size, 4),
        block,
        tuple(slots[v] for v in inputs),
        tuple(slots[v] for v in outputs),
    )
    bound = memory.lower_bound(usages)
    return BuiltProgram(program, tuple(lowering.launches), bound, offsets)


def _usages(
    layout: Layout, launches: Sequence[Launch], roots: Iterable[int]
) -> Iterable[memory.Usage]:
    """Yield size and life of each root; inputs live from the start, outputs to the end."""
    first: dict[int, int] = dict.fromkeys(layout.graph.inputs, 0)
    last: dict[int, int] = dict.fromkeys(layout.graph.outputs, max(len(launches) - 1, 0))
    for number, launch in enumerate(launches):
        for root in launch.roots:
            first.setdefault(root, number)
            last[root] = max(last.get(root, 0), number)
    for root in roots:
        start = first.get(root, 0)
        size = layout.storages[root].nbytes
        yield memory.Usage(round_up(size, 16), start, max(last.get(root, start), start))
