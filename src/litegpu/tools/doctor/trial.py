"""What a driver may crash: it is tried in a process of its own, which prints one line of JSON."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

_WIDTH, _CHANNELS = 9, 5


def main(arguments: Sequence[str]) -> int:
    """`load LIBRARY`, `list BACKEND` or `run RUNTIME BACKEND DEVICE`; 1 if it does not work."""
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
    """Print the status of a backend, see `litegpu.backends.BackendStatus`."""
    from litegpu import backends

    (found,) = (each for each in backends.status() if each.name == name)
    print(json.dumps(dataclasses.asdict(found)))
    return 0


def _run(runtime: str, backend: str, index: str) -> int:
    """Run a small model on a device and on the CPU; print how far they are from each other."""
    from litegpu import GpuDelegate, LitegpuError

    model, x = _model(), np.linspace(-1, 1, _WIDTH * _WIDTH * _CHANNELS, dtype=np.float32)
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
        return _say(error="the runtime gave the delegate nothing of a small model")
    found, expected = results
    apart = np.abs(found - expected).max() / np.abs(expected).max()
    return _say(difference=float(apart), start_s=starts[0])


def _say(**facts: Any) -> int:
    print(json.dumps(facts))
    return 0 if "error" not in facts else 1


def _model() -> bytes:
    """Return a model with a convolution and what is fused into it."""
    from litegpu.zoo.writer import ModelWriter

    random, writer = np.random.default_rng(0), ModelWriter()
    x = writer.input((1, _WIDTH, _WIDTH, _CHANNELS))
    weights = random.normal(size=(7, 3, 3, _CHANNELS)).astype(np.float32)
    bias = random.normal(size=7).astype(np.float32)
    inputs = [x, writer.constant(weights), writer.constant(bias)]
    size = {"stride_w": 1, "stride_h": 1, "dilation_w_factor": 1, "dilation_h_factor": 1}
    options = {"padding": "SAME", **size}
    found = writer.op("CONV_2D", inputs, [(1, _WIDTH, _WIDTH, 7)], options=options)
    writer.output(writer.op("LOGISTIC", [found], [found.shape]))
    return writer.build()


_TRIALS: Mapping[str, Callable[..., int]] = {"load": _load, "list": _list, "run": _run}
