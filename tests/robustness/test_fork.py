"""A forked child gets a typed error at once, or can use everything; it never hangs."""

from __future__ import annotations

import os

import pytest

from every_backend import on_every_backend
from robustness.programs import run_program

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

CHILD = """
import os, time, warnings
from litegpu import ForkedProcessError, list_devices
warnings.simplefilter("ignore")  # Python's own, about threads in a process that forks

def refused():
    \"\"\"Ask for a delegate in a child; say how it was refused, and how fast.\"\"\"
    began = time.perf_counter()
    try:
        GpuDelegate()
    except ForkedProcessError as error:
        assert "spawn" in str(error), error
        assert time.perf_counter() - began < 5
        return "refused"
    return "opened"

def in_child(work):
    \"\"\"Do something in a child that ends as Python programs do; return its exit code.\"\"\"
    child = os.fork()
    if not child:
        sys.exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def check():
    return 0 if refused() == "refused" else 3
"""


@on_every_backend
def test_a_child_of_a_process_that_listed_devices(backend: str) -> None:
    source = f"""
{CHILD}
list_devices()
for _ in range(2):
    assert in_child(check) == 0
run(interpreter(model, GpuDelegate()), x)
print("parent works")
"""
    ended = run_program(source, backend)
    assert (ended.code, ended.stdout.splitlines()) == (0, ["parent works"]), ended.stderr
    assert "Traceback" not in ended.stderr


@on_every_backend
def test_a_child_of_a_process_that_has_an_interpreter(backend: str) -> None:
    """What it inherits is harmless to drop, and to keep until it ends."""
    source = f"""
{CHILD}
import gc
delegate = GpuDelegate()
target = interpreter(model, delegate)
before = run(target, x)
def drop():
    global delegate, target
    del delegate, target
    gc.collect()
    return check()
assert in_child(check) == 0
assert in_child(drop) == 0
assert (run(target, x)[0] == before[0]).all()
print("parent works")
"""
    ended = run_program(source, backend)
    assert (ended.code, ended.stdout.splitlines()) == (0, ["parent works"]), ended.stderr
    assert "Traceback" not in ended.stderr


@on_every_backend
def test_a_child_of_a_process_that_used_no_api(backend: str) -> None:
    source = f"""
{CHILD}
def work():
    results = run(interpreter(model, GpuDelegate()), x)
    return 0 if abs(results[0] - reference(model, x)[0]).max() < 1e-3 else 4
assert in_child(work) == 0
assert in_child(work) == 0
run(interpreter(model, GpuDelegate()), x)
print("parent works")
"""
    ended = run_program(source, backend)
    assert (ended.code, ended.stdout.splitlines()) == (0, ["parent works"]), ended.stderr


@on_every_backend
def test_workers_of_multiprocessing(backend: str) -> None:
    source = f"""
{CHILD}
import multiprocessing
def ask(_):
    return refused()
list_devices()
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(ask, range(4)) == ["refused"] * 4
print("done")
"""
    ended = run_program(source, backend)
    assert (ended.code, ended.stdout.splitlines()) == (0, ["done"]), ended.stderr
