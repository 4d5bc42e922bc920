"""Loads damaged files: the process must survive, and every error must be typed."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.damage import damage
from fuzzing.oracle import CPU_SECONDS, DEVICE_SECONDS, Finding, Oracle, Tally
from fuzzing.seeds import Source
from fuzzing.worker import Result, Task, Worker

_INVOKED = 40
"""Of so many files one is run, on the real device, and compared with the CPU; others are loaded."""


class FileOracle:
    """Loads damaged files with a delegate, in a process that may die.

    Most are loaded for a device on paper: all that litegpu does is done, up to the text of the
    kernels and the plan of the memory, but no driver compiles it.
    """

    def __init__(self, sources: Mapping[str, Source], options: Mapping[str, Any]) -> None:
        self._sources = sources
        self._plain, self._paper = Worker(work=load), Worker(work=load)
        self._oracle = Oracle(sources, options)
        self.tally = Tally()

    def close(self) -> None:
        """End the processes."""
        for each in (self._plain, self._paper, self._oracle):
            each.close()

    def mutant(self, name: str, number: int) -> tuple[Task, tuple[str, ...]]:
        """Return damaged file `number` of a model; number 0 is the file itself."""
        random = np.random.default_rng([zlib.crc32(name.encode()), number, 1])
        content, changes = self._sources[name](), list[str]()
        if number:
            content, changes = damage(content, random)
        return Task(content, seed=number, options={}), (*changes,)

    def try_one(self, name: str, number: int) -> Finding | None:
        """Load a damaged file and note what comes of it."""
        task, changes = self.mutant(name, number)
        outcome, problem = self._outcome(task, number)
        self.tally.outcomes[outcome] += 1
        if outcome != "wrong":
            return None
        finding = Finding(f"{name}:{number}", changes, problem)
        self.tally.findings.append(finding)
        return finding

    def _outcome(self, task: Task, number: int) -> tuple[str, str]:
        got = self._paper.run(task, DEVICE_SECONDS)
        if got.status in ("crashed", "hung"):
            alone = self._plain.run(Task(task.content, task.seed), CPU_SECONDS)
            if alone.status in ("crashed", "hung"):
                return "CPU crashes", ""
            again = self._paper.run(task, DEVICE_SECONDS)  # in a fresh process
            if again.status in ("crashed", "hung"):
                return "wrong", f"the process {again.status}: {again.text}"
            got = again
        if got.fault:
            return "wrong", got.fault
        if got.status == "refused":
            return "refused", ""
        if number % _INVOKED == 0:
            outcome, problem = self._oracle.outcome(Task(task.content, task.seed))
            return (outcome if outcome == "wrong" else f"run: {outcome}"), problem
        return ("loaded, in part on the device" if got.accepted else "loaded"), ""

    def save(self, finding: Finding, folder: Path) -> Path:
        """Write the file of a finding to a folder."""
        name, _, number = finding.seed.rpartition(":")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{finding.seed.replace('/', '_')}.tflite"
        path.write_bytes(self.mutant(name, int(number))[0].content)
        return path


def load(task: Task) -> Result:
    """Load a file in this process: on the CPU alone, or with a device on paper."""
    from litegpu import GpuDelegate
    from litegpu.errors import LitegpuError
    from litegpu.runtime_abi import interpreter as runtime
    from litegpu.runtime_abi.outside_weights import tables_only
    from paper_device import on_paper

    delegate = None
    if task.options is not None:
        with on_paper():
            delegate = GpuDelegate(backend="opencl", inference_preference=0)
    status, text = "ran", ""
    try:
        content = task.content
        if delegate is not None:
            whole = memoryview(content)
            content = tables_only(whole, lambda _: whole) or content
        runtime.interpreter(content, delegate, builtin_kernels=True)
    except (RuntimeError, ValueError, MemoryError) as error:
        status, text = "refused", f"{type(error).__name__}: {error}"
    if delegate is None:
        return Result(status, text=text)
    known = delegate.error is None or isinstance(delegate.error, LitegpuError)
    fault = "" if known else repr(delegate.error)
    accepted: tuple[str, ...] = ()
    if delegate.report is not None:
        accepted = tuple(delegate.report.ops[i] for i in delegate.report.delegated_nodes)
    return Result(status, text=text, fault=fault, accepted=accepted)
