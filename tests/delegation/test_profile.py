"""`GpuDelegate.profile`: times and work of each kernel, sums, traces, errors."""

from __future__ import annotations

import gc
import json
from typing import Any

import numpy as np
import pytest

from litegpu import GpuDelegate, InterpreterError, ModelError, OptionsError, Profile
from litegpu.backends.execution import ExecutionContext, Profiler
from litegpu.ops.common.units import Unit
from litegpu.runtime_abi import kernel_slots
from litegpu.zoo.writer import ModelWriter
from small_models import (
    CPU_ONLY,
    assert_close,
    chain,
    encode_and_decode,
    fully_convolutional,
    interpreter,
    random,
    reference,
    run,
    with_subgraphs,
)

SPLIT = chain(["ABS", CPU_ONLY, "NEG"])


@pytest.fixture(scope="module")
def profile() -> Profile:
    """The profile of three convolutions and a LOGISTIC, fused into the last."""
    delegate = GpuDelegate()
    target = interpreter(fully_convolutional(), delegate)
    return delegate.profile(target, repeats=3)


def test_kernels_in_order_with_their_nodes(profile: Profile) -> None:
    (part,) = profile.partitions
    assert part.nodes == (0, 1, 2, 3)
    assert [(k.op, k.node, k.merged, k.shape) for k in part.kernels] == [
        ("CONV_2D", 0, (), (1, 5, 4, 8)),
        ("CONV_2D", 1, (), (1, 5, 4, 5)),
        ("CONV_2D", 2, (3,), (1, 5, 4, 6)),
    ]
    assert all(kernel.name.startswith(kernel.template) for kernel in part.kernels)


def test_rates_follow_from_work_and_time(profile: Profile) -> None:
    assert profile.peaks is not None
    for kernel in profile.partitions[0].kernels:
        assert 0 < kernel.seconds < 10
        assert kernel.flops > 0 and kernel.nbytes > 0
        assert kernel.flops_per_second * kernel.seconds == pytest.approx(kernel.flops)
        assert kernel.bytes_per_second * kernel.seconds == pytest.approx(kernel.nbytes)
        operations = {Unit(name): count for name, count in kernel.operations.items()}
        assert sum(operations.values()) == kernel.flops
        assert kernel.floor_seconds == profile.peaks.floor(operations, kernel.nbytes)
        assert kernel.floor_seconds is not None
        assert kernel.floor_share == pytest.approx(kernel.floor_seconds / kernel.seconds)


def test_sums(profile: Profile) -> None:
    kernels = profile.partitions[0].kernels
    assert profile.kernel_seconds == pytest.approx(sum(k.seconds for k in kernels))
    assert profile.floor_seconds == pytest.approx(sum(k.floor_seconds or 0 for k in kernels))
    assert profile.host_seconds == profile.partitions[0].host_seconds
    assert profile.chain_seconds == profile.partitions[0].chain_seconds
    assert profile.device_seconds == profile.partitions[0].device_seconds
    (total,) = profile.by_op()
    assert (total.op, total.kernels) == ("CONV_2D", 3)
    assert total.seconds == pytest.approx(profile.kernel_seconds)
    assert total.floor_seconds == pytest.approx(profile.floor_seconds)


def test_invokes_are_more_than_what_lies_outside(profile: Profile) -> None:
    assert profile.invoke_seconds is not None and profile.outside_seconds is not None
    assert 0 < profile.outside_seconds < profile.invoke_seconds < 10


def test_kinds_of_operations_are_sorted_by_time() -> None:
    delegate = GpuDelegate()
    target = interpreter(chain(["SOFTMAX", "ABS", "SOFTMAX"], (1, 40, 40, 16)), delegate)
    profile = delegate.profile(repeats=1)
    del target
    totals = profile.by_op()
    assert sum(total.kernels for total in totals) == len(profile.partitions[0].kernels)
    assert totals == sorted(totals, key=lambda total: -total.seconds)
    assert "COPY" not in {total.op for total in totals}, "the model's names, not litegpu's own"


def test_a_profile_is_printed_as_a_table(profile: Profile) -> None:
    title, *lines = str(profile).splitlines()
    assert title.startswith("litegpu on ") and f"({profile.backend}, " in title
    times = dict(line.rsplit(maxsplit=1) for line in lines)
    assert times["interpreter.invoke()"] == f"{(profile.invoke_seconds or 0) * 1e6:.1f}"
    assert list(times)[-len(profile.by_op()) :] == [each.op for each in profile.by_op()]
    assert len({len(line) for line in lines}) == 1


def test_everything_as_json(profile: Profile) -> None:
    got = json.loads(json.dumps(profile.to_dict()))
    assert got["device"] == profile.device
    assert got["repeats"] == 3
    assert got["peaks"]["flops_per_second"] == profile.peaks.flops  # type: ignore[union-attr]
    assert got["peaks"]["operations_per_second"]["fp32"] == got["peaks"]["flops_per_second"]
    (part,) = got["partitions"]
    assert part["nodes"] == [0, 1, 2, 3]
    assert [kernel["op"] for kernel in part["kernels"]] == ["CONV_2D"] * 3
    assert {"seconds", "flops", "nbytes", "floor_seconds", "floor_share"} <= set(part["kernels"][0])
    assert got["by_op"][0]["op"] == "CONV_2D"
    assert got["invoke_seconds"] == profile.invoke_seconds


