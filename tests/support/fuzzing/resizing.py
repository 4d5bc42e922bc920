"""Resizes the inputs of one interpreter repeatedly, and compares each result with the CPU's."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.oracle import CPU_SECONDS, DEVICE_SECONDS, Finding, Tally, difference
from fuzzing.rounding import hangs_on_rounding
from fuzzing.seeds import Source
from fuzzing.worker import ULP, Arrays, Result, Task, Worker
from litegpu.zoo import objects

_STEPS = 5
_SIZES = (0, 1, 1, 2, 2, 3, 4, 5, 7, 9, 16, 33, -1)
_SHAPES = "Use other shapes, or the interpreter without the delegate."
"""How the error ends of a node that neither the device nor the delegate's CPU kernels can run."""


class ResizeOracle:
    """Runs the same sequences on the CPU and on a device, each in a process of its own."""

    def __init__(self, sources: Mapping[str, Source], options: Mapping[str, Any]) -> None:
        self._sources, self._options = sources, options
        self._cpu, self._device = Worker(work=resize), Worker(work=resize)
        self.tally = Tally()

    def close(self) -> None:
        """End the processes."""
        self._cpu.close()
        self._device.close()

    def try_one(self, name: str, number: int) -> Finding | None:
        """Run a sequence and note what comes of it."""
        outcome, problem = self._outcome(self._sources[name](), _seed(name, number))
        self.tally.outcomes[outcome] += 1
        if outcome != "wrong":
            return None
        finding = Finding(f"{name}:{number}", ("resized",), problem)
        self.tally.findings.append(finding)
        return finding

    def _outcome(self, content: bytes, seed: int) -> tuple[str, str]:
        expected = self._cpu.run(Task(content, seed), CPU_SECONDS)
        if expected.status != "ran":
            return f"CPU {expected.status}", ""
        options = {"precision": "fp32", "inference_preference": 0, **self._options}
        got = self._device.run(Task(content, seed, options=options), DEVICE_SECONDS)
        if got.status != "ran":
            return "wrong", f"the process {got.status}: {got.text}"
        steps = zip(expected.text.splitlines(), got.text.splitlines(), strict=True)
        stored, output = iter(expected.outputs), iter(got.outputs)
        ran = 0
        for step, (wanted, found) in enumerate(steps):
            on_cpu = [next(stored) for _ in range(_count(wanted))]
            on_device = [next(output) for _ in range(_count(found))]
            if wanted.startswith("refused"):
                continue
            if found.startswith("refused") and _SHAPES in found and _graphs(content) > 1:
                return "refused: kernels that run other graphs need the interpreter", ""
            if found.startswith("refused"):
                return "wrong", f"step {step}: the CPU runs {wanted}, the delegate: {found}"
            ran += 1
            problems = (
                difference(a, b, half=False) for a, b in zip(on_cpu, on_device, strict=True)
            )
            problem = next(filter(None, problems), "")
            if problem and not self._is_inexact(Task(content, seed), step, on_cpu, on_device):
                return "wrong", f"step {step}, {wanted}: {problem}"
        return f"same, in {ran} of {_STEPS} steps", ""

    def _is_inexact(self, task: Task, step: int, expected: list[Any], got: list[Any]) -> bool:
        """Whether the CPU's own result of a step hangs on its rounding."""

        def run(each: Task) -> Result:
            found = self._cpu.run(each, CPU_SECONDS)
            counts = [_count(line) for line in found.text.splitlines()]
            start = sum(counts[:step])
            return Result(found.status, found.outputs[start : start + sum(counts[step : step + 1])])

        return hangs_on_rounding(run, task, tuple(expected), tuple(got))

    def save(self, finding: Finding, folder: Path) -> Path:
        """Write the model of a finding to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{finding.seed.replace('/', '_')}.tflite"
        path.write_bytes(self._sources[finding.seed.rpartition(":")[0]]())
        return path


def _graphs(content: bytes) -> int:
    return len(objects.parse(content).subgraphs)


def _seed(name: str, number: int) -> int:
    return zlib.crc32(f"{name}:{number}".encode())


def _count(line: str) -> int:
    return 0 if line.startswith("refused") else int(line.split()[1])


def resize(task: Task) -> Result:
    """Run a sequence in this process; `text` has a line for each step."""
    from litegpu import GpuDelegate
    from litegpu.runtime_abi import interpreter as runtime

    random = np.random.default_rng(task.seed)
    delegate = None if task.options is None else GpuDelegate(**task.options)
    try:
        target = runtime.interpreter(task.content, delegate, builtin_kernels=True)
    except (RuntimeError, ValueError) as error:
        return Result("refused", text=str(error))
    lines: list[str] = []
    outputs: Arrays = ()
    first = [tuple(map(int, each["shape"])) for each in target.get_input_details()]
    for _ in range(_STEPS):
        shapes = [_shape(shape, random) for shape in first]
        details = _details(target)
        arrays = [_array(s, d, random) for s, d in zip(shapes, details, strict=True)]
        arrays = [_nudged(array, task) for array in arrays]
        output: Arrays = ()
        try:
            output = _run(target, shapes, arrays)
            lines.append(f"ran {len(output)} {shapes}")
            outputs = (*outputs, *output)
        except (RuntimeError, ValueError, MemoryError) as error:
            lines.append("refused " + " ".join(str(error).split()))
        if delegate is None and not all(array.size for array in output):
            # FULLY_CONNECTED with scales of blocks stays empty once it was.
            target = runtime.interpreter(task.content, builtin_kernels=True)
    return Result("ran", outputs, "\n".join(lines))


def _details(target: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = target.get_input_details()
    return found


def _shape(shape: tuple[int, ...], random: np.random.Generator) -> tuple[int, ...]:
    """Return a shape: as it was, with another batch, or with any sizes."""
    kind = random.integers(4)
    if kind == 0 or not shape:
        return shape
    if kind == 1:
        return (int(random.integers(1, 4)), *shape[1:])
    return tuple(int(random.choice(_SIZES)) if random.random() < 0.4 else n for n in shape)


def _array(shape: tuple[int, ...], detail: dict[str, Any], random: np.random.Generator) -> Any:
    count = tuple(max(size, 0) for size in shape)
    if np.dtype(detail["dtype"]).kind != "f":
        return random.integers(0, 2, count).astype(detail["dtype"])
    return (np.round(random.uniform(-4, 4, count) * 32) / 32).astype(detail["dtype"])


def _nudged(array: Any, task: Task) -> Any:
    if not task.nudge or array.dtype != np.float32:
        return array
    nudges = np.random.default_rng([task.seed, task.nudge]).integers(-1, 2, array.shape)
    return (array * (1 + ULP * nudges)).astype(np.float32)


def _run(target: Any, shapes: list[tuple[int, ...]], arrays: list[Any]) -> Arrays:
    for detail, shape in zip(_details(target), shapes, strict=True):
        target.resize_tensor_input(detail["index"], shape)
    target.allocate_tensors()
    for detail, array in zip(_details(target), arrays, strict=True):
        target.set_tensor(detail["index"], array)
    target.invoke()
    return tuple(
        np.array(target.get_tensor(detail["index"])) for detail in target.get_output_details()
    )
