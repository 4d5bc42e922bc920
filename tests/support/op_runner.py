"""Runs op cases on a device and on the runtime's CPU kernels, many in one model.

Compiling and launching cost more than the few numbers of a case, so the cases of a family share a
model, side by side: one partition, one program. When such a model fails as a whole, each of its
cases runs alone, so that the one to blame is found.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from cases.base import Array, Case, NumpyCase, Piece, Scale, Sheet
from comparing import mismatch
from litegpu import GpuDelegate
from litegpu.backends.base import Compilation, DeviceInfo
from litegpu.codegen import HALF_MAX, HALF_TINY, Storage
from litegpu.delegation import partition_kernel
from litegpu.engine import partition
from litegpu.engine.choices import Choices
from litegpu.engine.compiled import CompiledPartition
from litegpu.engine.layout import Layout
from litegpu.engine.partition import compile_partition
from litegpu.engine.placed import PlacedPartition
from litegpu.engine.program import BuiltProgram
from litegpu.engine.target import DeviceTarget
from litegpu.graph import Node
from litegpu.options import InferencePriority
from litegpu.runtime_abi import interpreter as runtime
from litegpu.runtime_abi import kernel_slots
from model_runner import invoke

GROUP_SIZE = 24


@dataclass(frozen=True)
class Mode:
    """A way to run.

    Staged, every value is padded memory of its own, inputs and outputs included, and at fp16 it is
    stored as half however small it is. Direct is as users run it.
    """

    precision: str
    staged: bool

    @property
    def name(self) -> str:
        """Precision and way, in one word."""
        return f"{self.precision}-{'staged' if self.staged else 'direct'}"

    @property
    def half(self) -> bool:
        """Whether values are stored as half."""
        return self.staged and self.precision == "fp16"

    def options(self) -> dict[str, Any]:
        """Return the delegate's options."""
        smallest = {"inference_priority1": InferencePriority.MIN_MEMORY_USAGE} if self.half else {}
        return {"precision": self.precision, **smallest}


MODES = tuple(Mode(precision, staged) for precision in ("fp32", "fp16") for staged in (False, True))


@dataclass(frozen=True)
class Outcome:
    """What a case gave: outputs of CPU and device, those of a later run, and other findings."""

    expected: tuple[Array, ...]
    got: tuple[Array, ...]
    again: tuple[Array, ...]
    kernels: tuple[str, ...]
    faults: tuple[str, ...]


@dataclass(frozen=True)
class Model:
    """A model with its cases; its bytes are written when they are wanted."""

    sheet: Sheet
    cases: tuple[Case, ...]
    pieces: Mapping[str, Piece]

    @property
    def ops(self) -> frozenset[str]:
        """The operations of its nodes."""
        return frozenset(self.sheet.ops)

    @functools.cached_property
    def content(self) -> bytes:
        """The bytes of the model."""
        return self.sheet.writer.build()

    @functools.cached_property
    def reference(self) -> bytes:
        """The bytes of a model that has what CPU kernels lack written apart."""
        sheet = Sheet(reference=True, scale=self.sheet.scale)
        for case in self.cases:
            sheet.add(case)
        return sheet.writer.build()


def groups(table: Mapping[str, Case]) -> list[tuple[Case, ...]]:
    """Cut a table into the cases that share a model."""
    found: list[tuple[Case, ...]] = []
    for _, family in itertools.groupby(table.values(), lambda case: (type(case), case.items)):
        cases = tuple(family)
        found += [cases[i : i + GROUP_SIZE] for i in range(0, len(cases), GROUP_SIZE)]
    return found


UNSCALED = Scale()


def run(
    cases: tuple[Case, ...], device: DeviceInfo, mode: Mode, scale: Scale = UNSCALED
) -> dict[str, Outcome | Exception]:
    """Run cases that share a model; if that fails, each alone."""
    try:
        return {**_run_together(cases, device, mode, scale)}
    except Exception as error:
        if len(cases) == 1:
            return {cases[0].name: error}
    outcomes: dict[str, Outcome | Exception] = {}
    for case in cases:
        outcomes |= run((case,), device, mode, scale)
    return outcomes


def limit_of(case: Case, mode: Mode) -> float:
    """Return the greatest relative L2 error of a case in a mode."""
    return case.limit(mode.half or (mode.precision == "fp16" and case.has_large_weights))


def check_kernel(
    cases: tuple[Case, ...], device: DeviceInfo, mode: Mode, template: str, chosen: bool
) -> None:
    """Require that all cases are right, and that each uses a kernel of a template if `chosen`."""
    outcomes = run(cases, device, mode)
    for case in cases:
        outcome = outcomes[case.name]
        assert not isinstance(outcome, Exception), outcome
        assert not problem_of(case, outcome, mode), case.name
        used = any(name.startswith(template) for name in outcome.kernels)
        assert used or not chosen, (case.name, outcome.kernels)


