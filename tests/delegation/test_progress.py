"""Reports of a start's progress, from a separate thread that never blocks the start."""

from __future__ import annotations

import contextvars
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from litegpu import GpuDelegate, OptionsError, Progress, progress
from litegpu.backends.base import DeviceInfo
from places import SOURCE
from small_models import CPU_ONLY, chain, classifier, interpreter

if os.name == "posix":
    import pty


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell of short starts, too, and often."""
    monkeypatch.setattr(progress, "_QUIET_S", 0.0)
    monkeypatch.setattr(progress, "_BETWEEN_S", 0.002)


class Heard:
    """Keeps what it was called with, and by which threads."""

    def __init__(self) -> None:
        self.calls: list[Progress] = []
        self.threads: set[threading.Thread] = set()

    def __call__(self, now: Progress) -> None:
        self.calls.append(now)
        self.threads.add(threading.current_thread())

    def wait_for(self, wanted: Callable[[Progress], bool]) -> None:
        """Return once a call was such; fail after seconds."""
        end = time.monotonic() + 10
        while not any(map(wanted, self.calls)):
            assert time.monotonic() < end, self.calls
            time.sleep(0.001)


def test_a_short_start_is_told_to_nobody() -> None:
    heard = Heard()
    with progress.watching(heard):
        progress.at("compile", 3)
    assert heard.calls == []


@pytest.mark.usefixtures("at_once")
def test_stages_and_steps_and_the_end() -> None:
    heard = Heard()
    with progress.watching(heard):
        progress.at_partition(2, 3)
        progress.at("load")
        heard.wait_for(lambda now: (now.stage, now.total) == ("load", 0))
        for done, _ in enumerate(progress.steps("measure", "ab", 2)):
            progress.at("compile", 7)
            heard.wait_for(lambda now: (now.stage, now.done, now.total) == ("compile", 0, 7))
            heard.calls.clear()
            if done:
                heard.wait_for(lambda now: now.stage == "compile")
        heard.wait_for(lambda now: (now.stage, now.done, now.total) == ("measure", 2, 2))
    assert [now.stage for now in heard.calls].count("end") == 1
    assert heard.calls[-1].stage == "end"
    assert {(now.partition, now.partitions) for now in heard.calls} == {(2, 3)}
    seconds = [now.seconds for now in heard.calls]
    assert seconds == sorted(seconds) and seconds[-1] > 0
    assert threading.main_thread() not in heard.threads
    assert not any(thread.is_alive() for thread in heard.threads)


@pytest.mark.usefixtures("at_once")
def test_the_end_comes_after_a_failure_too() -> None:
    heard = Heard()
    with pytest.raises(ZeroDivisionError), progress.watching(heard):
        heard.wait_for(lambda now: now.stage == "choose")
        _ = 1 // 0
    assert heard.calls[-1].stage == "end"


@pytest.mark.usefixtures("at_once")
def test_a_listener_inside_another_hears_nothing() -> None:
    outer, inner = Heard(), Heard()
    with progress.watching(outer):
        with progress.watching(inner):
            progress.at("run")
            outer.wait_for(lambda now: now.stage == "run")
        assert outer.calls[-1].stage == "run"
    assert inner.calls == []


@pytest.mark.usefixtures("at_once")
def test_a_listener_that_raises_is_called_no_more(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[Progress] = []

    def fail(now: Progress) -> None:
        calls.append(now)
        raise ValueError("no bar today")

    with caplog.at_level(logging.WARNING, "litegpu"), progress.watching(fail):
        end = time.monotonic() + 10
        while not caplog.messages and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(0.02)
    assert len(calls) == 1
    assert caplog.messages == [
        "on_progress raised ValueError: no bar today. The function is not called again; the "
        "start continues."
    ]


def test_a_listener_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(OptionsError, match="on_progress must be a function or None, not 'bar'"):
        GpuDelegate(on_progress="bar")  # type: ignore[arg-type]


@pytest.mark.usefixtures("at_once")
def test_work_that_is_carried_to_another_thread_tells_the_same_listener() -> None:
    heard = Heard()
    with progress.watching(heard):
        there = threading.Thread(target=progress.carried(lambda: progress.at("compile", 5)))
        there.start()
        there.join()
        heard.wait_for(lambda now: now.total == 5)
        threading.Thread(target=lambda: progress.at("run")).start()
        time.sleep(0.02)
    assert "run" not in {now.stage for now in heard.calls}


class Record:
    """Stands in for a listener's watch: keeps every state."""

    def __init__(self) -> None:
        self.states = [Progress("choose")]

    @property
    def now(self) -> Progress:
        return self.states[-1]

    @now.setter
    def now(self, state: Progress) -> None:
        self.states.append(state)


