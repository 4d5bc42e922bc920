"""NaN is unequal to everything, on a device as on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cases.logic import COMPARISONS
from litegpu import GpuDelegate, backends
from litegpu.backends.base import DeviceInfo
from litegpu.tools import runtime
from litegpu.zoo.writer import ModelWriter

_NAN = float("nan")
FIRST = np.array([[_NAN, 1.0, -2.0, 0.0, _NAN], [3.0, _NAN, 3.0, _NAN, -0.0]], np.float32)
SECOND = np.array([[_NAN, _NAN, -2.0, 1.0, 0.0], [_NAN, 5.0, 3.0, _NAN, 0.0]], np.float32)


def answers(content: bytes, device: DeviceInfo | None) -> list[Any]:
    """Return the outputs of a model for FIRST and SECOND, on a device or on the CPU."""
    delegate = device and GpuDelegate(backend=device.backend, device=device.index, precision="fp32")
    target = runtime.interpreter(content, delegate or None, builtin_kernels=True)
    if delegate:
        assert delegate.report is not None and delegate.report.whole_graph
    runtime.set_inputs(target, [FIRST, SECOND])
    target.invoke()
    return [output.values for output in runtime.outputs(target)]


@pytest.mark.parametrize("device", backends.list_devices(), ids=lambda device: device.backend)
def test_comparisons_and_what_rests_on_them(device: DeviceInfo) -> None:
    writer = ModelWriter()
    x, y = writer.input((2, 5)), writer.input((2, 5))
    truths = [writer.op(name, [x, y], [(2, 5)], dtype="bool") for name in COMPARISONS]
    chosen = writer.op("SELECT_V2", [truths[2], x, y], [(2, 5)])
    options = {"in_data_type": "FLOAT32", "out_data_type": "BOOL"}
    cast = writer.op("CAST", [x], [(2, 5)], options=options, dtype="bool")
    writer.output(*truths, chosen, cast)
    content = writer.build()
    for got, wanted in zip(answers(content, device), answers(content, None), strict=True):
        np.testing.assert_array_equal(got, wanted)
