"""Several threads: delegates and interpreters that are created, shared, run and closed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from every_backend import on_every_backend
from litegpu import GpuDelegate
from robustness.programs import START, run_program
from small_models import assert_close, chain, interpreter, random, run

THREADS = """
import gc, threading
import numpy as np
inputs = [random(1, 9, 7, 3, seed=seed) for seed in range(4)]
expected = [reference(model, each) for each in inputs]
wrong, done = [], []

def check(target, number):
    for got, wanted in zip(run(target, inputs[number]), expected[number]):
        if not np.allclose(got, wanted, rtol=1e-4, atol=1e-5):
            wrong.append(f"input {number}: {got.ravel()[:3]}, not {wanted.ravel()[:3]}")

def in_threads(work):
    "Call work(0) to work(3) in four threads at once; all that goes wrong is printed."
    ready = threading.Barrier(4)
    def guarded(number):
        try:
            ready.wait(60)
            work(number)
            done.append(number)
        except BaseException as error:
            wrong.append(repr(error))
    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(4)]
    for each in threads: each.start()
    for each in threads: each.join()
    print(sorted(done), wrong)
"""
WORKS = {
    # The first delegates of a process, which look for devices and open them.
    "a delegate each": """
        def work(number):
            for _ in range(3):
                target = interpreter(model, GpuDelegate())
                for _ in range(5):
                    check(target, number)
        in_threads(work)
    """,
    "one delegate": """
        delegate = GpuDelegate()
        def work(number):
            for _ in range(3):
                target = interpreter(model, delegate)
                for _ in range(5):
                    check(target, number)
        in_threads(work)
        assert delegate.error is None, delegate.error
    """,
    # One thread makes, another one runs, a third one drops: never two at once.
    "handed on": """
        targets = [interpreter(model, GpuDelegate()) for _ in range(4)]
        for shift in range(4):
            in_threads(lambda number: check(targets[(number + shift) % 4], number))
            done.clear()
        in_threads(lambda number: targets.__setitem__(number, None))
    """,
    "closed meanwhile": """
        steady = interpreter(model, GpuDelegate())
        def work(number):
            if not number:
                for _ in range(40):
                    check(steady, number)
                return
            for _ in range(4):
                with GpuDelegate() as delegate:
                    check(interpreter(model, delegate), number)
                gc.collect()
        in_threads(work)
    """,
    "resized meanwhile": """
        def work(number):
            target = interpreter(model, GpuDelegate())
            place = target.get_input_details()[0]["index"]
            for size in (5, 8, 9) * 2:
                target.resize_tensor_input(place, (1, size, 7, 3))
                target.allocate_tensors()
                if size == 9:
                    check(target, number)
                else:
                    target.invoke()
        in_threads(work)
    """,
}


def test_threads_that_share_a_delegate_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one thread reads of its interpreter, and the report, stay while another applies it."""
    delegate = GpuDelegate()
    interpreter(chain(["ABS"]), delegate)
    first = delegate.report
    inside, go_on = threading.Event(), threading.Event()
    original = GpuDelegate._compile_chosen

    def waiting(self: GpuDelegate, context: int, selection: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            assert go_on.wait(60)
        return original(self, context, selection)

    monkeypatch.setattr(GpuDelegate, "_compile_chosen", waiting)
    slow: list[Any] = []
    thread = threading.Thread(
        target=lambda: slow.append(interpreter(chain(["ABS", "NEG"]), delegate))
    )
    thread.start()
    assert inside.wait(60)
    assert delegate.report is first
    quick = interpreter(chain(["NEG", "ABS", "NEG"]), delegate)
    assert delegate.report is not None
    assert (delegate.report.total_nodes, delegate.report.subgraphs) == (3, ())
    go_on.set()
    thread.join()
    assert delegate.error is None
    assert (delegate.report.total_nodes, delegate.report.subgraphs) == (2, ())
    x = random(1, 4, 4, 4)
    for target, expected in ((quick, -abs(x)), (slow[0], -abs(x))):
        assert_close(run(target, x), [expected])


def _no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_no_thread_is_left_when_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    delegate, x = GpuDelegate(), random(1, 4, 4, 4)
    with monkeypatch.context() as few:
        few.setattr(GpuDelegate, "_compile_chosen", _no_thread)
        target = interpreter(chain(["ABS"]), delegate)
        assert_close(run(target, x), [abs(x)])
    assert delegate.report is None
    assert "litegpu cannot start a thread" in str(delegate.error)
    assert "ulimit -u" in str(delegate.error)


@on_every_backend
def test_no_thread_is_left_when_a_device_is_opened(backend: str) -> None:
    """It is told as it is, and is no reason to install a package anew."""
    ended = run_program(
        """
        import threading
        from litegpu import LitegpuError
        def refuse(self):
            raise RuntimeError("can't start new thread")
        start, threading.Thread.start = threading.Thread.start, refuse
        try:
            GpuDelegate()
        except LitegpuError as error:
            assert "cannot start a thread (can't start new thread)" in str(error), error
            assert "install" not in str(error), error
        threading.Thread.start = start
        run(interpreter(model, GpuDelegate()), x)
        """,
        backend,
    )
    assert (ended.code, ended.stderr) == (0, "")


@on_every_backend
@pytest.mark.parametrize("work", WORKS)
def test_results_are_right(backend: str, work: str) -> None:
    ended = run_program(WORKS[work], backend, start=START + THREADS)
    lines = 5 if work == "handed on" else 1
    assert ended.stdout == "[0, 1, 2, 3] []\n" * lines, ended.stderr
    assert (ended.code, ended.stderr) == (0, "")