def problem_of(case: Case, outcome: Outcome, mode: Mode) -> str:
    """Return what is wrong with what a case gave, or an empty text."""
    pairs = zip(outcome.expected, outcome.got, strict=True)
    for number, (expected, got) in enumerate(pairs):
        problem = mismatch(expected, got, limit_of(case, mode))
        if problem:
            return f"output {number}: {problem}"
    for number, (got, again) in enumerate(zip(outcome.got, outcome.again, strict=True)):
        if got.tobytes() != again.tobytes():
            return f"output {number} changes with time"
    return "; ".join(outcome.faults)


@functools.lru_cache(maxsize=2)
def write(cases: tuple[Case, ...], scale: Scale = UNSCALED) -> Model:
    """Write the model that some cases share."""
    sheet = Sheet(scale=scale)
    return Model(sheet, cases, {case.name: sheet.add(case) for case in cases})


@functools.lru_cache(maxsize=4)
def _expected(cases: tuple[Case, ...], half: bool, scale: Scale) -> tuple[Array, ...]:
    model = write(cases, scale)
    inputs = _inputs(model, 0, half)
    if all(isinstance(case, NumpyCase) for case in cases):
        outputs = tuple(_by_numpy(cases, model, inputs))
    else:
        interpreter = runtime.interpreter(model.reference, builtin_kernels=True)
        outputs = invoke(interpreter, inputs)
    return outputs


def _by_numpy(cases: tuple[Case, ...], model: Model, inputs: Sequence[Array]) -> Iterator[Array]:
    start = 0
    for case in cases:
        piece = model.pieces[case.name]
        given = inputs[start : start + len(piece.inputs)]
        start += len(piece.inputs)
        assert isinstance(case, NumpyCase)
        for output in case.expected(given, piece.weights):
            yield np.asarray(output, np.float32)


def _run_together(
    cases: tuple[Case, ...], device: DeviceInfo, mode: Mode, scale: Scale
) -> Mapping[str, Outcome]:
    # To the end: values that half cannot hold make a partition compile anew when it runs.
    with _as_asked(mode, cases[0].items) as result:
        return _run_as_asked(cases, device, mode, scale, result)


_Result = dict[int, tuple[Layout, BuiltProgram]]
"""Of each compiled partition, by its identity, what it was compiled from."""


def _run_as_asked(
    cases: tuple[Case, ...], device: DeviceInfo, mode: Mode, scale: Scale, result: _Result
) -> Mapping[str, Outcome]:
    model = write(cases, scale)
    delegate = GpuDelegate(backend=device.backend, device=device.index, **mode.options())
    before = kernel_slots.kernels()
    interpreter = runtime.interpreter(model.content, delegate, builtin_kernels=True)
    report = delegate.report
    assert report is not None and report.whole_graph, f"Not one partition:\n{report}"
    (kernel,) = (each for each in kernel_slots.kernels() if each not in before)
    assert isinstance(kernel, partition_kernel.PartitionKernel)
    first = _inputs(model, 0, mode.half)
    got = invoke(interpreter, first)
    positions = _Places(model.pieces, kernel.compiled, *result[id(kernel.compiled)])
    faults = positions.faults() if mode.staged else {}
    invoke(interpreter, _inputs(model, 1, mode.half))
    interpreter.reset_all_variables()
    again = invoke(interpreter, first)
    expected = _expected(cases, mode.half, scale)
    outcomes = {}
    start = 0
    for case in cases:
        stop = start + model.pieces[case.name].outputs
        outcomes[case.name] = Outcome(
            expected[start:stop],
            got[start:stop],
            again[start:stop],
            positions.kernels(case.name),
            tuple(faults.get(case.name, ())),
        )
        start = stop
    return outcomes


@contextlib.contextmanager
def _as_asked(mode: Mode, items: int | None) -> Iterator[_Result]:
    result: _Result = {}
    compile_placed = PlacedPartition.compile

    def noted(
        self: PlacedPartition, built: BuiltProgram, compilation: Compilation | None = None
    ) -> CompiledPartition:
        compiled = compile_placed(self, built, compilation)
        result[id(compiled)] = (self.selected.layout, built)
        return compiled

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(PlacedPartition, "compile", noted))
        if mode.staged:
            staged = functools.partial(compile_partition, share_memory=False, stage_boundary=True)
            stack.enter_context(mock.patch.object(partition, "compile_partition", staged))
        stack.enter_context(kept_busy_by(items))
        yield result


