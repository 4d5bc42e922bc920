"""The thread that owns a context: order, results, errors, and calls from the thread itself."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref

import pytest

from alarms import Alarm, alarms, needs_timers
from litegpu.host import thread_worker as worker_module
from litegpu.host.thread_worker import Worker, WorkerEndedError
from robustness.programs import run_program


@pytest.fixture
def worker() -> Worker:
    return Worker("test")


def test_calls_are_made_on_one_thread_in_order(worker: Worker) -> None:
    seen: list[int] = []
    names = {worker.call(lambda: threading.current_thread().name) for _ in range(3)}
    for number in range(5):
        worker.post(lambda number=number: seen.append(number))  # type: ignore[misc]
    assert worker.call(lambda: list(seen)) == [0, 1, 2, 3, 4]
    assert names == {"test"}
    worker.stop()


def test_errors_reach_the_caller(worker: Worker) -> None:
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda: 1 // 0)
    worker.post(lambda: 1 // 0)
    assert worker.call(lambda: 5) == 5
    worker.stop()


def test_a_call_may_make_calls(worker: Worker) -> None:
    assert worker.call(lambda: worker.call(lambda: 7)) == 7
    worker.stop()


def test_it_holds_nothing_that_it_returned(worker: Worker) -> None:
    class Thing:
        pass

    thing = worker.call(Thing)
    alive = weakref.ref(thing)
    del thing
    gc.collect()
    assert alive() is None
    worker.stop()


def test_an_error_ends_with_its_handler(worker: Worker) -> None:
    """Its traceback holds the callers' variables, such as a delegate that is being made."""

    class Thing:
        pass

    def ask() -> weakref.ref[Thing]:
        thing = Thing()
        try:
            worker.call(lambda: 1 // 0)
        except ZeroDivisionError:
            return weakref.ref(thing)
        raise AssertionError("nothing was raised")

    gc.disable()
    try:
        assert ask()() is None
    finally:
        gc.enable()
        worker.stop()


def test_many_threads_ask_at_once(worker: Worker) -> None:
    total = [0]

    def add() -> None:
        total[0] += 1

    def work() -> None:
        for _ in range(200):
            worker.call(add)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert total == [800]
    worker.stop()


def test_it_ends_when_it_is_told(worker: Worker) -> None:
    worker.call(lambda: None)
    worker.stop()
    worker.join(60)
    assert not worker._thread.is_alive()


# Interrupts


@needs_timers
def test_what_was_interrupted_has_ended_when_it_raises(worker: Worker) -> None:
    begun, ended = [0], [0]

    def slow() -> None:
        begun[0] += 1
        time.sleep(0.3)
        ended[0] += 1

    while not begun[0]:  # on a busy machine the first one may come before
        with pytest.raises(Alarm), alarms(worker_module, 0.005):
            worker.call(slow)
        assert begun == ended
    assert worker.call(lambda: 3) == 3
    worker.stop()


@needs_timers
def test_a_storm_does_not_hold_a_call_back(worker: Worker) -> None:
    """The wait ends with the call, even where its end and an interrupt come at the same time."""
    left = 0
    with alarms(worker_module, 0.0005) as raised:
        while left < 400:
            try:
                worker.call(lambda: time.sleep(0.0005))
            except Alarm:
                left += 1
    assert raised[0] < 20 * left
    worker.stop()


@needs_timers
def test_thousands_of_interrupted_calls(worker: Worker) -> None:
    """Each has ended, or never begins: nothing runs on behalf of what has raised."""
    begun, ended, interrupts, wrong = [0], [0], 0, 0

    def work() -> int:
        begun[0] += 1
        number = begun[0]
        time.sleep(0.0002)
        ended[0] += 1
        return number

    with alarms(worker_module, 0.0007):
        while interrupts < 1500:
            try:
                wrong += worker.call(work) != ended[0]
            except Alarm:
                interrupts += 1
                wrong += begun[0] != ended[0]
    assert worker.call(lambda: (begun, ended)) == (ended, ended)
    assert not wrong
    worker.stop()


@needs_timers
def test_a_call_that_has_not_begun_never_does(worker: Worker) -> None:
    answer, output = threading.Event(), []
    worker.post(lambda: answer.wait(60))
    with pytest.raises(Alarm), alarms(worker_module, 0.2):
        worker.call(lambda: output.append(1))
    answer.set()
    assert worker.call(lambda: 4) == 4
    assert output == []
    worker.stop()


@needs_timers
def test_a_long_call_may_ask_whether_it_is_wanted(worker: Worker) -> None:
    steps, cleaned = [], []

    def long() -> None:
        try:
            for number in range(6000):
                worker.check()
                steps.append(number)
                time.sleep(0.01)
        finally:
            cleaned.append(True)

    with pytest.raises(Alarm), alarms(worker_module, 0.2):
        worker.call(long)
    assert cleaned == [True] and 0 < len(steps) < 6000
    worker.check()  # outside of calls, nobody asks
    worker.stop()


@needs_timers
def test_a_handler_of_signals_may_make_calls(worker: Worker) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: heard.append(worker.call(lambda: 9)))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        worker.call(lambda: time.sleep(0.5))
        worker.call(lambda: None)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert heard == [9]
    worker.stop()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, Alarm])
