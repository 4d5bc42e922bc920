"""Creates mutants, and checks each against the CPU's built-in kernels."""

from __future__ import annotations

import contextlib
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from comparing import relative_error
from fuzzing import mutations
from fuzzing.rounding import hangs_on_rounding
from fuzzing.seeds import Source
from fuzzing.worker import Arrays, Result, Task, Worker
from litegpu import backends
from litegpu.options import InferencePriority
from litegpu.zoo import schema

FLOAT_LIMIT, HALF_LIMIT = 1e-3, 2e-2
"""Greatest relative errors: how exact results are is for the op table, whose sums are shorter."""
LOOSE = ("opengl", "webgpu")
"""APIs whose languages let a device take numbers below the normal range for zeros, and compilers
assume that there are neither infinities nor NaN."""
_SANE = 1e30
"""Products of larger constants leave the range of floats in one order, and stay in another."""
CPU_SECONDS, DEVICE_SECONDS = 10.0, 120.0
_WEIGHTED = (3, 4, 9, 67)
"""CONV_2D, DEPTHWISE_CONV_2D, FULLY_CONNECTED and TRANSPOSE_CONV in the schema."""
_LATE_SIZES = "bytes in the interpreter"
"""An error at the first invoke, where the CPU's kernels make another type than the file says."""
_TYPES = "in the model's file"
"""The same, noticed before the first invoke: the types are what those kernels make of them."""
NOT_FINITE = "not finite"
"""What begins the text about a device's infinities and NaN where the CPU has finite numbers."""
_TANH, _DEQUANTIZE, _RESHAPE, _REDUCE_PROD, _DENSIFY = 4, 6, 22, 81, 124
"""Numbers of a fused activation and of operations in the schema."""


@dataclass(frozen=True)
class Finding:
    """A mutant that went wrong: its seed makes it again."""

    seed: str
    changes: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.seed}: {'; '.join(self.changes) or 'unchanged'}\n    {self.text}"


@dataclass
class Tally:
    """What became of the mutants so far."""

    outcomes: Counter[str] = field(default_factory=Counter)
    lenient: list[str] = field(default_factory=list)
    """Mutants that a device ran although the CPU refused them."""
    findings: list[Finding] = field(default_factory=list)


