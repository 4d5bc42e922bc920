"""Processes that run models and may crash; their results are recorded, and others continue."""

from __future__ import annotations

import contextlib
import functools
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from fuzzing.nudging import nudged_model

Arrays = tuple[npt.NDArray[Any], ...]

_MEMORY_BYTES = 12 << 30
"""Address space of a worker: a shape of billions of elements must not take the machine along."""
_MAX_ELEMENTS = 1 << 22
"""Inputs and outputs with more elements are refused, on both sides alike."""
ULP = 2.0**-23
MIN_NORMAL = 2.0**-126
SPECIAL = np.array([0.0, -0.0, 1e-40, -1e-40, 1e9, -7e4, 65504.0, 1.0], np.float32)
"""Rare numbers whose squares and sums stay finite; test_not_a_number.py has the others."""


@dataclass(frozen=True)
class Task:
    """A model to run, with the seed of its inputs, and how; without `options` on the CPU alone."""

    content: bytes
    seed: int
    special: bool = False
    half: bool = False
    options: dict[str, Any] | None = None
    nudge: int = 0
    """Another number than 0 changes floats of model and inputs by `ulp` or not at all."""
    ulp: float = ULP
    before: float = 12345.0
    """What the outputs hold before."""
    flushed: bool = False
    """No inputs below the normal range, which a device may take for zeros."""
    everything: bool = False
    """Whether all float32 tensors come back, not the outputs alone; on the CPU."""
    invoked: bool = True
    """Whether to run the model; without it, only what is accepted comes back."""


@dataclass(frozen=True)
class Result:
    """What came of a task.

    `status` is "ran", "refused" (a Python error, in `text`), "crashed" or "hung". `fault` is what
    the delegate could not do with nodes that it had accepted; `accepted` has these nodes' ops.
    """

    status: str
    outputs: Arrays = ()
    text: str = ""
    fault: str = ""
    accepted: tuple[str, ...] = field(default=())


_STARTING = threading.Lock()


class Worker:
    """A process that runs tasks one by one; it is replaced when it crashes or hangs."""

    def __init__(self, perturb: int = 0, work: Callable[[Task], Result] | None = None) -> None:
        """`perturb` is the byte that new memory is filled with (glibc), so as to find its users.

        `work` does a task, a function that the process can import; `perform` unless given.
        """
        self._perturb = perturb
        self._work = work or perform
        self._process: Any = None
        self._pipe: Connection | None = None

    def run(self, task: Task, seconds: float) -> Result:
        """Run a task; a crash, or no answer in time, is a result like others."""
        fresh = self._pipe is None
        found = self._run(task, seconds)
        # One that ends at its first task may have failed to begin, where memory is short.
        return self._run(task, seconds) if fresh and found.status == "crashed" else found

    def _run(self, task: Task, seconds: float) -> Result:
        pipe = self._start()
        try:
            pipe.send(task)
            if not pipe.poll(seconds):
                self.close()
                return Result("hung", text=f"no answer after {seconds:g} s")
            answer: Result = pipe.recv()
            return answer
        except (EOFError, OSError):
            self._process.join(5)
            code = self._process.exitcode
            self.close()
            return Result("crashed", text=f"exit code {code}")

    def close(self) -> None:
        """End the process."""
        if self._pipe is not None:
            self._pipe.close()
            self._process.kill()
            self._process.join()
        self._pipe = None

    def _start(self) -> Connection:
        if self._pipe is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            perturb = {"MALLOC_PERTURB_": str(self._perturb)}
            # Another job's process would begin while the variables are put back, with none at all.
            with _STARTING, mock.patch.dict(os.environ, perturb):
                serve = functools.partial(_serve, work=self._work)
                self._process = context.Process(target=serve, args=(theirs,), daemon=True)
                self._process.start()
            theirs.close()
        return self._pipe


def _serve(pipe: Connection, work: Callable[[Task], Result]) -> None:
    # Ctrl-C reaches all processes of a terminal; the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _be_modest()
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(work(pipe.recv()))


