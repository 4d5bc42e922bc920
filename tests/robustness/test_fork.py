"""What a forked child may do: a typed error at once, or all there is; it never hangs."""

from __future__ import annotations

import os

import pytest

from robustness.programs import on_every_backend, run_program

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
FIRST = {
    "devices": "list_devices()",
    "delegate": "delegate = GpuDelegate()",
    "interpreter": "target = interpreter(model, GpuDelegate()); before = run(target, x)",
}
"""What the parent does before it forks."""


@on_every_backend
@pytest.mark.parametrize("first", FIRST)
def test_a_child_of_a_process_that_used_the_api(backend: str, first: str) -> None:
    source = f"""
{CHILD}
{FIRST[first]}
for _ in range(2):
    assert in_child(check) == 0
if "target" in globals():
    assert (run(target, x)[0] == before[0]).all()
else:
    run(interpreter(model, GpuDelegate()), x)
print("parent works")
"""
    ended = run_program(source, backend)
    assert (ended.code, ended.stdout.splitlines()) == (0, ["parent works"]), ended.stderr
    assert "Traceback" not in ended.stderr


@on_every_backend
def test_what_a_child_inherits_is_harmless_to_drop(backend: str) -> None:
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
    return 0
assert in_child(drop) == 0
assert (run(target, x)[0] == before[0]).all()
print("parent works")
"""
    ended = run_program(source, backend)
    assert (ended.code, ended.stdout.splitlines()) == (0, ["parent works"]), ended.stderr


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
    """Those that fork are refused, those that are spawned are not."""
    source = f"""
{CHILD}
import multiprocessing
list_devices()
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(ask, range(4)) == ["refused"] * 4
print("done")
"""
    source = source.replace(
        "import multiprocessing", "import multiprocessing\ndef ask(_): return refused()"
    )
    ended = run_program(source, backend)
    assert (ended.code, ended.stdout.splitlines()) == (0, ["done"]), ended.stderr
