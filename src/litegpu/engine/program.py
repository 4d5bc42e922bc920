"""From a placed graph to a device program: memory plan, ranges of the buffers, launches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from litegpu.backends.base import DeviceInfo
from litegpu.backends.program import BufferRange, Launch, Program
from litegpu.codegen import round_up
from litegpu.engine import memory
from litegpu.engine.budget import ConstantBudget
from litegpu.engine.choices import Choices
from litegpu.engine.layout import Layout
from litegpu.engine.lowering import RANGE_BINDING, KernelLaunch, Lowering
from litegpu.engine.ranges import RangeWords
from litegpu.engine.selected import Selected
from litegpu.engine.target import DeviceTarget
from litegpu.graph import DType

_CONSTANT_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class BuiltProgram:
    """A program with the launches behind it and its memory figures in bytes."""

    program: Program
    launches: tuple[KernelLaunch, ...]
    lower_bound: int
    offsets: Mapping[int, int]
    """Byte offset of each root value in the partition's memory."""
    words: RangeWords | None
    """Where kernels tell the range of what they round to half; None where none does.

    The program has one input and one output more for them, the last.
    """


def build_program(
    layout: Layout,
    info: DeviceInfo,
    inputs: Sequence[int],
    outputs: Sequence[int],
    share_memory: bool = True,
    choices: Choices | None = None,
    selected: Selected | None = None,
) -> BuiltProgram:
    """Lower a placed graph for a device. `inputs` and `outputs` are the values to transfer.

    `choices` among candidates are those of the estimates if there are none, and what is `selected`
    to compute the nodes is selected here.
    """
    target = DeviceTarget(info, layout.half_from, layout.has_halves)
    lowering = Lowering(selected or Selected(layout, target), target, choices or Choices())
    lowering.constants.budget = ConstantBudget.of(layout.graph)
    launches = lowering.lower_all()
    roots = list(layout.roots)
    usages = list(_usages(layout, launches, roots))
    planner = memory.plan_shared if share_memory else memory.plan_separate
    plan = planner(usages, info.buffer_alignment)
    offsets = dict(zip(roots, plan.offsets, strict=True))
    ranges = {root: BufferRange(False, offsets[root], _size(layout, root)) for root in roots}
    block, constant_ranges = lowering.constants.pack(
        max(info.buffer_alignment, _CONSTANT_ALIGNMENT)
    )
    noted = tuple(launch.noted for launch in launches if launch.noted)
    words = RangeWords.place(noted, plan.size, info.buffer_alignment) if noted else None
    ends = (words.block,) if words else ()
    tellers = count()
    bound = []
    for launch in launches:
        if words and launch.noted:
            ranges[RANGE_BINDING] = words.range_of(next(tellers))
        bound.append(
            Launch(
                launch.kernel.name,
                tuple(constant_ranges[i] if fixed else ranges[i] for i, fixed in launch.bindings),
                launch.global_size,
                launch.kernel.local_size,
            )
        )
    kernels = {launch.kernel.name: launch.kernel for launch in launches}
    program = Program(
        tuple(kernels.values()),
        tuple(bound),
        words.block.offset + words.block.size if words else max(plan.size, 4),
        block,
        (*(ranges[v] for v in inputs), *ends),
        (*(ranges[v] for v in outputs), *ends),
        _sole_writers(launches, inputs, outputs),
    )
    lower_bound = memory.lower_bound(usages) + (words.block.size if words else 0)
    return BuiltProgram(program, tuple(launches), lower_bound, offsets, words)


def _sole_writers(
    launches: Sequence[KernelLaunch], inputs: Sequence[int], outputs: Sequence[int]
) -> dict[int, tuple[int, int]]:
    """Return what Program.sole_writers says, from the root values that the launches bind."""
    uses: dict[int, list[tuple[int, int]]] = {}
    for number, launch in enumerate(launches):
        for argument, (root, constant) in enumerate(launch.bindings):
            if not constant:
                uses.setdefault(root, []).append((number, argument))
    return {
        number: uses[v][0]
        for number, v in enumerate(outputs)
        if len(uses.get(v, ())) == 1 and v not in inputs and outputs.count(v) == 1
    }


def _size(layout: Layout, root: int) -> int:
    """Return the bytes of a value; bools are written in whole words, but the host has no more."""
    storage = layout.storages[root]
    return layout.graph.values[root].elements if storage.dtype is DType.BOOL else storage.nbytes


def _usages(
    layout: Layout, launches: Sequence[KernelLaunch], roots: Iterable[int]
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