def test_a_delegate_tells_of_each_partition(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = Record()
    current: contextvars.ContextVar[Any] = contextvars.ContextVar("record", default=record)
    monkeypatch.setattr(progress, "_current", current)
    chosen: dict[str, Any] = {"backend": device.backend, "device": device.index}
    folder: dict[str, Any] = {"cache": True, "serialization_dir": str(tmp_path)}
    model = chain(["ABS", "EXP", CPU_ONLY, "TANH", "SQRT"], (1, 8, 8, 3))

    def start() -> list[Progress]:
        record.states[:] = [Progress("choose")]
        with GpuDelegate(**chosen, **folder, max_delegated_partitions=2) as delegate:
            interpreter(model, delegate)
        return record.states

    cold = start()
    wanted = ["choose", "load", "compile", "run"]
    for partition in (1, 2):
        own = [now for now in cold if (now.partition, now.partitions) == (partition, 2)]
        assert list(dict.fromkeys(now.stage for now in own)) == wanted
    if device.backend in ("opengl", "webgpu", "cuda"):  # OpenCL builds all kernels in one call
        assert any(now.stage == "compile" and now.done == now.total > 0 for now in cold)
    compiling = {"compile"} if device.backend == "webgpu" else set()  # it has no binaries
    launching = {"run"} if device.backend == "opencl" and device.software else set()
    assert {now.stage for now in start()} == {"choose", "load"} | compiling | launching


@pytest.mark.usefixtures("at_once")
def test_what_a_user_passes_is_called(device: DeviceInfo) -> None:
    heard = Heard()
    delegate = GpuDelegate({"backend": device.backend, "device": device.index}, on_progress=heard)
    with delegate:
        target = interpreter(chain(["ABS", "EXP"], (1, 8, 8, 3)), delegate)
        assert heard.calls[-1].stage == "end"
        count = len(heard.calls)
        target.resize_tensor_input(target.get_input_details()[0]["index"], (1, 5, 7, 3))
        target.allocate_tensors()
        assert len(heard.calls) > count and heard.calls[-1].stage == "end"


WARMING = """\
import sys
from litegpu import progress
from litegpu.tools import cli
progress._QUIET_S = 0.0
folder = f"--serialization_dir={sys.argv[1]}"
sys.exit(cli.main(["cache", "--warm=model.tflite", folder]))
"""


@pytest.mark.skipif(os.name != "posix", reason="needs pseudo-terminals")
@pytest.mark.usefixtures("opencl_device")
@pytest.mark.parametrize("terminal", [True, False])
def test_a_tool_draws_a_bar_on_a_terminal_alone(terminal: bool, tmp_path: Path) -> None:
    """A whole program: what it draws is gone before it says what came of it."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "LITEGPU_BACKEND": "opencl"}
    environment["POCL_KERNEL_CACHE"] = "0"  # what is kept compiles too fast to be seen
    (tmp_path / "model.tflite").write_bytes(classifier())
    command = [sys.executable, "-c", WARMING, str(tmp_path / "kept")]
    reader, writer = os.pipe() if not terminal else pty.openpty()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=writer, text=True, env=environment, cwd=tmp_path
    ) as process:
        os.close(writer)
        seen = b""
        try:
            while part := os.read(reader, 65536):
                seen += part
        except OSError:  # what Linux says at the end of a terminal
            pass
        os.close(reader)
        assert process.stdout is not None
        output = process.stdout.read()
    text = seen.decode()
    assert process.returncode == 0, text
    assert "start: " not in output
    assert any((tmp_path / "kept").iterdir())
    if terminal:
        assert "\rstart: compiling, " in text
        assert text.rindex("start: ") < text.rindex("\r ") < text.rindex("model.tflite")
    else:
        assert "start: " not in text and "model.tflite" in text
