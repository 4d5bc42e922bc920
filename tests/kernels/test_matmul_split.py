"""Matrix products whose work items divide each sum: results, and when they are selected."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest

from cases.base import Case
from cases.batch_matmul import Matmul
from every_backend import device_of, on_backends
from litegpu.backends.base import DeviceInfo
from litegpu.engine.target import DeviceTarget
from litegpu.kernels.base import Rejected
from litegpu.kernels.examples import MatmulExample
from litegpu.kernels.portable.matmul import MatmulSplit
from litegpu.numeric_policy import FP32
from op_runner import MODES, check_kernel
from paper_device import DEVICE, planned

CASES: tuple[Case, ...] = (
    *(
        Matmul(rows=rows, depth=depth, columns=columns, adj_y=y)
        for rows, depth, columns in ((1, 1030, 9), (4, 301, 64), (7, 130, 37), (9, 514, 3))
        for y in (False, True)
    ),
    Matmul(batch=(2, 3), other=(2, 1), rows=3, depth=259, columns=40, adj_y=True),
    Matmul(batch=(1, 3), other=(2, 1), rows=5, depth=259, columns=40),
    Matmul(rows=2, depth=600, columns=10, batch=(1,), other=(), constant=0),
)
GPU = replace(DEVICE, backend="opencl", compute_units=132, local_memory_bytes=48 << 10)


@on_backends(("opencl", "webgpu", "opengl"))
def test_divided_sums_are_those_of_the_cpu(backend: str) -> None:
    device, mode = device_of(backend), MODES[1 if backend == "opencl" else 3]
    some = CASES if backend == "opencl" else CASES[1:9:2]
    target = DeviceTarget(device, FP32)
    shares = target.max_work_group_size >= 64 and target.local_memory_bytes >= 16 << 10
    with mock.patch.object(DeviceTarget, "parallel_items", property(lambda _: 1 << 18)):
        check_kernel(some, device, mode, "batch_matmul_split_k", shares)


@pytest.mark.parametrize(
    ("info", "example", "reason"),
    [
        (GPU, MatmulExample(4, 2048, 256), ""),
        (GPU, MatmulExample(512, 2048, 2048), "enough elements to keep the device busy"),
        (replace(GPU, software=True), MatmulExample(32, 512, 64), "enough elements"),
        (GPU, MatmulExample(4, 64, 256), "the sums are too short"),
        (replace(GPU, local_memory_bytes=256), MatmulExample(4, 2048, 256), "too few work items"),
    ],
)
def test_reasons(info: DeviceInfo, example: MatmulExample, reason: str) -> None:
    found = planned(MatmulSplit(), info, example)
    if reason:
        assert isinstance(found, Rejected)
        assert reason in found.reason
    else:
        assert not isinstance(found, Rejected)
