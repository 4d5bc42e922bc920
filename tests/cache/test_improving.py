"""Programs that end, fork or fail while optimized code is compiled in the background."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

_PROGRAM = """
import os, sys, threading, time
from litegpu.cache import improving
from litegpu.errors import CompilationError

class Executable:
    fast_compiled, program = True, None
    def exchange(self, binaries):
        print("began", flush=True)
        time.sleep(0.5)
        print("ended", flush=True)
        self.fast_compiled = False

class Device:
    def recompile(self, program, kernels):
        time.sleep(SECONDS)
        return {}

executable = Executable()
improving.improve(executable, Device(), None, None)
"""


def program(text: str, seconds: float = 0.0) -> subprocess.CompletedProcess[str]:
    source = _PROGRAM.replace("SECONDS", str(seconds)) + text
    run = [sys.executable, "-c", source]
    return subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)


def test_a_program_that_ends_waits_for_no_compiler() -> None:
    began = time.monotonic()
    found = program("", seconds=50)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    assert time.monotonic() - began < 30


def test_a_program_that_ends_waits_for_a_step() -> None:
    found = program("time.sleep(0.2)")
    assert (found.returncode, found.stdout, found.stderr) == (0, "began\nended\n", "")


@pytest.mark.skipif(not hasattr(sys, "abiflags"), reason="there is no fork")
def test_a_forked_child_waits_for_nothing() -> None:
    text = """
time.sleep(0.2)
child = os.fork()
if not child:
    assert not improving.wait_for(executable)
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert improving.wait_for(executable)
"""
    found = program(text)
    assert (found.returncode, found.stdout, found.stderr) == (0, "began\nended\n", "")


def test_waiting_has_an_end() -> None:
    found = program("assert not improving.wait_for(executable, 0.2); print('waited')", seconds=50)
    assert (found.returncode, found.stdout, found.stderr) == (0, "waited\n", "")


def test_what_goes_wrong_leaves_the_program_alone() -> None:
    text = """
assert improving.wait_for(executable)
for error in (CompilationError("no compiler"), MemoryError("no memory")):
    def refuse(*_):
        raise error
    Device.recompile = refuse
    other = Executable()
    improving.improve(other, Device(), None, None)
    assert not improving.wait_for(other) and other.fast_compiled
"""
    found = program(text)
    assert (found.returncode, found.stdout, found.stderr) == (0, "began\nended\n", "")
