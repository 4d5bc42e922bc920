"""Kernels respect the limits of a device with the minimum that an API guarantees."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

import cases
from cases.base import LARGE, Case
from cases.conv_2d import Conv
from comparing import mismatch
from every_backend import first_devices, open_device
from litegpu import DeviceMemoryError
from litegpu.backends.base import Device
from litegpu.backends.constant_blocks import ConstantBlock
from litegpu.backends.execution import Executable
from litegpu.backends.limits import check_sizes
from litegpu.backends.program import BufferRange, Launch, Program
from litegpu.host.private_files import Folder
from op_runner import MODES, Mode, groups, run
from paper_device import DEVICE

POOR: dict[str, Any] = {
    "max_arguments": 5,
    "max_work_group_size": 64,
    "local_memory_bytes": 0,
    "half_lanes": False,
}
FAMILIES = {"AveragePool", "Chain", "Concat", "Softmax"}
GROUPS = [group for group in groups(cases.TABLE) if type(group[0]).__name__ in FAMILIES]


@pytest.fixture(params=["fp16-staged"])
def mode(request: pytest.FixtureRequest) -> Mode:
    return next(mode for mode in MODES if mode.name == request.param)


def check(group: tuple[Case, ...], mode: Mode) -> None:
    """Run cases on the first device, and compare with the CPU."""
    outcomes = run(group, first_devices()[0], mode)
    for case in group:
        outcome = outcomes[case.name]
        if isinstance(outcome, Exception):
            raise outcome
        for expected, got in zip(outcome.expected, outcome.got, strict=True):
            assert not mismatch(expected, got, case.limit(mode.half)), case.name
        assert not outcome.faults, case.name


SHARING = [group for group in groups(cases.TABLE) if group[0].items == LARGE]


@pytest.mark.parametrize("group", SHARING, ids=lambda group: group[0].name)
def test_no_more_items_share_memory_than_may(
    group: tuple[Case, ...], mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_device(first_devices()[0].backend)
    monkeypatch.setattr(device, "info", dataclasses.replace(device.info, max_work_group_size=64))
    recorded = programs_of(device, monkeypatch)
    check(group, mode)
    kernels = [kernel for program in recorded for kernel in program.kernels]
    for kernel in kernels:
        assert not kernel.shared or math.prod(kernel.local_size) <= 64, kernel.name
    if Conv(image=(1, 1, 1, 1024), filters=11, items=LARGE) in group:
        assert any(kernel.name.startswith("conv_2d_split_k") for kernel in kernels)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0].name)
def test_cases_run_on_a_poor_device(
    group: tuple[Case, ...], mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_device(first_devices()[0].backend)
    monkeypatch.setattr(device, "info", dataclasses.replace(device.info, **POOR))
    recorded = programs_of(device, monkeypatch)
    check(group, mode)
    assert recorded
    for kernel in (kernel for program in recorded for kernel in program.kernels):
        assert len(kernel.arguments) <= POOR["max_arguments"], kernel.name
        assert not kernel.shared, kernel.name
        assert "STORE1_F16" not in kernel.body, kernel.name


TYPED = {"HybridConv", "HybridMatrix", "QuantizedDepthwise", "QuantizedTransposeConv"}


def reads_few(case: Case) -> bool:
    """Whether no kernel of a case needs more than 5 buffers; blockwise products read 6 values."""
    return type(case).__name__ in TYPED and not getattr(case, "block", 0)


@pytest.mark.parametrize(
    "group",
    [
        each
        for each in groups({name: case for name, case in cases.TABLE.items() if reads_few(case)})
        if not each[0].items
    ],
    ids=lambda group: group[0].name,
)
def test_sums_keep_their_type_where_a_kernel_may_read_few_buffers(
    group: tuple[Case, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_device(first_devices()[0].backend)
    monkeypatch.setattr(device, "info", dataclasses.replace(device.info, max_arguments=5))
    recorded = programs_of(device, monkeypatch)
    check(group, next(mode for mode in MODES if mode.name == "fp32-staged"))
    for kernel in (kernel for program in recorded for kernel in program.kernels):
        assert len(kernel.arguments) <= 5, kernel.name


def programs_of(device: Device, monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """Return a list that will hold each program that the device is given."""
    programs: list[Program] = []
    compile_program = device.compile

    def spy(program: Program, cache_dir: Folder | None = None) -> Executable:
        programs.append(program)
        return compile_program(program, cache_dir)

    monkeypatch.setattr(device, "compile", spy)
    return programs


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ({"max_allocation_bytes": 4095}, "4096 bytes for values in one buffer"),
        ({"max_binding_bytes": 63}, "64 bytes in one tensor"),
    ],
)
def test_what_is_too_large_is_named(facts: dict[str, Any], what: str) -> None:
    part = BufferRange(False, 0, 64)
    launch = Launch("kernel", (part,), (1, 1, 1), (1, 1, 1))
    program = Program((), (launch,), 4096, np.zeros(0, np.uint8), (), ())
    check_sizes(program, DEVICE)
    limit = next(iter(facts.values()))
    wanted = f"The partition needs {what}, but device '{DEVICE.name}' .none. allows {limit}\\."
    with pytest.raises(DeviceMemoryError, match=wanted):
        check_sizes(program, dataclasses.replace(DEVICE, **facts))


def test_each_large_constant_may_have_the_largest_buffer() -> None:
    block = ConstantBlock(4096, lambda: np.zeros(4096, np.uint8))
    program = Program((), (), 64, np.zeros(64, np.uint8), (), (), blocks=(block, block))
    check_sizes(program, dataclasses.replace(DEVICE, max_allocation_bytes=4096))
    with pytest.raises(DeviceMemoryError, match="needs 4096 bytes for weights in one buffer"):
        check_sizes(program, dataclasses.replace(DEVICE, max_allocation_bytes=4095))