# Traces


def events(trace: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def check_trace(trace: dict[str, Any]) -> None:
    """Check what the format asks for: complete events that do not overlap on any track."""
    trace = json.loads(json.dumps(trace))
    assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X"}
    named = {e["tid"]: e["args"]["name"] for e in events(trace, "M") if e["name"] == "thread_name"}
    ends: dict[int, float] = {}
    for event in events(trace, "X"):
        assert {"name", "cat", "pid", "tid", "ts", "dur", "args"} <= event.keys()
        assert event["dur"] >= 0
        assert event["ts"] >= ends.get(event["tid"], 0.0) - 1e-6
        ends[event["tid"]] = event["ts"] + event["dur"]
    assert ends.keys() == named.keys()


def test_a_trace_has_a_track_for_the_host_and_one_for_each_partition() -> None:
    delegate = GpuDelegate(max_delegated_partitions=2)
    target = interpreter(SPLIT, delegate)
    profile = delegate.profile(target, repeats=1)
    trace = profile.to_trace()
    check_trace(trace)
    titles = [e["args"]["name"] for e in events(trace, "M") if e["name"] == "thread_name"]
    assert titles == ["host", "partition 0", "partition 1"]
    assert [e["cat"] for e in events(trace, "X") if e["tid"] == 1] == ["ABS"]
    (late,) = (e for e in events(trace, "X") if e["tid"] == 2)
    assert late["cat"] == "NEG"
    assert late["dur"] == pytest.approx(profile.partitions[1].kernel_seconds * 1e6)
    assert late["args"]["nbytes"] == 2 * 64 * 4
    for number, part in enumerate(profile.partitions):
        phases = [e for e in events(trace, "X") if e["args"].get("partition") == number]
        assert [e["name"] for e in phases] == list(part.host_seconds)
        assert phases[0]["ts"] <= min(e["ts"] for e in events(trace, "X") if e["tid"] == number + 1)


# Models and interpreters


def test_partitions_in_the_order_of_the_model() -> None:
    delegate = GpuDelegate(max_delegated_partitions=2)
    target = interpreter(SPLIT, delegate)
    profile = delegate.profile(repeats=1, peaks=False)
    assert [part.nodes for part in profile.partitions] == [(0,), (2,)]
    assert (profile.invoke_seconds, profile.outside_seconds) == (None, None)
    assert profile.kernel_seconds == sum(part.kernel_seconds for part in profile.partitions)
    del target


def test_without_ceilings_there_are_no_floors() -> None:
    delegate = GpuDelegate()
    target = interpreter(chain(["ABS"]), delegate)
    profile = delegate.profile(target, repeats=1, peaks=False)
    (kernel,) = profile.partitions[0].kernels
    assert (profile.peaks, profile.floor_seconds) == (None, None)
    assert (kernel.floor_seconds, kernel.floor_share) == (None, None)
    assert profile.by_op()[0].floor_seconds is None
    check_trace(profile.to_trace())


def test_answers_are_the_same_afterwards() -> None:
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    delegate = GpuDelegate()
    target = interpreter(model, delegate)
    before = run(target, x)
    delegate.profile(target, repeats=1)
    np.testing.assert_array_equal(run(target, x)[0], before[0])
    target.set_tensor(target.get_input_details()[0]["index"], -x)
    target.invoke()
    got = target.get_tensor(target.get_output_details()[0]["index"])
    assert_close([got], reference(model, -x))


def test_shapes_are_those_of_now() -> None:
    delegate = GpuDelegate()
    target = interpreter(fully_convolutional(), delegate)
    target.resize_tensor_input(0, [3, 9, 7, 3])
    target.allocate_tensors()
    profile = delegate.profile(target, repeats=1, peaks=False)
    assert profile.partitions[0].kernels[0].shape == (3, 5, 4, 8)


def test_the_last_interpreter_is_profiled() -> None:
    delegate = GpuDelegate()
    first = interpreter(chain(["ABS"]), delegate)
    second = interpreter(chain(["NEG"]), delegate)
    assert [op.op for op in delegate.profile(repeats=1, peaks=False).by_op()] == ["NEG"]
    del first, second


class Bare(Profiler):
    """What takes the times on a backend that can tell no more than it must."""

    def __init__(self, context: ExecutionContext) -> None:
        super().__init__(context)
        self._real = type(context).profiler(context)

    def durations(self) -> list[float]:
        return self._real.durations()


def test_what_a_backend_cannot_tell_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    delegate = GpuDelegate()
    target = interpreter(chain(["ABS"]), delegate)
    kernel: Any = kernel_slots.kernels()[-1]
    context = kernel.compiled.context
    monkeypatch.setattr(context, "profiler", lambda: Bare(context))
    profile = delegate.profile(target, repeats=2, peaks=False)
    assert (profile.chain_seconds, profile.device_seconds) == (None, None)
    assert list(profile.host_seconds) == ["run"]
    check_trace(profile.to_trace())


# Refusals


def test_a_delegate_that_was_never_applied() -> None:
    with pytest.raises(InterpreterError, match=r"no interpreter uses this delegate\. Pass it to"):
        GpuDelegate().profile()


def test_an_interpreter_that_is_gone() -> None:
    delegate = GpuDelegate()
    target = interpreter(chain(["ABS"]), delegate)
    del target
    gc.collect()
    with pytest.raises(InterpreterError, match=r"no interpreter uses .* keep the interpreter"):
        delegate.profile()


@pytest.mark.parametrize("wrong", [3, "model.tflite", object()])
def test_what_is_no_interpreter(wrong: object) -> None:
    delegate = GpuDelegate()
    running = interpreter(chain(["ABS"]), delegate)
    with pytest.raises(InterpreterError, match=r"profile\(\) takes the interpreter that this"):
        delegate.profile(wrong)
    assert running


def test_an_interpreter_without_this_delegate() -> None:
    delegate = GpuDelegate()
    running = interpreter(chain(["ABS"]), delegate)
    for other in (interpreter(chain(["ABS"])), interpreter(chain(["ABS"]), GpuDelegate())):
        with pytest.raises(InterpreterError, match="interpreter was created without this delegate"):
            delegate.profile(other)
    assert running


def test_an_interpreter_that_is_not_the_last() -> None:
    delegate = GpuDelegate()
    first, second = (interpreter(chain([op]), delegate) for op in ("ABS", "EXP"))
    for target, op in ((first, "ABS"), (second, "EXP"), (None, "EXP")):
        profile = delegate.profile(target, repeats=1, peaks=False)
        assert [each.op for each in profile.by_op()] == [op]
        assert (profile.invoke_seconds is None) == (target is None)


def test_a_delegate_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("the tables are gone")

    monkeypatch.setattr("litegpu.runtime_abi.reader.read_graph", failing)
    delegate = GpuDelegate()
    target = interpreter(chain(["ABS"]), delegate)
    with pytest.raises(InterpreterError, match=r"this delegate \(the tables are gone\)"):
        delegate.profile(target)


def test_a_model_that_stays_on_the_cpu() -> None:
    delegate = GpuDelegate()
    target = interpreter(chain([CPU_ONLY]), delegate)
    with pytest.raises(ModelError, match=rf"no node of this model.*{CPU_ONLY}: .*litegpu check"):
        delegate.profile(target)


@pytest.mark.parametrize(
    ("signature", "graph", "op"), [(None, 0, "ABS"), ("encode", 0, "ABS"), ("decode", 1, "EXP")]
)
def test_the_kernels_of_a_signature(signature: str | None, graph: int, op: str) -> None:
    delegate = GpuDelegate(min_nodes_per_partition=0)
    target = interpreter(encode_and_decode(decode="EXP"), delegate)
    profile = delegate.profile(target, signature=signature, repeats=1, peaks=False)
    assert [(part.graph, part.kernels[0].op) for part in profile.partitions] == [(graph, op)]
    assert profile.invoke_seconds and profile.to_dict()["partitions"][0]["graph"] == graph


def test_a_signature_that_is_not_there() -> None:
    delegate = GpuDelegate(min_nodes_per_partition=0)
    target = interpreter(encode_and_decode(), delegate)
    with pytest.raises(ModelError, match=r"no signature 'encod'\. Did you mean 'encode'"):
        delegate.profile(target, signature="encod")
    with pytest.raises(InterpreterError, match=r"signature='decode' .* Pass the interpreter to"):
        delegate.profile(signature="decode")


def test_a_signature_on_the_cpu() -> None:
    delegate = GpuDelegate(min_nodes_per_partition=0)
    target = interpreter(encode_and_decode(CPU_ONLY, "ABS"), delegate)
    with pytest.raises(ModelError, match="nodes of other graphs, but none of graph 0"):
        delegate.profile(target)
    profile = delegate.profile(target, signature="decode", repeats=1, peaks=False)
    assert [each.op for each in profile.by_op()] == ["ABS"]


def test_called_graphs_belong_to_a_run() -> None:
    writer = ModelWriter()
    condition, x = writer.input((), "bool", name="condition"), writer.input((1, 4, 4, 4))
    branches = {"then_subgraph_index": 1, "else_subgraph_index": 2}
    writer.output(writer.op("IF", [condition, x], [x.shape], options=branches))
    model = with_subgraphs(writer.build(), chain(["EXP"]), chain([CPU_ONLY, "NEG"]))
    delegate = GpuDelegate(min_nodes_per_partition=0, max_delegated_partitions=9)
    target = interpreter(model, delegate)
    profile = delegate.profile(target, repeats=1, peaks=False)
    places = [(part.graph, part.kernels[0].op) for part in profile.partitions]
    assert sorted(places) == [(1, "EXP"), (2, "NEG")]


def test_no_repeats() -> None:
    delegate = GpuDelegate()
    target = interpreter(chain(["ABS"]), delegate)
    with pytest.raises(OptionsError, match=r"repeats=0: a profile needs"):
        delegate.profile(target, repeats=0)
