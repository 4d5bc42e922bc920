"""A separate process for driver calls that may crash; it prints one line of JSON."""

from __future__ import annotations

import ctypes
import importlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

MODEL = Path(__file__).with_name("small.tflite")
"""A model of a convolution and a LOGISTIC op; the file avoids a dependency for writing models."""
_ELEMENTS = 9 * 9 * 5


def main(arguments: Sequence[str]) -> int:
    """Run `load LIBRARY`, `list BACKEND` or `run RUNTIME BACKEND DEVICE`; return 1 on failure."""
    name, *rest = arguments
    return _TRIALS[name](*rest)


def _load(library: str) -> int:
    try:
        ctypes.CDLL(library)
    except OSError as error:
        print(error)
        return 1
    return 0


def _list(name: str) -> int:
    """Print the devices of one backend, or why the backend has no devices.

    The function does not query other backends, because their drivers might crash the process.
    """
    from litegpu import LitegpuError, backends

    found: dict[str, Any] = {"name": name, "devices": [], "reason": "", "remedy": ""}
    try:
        found["devices"] = [info.to_dict() for info in backends.devices_of(name)]
    except LitegpuError as error:
        found |= {"reason": str(error), "remedy": error.remedy}
    print(json.dumps(found))
    return 0


def _run(runtime: str, backend: str, index: str) -> int:
    """Run a small model on a device and on the CPU; print the results' difference."""
    from litegpu import GpuDelegate, LitegpuError

    model, x = MODEL.read_bytes(), np.linspace(-1, 1, _ELEMENTS, dtype=np.float32)
    began = time.perf_counter()
    try:
        interpreters = importlib.import_module(runtime)
        delegate = GpuDelegate(backend=backend, device=int(index), cache=False)
        results, starts = [], []
        for delegates in ([delegate], None):
            target = interpreters.Interpreter(model_content=model, experimental_delegates=delegates)
            target.allocate_tensors()
            starts.append(time.perf_counter() - began)
            detail = target.get_input_details()[0]
            target.set_tensor(detail["index"], x.reshape(detail["shape"]))
            target.invoke()
            results.append(target.get_tensor(target.get_output_details()[0]["index"]))
    except LitegpuError as error:
        return _say(error=str(error), remedy=error.remedy)
    except (ImportError, RuntimeError, ValueError, AttributeError) as error:
        return _say(error=f"{type(error).__name__}: {error}")
    if delegate.error is not None:
        return _say(error=str(delegate.error), remedy=getattr(delegate.error, "remedy", ""))
    if delegate.report is None or not delegate.report.delegated_nodes:
        return _say(error="the runtime delegated no node of a small model")
    found, expected = results
    apart = np.abs(found - expected).max() / np.abs(expected).max()
    return _say(difference=float(apart), start_s=starts[0])


def _say(**facts: Any) -> int:
    print(json.dumps(facts))
    return 0 if "error" not in facts else 1


_TRIALS: Mapping[str, Callable[..., int]] = {"load": _load, "list": _list, "run": _run}
