"""States between runs: the CPU and litegpu use the same state tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cases.base import EXACT, Case, Sheet
from cases.lstm import BasicLstm, IntegerLstm, Lstm
from cases.rnn import BidirectionalLstm, BidirectionalRnn, Rnn
from cases.svdf import QuantizedSvdf, Svdf
from every_backend import first_devices
from litegpu import GpuDelegate
from litegpu.backends.base import DeviceInfo
from litegpu.engine.target import DeviceTarget
from small_models import CPU_ONLY, Array, assert_close, interpreter, random, run, step


def delegate(found: DeviceInfo) -> GpuDelegate:
    return GpuDelegate(backend=found.backend, device=found.index, precision="fp32")


def written(case: Case) -> bytes:
    sheet = Sheet()
    sheet.add(case)
    return sheet.writer.build()


def states(target: Any) -> list[Array]:
    """Return the state tensors, which the writer calls variables."""
    return [
        target.get_tensor(detail["index"])
        for detail in target.get_tensor_details()
        if detail["name"].startswith("variable")
    ]


def inputs(target: Any, seed: int) -> list[Array]:
    """Return seeded inputs: floats, or bytes."""
    dice = np.random.default_rng(seed)
    return [
        dice.integers(-128, 128, each["shape"], np.int8)
        if each["dtype"] is np.int8
        else random(*each["shape"], seed=seed)
        for each in target.get_input_details()
    ]


RECURRENT = (
    Lstm(),
    Lstm(outputs=3, time_major=True),
    Lstm(steps=0),
    Rnn(units=5),
    BidirectionalRnn(time_major=True, merged=True, batch=3),
    BidirectionalLstm(cells=5, peephole=True),
    Svdf(rank=2, activation="RELU6"),
    Svdf(hybrid=True, asymmetric=True, batch=1),
    QuantizedSvdf(units=5, rank=2),
    IntegerLstm(cells=7),
    IntegerLstm(outputs=3, time_major=True, cifg=True),
    IntegerLstm(steps=0),
)


@pytest.mark.parametrize("case", RECURRENT, ids=lambda case: case.name)
def test_states_persist_and_are_the_cpus(case: Case, device: DeviceInfo) -> None:
    """Over more invokes than any of them remembers, and again after a reset."""
    gpu = delegate(device)
    here, cpu = interpreter(written(case), gpu), interpreter(written(case))
    assert gpu.report is not None and gpu.report.whole_graph
    tolerance = EXACT if case.tolerance == EXACT else 1e-5
    for seed in range(5):
        if seed == 4:
            for target in (here, cpu):
                target.reset_all_variables()
        values = inputs(cpu, seed)
        assert_close(run(here, *values), run(cpu, *values), tolerance)
        assert_close(states(here), states(cpu), tolerance)
        assert all(np.any(state != 0) for state in states(here))


def test_states_start_anew_when_they_are_reset(device: DeviceInfo) -> None:
    here = interpreter(written(Lstm()), delegate(device))
    values = inputs(here, 1)
    first = run(here, *values)
    assert np.any(run(here, *values)[0] != first[0])
    here.reset_all_variables()
    assert all(not np.any(state) for state in states(here))
    np.testing.assert_array_equal(run(here, *values)[0], first[0])


def test_a_state_that_a_user_sets_is_where_the_next_run_starts(device: DeviceInfo) -> None:
    here, cpu = interpreter(written(Lstm()), delegate(device)), interpreter(written(Lstm()))
    for target in (here, cpu):
        for detail in target.get_tensor_details():
            if detail["name"].startswith("variable"):
                target.set_tensor(detail["index"], random(*detail["shape"], seed=7))
    values = inputs(cpu, 0)
    assert_close(run(here, *values), run(cpu, *values))


def test_the_basic_kernel_leaves_its_results_in_its_inputs(device: DeviceInfo) -> None:
    case = BasicLstm()
    here, cpu = interpreter(written(case), delegate(device)), interpreter(written(case))
    values = inputs(cpu, 0)
    for target in (here, cpu):
        run(target, *values)
    for detail in cpu.get_input_details():
        left = [target.get_tensor(detail["index"]) for target in (here, cpu)]
        assert_close(left[:1], left[1:])
    for target in (here, cpu):
        target.invoke()
    got, expected = (
        [target.get_tensor(detail["index"]) for detail in target.get_output_details()]
        for target in (here, cpu)
    )
    assert_close(got, expected)


def test_states_in_a_model_that_is_split(device: DeviceInfo) -> None:
    sheet = Sheet()
    source = step(sheet.writer, CPU_ONLY, sheet.input((2, 4, 5)))
    result = sheet.writer.op(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        [source, *Lstm(cells=4).operands(sheet)],
        [(2, 4, 4)],
        options={"fused_activation_function": "TANH"},
    )
    sheet.writer.output(step(sheet.writer, CPU_ONLY, result))
    content = sheet.writer.build()
    gpu = delegate(device)
    here, cpu = interpreter(content, gpu), interpreter(content)
    assert gpu.report is not None and gpu.report.delegated_nodes == [1]
    for seed in range(3):
        values = random(2, 4, 5, seed=seed)
        assert_close(run(here, values), run(cpu, values))
        assert_close(states(here), states(cpu))


def test_states_on_both_sides(device: DeviceInfo) -> None:
    """An LSTM on the GPU and an SVDF on the CPU, each with states that the other never sees.

    The SVDF stays on the CPU since its bias is computed.
    """
    sheet = Sheet()
    writer = sheet.writer
    result = writer.op(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        [sheet.input((2, 4, 5)), *Lstm(cells=4).operands(sheet)],
        [(2, 4, 4)],
        options={"fused_activation_function": "TANH"},
    )
    flat = writer.op("RESHAPE", [result, writer.constant([2, 16], "int32")], [(2, 16)])
    features = writer.constant(random(4, 16, seed=1), name="features")
    time = writer.constant(random(4, 5, seed=2), name="time")
    bias, state = sheet.input((4,)), writer.variable((2, 20), name="variable_of_svdf")
    svdf = writer.op("SVDF", [flat, features, time, bias, state], [(2, 4)], options={"rank": 1})
    writer.output(step(writer, "TANH", svdf))
    content = writer.build()
    gpu = GpuDelegate(backend=device.backend, device=device.index, max_delegated_partitions=2)
    here, cpu = interpreter(content, gpu), interpreter(content)
    assert gpu.report is not None and gpu.report.delegated_nodes == [0, 1, 3]
    for seed in range(4):
        if seed == 3:
            for target in (here, cpu):
                target.reset_all_variables()
        values = random(2, 4, 5, seed=seed), random(4, seed=seed)
        assert_close(run(here, *values), run(cpu, *values))
        assert_close(states(here), states(cpu))


def test_without_work_group_memory_the_cpu_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceTarget, "local_memory_bytes", 0)
    gpu = delegate(first_devices()[0])
    here, cpu = interpreter(written(Lstm()), gpu), interpreter(written(Lstm()))
    assert str(gpu.error) == (
        "An LSTM of 6 cells needs 576 bytes of work-group memory; the device has 0. "
        "Use another device or backend."
    )
    values = inputs(cpu, 0)
    assert_close(run(here, *values), run(cpu, *values), 0.0)


_WIDE = (
    Lstm(cells=600, inputs=3, outputs=5, steps=3, normalized=True, peephole=True),
    Lstm(cells=530, inputs=3, steps=2, batch=1),
    IntegerLstm(cells=600, inputs=3, outputs=5, steps=3),
    IntegerLstm(cells=530, inputs=3, steps=2, batch=1),
)
"""More blocks of cells than a work group has items. (The CPU wants no more outputs than cells.)"""


@pytest.mark.parametrize("case", _WIDE, ids=lambda case: case.name)
def test_work_items_own_several_slices(case: Case) -> None:
    here, cpu = interpreter(written(case), delegate(first_devices()[0])), interpreter(written(case))
    values = inputs(cpu, 0)
    assert_close(run(here, *values), run(cpu, *values))


def test_where_few_items_share_memory_the_cpu_runs_wide_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DeviceTarget, "max_work_group_size", 4)
    gpu = delegate(first_devices()[0])
    interpreter(written(Lstm(cells=270, inputs=3, steps=2, batch=1)), gpu)
    assert str(gpu.error) == (
        "An LSTM of 270 cells is too wide for the 4 work items of a group. "
        "Use another device or backend."
    )
