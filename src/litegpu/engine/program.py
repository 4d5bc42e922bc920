"""Builds a device program from a layout: memory plan, buffer ranges, launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from litegpu.backends.base import Compilation, DeviceInfo
from litegpu.backends.program import BufferRange, Launch, Program, Span, Update
from litegpu.codegen import Storage, round_up
from litegpu.engine import memory
from litegpu.engine.budget import ConstantBudget
from litegpu.engine.choices import Choices
from litegpu.engine.layout import Layout
from litegpu.engine.lowering import RANGE_BINDING, KernelLaunch, Lowering
from litegpu.engine.ranges import RangeWords
from litegpu.engine.selected import Selected
from litegpu.engine.target import DeviceTarget
from litegpu.ops.common.placement import is_small

_CONSTANT_ALIGNMENT = 256
_READ_AT_ONCE = 16
"""Padding in bytes: a kernel may read to the end of the vector that contains the last element."""


@dataclass(frozen=True, slots=True)
class BuiltProgram:
    """A device program, the kernel launches that it consists of, and its memory use in bytes."""

    program: Program
    launches: tuple[KernelLaunch, ...]
    lower_bound: int
    offsets: Mapping[int, int]
    """Byte offset of each base value in the partition's memory."""
    words: RangeWords | None
    """The range words of values that kernels round to half; None if there are no such values.

    The range words, if there are any, are the program's last input and last output.
    """


def build_program(
    layout: Layout,
    info: DeviceInfo,
    inputs: Sequence[int],
    outputs: Sequence[int],
    share_memory: bool = True,
    choices: Choices | None = None,
    selected: Selected | None = None,
    compilation: Compilation | None = None,
) -> BuiltProgram:
    """Lower a graph with a layout for a device. `inputs` and `outputs` are the values to transfer.

    Values may share memory according to the order of the launches. Without `choices`, candidates
    are selected by estimates; without `selected`, this function selects the implementations. The
    function adds kernels to a `compilation` as soon as it has rendered them.
    """
    target = DeviceTarget(info, layout.policy, layout.has_halves)
    selected = selected or Selected(layout, target)
    lowering = Lowering(selected, target, choices or Choices(), compilation)
    lowering.constants.budget = ConstantBudget.of(layout.graph)
    launches = lowering.lower_all()
    if compilation is not None:
        compilation.flush()
    bases = list(layout.bases)
    usages = list(_usages(layout, launches, bases))
    alignment = info.buffer_alignment
    packed = lowering.constants.pack(max(alignment, _CONSTANT_ALIGNMENT))
    noted = tuple(launch.noted for launch in launches if launch.noted)

    plan = (memory.plan_shared if share_memory else memory.plan_separate)(usages, alignment)
    ranges = {
        base: BufferRange(False, offset, layout.storages[base].nbytes)
        for base, offset in zip(bases, plan.offsets, strict=True)
    }
    words = RangeWords.place(noted, plan.size, alignment) if noted else None
    placed = _Bound(ranges, packed.ranges, words)
    ends = (words.block,) if words else ()
    kernels = {launch.kernel.name: launch.kernel for launch in launches}
    program = Program(
        tuple(kernels.values()),
        placed.launches(launches),
        words.block.offset + words.block.size if words else max(plan.size, 4),
        packed.small,
        (*(ranges[v] for v in inputs), *ends),
        (*(_for_host(layout, v, ranges[layout.storages[v].base]) for v in outputs), *ends),
        _sole_writers(layout, launches, inputs, outputs),
        _readers(launches, inputs, outputs),
        _updates(layout, launches, inputs, outputs),
        packed.blocks,
    )
    lower_bound = memory.lower_bound(usages) + (words.block.size if words else 0)
    offsets = dict(zip(bases, plan.offsets, strict=True))
    return BuiltProgram(program, tuple(launches), lower_bound, offsets, words)


@dataclass(frozen=True, slots=True)
class _Bound:
    """The memory ranges of base values, constants and range words."""

    ranges: Mapping[int, BufferRange]
    constants: Sequence[BufferRange]
    words: RangeWords | None

    def launches(self, launches: Sequence[KernelLaunch]) -> tuple[Launch, ...]:
        """Return the launches with the memory ranges of their arguments."""
        tellers = count()
        return tuple(
            self._launch(
                launch, self.words.range_of(next(tellers)) if self.words and launch.noted else None
            )
            for launch in launches
        )

    def _launch(self, launch: KernelLaunch, words: BufferRange | None) -> Launch:
        own: dict[int, BufferRange] = {} if words is None else {RANGE_BINDING: words}
        wholes = (
            self.constants[i] if fixed else own.get(i) or self.ranges[i]
            for i, fixed in launch.bindings
        )
        ranges = tuple(
            replace(part, offset=part.offset + offset, size=part.size - offset)
            for part, offset in zip(wholes, launch.offsets, strict=True)
        )
        spans = [
            (argument.written, span_of(part, storage, argument.written))
            for part, storage, argument in zip(
                ranges, launch.storages, launch.kernel.arguments, strict=True
            )
            if not part.constant
        ]
        return Launch(
            launch.kernel.name,
            ranges,
            launch.global_size,
            launch.kernel.local_size,
            tuple(span for written, span in spans if not written),
            tuple(span for written, span in spans if written),
        )