@contextlib.contextmanager
def kept_busy_by(items: int | None) -> Iterator[None]:
    """Let the choice of kernels believe that so many work items keep the device busy."""
    if items is None:
        yield
        return
    facts = {"parallel_items": items, "compute_units": -(-items // 256)}
    with contextlib.ExitStack() as stack:
        for name, fact in facts.items():
            stack.enter_context(mock.patch.object(DeviceTarget, name, _always(fact)))
        yield


@contextlib.contextmanager
def forced(number: int) -> Iterator[set[int]]:
    """Let every problem get its candidate of that number, or its last; the set has those it got.

    Equal problems must have equal candidates: otherwise a number that is kept means nothing.
    """
    known: dict[str, str] = {}
    chosen: set[int] = set()

    def choose(_: Choices, problem: str, candidates: Sequence[Any]) -> Any:
        assert known.setdefault(problem, repr(candidates)) == repr(candidates), problem
        position = min(number, len(candidates) - 1)
        chosen.add(position)
        return candidates[position]

    with mock.patch.object(Choices, "choose", choose):
        yield chosen


def _always(fact: int) -> property:
    return property(lambda _target: fact)


def inputs_of(cases: tuple[Case, ...], seed: int, half: bool, scale: Scale) -> list[Array]:
    """Return the seeded inputs of the model that some cases share."""
    return _inputs(write(cases, scale), seed, half)


def _inputs(model: Model, seed: int, half: bool) -> list[Array]:
    """Return seeded inputs; where values are stored as half, just what half holds."""
    drawn = []
    for piece in model.pieces.values():
        random = np.random.default_rng(seed)
        drawn += [values.draw(shape, random) for shape, values in piece.inputs]
    if not half:
        return drawn
    return [_halved(each) if each.dtype == np.float32 else each for each in drawn]


def _halved(values: Array) -> Array:
    largest = np.abs(values[np.isfinite(values)]).max(initial=0)
    if HALF_TINY <= largest <= HALF_MAX:
        return values.astype(np.float16).astype(values.dtype)
    digits, exponents = np.frexp(values)
    return np.ldexp(np.round(digits * 2048) / 2048, exponents).astype(values.dtype)


@dataclass
class _Places:
    """Finds the kernels and the device memory of each case in a partition."""

    pieces: Mapping[str, Piece]
    compiled: CompiledPartition
    layout: Layout
    built: BuiltProgram

    def kernels(self, name: str) -> tuple[str, ...]:
        """Return the names of the kernels that were made for a case."""
        nodes = self.pieces[name].nodes
        return tuple(
            launch.kernel.name for launch in self.built.launches if launch.node.index in nodes
        )

    def faults(self) -> dict[str, list[str]]:
        """Return what is wrong in device memory: padding that is not zero, channels left NaN."""
        memory = self.compiled.context.read_memory()
        offsets = self.built.offsets
        found: dict[str, list[str]] = {}
        for v, storage in self.layout.storages.items():
            if storage.base not in offsets or not storage.vector:
                continue
            lanes = _lanes(memory[offsets[storage.base] :], storage)
            for text in _lane_faults(lanes, storage.channels):
                found.setdefault(self._owner(v), []).append(f"value {v}: {text}")
        return found

    def _owner(self, value: int) -> str:
        """Return the case that a value belongs to."""
        producers = self.layout.graph.producers()
        while True:
            for name, piece in self.pieces.items():
                node = producers.get(value)
                if value in piece.tensors or (node and node.index in piece.nodes):
                    return name
            value = _source(producers[value])


def _source(node: Node) -> int:
    """Return the first input of a node that the engine added."""
    return node.inputs[0]


def _lanes(memory: Any, storage: Storage) -> Any:
    """Return a value with its padding, [N, H, W, padded channels], as it lies in memory."""
    kind = np.dtype(storage.dtype.value)
    flat = memory[: len(memory) // kind.itemsize * kind.itemsize].view(kind)[storage.offset :]
    strides = tuple(step * kind.itemsize for step in (*storage.strides, 1))
    shape = (*storage.shape[:3], storage.padded_channels)
    return np.lib.stride_tricks.as_strided(flat, shape, strides, writeable=False)


def _lane_faults(lanes: Any, channels: int) -> Iterator[str]:
    spoilt = np.argwhere(lanes[..., channels:] != 0)
    if spoilt.size:
        where = tuple(map(int, spoilt[0] + (0, 0, 0, channels)))
        yield f"padding lane {where} after {channels} channels holds {lanes[where]}"
    missing = np.isnan(lanes[..., :channels])
    if np.any(missing):
        yield f"{int(missing.sum())} of {missing.size} elements are NaN in device memory"
