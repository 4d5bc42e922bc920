"""Interrupts reach the program unchanged at any time, and leave litegpu usable."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from every_backend import on_every_backend
from litegpu import GpuDelegate
from litegpu.delegation.partition_kernel import PartitionKernel
from litegpu.runtime_abi import bridge, kernel_slots
from litegpu.runtime_abi.callbacks import Callback
from robustness.interrupts import GOOD
from robustness.programs import Program, run_program
from small_models import (
    CPU_ONLY,
    assert_close,
    chain,
    fully_convolutional,
    interpreter,
    random,
    reference,
    run,
)

pytestmark = pytest.mark.usefixtures("nothing_of_earlier_tests")
posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")


class AlarmError(BaseException):
    """An interrupt of a program's own."""


class OwnError(Exception):
    """An error of a program's own."""


INTERRUPTS = [KeyboardInterrupt(), SystemExit(3), AlarmError("of my own")]
each_interrupt = pytest.mark.parametrize("fault", INTERRUPTS, ids=lambda f: type(f).__name__)


def raiser(fault: BaseException) -> Any:
    def raise_it(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise fault

    return raise_it


@each_interrupt
@pytest.mark.parametrize("moment", ["_apply", "_compile", "_take_kernel", "_release_untaken"])
def test_while_a_delegate_is_applied(
    fault: BaseException, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = bridge.live_kernels()
    delegate = GpuDelegate()
    with monkeypatch.context() as broken:
        broken.setattr(GpuDelegate, moment, raiser(fault))
        with pytest.raises(type(fault)) as caught:
            interpreter(chain(["ABS"]), delegate)
        assert caught.value is fault
    del caught
    fault.__traceback__ = None
    assert delegate.error is None
    assert bridge.live_kernels() == live
    x = random(1, 4, 4, 4)
    assert_close(run(interpreter(chain(["ABS"]), delegate), x), [abs(x)])


@each_interrupt
@pytest.mark.parametrize("moment", ["prepare", "shape"])
def test_while_tensors_are_allocated(
    fault: BaseException, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime takes it for allocated: the next invoke does what was missed."""
    model, x = fully_convolutional(), random(2, 9, 7, 3)
    delegate = GpuDelegate()
    target = interpreter(model, delegate)
    target.resize_tensor_input(0, x.shape)
    method = {"prepare": "_compile", "shape": "prepare"}[moment]
    with monkeypatch.context() as broken:
        broken.setattr(PartitionKernel, method, raiser(fault))
        with pytest.raises(type(fault)) as caught:
            target.allocate_tensors()
        assert caught.value is fault
        with pytest.raises(type(fault)):
            target.invoke()
    assert_close(run(target, x), reference(model, x))
    assert_close(run(target, x), reference(model, x))
    assert delegate.error is None


@each_interrupt
def test_while_a_partition_runs(fault: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = chain(["ABS", CPU_ONLY, "NEG"]), random(1, 4, 4, 4)
    delegate = GpuDelegate(max_delegated_partitions=2)
    target = interpreter(model, delegate)
    before = run(target, x)
    first, second = kernel_slots.kernels()[-2:]
    later: list[int] = []
    with monkeypatch.context() as broken:
        broken.setattr(first, "_run", raiser(fault))
        broken.setattr(second, "_run", lambda: later.append(1))
        with pytest.raises(type(fault)) as caught:
            target.invoke()
    assert caught.value is fault
    assert not later, "the partitions after it are skipped"
    assert delegate.error is None
    np.testing.assert_array_equal(run(target, x)[0], before[0])


@each_interrupt
def test_while_an_interpreter_is_dropped(
    fault: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = bridge.live_kernels()
    target = interpreter(chain(["ABS"]), GpuDelegate())
    closed: list[int] = []
    original = PartitionKernel.close

    def close(self: PartitionKernel, context: int = 0) -> None:
        original(self, context)
        closed.append(1)
        if len(closed) == 1:
            raise fault

    monkeypatch.setattr(PartitionKernel, "close", close)
    with pytest.raises(type(fault)) as caught:
        del target
        for _ in range(2):  # Python looks for what is to be raised where a loop goes back
            pass
    assert caught.value is fault
    assert len(closed) == 2, "what was interrupted is done again"
    assert bridge.live_kernels() == live


@pytest.mark.parametrize("error", [None, ValueError("an error that is being logged")])
def test_while_something_is_logged(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logging.getLogger("litegpu")
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", raiser(KeyboardInterrupt()))
    if error is not None:
        monkeypatch.setattr(GpuDelegate, "_apply", raiser(error))
    delegate = GpuDelegate()
    log.addHandler(handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interpreter(chain(["ABS", CPU_ONLY]), delegate)
    finally:
        log.removeHandler(handler)


def test_one_in_the_handling_of_another() -> None:
    """Those that come before Python has control become one."""
    seen: list[str] = []

    def failed(_context: int, error: BaseException) -> int:
        seen.append(type(error).__name__)
        if len(seen) < 3:
            raise AlarmError(len(seen))
        return 7

    callback = Callback(raiser(KeyboardInterrupt()), failed)
    with pytest.raises(AlarmError, match="2"):
        callback.function(0)
    assert seen == ["KeyboardInterrupt", "AlarmError", "AlarmError"]
    callback.work = raiser(ValueError())
    assert callback.function(0) == 7


def test_an_error_in_the_handling_of_an_error() -> None:
    callback = Callback(raiser(ValueError()), raiser(TypeError()))
    assert callback.function(0) == 1
    callback.work = lambda _context: None
    assert callback.function(0) == 0


def test_an_interrupt_goes_to_the_thread_that_called() -> None:
    callback = Callback(raiser(SystemExit(5)), lambda *_: 1)
    found: list[BaseException] = []

    def work() -> None:
        try:
            callback.function(0)
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(timeout=30)
    (error,) = found
    assert isinstance(error, SystemExit) and error.code == 5


@posix
@pytest.mark.parametrize("fault", [OwnError(), StopIteration(), GeneratorExit(), TypeError()])
@pytest.mark.parametrize("wrapped", [False, True])
def test_what_a_handler_raises_is_no_error_of_litegpu(fault: BaseException, wrapped: bool) -> None:
    """It is known by the frame that it was given, also where litegpu made another error of it."""
    given: list[str] = []

    def ring(*arguments: Any) -> NoReturn:
        raise fault

    def work(_context: int) -> None:
        try:
            signal.raise_signal(signal.SIGALRM)
        except Exception as error:
            if not wrapped:
                raise
            raise ValueError("litegpu failed") from error

    def failed(_context: int, error: BaseException) -> int:
        given.append(type(error).__name__)
        return 1

    callback = Callback(work, failed)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(type(fault)) as caught:
            callback.function(0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert caught.value is fault
    is_error = isinstance(fault, Exception)
    assert given == ["HandlerError" if is_error else type(fault).__name__]
    callback.work = lambda _context: None
    assert callback.function(0) == 0


def test_an_error_while_the_program_handles_one_of_its_own() -> None:
    """What was raised before is no cause of it, though Python notes that it was handled then."""
    given: list[BaseException] = []

    def failed(_context: int, error: BaseException) -> int:
        given.append(error)
        return 1

    def ring(number: int, frame: object) -> NoReturn:
        raise OwnError

    try:
        ring(1, sys._getframe())
    except OwnError:
        assert Callback(raiser(ValueError()), failed).function(0) == 1
    assert [type(error) for error in given] == [ValueError]


@posix
@on_every_backend
def test_invokes_interrupted_at_random_moments(backend: str) -> None:
    ended = run_program("from robustness.interrupts import main\nmain(60)", backend)
    assert (ended.code, ended.stderr) == (0, "")
    for line in ended.stdout.splitlines():
        found = json.loads(line)
        assert set(found) - {"model"} <= GOOD, line
        assert found["interrupted"] > 0, line


@posix
@on_every_backend
@pytest.mark.parametrize("fault", ["StopIteration(1)", "GeneratorExit(1)", "Own(1)"])
def test_errors_of_signal_handlers_reach_the_program(fault: str, backend: str) -> None:
    """They are none of litegpu's, whatever their types."""
    ended = run_program(
        f"""
        import random as chance, signal
        from robustness.interrupts import MODELS, typical_seconds, wait_for_signal
        class Own(Exception):
            pass
        fault, frames = None, []
        def handler(number, frame):
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            raise fault
        draw, seen = chance.Random(7), 0
        for content, shape in MODELS.values():
            delegate = GpuDelegate(max_delegated_partitions=9)
            target, x = interpreter(content, delegate), random(*shape)
            expected = run(target, x)
            span = 1.5 * typical_seconds(target.invoke)
            for number in range(30):
                fault, ended = {fault}, False
                signal.signal(signal.SIGALRM, handler)
                try:
                    signal.setitimer(signal.ITIMER_REAL, max(draw.random() * span, 1e-6))
                    target.invoke()
                    ended = True
                    wait_for_signal()
                    print("lost")
                except BaseException as caught:
                    assert caught is fault, repr(caught)
                    seen += not ended
                assert delegate.error is None
                assert all((a == b).all() for a, b in zip(run(target, x), expected))
        print(seen > 0)
        """,
        backend,
    )
    assert (ended.code, ended.stdout, ended.stderr) == (0, "True\n", "")


@posix
@on_every_backend
def test_creations_and_resizes_interrupted_at_random_moments(backend: str) -> None:
    """Nothing of an interrupted creation is left; what was missed of a resize is done later."""
    ended = run_program(
        """
        import gc, random as chance, signal, time
        from litegpu.runtime_abi import bridge
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        draw, wide = chance.Random(3), random(2, 9, 7, 3)
        expected = [reference(model, each)[0] for each in (x, wide)]
        def seconds(work):
            start = time.perf_counter()
            work()
            return time.perf_counter() - start
        def interrupted(work, span):
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.random() * span + 1e-6)
                work()
                time.sleep(5)
                lost.append(work)
            except KeyboardInterrupt:
                pass
        lost = []
        delegate = GpuDelegate()
        create = lambda: interpreter(model, delegate)
        create()
        span = seconds(create)
        for _ in range(25):
            interrupted(create, span)
            assert delegate.error is None, delegate.error
            gc.collect()
            assert bridge.live_kernels() == 0
        target = create()
        def resize(shape):
            target.resize_tensor_input(0, shape)
            target.allocate_tensors()
        for number in range(25):
            each, result = ((x, expected[0]), (wide, expected[1]))[number % 2]
            target.resize_tensor_input(0, each.shape)
            interrupted(target.allocate_tensors, span)
            assert abs(run(target, each)[0] - result).max() < 1e-5
        print(len(lost))
        """,
        backend,
    )
    assert ended.code == 0, ended.stderr
    # Python itself drops, and tells, what strikes the destructor of an object.
    lost = int(ended.stdout)
    assert lost <= 2, ended.stderr
    assert (lost > 0) == ("Exception ignored" in ended.stderr), ended.stderr


@posix
@on_every_backend
def test_a_program_that_is_asked_to_end(backend: str) -> None:
    """Ctrl-C where nobody catches it, and SIGTERM with a handler that raises SystemExit."""
    source = """
        import signal
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        target = interpreter(model, GpuDelegate())
        run(target, x)
        print("ready", flush=True)
        while True:
            target.invoke()
        """
    for number, code, last in (
        (signal.SIGTERM, 7, ""),
        (signal.SIGINT, -signal.SIGINT, "KeyboardInterrupt"),
    ):
        with Program(source, backend) as program:
            program.wait_for("ready")
            program.send(number)
            ended = program.end()
        assert (ended.code, ended.stderr.strip().split("\n")[-1]) == (code, last), ended.stderr


@posix
@on_every_backend
def test_a_tool_that_is_interrupted(backend: str, tmp_path: Path) -> None:
    """One line says so, whatever the tool was doing."""
    source = """
        import threading, time
        from pathlib import Path
        from litegpu.tools import cli
        path = Path(sys.argv[1])
        path.write_bytes(model)
        threading.Timer(1.0, lambda: print("ready", flush=True)).start()
        sys.exit(cli.main(["run", str(path), "--num_runs=100000000"]))
        """
    with Program(source, backend, str(tmp_path / "model.tflite")) as program:
        program.wait_for("ready")
        program.send(signal.SIGINT)
        ended = program.end()
    assert ended.code == 130
    assert ended.stderr.splitlines()[-1] == "litegpu: interrupted"
    assert "Traceback" not in ended.stderr
