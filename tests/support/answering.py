"""The answers of a model on each device, and on the CPU."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from litegpu import GpuDelegate
from litegpu.backends.base import DeviceInfo
from litegpu.runtime_abi import interpreter as runtime


def answers(content: bytes, device: DeviceInfo | None, *inputs: npt.NDArray[Any]) -> list[Any]:
    """Return the outputs of a model, on a device or on the CPU."""
    delegate = device and GpuDelegate(backend=device.backend, device=device.index, precision="fp32")
    target = runtime.interpreter(content, delegate or None, builtin_kernels=True)
    if delegate:
        assert delegate.report is not None and delegate.report.whole_graph
    runtime.set_inputs(target, list(inputs))
    target.invoke()
    return [output.values for output in runtime.outputs(target)]