def _be_modest() -> None:
    """Limit the memory, and be silent: the runtime and compilers complain of damaged models."""
    if sys.platform != "win32":
        import resource

        # Not of addresses: drivers of GPUs reserve far more of these than there is memory.
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    logging.getLogger("litegpu").setLevel(logging.CRITICAL)


def perform(task: Task) -> Result:
    """Run a task in this process."""
    from litegpu import GpuDelegate
    from litegpu.errors import DeviceMemoryError
    from litegpu.runtime_abi import interpreter as runtime

    delegate = None if task.options is None else GpuDelegate(**task.options)
    outputs: Arrays = ()
    try:
        content = task.content
        if task.nudge:
            content = nudged_model(
                content, np.random.default_rng([task.seed, task.nudge]), task.ulp
            )
        interpreter = runtime.interpreter(
            content, delegate, builtin_kernels=True, keep_tensors=task.everything
        )
        outputs = _invoke(interpreter, task) if task.invoked else ()
        status, text = "ran", ""
    except (RuntimeError, ValueError, MemoryError) as error:
        status, text = "refused", f"{type(error).__name__}: {error}"
    if delegate is None:
        return Result(status, outputs, text)
    # What a device has no memory for stays on the CPU: no check can know how much there is.
    fault = "" if isinstance(delegate.error, DeviceMemoryError) else str(delegate.error or "")
    accepted: tuple[str, ...] = ()
    if delegate.report is not None:
        report = delegate.report
        accepted = tuple(report.ops[i] for part in report.partitions for i in part.nodes)
    return Result(status, outputs, text, fault, accepted)


def _invoke(interpreter: Any, task: Task) -> Arrays:
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], _input(detail, task))
    outputs = interpreter.get_output_details()
    for detail in outputs:
        # What nobody writes is then seen. Outputs that are inputs or constants stay as they are.
        if detail["dtype"] is np.float32 and _count(detail["shape"]) < _MAX_ELEMENTS:
            with contextlib.suppress(ValueError):
                _spoil(interpreter, detail, task.before)
    interpreter.invoke()
    if task.everything:
        output = {int(v) for op in interpreter._get_ops_details() for v in op["outputs"]}
        details = interpreter.get_tensor_details()
        outputs = [d for d in details if d["index"] in output and d["dtype"] is np.float32]
    return tuple(np.asarray(interpreter.get_tensor(detail["index"])) for detail in outputs)


def _spoil(interpreter: Any, detail: dict[str, Any], before: float) -> None:
    inputs = {each["index"] for each in interpreter.get_input_details()}
    output = {v for op in interpreter._get_ops_details() for v in op["outputs"]}
    if detail["index"] in output - inputs:
        spoilt = np.full(detail["shape"], before, np.float32)
        interpreter.set_tensor(detail["index"], spoilt)


def _input(detail: dict[str, Any], task: Task) -> npt.NDArray[Any]:
    # Not from one stream: what is drawn for one may have another shape with a delegate.
    random = np.random.default_rng([task.seed, detail["index"]])
    shape, dtype = tuple(detail["shape"]), np.dtype(detail["dtype"])
    if _count(shape) > _MAX_ELEMENTS:
        raise ValueError(f"an input of {shape} is too large to try")
    if dtype.kind not in "f":
        return random.integers(0, 2 if dtype.kind == "b" else 5, shape).astype(dtype)
    # Steps that half holds, so that comparisons come out alike there.
    values = np.round(random.uniform(-4.0, 4.0, shape) * 32) / 32
    if task.special:
        values = np.where(random.random(shape) < 0.2, random.choice(SPECIAL, shape), values)
    if task.nudge:
        nudges = np.random.default_rng([task.seed, detail["index"], task.nudge])
        values = values * (1 + task.ulp * nudges.integers(-1, 2, shape))
    if task.flushed:
        values = np.where(np.abs(values) < MIN_NORMAL, 0.0, values)
    return np.asarray(values).astype(dtype)


def _count(shape: Any) -> int:
    return int(np.prod([max(int(size), 0) for size in shape], dtype=np.float64))
