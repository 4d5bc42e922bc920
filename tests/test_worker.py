"""The thread that owns a context: order, results, errors, and calls from itself."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from litegpu.backends.worker import Worker


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
    worker._thread.join(timeout=10)
    assert not worker._thread.is_alive()
