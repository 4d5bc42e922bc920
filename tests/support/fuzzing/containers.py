"""Damages bundles and files of language models: litegpu reads or rejects them, in little memory."""

from __future__ import annotations

import tempfile
import tracemalloc
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from containers import bundle
from fuzzing.damage import damage_bytes
from fuzzing.oracle import Finding, Tally
from fuzzing.seeds import Source
from litegpu import files
from litegpu.errors import ModelError
from litegpu.zoo.containers import Section, litertlm

_MODEL = b"\x1c\0\0\0TFL3" + bytes(100)
_INNER = bundle({"a.tflite": _MODEL, "b.txt": b"text"})
_SEEDS = (
    _INNER,
    bundle({"in.task": _INNER, "c.tflite": _MODEL}),
    bundle({"in.task": _INNER, "c.tflite": _MODEL}, zipfile.ZIP_DEFLATED),
    litertlm([Section(_MODEL), Section(b"words", 4, ""), Section(b"numbers", 7)])[:50000],
)
_MAX_BYTES = 80 << 20


def damaged(number: int) -> bytes:
    """Return a damaged container, by its number."""
    random = np.random.default_rng(number)
    content = _SEEDS[number % len(_SEEDS)]
    head = content[:600] if content.startswith(b"LITERTLM") else content
    return damage_bytes(head, random) + content[len(head) :]


def try_damaged(number: int) -> str:
    """Read a damaged container and all of its members; return "read" or "rejected".

    Raises AssertionError if that takes much memory, and whatever else is wrong.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.task"
        path.write_bytes(damaged(number))
        tracemalloc.start()
        try:
            found = files.open_container(path)
            sizes = [len(each.view()) for each in (found.members if found else ())]
            assert sizes == [each.size for each in (found.members if found else ())]
            outcome = "read"
        except ModelError:
            outcome = "rejected"
        finally:
            found = None
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < _MAX_BYTES, f"{peak} bytes"
    return outcome


class ContainerOracle:
    """Reads damaged containers. What models and options there are makes no difference."""

    def __init__(self, _sources: Mapping[str, Source], _options: Mapping[str, Any]) -> None:
        self.tally = Tally()

    def try_one(self, name: str, number: int) -> Finding | None:
        """Read a damaged container, and note what comes of it."""
        try:
            self.tally.outcomes[try_damaged(number)] += 1
        except Exception as error:  # anything but ModelError is a finding
            self.tally.outcomes["wrong"] += 1
            finding = Finding(f"{name}:{number}", (), repr(error))
            self.tally.findings.append(finding)
            return finding
        return None

    def save(self, finding: Finding, folder: Path) -> Path:
        """Write the container of a finding to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        number = int(finding.seed.rpartition(":")[2])
        path = folder / f"container_{number}"
        path.write_bytes(damaged(number))
        return path

    def close(self) -> None:
        """Nothing is open."""
