"""Many processes start on one folder, damage its files, and are killed while they write."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import turns
from cache_starts import answer
from litegpu.cache.store import entries
from places import SUPPORT
from small_models import fully_convolutional

PROCESSES, STARTS = (16, 20) if turns.ALL else (5, 4)

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows kills otherwise")


def test_all_answers_are_right_and_the_folder_is_clean_in_the_end(tmp_path: Path) -> None:
    model, folder = tmp_path / "model.tflite", tmp_path / "kept"
    content = fully_convolutional()
    model.write_bytes(content)
    expected = answer(content, None)

    def arguments(number: int) -> tuple[object, ...]:
        return (model, folder, number, STARTS, dies(number))

    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "cache_starts", *map(str, arguments(number))],
            cwd=SUPPORT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for number, process in enumerate(processes):
            said, errors = process.communicate(timeout=300)
            killed = dies(number) >= 0
            assert process.returncode == (-signal.SIGKILL if killed else 0), errors
            assert said.split() == [expected] * (dies(number) if killed else STARTS), errors
            assert "cannot be cached" not in errors
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    for entry in entries(folder):
        entry.path.unlink()
    assert answer(content, folder) == expected
    assert [*folder.iterdir()] == [entry.path for entry in entries(folder)]
    (entry,) = entries(folder)
    assert answer(content, folder) == expected and [*folder.iterdir()] == [entry.path]


def dies(number: int) -> int:
    """Return the number of the start in which a process is killed (every fourth one), or -1."""
    return number * 7 % STARTS if number % 4 == 3 else -1
