"""Every case of the op table, on every device, at every precision, against the CPU's kernels.

Where CPUs play the devices, these take the precisions in turns: see `modes`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import pytest

import cases
import turns
from cases.base import Case
from litegpu import backends
from litegpu.backends.base import DeviceInfo
from litegpu.backends.webgpu import device as webgpu
from litegpu.ops.base import all_ops
from litegpu.options import PRECISIONS
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


def modes(group: int, device: DeviceInfo) -> Sequence[Mode]:
    """Return all modes for a GPU, and one for each of several devices that a CPU plays.

    Their compilers take most of the time of all tests. Neighbours among such devices take different
    precisions, so that each case runs at both; which of them begins changes with the group. The
    first one is asked for what its memory holds at fp32, the others are not. Of the others, which
    have kernels of one language, each takes only its share of the groups.
    """
    if turns.ALL or not device.software:
        return MODES
    played = [other for other in DEVICES if other.software]
    position = played.index(device)
    kinds = ("fp32-direct" if position else "fp32-staged", "fp16-staged")
    begins = turns.turn(GROUPS[group][0].name, 2)
    if position and (group - position) % (len(played) - 1):
        return ()
    wanted = kinds if len(played) == 1 else (kinds[(begins + min(position, 1)) % 2],)
    return [mode for mode in MODES if mode.name in wanted]


def runs() -> list[Any]:
    """Return the parameters of all runs, those that share a model next to each other."""
    return [
        pytest.param(group, device, mode, case, id=f"{device.backend}-{mode.name}-{case.name}")
        for group, members in enumerate(GROUPS)
        for device in DEVICES
        for mode in modes(group, device)
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


def test_every_case_runs_at_both_precisions() -> None:
    for group in range(len(GROUPS)):
        found = {mode.precision for device in DEVICES for mode in modes(group, device)}
        assert found == set(PRECISIONS), GROUPS[group][0].name


def test_cases_have_distinct_names() -> None:
    assert len(cases.TABLE) == cases.CASE_COUNT


def test_every_op_has_a_case() -> None:
    covered = {op for group in GROUPS for op in write(group).ops}
    assert {op.name for op in all_ops() if not op.internal} <= covered
