"""Every case of the op table, on every device, at every precision, against the CPU's kernels.

Where a CPU plays the devices, two of them share a group of cases: see `modes`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

import cases
import turns
from cases.base import Case
from every_backend import first_devices
from litegpu import backends
from litegpu.backends.base import DeviceInfo
from litegpu.backends.webgpu import device as webgpu
from litegpu.ops.base import all_ops
from litegpu.options import PRECISIONS
from op_runner import MODES, Mode, groups, problem_of, run, write

GROUPS = groups(cases.TABLE)
"""Cases that share a model; all of one class, which names the test: `pytest -k Conv`."""


def modes(group: int, device: DeviceInfo) -> Sequence[Mode]:
    """Return all modes for a GPU, and one or none for each of several devices that a CPU plays.

    Their compilers take most of the time of all tests. So two of them share a group, one for each
    precision; which of them begins changes with the group. Of the groups of a class the first
    device takes every other one, and is asked for what its memory holds at fp32; the others are
    not.
    """
    if turns.ALL or not device.software:
        return MODES
    takers = takers_of(group)
    if device not in takers:
        return ()
    first = played_devices()[0]
    kinds = ("fp32-staged" if device == first else "fp32-direct", "fp16-staged")
    begins = turns.turn(GROUPS[group][0].name, 2)
    wanted = kinds if len(takers) == 1 else (kinds[(begins + takers.index(device)) % 2],)
    return [mode for mode in MODES if mode.name in wanted]


def played_devices() -> list[DeviceInfo]:
    """Return the first device of each backend, of those that a CPU plays."""
    return [each for each in first_devices() if each.software]


def takers_of(group: int) -> list[DeviceInfo]:
    """Return those devices that a CPU plays that share a group: two, where there are two."""
    first, *others = played_devices()
    if others:
        place = group % len(others)
        others = others[place:] + others[:place]
    return [first, *others][:2] if is_first_half(group) or len(others) < 2 else others[:2]


def cases_of(group: int, device: DeviceInfo) -> tuple[Case, ...]:
    """Return the cases of a group that a device runs: the two that share it deal them out.

    Of the share of each, one eighth runs; the commit decides which.
    """
    if turns.ALL or not device.software:
        return GROUPS[group]
    takers = takers_of(group)
    mine = turns.share(GROUPS[group], takers.index(device), len(takers))
    return turns.share(mine, turns.of_commit(8), 8)


def is_first_half(group: int) -> bool:
    """Whether an even number of groups of the same class come before a group."""
    kind = type(GROUPS[group][0])
    return sum(type(each[0]) is kind for each in GROUPS[:group]) % 2 == 0


def names(group: int) -> str:
    """Return the name of a group: the class of its cases, and its number."""
    return f"{type(GROUPS[group][0]).__name__}-{group}"


@pytest.mark.parametrize("group", range(len(GROUPS)), ids=names)
def test_cases_agree_with_the_cpu(
    group: int, device: DeviceInfo, capfd: pytest.CaptureFixture[str]
) -> None:
    wanted = modes(group, device)
    if not wanted:
        pytest.skip(turns.NOT_ITS_TURN)
    wrong = [text for mode in wanted for text in problems(cases_of(group, device), device, mode)]
    assert not wrong, "\n".join(wrong)
    # Compilers count their warnings there.
    assert not re.search(r"\d+ warnings? generated", capfd.readouterr().err)
    if device.software and device.backend == "webgpu" and group % 4 == 0:
        # Mesa keeps all that it has ever compiled for a device, half a megabyte a kernel.
        webgpu._opened.devices.clear()


def problems(group: Sequence[Case], device: DeviceInfo, mode: Mode) -> list[str]:
    """Return what is wrong with each case of a group on a device."""
    outcomes = run(tuple(group), device, mode)
    found = []
    for case in group:
        outcome = outcomes[case.name]
        about = f"{case.name} on {device.title}, {mode.name}"
        if isinstance(outcome, Exception):
            found.append(f"{about}: {outcome!r}")
        elif problem := problem_of(case, outcome, mode):
            found.append(f"{about}, kernels {', '.join(outcome.kernels)}: {problem}")
    return found


def test_there_is_a_device() -> None:
    found = "; ".join(f"{each.name}: {each.reason or 'usable'}" for each in backends.status())
    assert first_devices(), f"No backend is usable, so no case ran. {found}"


def test_every_case_runs_at_both_precisions() -> None:
    for group in range(len(GROUPS)):
        found = {mode.precision for device in first_devices() for mode in modes(group, device)}
        assert found == set(PRECISIONS), GROUPS[group][0].name


def test_every_class_runs_on_the_first_device() -> None:
    device, *_ = first_devices()
    found = {type(group[0]) for n, group in enumerate(GROUPS) if modes(n, device)}
    assert found == {type(group[0]) for group in GROUPS}


def test_cases_have_distinct_names() -> None:
    assert len(cases.TABLE) == cases.CASE_COUNT


def test_every_op_has_a_case() -> None:
    covered = {op for group in GROUPS for op in write(group).ops}
    assert {op.name for op in all_ops() if not op.internal} <= covered
