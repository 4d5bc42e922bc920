"""Kernel choice by measurements: measured candidates, the choice, and the cached choices."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cases
import turns
from cases.base import SMALL, Case
from comparing import mismatch
from host_device import HostContext, HostDevice, HostExecutable
from litegpu import CompilationError, DeviceLostError, ExecutionError, GpuDelegate, backends
from litegpu.backends.base import Device, DeviceInfo
from litegpu.backends.execution import Executable, Profiler
from litegpu.backends.program import Program
from litegpu.engine import tuning
from litegpu.engine.choices import Choices, Tuning
from litegpu.engine.placed import PlacedPartition
from litegpu.engine.program import BuiltProgram
from litegpu.engine.selected import place
from litegpu.engine.target import DeviceTarget
from litegpu.engine.tuning import Tuner, fastest
from litegpu.errors import KernelError
from litegpu.graph import Graph
from litegpu.host.private_files import Folder
from litegpu.numeric_policy import FP32
from litegpu.options import ExperimentalFlags, InferencePreference
from op_runner import MODES, Mode, forced, groups
from op_runner import run as run_cases
from paper_device import DEVICE
from passes.graphs import RELU, GraphBuilder
from small_models import (
    assert_close,
    chain,
    fully_convolutional,
    interpreter,
    random,
    reference,
    run,
)

if typing.TYPE_CHECKING:
    from litegpu.backends.opencl.device import OpenCLDevice

SUSTAINED = InferencePreference.SUSTAINED_SPEED

# Candidates of a problem


def test_the_first_candidate_is_chosen_unless_another_was_told() -> None:
    choices = Choices({"b": 1, "c": 2})
    assert [choices.choose(problem, "xy") for problem in "abc"] == ["x", "y", "x"]
    assert choices.choose("d", [7]) == 7
    assert choices.queried == {"a": 2, "b": 2, "c": 2, "d": 1}


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ([{"a": 3.0}, {"a": 1.0}, {"a": 2.0}], {"a": 1}),
        ([{"a": 1.0}, {"a": 1.0}, {"a": 1.0}], {"a": 0}),
        ([{}, {"a": 9.0}, {}], {"a": 1}),
        ([{}, {}, {}], {}),
        ([{"a": 2.0, "b": 2.0}, {"a": 3.0, "b": 1.0}, {"a": 1.0, "b": 0.5}], {"a": 2, "b": 1}),
    ],
    ids=["fastest", "first of equals", "one that could", "none", "each has its own"],
)
def test_the_fastest_candidate_is_kept(
    rounds: Sequence[tuning.Seconds], expected: dict[str, int]
) -> None:
    candidates = {"a": 3, "b": 2} if "b" in rounds[0] else {"a": 3}
    assert fastest(candidates, rounds) == expected


# A device that takes as long as it is told

Times = Callable[[Sequence[int]], list[float]]
"""Makes the seconds of all launches of their work items."""


class ToldDevice(HostDevice):
    """Records programs that compute nothing."""

    def __init__(self, times: Times, info: DeviceInfo = DEVICE) -> None:
        self.info = info
        self.times = times
        self.recorded: list[list[int]] = []
        self.open = 0
        self.refused: dict[int, Exception] = {}
        """Errors of programs, by the work items of the first launch."""
        self.rejected = 0
        """Work items that the first kernel must not have."""

    def compile(self, program: Program, cache_dir: Folder | None = None) -> Executable:
        items = [int(np.prod(launch.global_size)) for launch in program.launches]
        self.recorded.append(items)
        if items[0] in self.refused:
            raise self.refused[items[0]]
        if items[0] == self.rejected:
            raise KernelError("It", {program.launches[0].kernel: "too large"})
        seconds = self.times(items)
        return HostExecutable(program, lambda output: ToldContext(output, self, seconds))


class ToldContext(HostContext):
    """Says how long its launches take."""

    def __init__(self, executable: Executable, device: ToldDevice, seconds: list[float]) -> None:
        super().__init__(executable)
        self._device, self.seconds = device, seconds
        device.open += 1
        assert device.open == 1, "two programs need memory at the same time"

    def profiler(self) -> Profiler:
        return ToldProfiler(self)

    def close(self) -> None:
        self._device.open -= 1


class ToldProfiler(Profiler):
    """Says what its context was told."""

    def __init__(self, context: ToldContext) -> None:
        super().__init__(context)
        self._seconds = context.seconds

    def durations(self) -> list[float]:
        return self._seconds


def fewest(items: Sequence[int]) -> list[float]:
    return [float(each) for each in items]


def most(items: Sequence[int]) -> list[float]:
    return [1.0 / each for each in items]


def placed(device: Device, *widths: int) -> PlacedPartition:
    """Return convolutions of 16x16 pixels to so many channels, each followed by a copy."""
    builder = GraphBuilder()
    value = builder.input(1, 16, 16, 8)
    for width in widths:
        value = builder.elementwise(builder.conv(value, width), RELU)
    return of_graph(device, builder.graph(value))


def of_graph(device: Device, graph: Graph) -> PlacedPartition:
    """Return a graph as the passes would leave it, with its values placed."""
    selected = place(graph, DeviceTarget(device.info, FP32), device.info.half_lanes)
    return PlacedPartition(device, selected, graph.inputs, graph.outputs, {}, {}, True)


def tuned(
    device: Device, *widths: int, cache: Path | None = None, how: Tuning = Tuning.MEASURED
) -> list[int]:
    """Return the work items of the convolutions as a tuner chooses them."""
    tuner = Tuner(device.info, Folder(str(cache)) if cache else None, how)
    return convolutions(tuner.build(placed(device, *widths)))


def convolutions(built: BuiltProgram) -> list[int]:
    return [
        int(np.prod(launch.global_size))
        for launch in built.launches
        if launch.template == "conv_2d"
    ]


def items_of(device: Device, width: int, number: int) -> int:
    """Return the work items of a single convolution with a given candidate."""
    problem = next(iter(queried(device, width)))
    return convolutions(placed(device, width).build(Choices({problem: number})))[0]


def queried(device: Device, *widths: int) -> dict[str, int]:
    choices = Choices()
    placed(device, *widths).build(choices)
    return choices.queried


def test_a_launch_knows_what_was_chosen_for_it() -> None:
    built = placed(ToldDevice(most), 16, 4).build(Choices())
    known = {launch.template: launch.problems for launch in built.launches}
    assert known["copy"] == ()
    assert [launch.problems for launch in built.launches if launch.problems] == [
        (problem,) for problem in queried(ToldDevice(most), 16, 4)
    ]


@pytest.mark.parametrize("times", [fewest, most])
def test_each_problem_gets_its_fastest_candidate(times: Times) -> None:
    device = ToldDevice(times)
    found = tuned(device, 16, 4)
    pick = min if times is fewest else max
    for width, items in zip((16, 4), found, strict=True):
        count = queried(device, width).popitem()[1]
        assert items == pick(items_of(device, width, k) for k in range(count))
    assert (len(device.recorded), device.open) == (6, 0)


@pytest.mark.parametrize(("times", "programs"), [(most, 6), (fewest, 7)])
def test_the_first_candidates_are_lowered_once(
    times: Times, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered: list[Choices] = []
    build = PlacedPartition.build

    def counted(placed: PlacedPartition, choices: Choices, *rest: Any) -> BuiltProgram:
        lowered.append(choices)
        return build(placed, choices, *rest)

    monkeypatch.setattr(PlacedPartition, "build", counted)
    device = ToldDevice(times)
    target = placed(device, 16)
    Tuner(device.info, None, Tuning.MEASURED).build(target)
    assert len(lowered) == programs, "six candidates, and the best unless it is the first"


def test_launches_of_one_problem_are_added_up() -> None:
    """The first convolution is faster with few items; the second gains more from many."""

    def times(items: Sequence[int]) -> list[float]:
        first, step, second, last = map(float, items)
        return [first, step, 1e9 / second, last]

    device = ToldDevice(times)
    ((_, count),) = queried(device, 8, 8).items()
    largest = max(items_of(device, 8, k) for k in range(count))
    assert tuned(device, 8, 8) == [largest, largest]


def test_a_loss_of_the_device_ends_the_measurements() -> None:
    """What was measured before it would be stored as the best that there is."""
    device = ToldDevice(most)
    device.refused[max(items_of(device, 16, k) for k in range(6))] = DeviceLostError("gone")
    with pytest.raises(DeviceLostError, match="gone"):
        tuned(device, 16)


def test_without_candidates_nothing_is_measured() -> None:
    device = ToldDevice(most)
    builder = GraphBuilder()
    alone = of_graph(device, builder.graph(builder.elementwise(builder.input(1, 4, 4, 4), RELU)))
    assert len(Tuner(device.info, None, Tuning.MEASURED).build(alone).launches) == 1
    assert device.recorded == []


@pytest.mark.parametrize("error", [CompilationError("no"), ExecutionError("on fire")])
def test_candidates_that_fail_are_left_out(error: Exception, caplog: Any) -> None:
    device = ToldDevice(most)
    sizes = [items_of(device, 16, k) for k in range(6)]
    second = sorted(set(sizes))[-2]
    device.refused[max(sizes)] = error
    with caplog.at_level("INFO", "litegpu"):
        assert tuned(device, 16) == [second]
    assert f"are skipped: {error}" in caplog.text
    assert device.open == 0


@pytest.mark.parametrize("pick", [min, max])
def test_a_rejected_candidate_costs_no_other_problem_its_own(
    pick: Callable[[Sequence[int]], int],
) -> None:
    device = ToldDevice(most)
    sizes = [items_of(device, 16, k) for k in range(6)]
    device.rejected = pick(sizes)
    wide, other = tuned(device, 16, 4)
    assert wide == max(set(sizes) - {device.rejected})
    assert other == max(items_of(device, 4, k) for k in range(3))


def test_a_measurement_that_fails_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: ToldProfiler) -> list[float]:
        raise ExecutionError("on fire")

    monkeypatch.setattr(ToldProfiler, "durations", failing)
    device = ToldDevice(most)
    assert tuned(device, 16) == [items_of(device, 16, 0)], "the estimate, where nothing is known"
    assert (len(device.recorded), device.open) == (6, 0)


# What is kept


def test_a_second_tuner_measures_nothing(tmp_path: Path) -> None:
    device = ToldDevice(fewest)
    first = tuned(device, 16, 4, cache=tmp_path / "new")
    assert first != tuned(ToldDevice(fewest), 16, 4, how=Tuning.ESTIMATED)
    again = ToldDevice(most)
    assert tuned(again, 16, 4, cache=tmp_path / "new") == first
    assert tuned(again, 16, 4, cache=tmp_path / "new", how=Tuning.CACHED) == first
    assert again.recorded == []


def test_only_what_is_unknown_is_measured(tmp_path: Path) -> None:
    (wide,) = tuned(ToldDevice(fewest), 16, cache=tmp_path)
    device = ToldDevice(most)
    found = tuned(device, 16, 4, cache=tmp_path)
    assert found == [wide, max(items_of(device, 4, k) for k in range(3))]
    assert {items[0] for items in device.recorded} == {wide}
    assert len(list(tmp_path.iterdir())) == 1
    last = ToldDevice(fewest)
    assert tuned(last, 16, 4, cache=tmp_path) == found
    assert last.recorded == []


@pytest.mark.parametrize("how", [Tuning.ESTIMATED, Tuning.CACHED])
def test_nothing_is_measured_unless_it_is_asked_for(how: Tuning, tmp_path: Path) -> None:
    device = ToldDevice(fewest)
    assert tuned(device, 16, cache=tmp_path, how=how) == [items_of(device, 16, 0)]
    assert device.recorded == []
    assert list(tmp_path.iterdir()) == []


def test_estimates_do_not_ask_what_is_kept(tmp_path: Path) -> None:
    (remaining,) = tuned(ToldDevice(fewest), 16, cache=tmp_path)
    assert tuned(ToldDevice(fewest), 16, cache=tmp_path, how=Tuning.ESTIMATED) != [remaining]


def test_a_tuner_remembers_without_a_folder() -> None:
    device = ToldDevice(fewest)
    tuner = Tuner(device.info, None, Tuning.MEASURED)
    first = tuner.build(placed(device, 16))
    count = len(device.recorded)
    assert convolutions(tuner.build(placed(device, 16))) == convolutions(first)
    assert len(device.recorded) == count


@pytest.mark.parametrize("change", [{"name": "another"}, {"driver": "2"}, {"backend": "opengl"}])
def test_another_device_does_not_know_them(change: dict[str, Any], tmp_path: Path) -> None:
    tuned(ToldDevice(fewest), 16, cache=tmp_path)
    other = ToldDevice(fewest, replace(DEVICE, **change))
    tuned(other, 16, cache=tmp_path)
    assert other.recorded


def test_another_version_does_not_know_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned(ToldDevice(fewest), 16, cache=tmp_path)
    monkeypatch.setattr(tuning, "__version__", "0.0.0")
    device = ToldDevice(fewest)
    tuned(device, 16, cache=tmp_path)
    assert device.recorded


BOMB = b"[" * 100_000
DAMAGED = [
    (b"{", "Expecting property name"),
    (b"\xff\xfe\xff", "codec can't decode"),
    (b"[1, 2]", "list instead of an object"),
    (b'{"conv_2d": -1}', "-1 is not the index of a candidate"),
    (b'{"conv_2d": true}', "True is not the index of a candidate of conv_2d"),
    (b'{"conv_2d": "1"}', "'1' is not the index of a candidate of conv_2d"),
    (b'{"conv_2d": NaN}', "NaN is not the index of a candidate"),
    (b'{"conv_2d": 1e9999}', "1e9999 is not the index of a candidate"),
    (b'{"conv_2d": ' + b"9" * 100_000 + b"}", "99999999999999999999 is not the index"),
    (b'{"conv_2d": 1, "conv_2d": 2}', "a problem occurs twice"),
    (BOMB, "recursion"),
    (b'{"a":' * 100_000, "recursion"),
]


def keep(content: bytes, folder: Path) -> None:
    """Let a file whose header is right hold anything."""
    tuner = Tuner(DEVICE, Folder(str(folder)), Tuning.MEASURED)
    tuner._files.store(content, *tuner._key)


@pytest.mark.parametrize(("content", "cause"), DAMAGED)
def test_a_damaged_file_is_told_and_written_anew(
    content: bytes, cause: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "litegpu")
    expected = tuned(ToldDevice(fewest), 16, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    keep(content, tmp_path)
    assert content in path.read_bytes()
    device = ToldDevice(fewest)
    assert tuned(device, 16, cache=tmp_path) == expected
    assert device.recorded
    assert "Measured choices: " in caplog.text and "is unusable" in caplog.text
    assert cause in caplog.text
    last = ToldDevice(fewest)
    assert tuned(last, 16, cache=tmp_path) == expected
    assert last.recorded == []


def test_a_number_that_no_candidate_has_is_the_first(tmp_path: Path) -> None:
    device = ToldDevice(fewest)
    tuner = Tuner(device.info, Folder(str(tmp_path)), Tuning.MEASURED)
    tuner.build(placed(device, 16))
    keep(json.dumps(dict.fromkeys(tuner._known, 99)).encode(), tmp_path)
    device = ToldDevice(fewest)
    assert tuned(device, 16, cache=tmp_path) == [items_of(device, 16, 0)]


def test_a_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    device = ToldDevice(fewest)
    found = tuned(device, 16, cache=tmp_path / "file")
    assert found == [min(items_of(device, 16, k) for k in range(6))]
    assert f"Measured choices cannot be cached in '{tmp_path / 'file'}'" in caplog.text


# In an interpreter


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, opencl_device: OpenCLDevice) -> list[int]:
    """Return a list that grows by the number of launches of each program that is measured.

    The device passes for a GPU, as it must for that.
    """
    monkeypatch.setattr(opencl_device, "info", replace(opencl_device.info, software=False))
    found: list[int] = []
    real = tuning._measure

    def counted(compiled: Any, built: Any, device: Device) -> tuning.Seconds:
        found.append(len(built.launches))
        return real(compiled, built, device)

    monkeypatch.setattr(tuning, "_measure", counted)
    return found


def serialized(folder: Path, preference: InferencePreference) -> GpuDelegate:
    return GpuDelegate(
        backend="opencl",
        inference_preference=preference,
        experimental_flags=ExperimentalFlags.ENABLE_SERIALIZATION,
        serialization_dir=folder,
        model_token="a",
    )


def test_the_second_creation_measures_nothing(measured: list[int], tmp_path: Path) -> None:
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    expected = reference(model, x)
    for preference in (InferencePreference.BALANCED, InferencePreference.FAST_SINGLE_ANSWER):
        assert_close(run(interpreter(model, serialized(tmp_path, preference)), x), expected)
        assert measured == []
    assert_close(run(interpreter(model, serialized(tmp_path, SUSTAINED)), x), expected)
    assert len(measured) > 1
    assert list(tmp_path.glob("*.tuning"))
    measured.clear()
    for preference in InferencePreference:
        assert_close(run(interpreter(model, serialized(tmp_path, preference)), x), expected)
    assert measured == []


def test_a_nested_bomb_in_the_folder_does_not_disable_the_delegate(
    measured: list[int], opencl_device: OpenCLDevice, tmp_path: Path
) -> None:
    tuner = Tuner(opencl_device.info, Folder(str(tmp_path)), Tuning.MEASURED)
    tuner._files.store(BOMB, *tuner._key)
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    delegate = serialized(tmp_path, SUSTAINED)
    assert_close(run(interpreter(model, delegate), x), reference(model, x))
    assert delegate.error is None and delegate.report is not None
    assert delegate.report.whole_graph
    assert BOMB not in b"".join(path.read_bytes() for path in tmp_path.glob("*.tuning"))


def test_new_shapes_are_measured_once_each(measured: list[int]) -> None:
    model = fully_convolutional()
    target = interpreter(
        model,
        GpuDelegate(backend="opencl", inference_preference=SUSTAINED),
    )
    counts = []
    for shape in [(1, 9, 7, 3), (1, 12, 8, 3), (1, 9, 7, 3), (1, 12, 8, 3)]:
        target.resize_tensor_input(0, shape)
        target.allocate_tensors()
        x = random(*shape)
        for _ in range(3):
            assert_close(run(target, x), reference(model, x))
        counts.append(len(measured))
    assert 1 < counts[0] < counts[1] == counts[2] == counts[3]


def test_a_software_device_is_not_measured(tmp_path: Path) -> None:
    device = ToldDevice(fewest, replace(DEVICE, software=True))
    assert tuned(device, 16, cache=tmp_path) == [items_of(device, 16, 0)]
    assert device.recorded == []


def test_a_model_without_choices_is_not_measured(measured: list[int]) -> None:
    model, x = chain(["ABS", "NEG"]), random(1, 4, 4, 4)
    delegate = GpuDelegate(
        backend="opencl", inference_preference=InferencePreference.SUSTAINED_SPEED
    )
    assert_close(run(interpreter(model, delegate), x), reference(model, x))
    assert measured == []


# Every candidate gives the same numbers

FORCED: dict[str, tuple[Case, ...]] = {}
"""Cases of each op that chooses, for which even the largest tile keeps the device busy."""
for each in groups(cases.TABLE):
    kind = type(each[0]).__name__
    if kind in ("Conv", "Depthwise", "TransposeConv", "Matmul") and each[0].items == SMALL:
        FORCED.setdefault(kind, each)


@pytest.mark.parametrize(
    ("kind", "mode", "number"),
    [
        pytest.param(kind, mode, number, id=f"{kind}-{mode.name}-{number}")
        for kind in FORCED
        for place, mode in enumerate([MODES[0], MODES[-1]])
        for number in range(1, 6)
        if turns.ALL or (place + number) % 2 == 0
    ],
)
def test_every_candidate_agrees_with_the_cpu(kind: str, mode: Mode, number: int) -> None:
    with forced(number) as chosen:
        found = run_cases(FORCED[kind], backends.list_devices()[0], mode)
    for case in FORCED[kind]:
        outcome = found[case.name]
        if isinstance(outcome, Exception):
            raise outcome
        assert not outcome.faults, f"{case.name}: {'; '.join(outcome.faults)}"
        for expected, got in zip(outcome.expected, outcome.got, strict=True):
            problem = mismatch(expected, got, case.limit(mode.half))
            assert not problem, f"{case.name}: {problem}"
    assert max(chosen) > 0