def span_of(part: BufferRange, storage: Storage | None, written: bool) -> Span:
    """Return the part of a range that a kernel accesses; a read covers whole rows."""
    if storage is None:
        return Span(part.offset, part.offset + part.size)
    size = storage.dtype.size
    start = part.offset + storage.offset * size
    # Reads cover whole units, but not beyond the range, which may end with a part of a value.
    end = start + storage.nbytes
    whole = min(start + round_up(storage.nbytes, _READ_AT_ONCE), part.offset + part.size)
    pitch, width = storage.pitch * size, storage.padded_channels * size
    gaps = width < pitch and not any(stride % storage.pitch for stride in storage.strides)
    if not written:
        return Span(start, max(end, whole))
    return Span(start, end, *((pitch, width) if gaps else ()))


def _sole_writers(
    layout: Layout,
    launches: Sequence[KernelLaunch],
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> dict[int, tuple[int, int]]:
    """Return Program.sole_writers, from the base values that the launches bind.

    Values written in whole words are excluded: the last word may extend beyond another library's
    memory.
    """
    values, uses, counts = layout.graph.values, _uses(launches), Counter((*inputs, *outputs))
    return {
        number: uses[v][0]
        for number, v in enumerate(outputs)
        if len(uses.get(v, ())) == 1
        and counts[v] == 1
        and (not is_small(values[v]) or not values[v].elements % 4)
    }


def _readers(
    launches: Sequence[KernelLaunch], inputs: Sequence[int], outputs: Sequence[int]
) -> dict[int, tuple[tuple[int, int], ...]]:
    """Return Program.readers, from the base values that the launches bind."""
    uses, counts = _uses(launches), Counter((*inputs, *outputs))

    def written(number: int, argument: int) -> bool:
        return launches[number].kernel.arguments[argument].written

    return {
        number: tuple(uses[v])
        for number, v in enumerate(inputs)
        if v in uses and counts[v] == 1 and not any(written(*use) for use in uses[v])
    }


def _updates(
    layout: Layout,
    launches: Sequence[KernelLaunch],
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> dict[int, Update]:
    """Return Program.updates, for the outputs that share the allocation of an input."""
    uses, bases = _uses(launches), [layout.storages[v].base for v in outputs]
    numbers = {v: number for number, v in enumerate(inputs)}
    return {
        number: Update(numbers[base], tuple(uses[base]))
        for number, (v, base) in enumerate(zip(outputs, bases, strict=True))
        if base != v and base in numbers and bases.count(base) == 1
    }


def _uses(launches: Sequence[KernelLaunch]) -> dict[int, list[tuple[int, int]]]:
    """Map each base value to the launches and arguments that bind it."""
    found: dict[int, list[tuple[int, int]]] = {}
    for number, launch in enumerate(launches):
        for argument, (base, constant) in enumerate(launch.bindings):
            if not constant:
                found.setdefault(base, []).append((number, argument))
    return found


def _for_host(layout: Layout, output: int, written: BufferRange) -> BufferRange:
    """Return the range that the host copies: kernels that write whole words may write more."""
    value = layout.graph.values[output]
    if not is_small(value):
        return written
    return replace(written, size=value.elements * value.dtype.size)


def _usages(
    layout: Layout, launches: Sequence[KernelLaunch], bases: Iterable[int]
) -> Iterable[memory.Usage]:
    """Yield size and lifetime of each base: inputs live from the start, outputs to the end."""
    given = set(layout.graph.inputs)
    results = {layout.storages[v].base for v in layout.graph.outputs}
    users: dict[int, list[int]] = {}
    for number, launch in enumerate(launches):
        for base in launch.bases:
            users.setdefault(base, []).append(number)
    end = max(len(launches) - 1, 0)
    for base in bases:
        kernels = users.get(base, [])
        first = 0 if base in given or not kernels else kernels[0]
        last = end if base in results else max(kernels, default=first)
        size = round_up(layout.storages[base].nbytes, 16)
        yield memory.Usage(size, first, last)
