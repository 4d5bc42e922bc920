"""Finds the kernel that causes the loss of a device: each kernel runs in a separate process."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from dataclasses import replace

from litegpu import backends
from litegpu.backends.base import DeviceInfo
from litegpu.backends.buffers import Bindings
from litegpu.backends.program import Program
from litegpu.host.children import can_run_modules, run_module

_SECONDS = 60.0
"""Time limit for all kernels in seconds; a kernel that still runs then is considered hung."""
_FINISHED = "finished"


def lethal_kernel(program: Program, info: DeviceInfo, kernels: Sequence[str]) -> str:
    """Return the name of the kernel that causes the loss of a device; an empty text if none does.

    Each kernel runs all of its launches on zero-filled memory and the program's constants.
    """
    if not can_run_modules():
        return ""
    parts = [_alone(program, name) for name in kernels]
    given = pickle.dumps((info.backend, info.index, parts))
    ended = run_module(__name__, [], _SECONDS, given)
    last = ended.output.split()[-1:]
    if ended.status == 0 or not last or not last[0].isdecimal():
        return ""
    return kernels[int(last[0])]


def _alone(program: Program, name: str) -> Program:
    return replace(
        program,
        kernels=tuple(kernel for kernel in program.kernels if kernel.name == name),
        launches=tuple(launch for launch in program.launches if launch.kernel == name),
        inputs=(),
        outputs=(),
        sole_writers={},
        readers={},
        updates={},
    )


def main(arguments: Sequence[str]) -> int:
    """Run the pickled programs on stdin one by one; print the number of each before its run."""
    backend, index, parts = pickle.load(sys.stdin.buffer)
    device = backends.BACKENDS[backend].open(index)
    for number, part in enumerate(parts):
        executable = device.compile(part)
        context = executable.context()
        print(number, flush=True)
        context.run(Bindings((), ()))
        print(_FINISHED, flush=True)
        context.close()
        executable.close()
    return 0
