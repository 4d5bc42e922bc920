"""Damages files in serialization_dir: models run as before, and the files are replaced."""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.damage import damage_bytes
from fuzzing.oracle import CPU_SECONDS, DEVICE_SECONDS, Finding, Tally, verdict
from fuzzing.seeds import Source
from fuzzing.worker import Result, Task, Worker, perform
from litegpu.cache.store import KEY, SUFFIX, DamagedError, read


class DiskCacheOracle:
    """Runs models with a folder of kept files that were damaged since."""

    def __init__(self, sources: Mapping[str, Source], options: Mapping[str, Any]) -> None:
        self._sources, self._options = sources, options
        self._cpu, self._device = Worker(), Worker(work=remaining)
        self._folder = tempfile.TemporaryDirectory()
        self.tally = Tally()

    def close(self) -> None:
        """End the processes, and remove the folder."""
        self._cpu.close()
        self._device.close()
        self._folder.cleanup()

    def try_one(self, name: str, number: int) -> Finding | None:
        """Run a model twice, with damage in between, and note what comes of it."""
        task = Task(self._sources[name](), seed=number)
        options = {
            **{"precision": "fp32", "experimental_flags": 9, "model_token": "fuzz"},
            **{"serialization_dir": self._folder.name, **self._options},
        }
        expected = self._cpu.run(task, CPU_SECONDS)
        got = self._device.run(Task(task.content, number, options=options), DEVICE_SECONDS)
        outcome = got.text or f"CPU {expected.status}"
        problem = verdict(expected, got, half=False)
        self.tally.outcomes["wrong" if problem else outcome] += 1
        if not problem:
            return None
        finding = Finding(f"{name}:{number}", (got.text,), problem)
        self.tally.findings.append(finding)
        return finding

    def save(self, finding: Finding, folder: Path) -> Path:
        """Write the model of a finding to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{finding.seed.replace('/', '_')}.tflite"
        path.write_bytes(self._sources[finding.seed.rpartition(":")[0]]())
        return path


def remaining(task: Task) -> Result:
    """Run a model that leaves files, damage these, and run it again in this process."""
    first = perform(task)
    assert task.options is not None
    random = np.random.default_rng(zlib.crc32(str(task.seed).encode()))
    folder = Path(task.options["serialization_dir"])
    paths = sorted(folder.iterdir())
    before = {path: path.read_bytes() for path in paths}
    for path in paths:
        if random.random() < 0.7:
            _spoil(path, before, random)
    again = perform(task)
    # Kernels by themselves are not looked at where the whole partition is kept.
    whole = [path for path in paths if path.suffix == SUFFIX]
    mended = sum(_is_sound(path, before[path]) for path in whole)
    if first.status == "ran" and mended < len(whole):
        left = f"{len(whole) - mended} of {len(whole)} files were not mended"
        return Result("crashed", text=left)
    for path in folder.iterdir():
        path.unlink()
    kinds = sorted({path.suffix for path in paths})
    return Result(again.status, again.outputs, f"same, with {kinds}", again.fault, again.accepted)


def _is_sound(path: Path, before: bytes) -> bool:
    """Whether a file is what may lie there; drivers do not make the same binaries twice."""
    try:
        return read(path, before[KEY]) is not None
    except (OSError, DamagedError):
        return False


def _spoil(path: Path, before: Mapping[Path, bytes], random: np.random.Generator) -> None:
    kind = str(random.choice(["bytes", "bytes", "bytes", "other", "empty", "link", "fifo"]))
    if kind == "bytes":
        path.write_bytes(damage_bytes(before[path], random))
    elif kind == "other":
        path.write_bytes(list(before.values())[int(random.integers(len(before)))])
    elif kind == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
        if kind == "fifo" and hasattr(os, "mkfifo"):
            os.mkfifo(path)
        elif hasattr(os, "geteuid"):
            path.symlink_to("/dev/zero")
