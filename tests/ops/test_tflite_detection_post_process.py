"""Outputs of TFLite_Detection_PostProcess with fewer boxes than entries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cases.detection import Detections
from litegpu import GpuDelegate
from litegpu.backends.base import DeviceInfo
from model_runner import invoke
from op_runner import UNSCALED, inputs_of, write
from small_models import interpreter

FEW = Detections(detections=30, overlap=0.2, least=0.7)
CASES = (
    FEW,
    replace(FEW, labels=5),
    replace(FEW, regular=True, per_class=2, labels=2),
    replace(FEW, least=2.0),
)


def test_entries_without_a_box_are_zero(device: DeviceInfo) -> None:
    inputs, content = inputs_of(CASES, 1, False, UNSCALED), write(CASES).content
    expected = invoke(interpreter(content), inputs)
    delegate = GpuDelegate(backend=device.backend, device=device.index)
    got = invoke(interpreter(content, delegate), inputs)
    assert delegate.report is not None and delegate.report.whole_graph
    for number, case in enumerate(CASES):
        outputs = slice(4 * number, 4 * number + 4)
        (count,) = expected[outputs][3].astype(int)
        assert got[outputs][3] == count < case.detections
        boxes, labels = np.divmod(np.arange(case.detections * case.labels), case.labels)
        if case.regular:
            boxes, labels = np.arange(boxes.size), np.zeros_like(labels)
        listed = (boxes < count) & (labels < case.classes)
        for a, b in zip(expected[outputs][:3], got[outputs][:3], strict=True):
            rows = b.reshape(listed.size, -1)
            np.testing.assert_allclose(rows[listed], a.reshape(rows.shape)[listed], rtol=1e-5)
            assert not rows[~listed].any()