class Oracle:
    """Runs mutants on the CPU and on a device, each in a process of its own."""

    def __init__(self, sources: Mapping[str, Source], options: Mapping[str, Any]) -> None:
        self._sources = sources
        self._options = options
        self._cpu, self._device = Worker(), Worker()
        found = options.get("backend") or next((d.backend for d in backends.list_devices()), "")
        self._loose = found in LOOSE
        self.tally = Tally()

    def close(self) -> None:
        """End the processes."""
        self._cpu.close()
        self._device.close()

    def mutant(self, name: str, number: int) -> tuple[Task, tuple[str, ...]]:
        """Return mutant `number` of a model, and what was changed; number 0 is the model itself."""
        content = self._sources[name]()
        random = np.random.default_rng([zlib.crc32(name.encode()), number])
        changes: list[str] = []
        if number:
            content, changes = mutations.mutate(content, random)
        half = number % 4 == 3
        if self._loose:
            content = mutations.without_subnormals(content)
        special = number % 5 == 4 and not half and not _multiplies(content)
        task = Task(content, number, special=special, half=half, flushed=self._loose)
        return task, tuple(changes)

    def try_one(self, name: str, number: int) -> Finding | None:
        """Run a mutant and note what comes of it."""
        task, changes = self.mutant(name, number)
        outcome, problem = self.outcome(task)
        self.tally.outcomes[outcome] += 1
        if outcome == "only on the device":
            self.tally.lenient.append(f"{name}:{number} {changes} {problem}")
        if outcome != "wrong":
            return None
        finding = Finding(f"{name}:{number}", changes, problem)
        self.tally.findings.append(finding)
        return finding

    def outcome(self, task: Task) -> tuple[str, str]:
        """Return the kind of outcome, and for a finding what is wrong."""
        if _differs_by_design(task.content):
            return "left out", ""
        expected = self._cpu.run(task, CPU_SECONDS)
        if expected.status in ("crashed", "hung"):
            return "CPU crashes", ""
        got = self._on_device(task)
        if got.status == "crashed" and self._takes_nothing(task):
            return "CPU crashes", ""
        lies = (expected.status == "refused" and _LATE_SIZES in got.fault) or _TYPES in got.fault
        if lies:
            return "file lies", ""
        problem = verdict(expected, got, task.half, _are_sane(task), self._loose)
        alone = got.status == "ran" and not got.accepted and expected.status == "ran"
        if problem and (alone or not self._repeats(task, expected)):
            return "CPU undecided", ""
        if problem and got.status == "ran" and not got.fault and self._is_inexact(task, got):
            return "CPU inexact", ""
        if f": {NOT_FINITE}: " in problem and self._cuts(task):
            return "left out", ""
        if problem:
            return "wrong", problem
        if expected.status == "refused":
            if got.status == "ran" and "unresolved custom op" not in expected.text:
                return "only on the device", f"{got.accepted}: {expected.text[:300]}"
            return "refused", ""
        return ("same, on the device" if got.accepted else "same, all on the CPU"), ""

    def _takes_nothing(self, task: Task) -> bool:
        """Whether the delegate leaves every node to the CPU, whose kernels crash now and then."""
        planned = self._on_device(replace(task, invoked=False))
        return planned.status == "ran" and not planned.accepted

    def _on_device(self, task: Task) -> Result:
        small = {"inference_priority1": InferencePriority.MIN_MEMORY_USAGE} if task.half else {}
        options = {**self._options, "precision": "fp16" if task.half else "fp32", **small}
        there = replace(task, options=options)
        got = self._device.run(there, DEVICE_SECONDS)
        if got.status in ("crashed", "hung"):
            # An earlier mutant's CPU kernels may have spoilt that process.
            got = self._device.run(there, DEVICE_SECONDS)
        return got

    def _repeats(self, task: Task, expected: Result) -> bool:
        """Whether the CPU says the same whatever its memory and its outputs held before."""
        for perturb in (85, 170):
            worker = Worker(perturb)
            again = worker.run(replace(task, before=float(perturb)), CPU_SECONDS)
            worker.close()
            if again.status != expected.status or not _same_bytes(again.outputs, expected.outputs):
                return False
        return True

    def _is_inexact(self, task: Task, got: Result) -> bool:
        """Whether the CPU's own result is as far from others that rounding could have made."""

        def run(each: Task) -> Result:
            return self._cpu.run(each, CPU_SECONDS)

        expected = run(task).outputs
        same_shapes = [a.shape for a in expected] == [a.shape for a in got.outputs]
        return same_shapes and hangs_on_rounding(run, task, expected, got.outputs)

    def _cuts(self, task: Task) -> bool:
        """Whether the CPU cuts an infinity on the way, which is one on a device: decision 14."""
        largest = float(np.finfo(np.float32).max)
        found = self._cpu.run(replace(task, everything=True), CPU_SECONDS)
        return any(np.any(np.abs(tensor) == largest) for tensor in found.outputs)

    def save(self, finding: Finding, folder: Path) -> Path:
        """Write the model of a finding to a folder."""
        name, _, number = finding.seed.rpartition(":")
        task, _ = self.mutant(name, int(number))
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{finding.seed.replace('/', '_')}.tflite"
        path.write_bytes(task.content)
        return path


def verdict(
    expected: Result, got: Result, half: bool, values: bool = True, loose: bool = False
) -> str:
    """Return what is wrong with what a device did, or an empty text.

    Without `values` only shapes and types must agree. A `loose` device may do what it likes where
    the CPU has no finite number.
    """
    if got.status in ("crashed", "hung"):
        return f"the process {got.status}: {got.text}"
    if got.fault:
        return f"accepted nodes fail later: {got.fault}"
    if expected.status == "refused":
        return ""
    if got.status == "refused":
        return f"the CPU runs it, the delegate refuses: {got.text}"
    pairs = zip(expected.outputs, got.outputs, strict=True)
    for number, (wanted, found) in enumerate(pairs):
        problem = difference(wanted, found, half, values, loose)
        if problem:
            return f"output {number}: {problem} (accepted: {', '.join(got.accepted)})"
    return ""


