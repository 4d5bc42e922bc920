"""Damages FlexBuffers, the options of custom operations: they are read or rejected quickly."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.damage import damage_bytes
from fuzzing.oracle import Finding, Tally
from fuzzing.seeds import Source
from fuzzing.worker import Result, Task, Worker

_SECONDS = 30.0
_AT_ONCE = 200
"""Buffers of one task: sending it takes longer than reading one."""


class FlexOracle:
    """Reads damaged options in a process that may hang; the models do not matter."""

    def __init__(self, _: Mapping[str, Source], __: Mapping[str, Any]) -> None:
        self._worker = Worker(work=read_many)
        self.tally = Tally()

    def close(self) -> None:
        """End the process."""
        self._worker.close()

    def try_one(self, name: str, number: int) -> Finding | None:
        """Read some and note what comes of it."""
        found = self._worker.run(Task(b"", number), _SECONDS)
        if found.status != "ran":
            finding = Finding(f"{name}:{number}", (), f"{found.status}: {found.text}")
            self.tally.outcomes["wrong"] += 1
            self.tally.findings.append(finding)
            return finding
        read = int(found.text)
        self.tally.outcomes["read"] += read
        self.tally.outcomes["refused"] += _AT_ONCE - read
        return None

    def save(self, finding: Finding, folder: Path) -> Path:
        """Write the buffers of a finding to a folder, one after the other."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{finding.seed.replace('/', '_')}.flexbuffers"
        number = int(finding.seed.rpartition(":")[2])
        path.write_bytes(b"\n--\n".join(buffers(number)))
        return path


def read_many(task: Task) -> Result:
    """Read damaged options in this process; `text` says how many could be read."""
    from litegpu.ops.common.flexbuffers import read_map

    read = 0
    for data in buffers(task.seed):
        try:
            read_map(data)
            read += 1
        except ValueError:
            continue
        except Exception as error:
            return Result("failed", text=f"{data.hex()}: {error!r}")
    return Result("ran", text=str(read))


def buffers(seed: int) -> list[bytes]:
    """Return damaged options."""
    from flatbuffers import flexbuffers

    random = np.random.default_rng([zlib.crc32(b"flexbuffers"), seed])
    return [
        damage_bytes(bytes(flexbuffers.Dumps(_options(random, 0))), random) for _ in range(_AT_ONCE)
    ]


def _options(random: np.random.Generator, depth: int) -> dict[str, Any]:
    return {f"k{i}": _value(random, depth) for i in range(int(random.integers(1, 5)))}


def _value(random: np.random.Generator, depth: int) -> Any:
    kind = int(random.integers(7 if depth < 3 else 4))
    if kind < 4:
        return (int(random.integers(-999, 99999)), float(random.random()), "text" * 3, True)[kind]
    if kind == 4:
        return [int(each) for each in random.integers(0, 99, int(random.integers(1, 9)))]
    if kind == 5:
        return [_value(random, depth + 1) for _ in range(int(random.integers(1, 5)))]
    return _options(random, depth + 1)
