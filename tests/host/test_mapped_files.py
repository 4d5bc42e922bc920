"""Mapped files: their pages leave the process's memory, and their bytes stay readable."""

from __future__ import annotations

import gc
import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from litegpu.host import mapped_files
from litegpu.host.large_arrays import LEAST
from litegpu.host.mapped_files import map_file, release

SIZE = 8 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="the system has no /proc")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "weights"
    found.write_bytes(np.random.default_rng(0).integers(1, 100, SIZE, np.uint8).tobytes())
    return found


def resident(data: memoryview) -> int:
    """Return the resident bytes of the mapping that contains some memory."""
    place = np.frombuffer(data, np.uint8).ctypes.data
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            start, end = (int(each, 16) for each in words[0].split("-"))
            found = start <= place < end
        elif found and words[0] == "Rss:":
            return int(words[1]) << 10
    raise AssertionError("the memory is not mapped")


@linux
def test_pages_are_released_and_read_again(path: Path) -> None:
    data, content = map_file(path), path.read_bytes()
    assert bytes(data) == content and resident(data) == SIZE
    release(data[5000 : SIZE - 5000])
    assert resident(data) <= 1 << 20
    assert bytes(data) == content
    release(data[1 : mmap.PAGESIZE])
    assert resident(data) == SIZE, "no whole page"


@linux
def test_facts_of_mapped_arrays_hold_no_pages(path: Path) -> None:
    data = map_file(path)
    assert LEAST.of(np.frombuffer(data, np.int8)) == 1
    assert resident(data) <= 1 << 20


def test_other_memory_is_left_alone(path: Path) -> None:
    mapped = map_file(path)
    own = np.arange(1 << 20, dtype=np.int32)
    expected = own.copy()
    release(own.view(np.uint8).data)
    release(memoryview(b""))
    np.testing.assert_array_equal(own, expected)
    del mapped
    gc.collect()
    release(own.view(np.uint8).data)
    np.testing.assert_array_equal(own, expected)
    map_file(path)
    assert len(mapped_files._mapped) <= 2


def test_systems_without_the_advice(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_files, "_RELEASE", None)
    data = map_file(path)
    release(data)
    assert bytes(data) == path.read_bytes()
