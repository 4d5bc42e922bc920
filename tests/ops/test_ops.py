"""Every case of the op table, on every device, at every precision, against the CPU's kernels."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import pytest

import cases
from cases.base import Case
from litegpu import backends
from litegpu.backends import webgpu
from litegpu.backends.base import DeviceInfo
from litegpu.ops import all_ops
from op_runner import MODES, Mode, Outcome, groups, problem_of, run, write

DEVICES = backends.list_devices()
GROUPS = groups(cases.TABLE)


@functools.lru_cache(maxsize=1)
def outcomes(group: int, device: DeviceInfo, mode: Mode) -> dict[str, Outcome | Exception]:
    """Return what the cases of a group gave; tests ask in such an order that one is enough."""
    found = run(GROUPS[group], device, mode)
    if device.software and device.backend == "webgpu" and group % 4 == 0:
        # Mesa keeps all that it has ever compiled for a device, half a megabyte a kernel.
        webgpu._opened.devices.clear()
    return found


def modes(device: DeviceInfo) -> Sequence[Mode]:
    """Return all modes for a GPU, and two of each kind where a CPU plays one.

    The kernels of a mode that is left out run in others; what is missing are combinations. The
    first such device is asked for what its memory holds at fp32, the others are not.
    """
    if not device.software:
        return MODES
    first = next(other for other in DEVICES if other.software)
    enough = {"fp32-staged" if device == first else "fp32-direct", "fp16-staged"}
    return [mode for mode in MODES if mode.name in enough]


def runs() -> list[Any]:
    """Return the parameters of all runs, those that share a model next to each other."""
    return [
        pytest.param(group, device, mode, case, id=f"{device.backend}-{mode.name}-{case.name}")
        for group, members in enumerate(GROUPS)
        for device in DEVICES
        for mode in modes(device)
        for case in members
    ]


@pytest.mark.parametrize(("group", "device", "mode", "case"), runs())
def test_case_agrees_with_the_cpu(
    group: int,
    device: DeviceInfo,
    mode: Mode,
    case: Case,
    capfd: pytest.CaptureFixture[str],
) -> None:
    outcome = outcomes(group, device, mode)[case.name]
    if isinstance(outcome, Exception):
        raise outcome
    about = f"{case.name} on {device.title}, {mode.name}, kernels {', '.join(outcome.kernels)}"
    problem = problem_of(case, outcome, mode)
    assert not problem, f"{about}: {problem}"
    # Compilers count their warnings there; a group is compiled for its first test.
    assert not re.search(r"\d+ warnings? generated", capfd.readouterr().err), about


def test_there_is_a_device() -> None:
    found = "; ".join(f"{each.name}: {each.reason or 'usable'}" for each in backends.status())
    assert DEVICES, f"No backend is usable, so no case ran. {found}"


def test_cases_have_distinct_names() -> None:
    assert len(cases.TABLE) == cases.CASE_COUNT


def test_every_op_has_a_case() -> None:
    covered = {op for group in GROUPS for op in write(group).ops}
    assert {op.name for op in all_ops() if not op.internal} <= covered