def difference(
    expected: Any, got: Any, half: bool, values: bool = True, loose: bool = False
) -> str:
    """Return how a result differs from the CPU's beyond rounding, or an empty text."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"{got.dtype}{got.shape} instead of {expected.dtype}{expected.shape}"
    if not values:
        return ""
    if expected.dtype != np.float32:
        # A NaN is unequal to itself, and what both have is no difference.
        wrong = (got != expected) & ((got == got) | (expected == expected))
        return f"expected {expected[wrong][:3]}, got {got[wrong][:3]}" if np.any(wrong) else ""
    largest = float(np.finfo(np.float32).max)
    # The CPU's fused activations, NONE too, make the largest float of an infinity.
    expected, got = (np.clip(each, -largest, largest) for each in (expected, got))
    finite = np.isfinite(expected)
    # An infinity that was cut is one on a device, and so is what follows: decision 14.
    finite &= (np.abs(expected) <= _SANE) | (np.abs(got) <= _SANE) | np.isnan(got)
    others = ~np.isfinite(expected) & (not loose) & ~np.isclose(expected, got, equal_nan=True)
    for what, wrong in (
        (NOT_FINITE, finite & ~np.isfinite(got)),
        ("other infinities or NaNs", others),
    ):
        if np.any(wrong):
            return f"{what}: expected {expected[wrong][:3]}, got {got[wrong][:3]}"
    error = relative_error(expected[finite], got[finite])
    if error <= (HALF_LIMIT if half else FLOAT_LIMIT):
        return ""
    worst = np.argsort(np.abs(got[finite].astype(np.float64) - expected[finite]))[::-1][:3]
    return f"error {error:.3g}: expected {expected[finite][worst]}, got {got[finite][worst]}"


def _same_bytes(first: Arrays, second: Arrays) -> bool:
    return [a.tobytes() for a in first] == [b.tobytes() for b in second]


def _are_sane(task: Task) -> bool:
    """Whether float constants are far from the ends of the range, and options finite.

    What the CPU makes of NaN and infinity hangs on how each of its kernels clamps.
    """
    model = mutations.parse(task.content)
    draft = mutations.Draft(model, np.random.default_rng(0))
    options = (vars(each.builtinOptions or object) for each in draft.graph.operators)
    numbers = [n for stored in options for n in stored.values() if isinstance(n, float)]
    if not np.all(np.isfinite(numbers)):
        return False
    for tensor in draft.graph.tensors:
        with contextlib.suppress(mutations.NotApplicableError):
            found = draft.elements(tensor)
            if found.dtype.kind == "f" and not np.all(np.abs(found.astype(np.float64)) <= _SANE):
                return False
    return True


def _multiplies(content: bytes) -> bool:
    """Whether rare numbers leave the range of floats or not, as the order of products has it."""
    return any(code.builtinCode == _REDUCE_PROD for code in mutations.parse(content).operatorCodes)


def _differs_by_design(content: bytes) -> bool:
    """Whether a device does more than the CPU's kernels, on purpose.

    Those ignore TANH as a fused activation, and take the bytes of float16 constants for float32
    unless DEQUANTIZE reads them; those of bools, too, where weights are read, and what lies behind.
    Those of numbers that they take for strings tell where the strings lie, RESHAPE copies as many
    as its output takes in another type, and DENSIFY looks for the sparsity of a dense tensor.
    """
    model = mutations.parse(content)
    (graph, *_), types = model.subgraphs, schema.members("TensorType")
    bools = {i for i, t in enumerate(graph.tensors) if t.type == types["BOOL"]}
    strings = {i for i, t in enumerate(graph.tensors) if t.type == types["STRING"]}
    halves = {i for i, t in enumerate(graph.tensors) if t.type == types["FLOAT16"]}
    for operator in graph.operators:
        options, code = operator.builtinOptions, model.operatorCodes[operator.opcodeIndex]
        sides = [strings.issuperset(map(int, side)) for side in (operator.inputs, operator.outputs)]
        if strings.intersection(map(int, [*operator.inputs, *operator.outputs])) and not all(sides):
            return True
        recurrent = type(options).__name__.endswith(("LSTMOptionsT", "RNNOptionsT", "SVDFOptionsT"))
        if getattr(options, "fusedActivationFunction", 0) == _TANH and not recurrent:
            return True
        ends = [*operator.inputs[:1], *operator.outputs[:1]]
        kinds = {graph.tensors[i].type for i in ends if 0 <= i < len(graph.tensors)}
        if code.builtinCode == _RESHAPE and len(kinds) > 1:
            return True
        if code.builtinCode == _DENSIFY and not all(
            graph.tensors[i].sparsity for i in operator.inputs if 0 <= i < len(graph.tensors)
        ):
            return True
        if code.builtinCode != _DEQUANTIZE and halves.intersection(map(int, operator.inputs)):
            return True
        if code.builtinCode in _WEIGHTED and bools.intersection(map(int, operator.inputs)):
            return True
    return False
