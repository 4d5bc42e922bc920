"""Samples that processes prepare: equal results, lost processes, cleanup, failing starts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import engine_jobs
import process_jobs
from engine_jobs import expected, job, summary
from litegpu.errors import WorkerError
from litegpu.tools import engines
from litegpu.tools.engines import decoding
from places import python_path

PROCESSES = engines.Settings(decode_threads=2, decode_in="processes")
AUTO = engines.Settings(decode_threads=4)


def run(work: Any, count: int, settings: engines.Settings) -> list[Any]:
    started = engines.start(work, engines.chunks(range(count), work.plan), settings)
    return list(summary(started.meter.watch(started.results)))


def values_of(settings: engines.Settings, work: Any, seconds: float = 60) -> Iterator[float]:
    """Yield the values of an endless run, which ends when nobody takes them."""
    started = engines.start(work, engines.chunks(range(1 << 20), work.plan), settings)
    end = time.monotonic() + seconds
    try:
        for result in started.results:
            assert result.value is not None, result.error
            yield result.value
            assert time.monotonic() < end
    finally:
        started.results.close()


def is_gone(pid: int) -> bool:
    """Say whether a process has ended, whoever should bury it."""
    if sys.platform == "win32":
        # A signal, with which others are asked, would end it.
        command = ["tasklist", "/FI", f"PID eq {pid}"]
        return str(pid) not in subprocess.run(command, capture_output=True, text=True).stdout
    try:
        os.kill(pid, 0)
        return " Z " in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return True


@pytest.mark.parametrize("batch", [4, 1])
def test_results_are_those_of_threads(batch: int) -> None:
    """The memory of batches is used again: what failed in it must not be what was there before."""
    assert run(job(batch=batch), 150, PROCESSES) == expected(150)


def test_processes_have_neither_a_runtime_nor_a_gpu() -> None:
    pids = set()
    for value, _ in zip(values_of(PROCESSES, job(process_jobs.light)), range(100), strict=False):
        pids.add(int(value))
    assert len(pids) == 2 and os.getpid() not in pids
    assert all(map(is_gone, pids))


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals")
def test_a_lost_process_is_replaced(tmp_path: Path) -> None:
    marker = tmp_path / "killed"
    assert run(job(engine_jobs.once_killed(marker)), 130, PROCESSES) == expected(130)
    assert marker.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals")
def test_a_sample_that_takes_every_process_with_it_fails_alone() -> None:
    found, usual = run(job(engine_jobs.kill_worker), 40, PROCESSES), expected(40)
    name, value, error = found.pop(20)
    assert (name, value) == ("20", None)
    assert error.startswith(
        "3 processes were lost (signal 9) while they decoded this sample. Look for"
    )
    usual.pop(20)
    assert found == usual


def test_processes_take_over_where_threads_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoding, "_TRIAL", 8)
    monkeypatch.setattr(decoding, "default_threads", lambda: 4)
    pids = []
    for pid in values_of(AUTO, job(process_jobs.waiting)):
        pids.append(int(pid))
        if len(set(pids)) > 2:
            break
    assert pids[0] == os.getpid(), "a run begins in threads"
    assert all(map(is_gone, set(pids) - {os.getpid()}))


def busy(_: int, plan: engines.BatchPlan) -> engines.Arrays:
    return process_jobs.own_number(plan)


@pytest.mark.parametrize(
    ("settings", "held_up", "prepare"),
    [
        (engines.Settings(decode_threads=3), 2.0, process_jobs.waiting),
        (engines.Settings(decode_threads=5), 2.0, process_jobs.waiting),
        (engines.Settings(decode_threads=4, decode_in="threads"), 2.0, process_jobs.waiting),
        (AUTO, 1e6, busy),
    ],
    ids=["few threads", "more than CPUs", "as it was told", "they do not wait"],
)
def test_threads_go_on_where_processes_would_not_pay(
    settings: engines.Settings, held_up: float, prepare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("a process is started")

    monkeypatch.setattr(decoding, "SharedBatches", fail)
    monkeypatch.setattr(decoding, "_TRIAL", 8)
    monkeypatch.setattr(decoding, "_BLOCKED_RATIO", held_up)
    monkeypatch.setattr(decoding, "default_threads", lambda: 4)
    assert {value for _, value, _ in run(job(prepare), 60, settings)} == {os.getpid()}


def no_room(*_: Any) -> None:
    raise OSError("no space left")


def test_without_processes(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """Those that were asked for are an error, those that were not are a pity."""
    why = "Processes that decode cannot be started: OSError: no space left. Decode with --decode_in"
    monkeypatch.setattr(decoding, "SharedBatches", no_room)
    monkeypatch.setattr(decoding, "_TRIAL", 8)
    monkeypatch.setattr(decoding, "default_threads", lambda: 4)
    with pytest.raises(WorkerError, match=why):
        run(job(), 9, PROCESSES)
    found = run(job(process_jobs.waiting), 90, AUTO)
    assert {value for _, value, _ in found} == {os.getpid()}
    assert capfd.readouterr().err.count("in threads. Processes that decode cannot be started") == 1


def test_what_cannot_be_sent() -> None:
    with pytest.raises(WorkerError, match=r"Processes that decode cannot be started: .*pickle"):
        run(job(lambda item, plan: engine_jobs.number(item, plan)), 9, PROCESSES)


def end(_: Any) -> None:
    os._exit(3)


class Ending:
    """Prepares samples, but not in another process: it ends those that unpack it."""

    def __call__(self, item: int, plan: engines.BatchPlan) -> engines.Arrays:
        return engine_jobs.number(item, plan)

    def __reduce__(self) -> Any:
        return end, (0,)


def test_processes_that_end_at_once() -> None:
    with pytest.raises(
        WorkerError, match="a process ended before it was ready, with exit status 3"
    ):
        run(job(Ending()), 9, PROCESSES)


SCRIPT = """
import engine_jobs
from litegpu.tools import engines
print("begun", flush=True)
work = engine_jobs.job()
settings = engines.Settings(decode_threads=2, decode_in="processes")
list(engines.start(work, engines.chunks(range(9), work.plan), settings).results)
"""


def test_a_script_that_forgets_its_guard(tmp_path: Path) -> None:
    """Its processes would run all of it again, and start processes."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert ended.returncode == 1
    assert "litegpu.errors.WorkerError: Processes that decode cannot be started" in ended.stderr
    assert "must start them below `if __name__ == '__main__':`" in ended.stderr
    assert 2 <= ended.stdout.count("begun") <= 3, "processes start no others"


def test_two_workers_have_processes_of_their_own_and_leave_none() -> None:
    settings = engines.Settings(workers=2, decode_threads=2, decode_in="processes")
    pids: set[int] = set()
    for pid in values_of(settings, job(process_jobs.waiting)):
        pids.add(int(pid))
        if len(pids) == 4:
            break
    end = time.monotonic() + 20
    while not all(map(is_gone, pids)):
        assert time.monotonic() < end
        time.sleep(0.1)
