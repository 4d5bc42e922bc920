"""Jobs for the tests of engines; their functions can be sent to other processes."""

from __future__ import annotations

import functools
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from litegpu import GpuDelegate
from litegpu.errors import FileError
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools import engines
from small_models import chain

MODEL = chain(["ABS", "FLOOR"], (1, 3, 2))
"""Returns the largest whole numbers that magnitudes reach."""


def on_cpu(model: bytes, _: engines.Place) -> Any:
    return runtime.interpreter(model, allocate=False)


def on_opencl(model: bytes, _: engines.Place) -> Any:
    return runtime.interpreter(model, GpuDelegate(backend="opencl"), allocate=False)


def number(item: int, plan: engines.BatchPlan) -> engines.Arrays:
    """Sample i holds -i - 0.5 everywhere; every seventh after the third cannot be read."""
    if item % 7 == 3:
        raise FileError(f"sample {item} is unreadable")
    return [np.full(plan.inputs[0].shape, -item - 0.5, np.float32)]


def slowly(item: int, plan: engines.BatchPlan) -> engines.Arrays:
    time.sleep(0.01)
    return number(item, plan)


def reported(_: int, outputs: engines.Arrays) -> float:
    assert outputs[0].shape == (3, 2)
    assert np.ptp(outputs[0]) == 0
    return float(outputs[0][0, 0])


def kill_worker_once(item: int, plan: engines.BatchPlan, marker: Path) -> engines.Arrays:
    """Kill this process at item 100, unless the marker says that this was done."""
    if item == 100 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return slowly(item, plan)


def kill_worker(item: int, plan: engines.BatchPlan) -> engines.Arrays:
    if item == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    return number(item, plan)


def job(prepare: Any = number, batch: int = 4, open_model: Any = on_cpu) -> Any:
    """Return a job whose samples are whole numbers, see `number`."""
    plan = engines.plan(MODEL, batch)
    return engines.Job(plan, open_model, prepare, reported)


def once_killed(marker: Path) -> Any:
    return functools.partial(kill_worker_once, marker=marker)


def expected(count: int) -> list[tuple[str, float | None, str]]:
    return [
        (str(i), None, f"sample {i} is unreadable") if i % 7 == 3 else (str(i), float(i), "")
        for i in range(count)
    ]


def summary(results: Any) -> list[tuple[str, float | None, str]]:
    return [(each.name, each.value, each.error) for each in results]
