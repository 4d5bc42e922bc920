"""Checks that an artifact fits its memory, the device, and the graph for which it is loaded.

litegpu does not trust the contents of a file. A checked artifact binds no bytes out of bounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from litegpu.backends.base import DeviceInfo
from litegpu.backends.limits import obstacle
from litegpu.backends.program import BufferRange, Launch, Program, Span, Update
from litegpu.cache.artifact import Artifact
from litegpu.codegen import KINDS, RANGE_WORDS, KernelText
from litegpu.codegen.dialect import SHARED_SIZES
from litegpu.engine.facts import PartitionFacts
from litegpu.graph import DType, Graph

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KINDS = {*KINDS.values(), "U32"}
_MAX_ITEMS = 1 << 31
"""Maximum number of work items on an axis of a launch; no API permits more."""
_ROOM = 16
"""Padding in bytes, because a kernel may read whole vectors beyond the end of a value."""


def check(artifact: Artifact, graph: Graph, info: DeviceInfo) -> None:
    """Raise ValueError if an artifact does not fit a graph or a device, with the reason."""
    program = artifact.program
    _require(program.memory_bytes >= 4, "the program has no memory")
    most = info.max_allocation_bytes
    largest = max((block.nbytes for block in program.blocks), default=0)
    _require(
        max(program.memory_bytes, program.constants.nbytes, largest) <= most,
        "the program needs more memory than the device can allocate",
    )
    _require(
        all(map(_DIGEST.fullmatch, (block.digest for block in program.blocks))),
        "the digest of a block of constants is malformed",
    )
    kernels = {kernel.name: kernel for kernel in program.kernels}
    _require(len(kernels) == len(program.kernels), "two kernels have the same name")
    for kernel in program.kernels:
        _check_kernel(kernel, info)
    for launch in program.launches:
        _require(launch.kernel in kernels, f"the program has no kernel {launch.kernel[:60]}")
        _check_launch(launch, kernels[launch.kernel], program)
    for part in (*program.inputs, *program.outputs):
        _require(
            not part.constant and program.contains(part),
            f"{part} is outside of the program's memory",
        )
    for number, (launch_number, argument) in program.sole_writers.items():
        _check_sole_writer(program, number, launch_number, argument)
    _check_facts(artifact.facts, program)
    _check_io(artifact, graph)
    for number, uses in program.readers.items():
        _check_readers(program, number, uses)
    for number, update in program.updates.items():
        _check_update(program, number, update)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _check_kernel(kernel: KernelText, info: DeviceInfo) -> None:
    words = [
        kernel.name,
        *(a.name for a in kernel.arguments),
        *(name for _, name, _ in kernel.shared),
    ]
    _require(all(map(_IDENTIFIER.fullmatch, words)), "a name is not an identifier")
    what = f"kernel {kernel.name[:60]}"
    _require(all(a.kind in _KINDS for a in kernel.arguments), f"{what} has unknown element types")
    _require(
        not any(a.constant and a.written for a in kernel.arguments), f"{what} writes constants"
    )
    _require(min(kernel.local_size) >= 1, f"{what} has empty work groups")
    shared = all(kind in SHARED_SIZES and length > 0 for kind, _, length in kernel.shared)
    _require(shared, f"{what} shares unknown element types")
    reason = obstacle(kernel, info)
    _require(not reason, f"{what}: {reason}")
    attributes = kernel.attributes
    numbers = (attributes.cluster_size, attributes.min_blocks + 1, *(attributes.folded or ()))
    _require(all(0 < number < _MAX_ITEMS for number in numbers), f"{what} cannot be launched")


def _check_launch(launch: Launch, kernel: KernelText, program: Program) -> None:
    what = f"a launch of {kernel.name[:60]}"
    _require(
        launch.local_size == kernel.local_size,
        f"{what} has another work-group size than its kernel",
    )
    whole = all(
        0 < items < _MAX_ITEMS and items % size == 0
        for items, size in zip(launch.global_size, launch.local_size, strict=True)
    )
    _require(whole, f"{what} does not consist of whole work groups")
    _require(
        len(launch.ranges) == len(kernel.arguments),
        f"{what} binds another number of buffers than its kernel has",
    )
    spans = {False: iter(launch.reads), True: iter(launch.writes)}
    for part, argument in zip(launch.ranges, kernel.arguments, strict=True):
        _require(program.contains(part), f"{what} binds {part}")
        _require(not (part.constant and argument.written), f"{what} writes constants")
        if not part.constant:
            span = next(spans[argument.written], None)
            _require(
                span is not None and _is_valid_span(span, part),
                f"{what} does not declare what it accesses",
            )
    _require(
        not any(map(list, spans.values())), f"{what} declares more accesses than it has arguments"
    )


def _is_valid_span(span: Span, part: BufferRange) -> bool:
    """Whether a declared span starts inside a range and ends inside its padding."""
    inside = part.offset <= span.start <= span.end <= part.offset + part.size + _ROOM
    return (inside and 0 <= span.width <= span.pitch) or (inside and not span.pitch)


def _check_sole_writer(program: Program, number: int, launch_number: int, argument: int) -> None:
    _require(0 <= number < len(program.outputs), "`sole_writers` names an unknown output")
    _require(0 <= launch_number < len(program.launches), "`sole_writers` names an unknown launch")
    launch = program.launches[launch_number]
    _require(0 <= argument < len(launch.ranges), "`sole_writers` names an unknown argument")
    (kernel,) = (kernel for kernel in program.kernels if kernel.name == launch.kernel)
    same = _is_end(launch.ranges[argument], program.outputs[number])
    _require(
        same and kernel.arguments[argument].written,
        "`sole_writers` names an argument that does not write the output",
    )


def _check_readers(program: Program, number: int, uses: Sequence[tuple[int, int]]) -> None:
    _require(0 <= number < len(program.inputs), "`readers` names an unknown input")
    kernels = {kernel.name: kernel for kernel in program.kernels}
    for launch_number, argument in uses:
        _require(0 <= launch_number < len(program.launches), "`readers` names an unknown launch")
        launch = program.launches[launch_number]
        _require(0 <= argument < len(launch.ranges), "`readers` names an unknown argument")
        same = _is_end(launch.ranges[argument], program.inputs[number])
        written = kernels[launch.kernel].arguments[argument].written
        _require(same and not written, "`readers` names an argument that does not read the input")


def _check_update(program: Program, number: int, update: Update) -> None:
    _require(0 <= number < len(program.outputs), "`updates` names an unknown output")
    _require(0 <= update.input < len(program.inputs), "`updates` names an unknown input")
    whole = program.outputs[number]
    _require(whole == program.inputs[update.input], "`updates` names an input in other memory")
    for launch_number, argument in update.uses:
        _require(0 <= launch_number < len(program.launches), "`updates` names an unknown launch")
        ranges = program.launches[launch_number].ranges
        _require(0 <= argument < len(ranges), "`updates` names an unknown argument")
        _require(
            _is_end(ranges[argument], whole), "`updates` names an argument that is in other memory"
        )


def _is_end(part: BufferRange, whole: BufferRange) -> bool:
    """Whether range `part` is `whole` or the end of it."""
    ends = part.offset + part.size == whole.offset + whole.size
    return ends and whole.offset <= part.offset and part.constant == whole.constant


def _check_facts(facts: PartitionFacts, program: Program) -> None:
    _require(len(facts.launches) == len(program.launches), "the facts of some launches are missing")
    for counted, launch in zip(facts.launches, program.launches, strict=True):
        counts = (counted.products, counted.nbytes, *counted.work.values())
        _require(min(counts) >= 0, f"{launch.kernel[:60]} has a negative amount of work")
    for value in facts.values.values():
        sizes = (*value.shape, *value.storage.shape, value.storage.padded_channels)
        _require(min(sizes, default=0) >= 0, "a value has a negative size")
    words = facts.words
    if words is None:
        return
    block = words.block
    _require(
        program.contains(block) and not block.constant,
        "range words are outside of the program's memory",
    )
    _require(words.most >= 1 and words.step % 4 == 0, "range words are malformed")
    _require(words.step >= words.most * RANGE_WORDS * 4, "range words overlap")
    _require(block.size == words.step * len(words.values), "range words do not cover all launches")
    known = all(v in facts.values for values in words.values for v in values)
    _require(known, "range words name unknown values")
    _require(max(map(len, words.values)) <= words.most, "range words are too few")
    both = program.inputs[-1:] == program.outputs[-1:] == (block,)
    _require(both, "range words are not copied to and from the host")


def _check_io(artifact: Artifact, graph: Graph) -> None:
    """Raise ValueError unless inputs and outputs match the graph's, including their sizes."""
    computed = [v for v in graph.outputs if not graph.values[v].is_constant]
    results = artifact.outputs[: len(computed)]
    states = artifact.outputs[len(computed) :]
    fits = list(results) == computed and set(artifact.inputs) <= set(graph.inputs)
    _require(
        fits and len(set(artifact.inputs)) == len(artifact.inputs),
        "the program's inputs or outputs differ from the graph's",
    )
    _require(set(states) <= set(graph.inputs), "the program updates a value that is not an input")
    moved = 1 if artifact.facts.words is not None else 0
    program = artifact.program
    for numbers, parts in ((artifact.inputs, program.inputs), (artifact.outputs, program.outputs)):
        _require(len(numbers) + moved == len(parts), "some inputs or outputs are not copied")
        _check_sizes(graph, artifact.facts, zip(numbers, parts, strict=False))


def _check_sizes(
    graph: Graph, facts: PartitionFacts, ends: Iterable[tuple[int, BufferRange]]
) -> None:
    for v, part in ends:
        value = graph.values[v]
        stored = facts.values.get(v)
        _require(stored is not None, f"tensor {v} has no storage")
        assert stored is not None
        dtype = DType.FLOAT32 if value.dtype is DType.FLOAT16 else value.dtype
        same = stored.shape == value.shape and stored.dtype in (dtype, value.dtype)
        nbytes = value.elements * stored.dtype.size if same else -1
        _require(same and part.size == nbytes, f"tensor {v} has another shape or type")
