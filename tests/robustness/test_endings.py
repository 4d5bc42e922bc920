"""Every program ends at once, with its own exit code and nothing on stderr."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from every_backend import on_every_backend
from robustness.programs import run_program


@dataclass(frozen=True)
class Ending:
    """A program, and how it must end."""

    source: str
    code: int = 0
    last_line: str = ""
    """Of stderr; where there is none, stderr is empty."""


ENDINGS = {
    "everything is still alive": Ending(
        """
        import json, threading
        delegate = GpuDelegate()
        first, second = interpreter(model, delegate), interpreter(model, delegate)
        held = {"delegate": GpuDelegate()}
        held["interpreter"] = json.held = interpreter(model, held["delegate"])
        cycle = interpreter(model, GpuDelegate())
        cycle.itself = cycle
        for target in (first, second, json.held, cycle):
            run(target, x)
        view = first.tensor(first.get_output_details()[0]["index"])()
        del first
        alone = GpuDelegate()
        run(interpreter(model, alone), x)
        threading.Thread(target=lambda: threading.Event().wait(), daemon=True).start()
        """
    ),
    "exits in a thread and in the middle": Ending(
        """
        import threading
        target = interpreter(model, GpuDelegate())
        thread = threading.Thread(target=lambda: (run(target, x), sys.exit(2)))
        thread.start()
        thread.join()
        sys.exit(3)
        """,
        code=3,
    ),
    "an exit without teardown": Ending(
        """
        import os
        target = interpreter(model, GpuDelegate())
        run(target, x)
        os._exit(4)
        """,
        code=4,
    ),
    "an exception that nobody catches": Ending(
        """
        target = interpreter(model, GpuDelegate())
        run(target, x)
        raise LookupError("of the program's own")
        """,
        code=1,
        last_line="LookupError: of the program's own",
    ),
    "invoked by daemon threads": Ending(
        """
        import threading, time
        delegate = GpuDelegate()
        def work(target):
            while True:
                target.invoke()
        for _ in range(2):
            target = interpreter(model, delegate)
            threading.Thread(target=work, args=(target,), daemon=True).start()
        time.sleep(0.3)
        """
    ),
    "a delegate that a daemon thread makes meanwhile": Ending(
        """
        import atexit, threading, time
        from litegpu import backends
        def select(*_):
            while threading.main_thread().is_alive():
                time.sleep(0.001)
            raise RuntimeError("can't create new thread at interpreter shutdown")
        backends.select = select
        atexit.register(time.sleep, 0.3)
        threading.Thread(target=GpuDelegate, daemon=True).start()
        """
    ),
    "used and dropped by handlers of the end": Ending(
        """
        import atexit
        early, late = {}, {}
        class Owner:
            def __del__(self):
                self.target.invoke()
                self.target = None
        def before():
            late["target"].invoke()
            late.clear()
        def after():  # litegpu has released its kernels
            try:
                early["target"].invoke()
            except RuntimeError as error:
                assert "Python is exiting, and has released the GPU" in str(error)
                early.clear()
            else:
                print("the GPU was not released", file=sys.stderr)
        atexit.register(after)
        target = interpreter(model, GpuDelegate())
        atexit.register(before)
        early["target"], late["target"] = interpreter(model, GpuDelegate()), target
        owner = late["owner"] = Owner()
        owner.target = interpreter(model, GpuDelegate())
        run(target, x)
        del owner
        """
    ),
}


@on_every_backend
@pytest.mark.parametrize("name", ENDINGS)
def test_a_program_ends_at_once(name: str, backend: str) -> None:
    ending = ENDINGS[name]
    ended = run_program(ending.source, backend, limit=60)
    lines = ended.stderr.splitlines()
    assert (ended.code, lines[-1] if lines else "") == (ending.code, ending.last_line), ended.stderr


@on_every_backend
def test_a_closed_delegate(backend: str) -> None:
    """What was computed can still be read; what is asked for later is an error that says why."""
    ended = run_program(
        """
        import gc
        from litegpu import InterpreterError
        from litegpu.runtime_abi import bridge
        expected = reference(model, x)[0]
        with GpuDelegate() as delegate:
            first, second = interpreter(model, delegate), interpreter(model, delegate)
            for target in (first, second):
                run(target, x)
        for target in (first, second):
            (result,) = (target.get_tensor(d["index"]) for d in target.get_output_details())
            assert abs(result - expected).max() < 1e-5
            for ask in (target.invoke, lambda: (target.resize_tensor_input(0, [2, 9, 7, 3]),
                                                target.allocate_tensors())):
                try:
                    ask()
                except RuntimeError as error:
                    assert "The delegate was closed. Create a new GpuDelegate" in str(error)
                else:
                    raise AssertionError("a closed delegate works")
        assert isinstance(delegate.error, InterpreterError)
        delegate.close()
        try:
            interpreter(model, delegate)
        except InterpreterError as error:
            assert "The delegate was closed" in str(error)
        else:
            raise AssertionError("a closed delegate can be applied")
        del first, second, target, ask
        gc.collect()
        assert bridge.live_kernels() == 0
        assert abs(run(interpreter(model, GpuDelegate()), x)[0] - expected).max() < 1e-5
        """,
        backend,
    )
    assert (ended.code, ended.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@on_every_backend
def test_a_forked_child_hears_why_nothing_works(backend: str) -> None:
    """Inherited objects refuse to work, can be dropped, and the parent does not notice."""
    ended = run_program(
        """
        import gc, os, threading, time, warnings
        from litegpu import ForkedProcessError
        # Python 3.12 and later warn of a fork beside threads, which is what this is about.
        warnings.simplefilter("ignore", DeprecationWarning)
        target, other = (interpreter(model, GpuDelegate()) for _ in range(2))
        delegate, kept = GpuDelegate(), interpreter(model, GpuDelegate())
        expected = run(target, x)[0]
        def work():
            while not stop:
                other.invoke()
        stop = []
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        time.sleep(0.1)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for ask in (
                    target.invoke,
                    other._interpreter.Invoke,  # the parent's thread may be in it
                    lambda: (target.resize_tensor_input(0, [2, 9, 7, 3]),
                             target.allocate_tensors()),
                ):
                    try:
                        ask()
                    except RuntimeError as error:
                        assert "before the process was forked" in str(error), error
                        assert "spawn" in str(error)
                    else:
                        raise AssertionError("a forked interpreter works")
                for make in (lambda: interpreter(model, delegate), GpuDelegate):
                    try:
                        make()
                    except ForkedProcessError as error:
                        assert "spawn" in str(error)
                    else:
                        raise AssertionError("a forked delegate works")
                del target, ask
                gc.collect()
                code = 0
            except BaseException:
                import traceback
                traceback.print_exc()
            if code or sys.argv[1] == "at once":
                os._exit(code)
        else:
            pid, status = os.waitpid(child, 0)
            stop.append(True)
            thread.join()
            assert status == 0, status
            assert (run(target, x)[0] == expected).all()
        """,
        backend,
        # Mesa's Vulkan driver waits for its threads, which a child has not, when C ends.
        "at once" if backend == "webgpu" else "in the end",
        limit=60,
    )
    assert (ended.code, ended.stderr) == (0, "")
