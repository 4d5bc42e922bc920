"""Preparation functions that report their process; importing them imports little."""

from __future__ import annotations

import os
import sys
import time

import numpy as np

from litegpu.errors import FileError
from litegpu.tools import engines


def own_number(plan: engines.BatchPlan) -> engines.Arrays:
    """Return the number of this process as what a sample holds."""
    return [np.full(plan.inputs[0].shape, os.getpid(), np.float32)]


def waiting(_: int, plan: engines.BatchPlan) -> engines.Arrays:
    """Wait longer than work; the value is the number of the process."""
    time.sleep(0.01)
    return own_number(plan)


def light(_: int, plan: engines.BatchPlan) -> engines.Arrays:
    """Fail in a process with more than it needs; the value is its number."""
    heavy = {"ai_edge_litert", "tflite_runtime", "tensorflow", "cuda", "pyopencl", "wgpu"}
    found = heavy & {name.split(".")[0] for name in sys.modules}
    if found:
        raise FileError(f"this process has {found}")
    time.sleep(0.01)
    return own_number(plan)