def test_what_is_no_exception_comes_through(worker: Worker, kind: type[BaseException]) -> None:
    def leave() -> None:
        raise kind

    with pytest.raises(kind):
        worker.call(leave)
    assert worker.call(lambda: 6) == 6
    worker.stop()


def test_calls_while_objects_are_collected(worker: Worker) -> None:
    found: list[int] = []

    class Late:
        def __del__(self) -> None:
            found.append(worker.call(lambda: 8))

    late = Late()
    late.itself = late  # type: ignore[attr-defined]
    del late
    gc.collect()
    worker.call(lambda: Late() and None)
    assert found == [8, 8]
    worker.stop()


# Limits


def test_a_call_that_takes_too_long_touches_nothing_afterwards(worker: Worker) -> None:
    answer, written, released = threading.Event(), [], []
    worker.at_end(lambda: released.append(True))

    def slow() -> None:
        answer.wait(60)
        worker.commit()
        written.append(1)

    with pytest.raises(TimeoutError, match="no answer from test"):
        worker.call(slow, timeout=0.05)
    assert worker.ended
    with pytest.raises(WorkerEndedError, match="The thread 'test' has ended"):
        worker.call(lambda: written.append(2))
    answer.set()
    worker.join(60)
    assert written == [] and released == [True]


def test_a_call_that_hands_over_its_results_is_waited_for(worker: Worker) -> None:
    written = []

    def slow() -> str:
        worker.commit()
        time.sleep(0.3)
        written.append(1)
        return "late"

    assert worker.call(slow, timeout=0.05) == "late"
    assert written == [1] and not worker.ended
    worker.commit()  # outside of calls there is nothing to hand over
    worker.stop()


def test_a_call_behind_one_that_never_ends(worker: Worker) -> None:
    answer, output = threading.Event(), []
    worker.post(lambda: answer.wait(60))
    with pytest.raises(TimeoutError):
        worker.call(lambda: output.append(1), timeout=0.05)
    answer.set()
    worker.join(60)
    assert output == []


# The end


def test_it_releases_what_it_owns_at_its_end(worker: Worker) -> None:
    order = []
    worker.at_end(lambda: order.append("released"))
    worker.post(lambda: order.append("called"))
    worker.stop()
    worker.join(60)
    assert order == ["called", "released"]
    worker.post(lambda: order.append("late"))
    with pytest.raises(
        WorkerEndedError, match="because the program is ending or its device was closed"
    ):
        worker.call(lambda: order.append("late"))
    assert order == ["called", "released"]


def test_a_call_that_came_too_late_is_not_waited_for(worker: Worker) -> None:
    worker.stop()
    worker.join(60)
    worker.ended = False  # as if it had been asked just before
    with pytest.raises(WorkerEndedError):
        worker.call(lambda: None)


ENDING = """
import atexit, os, signal, sys, threading, time
atexit.register(lambda: print("late", worker.ended, flush=True))
from alarms import Alarm, alarms, needs_timers
from litegpu.host import thread_worker as worker_module
from litegpu.host.thread_worker import Worker, WorkerEndedError
worker = Worker("test")
worker.at_end(lambda: print("released", flush=True))

def call(how="called"):
    try:
        worker.call(lambda: print(how, flush=True))
    except WorkerEndedError:
        print("ended", how, flush=True)

class Held:
    def __del__(self, call=call, keep=(print, WorkerEndedError, worker)):
        call("dropped")

held = Held()
"""


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("", ["released", "late True", "ended dropped"]),
        ("atexit.register(call)", ["called", "released", "late True", "ended dropped"]),
        (
            "threading.Thread(target=lambda: (time.sleep(0.5), call())).start()",
            ["called", "released", "late True", "ended dropped"],
        ),
        (
            "threading.Thread(target=lambda: worker.call(lambda: time.sleep(90)), daemon=True)"
            ".start(); time.sleep(0.2)",
            ["late True"],
        ),
        (
            "worker.post(sys.exit); call()",
            ["called", "released", "late True", "ended dropped"],
        ),
        ("call(); sys.exit(0)", ["called", "released", "late True", "ended dropped"]),
    ],
    ids=["nothing", "at exit", "thread", "busy", "posted exit", "exit"],
)
def test_a_program_ends_whatever_is_alive(program: str, printed: list[str]) -> None:
    ended = run_program(program, "opengl", start=ENDING)
    assert (ended.code, ended.stdout.split("\n")[:-1]) == (0, printed), ended.stderr
    assert ended.stderr == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_has_no_thread() -> None:
    source = """
        child = os.fork()
        if child == 0:
            call("child")
            worker.post(lambda: print("posted"))
            del held
            sys.exit(0)
        print("code", os.waitpid(child, 0)[1], flush=True)
        call("parent")
    """
    ended = run_program(source, "opengl", start=ENDING)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout.split("\n")[:-1] == [
        *("ended child", "ended dropped", "late True", "code 0"),
        *("parent", "released", "late True", "ended dropped"),
    ]
