"""Models that run on both GPU and CPU: partitions, shared tensors, dynamic shapes."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu import GpuDelegate
from litegpu.delegation.report import DelegationReport
from litegpu.options import Precision
from litegpu.zoo.writer import ModelWriter
from small_models import (
    CPU_ONLY,
    WHY_ON_CPU,
    assert_close,
    chain,
    convolution,
    interpreter,
    random,
    reference,
    run,
    step,
    with_subgraphs,
)

# Nodes 0-1, 3-5 and 7 are supported.
THREE_PARTS = ["ABS", "SQRT", CPU_ONLY, "NEG", "EXP", "SQRT", CPU_ONLY, "NEG"]


def report_of(delegate: GpuDelegate) -> DelegationReport:
    assert delegate.report is not None
    assert delegate.error is None
    return delegate.report


@pytest.mark.parametrize(
    ("limit", "nodes"),
    [
        (0, [(3, 4, 5)]),
        (1, [(3, 4, 5)]),
        (2, [(3, 4, 5), (0, 1)]),
        (3, [(3, 4, 5), (0, 1), (7,)]),
        (99, [(3, 4, 5), (0, 1), (7,)]),
    ],
)
def test_the_largest_partitions_come_first(limit: int, nodes: list[tuple[int, ...]]) -> None:
    model, x = chain(THREE_PARTS), random(1, 4, 4, 4)
    delegate = GpuDelegate(max_delegated_partitions=limit)
    assert_close(run(interpreter(model, delegate), x), reference(model, x))
    assert [part.nodes for part in report_of(delegate).partitions] == nodes
    left = report_of(delegate).left_out
    assert [each.nodes for each in left] == [(3, 4, 5), (0, 1), (7,)][len(nodes) :]
    assert all(f"max_delegated_partitions={max(limit, 1)}" in each.reason for each in left)


TOO_LONG = (1 << 17) + 1
"""Elements of a row of which the GPU does not find the largest."""


def test_an_operation_with_several_outputs_stays_on_the_cpu() -> None:
    writer = ModelWriter()
    x = writer.input((1, TOO_LONG))
    k = writer.constant(3, "int32", name="k")
    values, where = writer.multi(
        "TOPK_V2", [step(writer, "NEG", x), k], [(1, 3), (1, 3)], dtypes=["float32", "int32"]
    )
    writer.output(step(writer, "ABS", values), where)
    model, value = writer.build(), random(1, TOO_LONG)
    delegate = GpuDelegate(max_delegated_partitions=2)
    assert_close(run(interpreter(model, delegate), value), reference(model, value))
    assert report_of(delegate).delegated_nodes == [0, 2]


def test_tensors_that_both_sides_read() -> None:
    """The result of ABS is a model output, and both the GPU and the CPU read it."""
    writer = ModelWriter()
    x = writer.input((1, 3, 3, 5))
    shared = step(writer, "ABS", x)
    on_cpu = step(writer, CPU_ONLY, shared)
    root = step(writer, "SQRT", shared)
    writer.output(writer.op("ADD", [root, on_cpu], [(1, 3, 3, 5)]), shared, root, on_cpu)
    model, value = writer.build(), random(1, 3, 3, 5)
    for limit in (1, 2):
        delegate = GpuDelegate(max_delegated_partitions=limit)
        assert_close(run(interpreter(model, delegate), value), reference(model, value))
        assert len(report_of(delegate).partitions) == limit


def test_an_input_that_both_sides_read() -> None:
    writer = ModelWriter()
    x = writer.input((1, 3, 3, 5))
    writer.output(step(writer, CPU_ONLY, x), step(writer, "NEG", x), x)
    model, value = writer.build(), random(1, 3, 3, 5)
    assert_close(run(interpreter(model, GpuDelegate()), value), reference(model, value))


@pytest.mark.parametrize("channels", [8, 96], ids=["small", "large"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_float16_weights_that_both_sides_read(channels: int, precision: Precision) -> None:
    """96 channels make more than 64 KiB of weights, which the CPU widens by itself."""
    writer = ModelWriter(float16_weights=True)
    x = writer.input((1, 6, 6, channels))
    kernel = random(channels, 3, 3, channels, seed=1) / (3 * channels**0.5)
    weights = writer.weights(kernel, name="shared")
    bias = writer.weights(random(channels, seed=2), name="bias")
    options = {
        "padding": "SAME",
        "stride_h": 1,
        "stride_w": 1,
        "dilation_h_factor": 1,
        "dilation_w_factor": 1,
    }
    shape = (1, 6, 6, channels)
    y = writer.op("CONV_2D", [x, weights, bias], [shape], options=options)
    writer.output(step(writer, "ABS", y), step(writer, CPU_ONLY, weights))
    model, value = writer.build(), random(*shape, seed=3)
    delegate = GpuDelegate(precision=precision)
    got = run(interpreter(model, delegate), value)
    assert_close(got, reference(model, value), 1e-5 if precision == "fp32" else 5e-3)
    large = 4 * kernel.size > 1 << 16
    # Node 0 widens the weights, node 1 the bias, which only the GPU reads.
    assert report_of(delegate).delegated_nodes == ([1, 2, 3] if large else [0, 1, 2, 3])


def test_widened_weights_that_are_a_model_output() -> None:
    writer = ModelWriter(float16_weights=True)
    x = writer.input((1, 4))
    weights = writer.weights(random(1, 4), name="weights")
    writer.output(writer.op("MUL", [x, weights], [(1, 4)]), weights)
    model, value = writer.build(), random(1, 4, seed=9)
    delegate = GpuDelegate()
    assert_close(run(interpreter(model, delegate), value), reference(model, value))


def test_only_widened_weights() -> None:
    """A partition that would only hand out constants is not worth a thing."""
    writer = ModelWriter(float16_weights=True)
    weights = writer.weights(random(1, 4), name="weights")
    x = writer.input((1, 4))
    writer.output(weights, step(writer, CPU_ONLY, x))
    delegate = GpuDelegate()
    value = random(1, 4, seed=1)
    model = writer.build()
    assert_close(run(interpreter(model, delegate), value), reference(model, value))
    assert report_of(delegate).delegated_nodes == []


def computed_shape_model() -> bytes:
    """RESHAPE to a shape that is an input of the model, then operations the GPU has."""
    writer = ModelWriter()
    x, shape = writer.input((4, 6), name="x"), writer.input((2,), "int32", name="shape")
    reshaped = writer.op("RESHAPE", [step(writer, "ABS", x), shape], [(-1, -1)])
    writer.output(step(writer, "NEG", step(writer, "SQRT", reshaped)))
    return writer.build()


def test_shapes_that_are_computed_at_run_time() -> None:
    model, x = computed_shape_model(), random(4, 6)
    delegate = GpuDelegate(max_delegated_partitions=9)
    target = interpreter(model, delegate)
    on_cpu = interpreter(model)
    for shape in ([2, 12], [24, 1], [2, 12], [3, 8]):
        wanted = np.array(shape, np.int32)
        assert_close(run(target, x, wanted), run(on_cpu, x, wanted))
    report = report_of(delegate)
    assert report.delegated_nodes == [0]
    reasons = {node.index: node.reason for node in report.rejected}
    assert "known only when the model runs" in reasons[2]
    assert "known only when the model runs" in reasons[3]


def test_a_shape_that_follows_from_other_shapes_is_no_obstacle() -> None:
    """Flattening to a batch size that only the CPU's integer operations compute, once a shape."""
    writer = ModelWriter()
    x = writer.input((-1, 3, 4))
    batch = writer.op("SHAPE", [x], [(3,)], dtype="int32", options={"out_type": "INT32"})
    ends = [writer.constant([n], "int32", name=f"c{n}") for n in (0, 1, 1)]
    first = writer.op(
        "STRIDED_SLICE", [batch, *ends], [()], dtype="int32", options={"shrink_axis_mask": 1}
    )
    one = writer.constant(1, "int32", name="one")
    same = writer.op("POW", [first, one], [()], dtype="int32")
    size = writer.constant(12, "int32", name="size")
    pack = {"values_count": 2, "axis": 0}
    target_shape = writer.op("PACK", [same, size], [(2,)], dtype="int32", options=pack)
    flat = writer.op("RESHAPE", [step(writer, "ABS", x), target_shape], [(-1, 12)])
    writer.output(step(writer, "NEG", flat))
    model = writer.build()
    delegate = GpuDelegate(max_delegated_partitions=2)
    target = interpreter(model, delegate)
    for size_of_batch in (1, 3, 2):
        target.resize_tensor_input(0, [size_of_batch, 3, 4])
        target.allocate_tensors()
        value = random(size_of_batch, 3, 4)
        assert_close(run(target, value), reference(model, value))
    assert report_of(delegate).whole_graph
    assert len(report_of(delegate).partitions[0].nodes) == 7


def test_a_dynamic_output_of_the_cpu() -> None:
    """WHERE makes as many rows as there are non-zero elements; nobody knows before."""
    writer = ModelWriter()
    x = writer.input((8,))
    positive = writer.op("GREATER", [x, writer.constant(0.0, "float32")], [(8,)], dtype="bool")
    rows = writer.op("WHERE", [positive], [(-1, 1)], dtype="int64")
    flat = writer.op("SQUEEZE", [rows], [(-1,)], dtype="int64", options={"squeeze_dims": [1]})
    picked = writer.op("GATHER", [x, flat], [(-1,)], options={"axis": 0})
    writer.output(step(writer, "SQRT", picked))
    model = writer.build()
    delegate = GpuDelegate(max_delegated_partitions=9)
    target = interpreter(model, delegate)
    for value in (random(8), np.ones(8, np.float32), -np.ones(8, np.float32), random(8, seed=3)):
        assert_close(run(target, value), [np.sqrt(value[value > 0])])
    assert report_of(delegate).delegated_nodes == [0]


def test_sizes_change_on_the_cpu_between_two_partitions() -> None:
    """While the model runs, WHERE resizes a tensor, and the runtime may move all others."""
    writer = ModelWriter()
    x = writer.input((16,))
    doubled = writer.op("ADD", [x, x], [(16,)])
    positive = writer.op(
        "GREATER",
        [step(writer, CPU_ONLY, doubled), writer.constant(0.0, "float32")],
        [(16,)],
        dtype="bool",
    )
    rows = writer.op("WHERE", [positive], [(-1, 1)], dtype="int64")
    count = writer.op("SHAPE", [rows], [(2,)], dtype="int32", options={"out_type": "INT32"})
    seen = step(writer, CPU_ONLY, doubled)
    writer.output(step(writer, "NEG", step(writer, "ABS", seen)), count, doubled)
    model = writer.build()
    delegate = GpuDelegate(max_delegated_partitions=9)
    target = interpreter(model, delegate)
    for value in (
        random(16),
        np.ones(16, np.float32),
        -np.ones(16, np.float32),
        random(16, seed=3),
    ):
        left, found, twice = run(target, value)
        assert_close([left, twice], [-np.abs(2 * value), 2 * value])
        assert found.tolist() == [np.sum(2 * value > 0), 1]
    assert len(report_of(delegate).partitions) >= 2


def test_variable_tensors_keep_their_state() -> None:
    """SVDF has its state in a variable tensor; the operations around it run on the GPU.

    Its bias is computed, so that it stays on the CPU.
    """
    writer = ModelWriter()
    x, bias = writer.input((1, 3)), writer.input((4,), name="bias")
    features = writer.constant(random(4, 3, seed=1), name="features")
    time = writer.constant(random(4, 5, seed=2), name="time")
    state = writer.variable((1, 20), name="state")
    y = writer.op(
        "SVDF",
        [step(writer, "NEG", x), features, time, bias, state],
        [(1, 4)],
        options={"rank": 1},
    )
    writer.output(step(writer, "TANH", y))
    model = writer.build()
    delegate = GpuDelegate(max_delegated_partitions=2)
    on_gpu, on_cpu = interpreter(model, delegate), interpreter(model)
    for number in range(6):
        values = random(1, 3, seed=number), random(4, seed=number)
        assert_close(run(on_gpu, *values), run(on_cpu, *values))
    on_gpu.reset_all_variables()
    on_cpu.reset_all_variables()
    assert_close(run(on_gpu, *values), run(on_cpu, *values))
    assert len(report_of(delegate).partitions) == 2


def test_a_variable_tensor_is_not_read_on_the_gpu() -> None:
    writer = ModelWriter()
    x, state = writer.input((1, 4)), writer.variable((1, 4))
    writer.output(writer.op("ADD", [step(writer, "ABS", x), state], [(1, 4)]))
    delegate = GpuDelegate()
    model, value = writer.build(), random(1, 4)
    assert_close(run(interpreter(model, delegate), value), reference(model, value))
    assert "variable tensor" in report_of(delegate).rejected[0].reason


def test_a_long_alternation() -> None:
    ops = ["ABS", CPU_ONLY, "SQRT", CPU_ONLY, "NEG", CPU_ONLY] * 3
    model, x = chain(ops, (2, 3, 5)), random(2, 3, 5)
    delegate = GpuDelegate(max_delegated_partitions=99)
    assert_close(run(interpreter(model, delegate), x), reference(model, x))
    assert len(report_of(delegate).partitions) == 9


def test_parallel_branches_on_both_sides() -> None:
    writer = ModelWriter()
    x = writer.input((1, 5, 5, 3))
    left = convolution(writer, x, 4, seed=1)
    right = step(writer, CPU_ONLY, convolution(writer, x, 4, seed=2))
    joined = writer.op("CONCATENATION", [left, right, left], [(1, 5, 5, 12)], options={"axis": 3})
    writer.output(step(writer, "LOGISTIC", joined), right)
    model, value = writer.build(), random(1, 5, 5, 3)
    for limit in (1, 2, 99):
        delegate = GpuDelegate(max_delegated_partitions=limit)
        assert_close(run(interpreter(model, delegate), value), reference(model, value))


def test_the_branches_of_a_condition() -> None:
    """The runtime applies the delegate to each subgraph; the report is about the main graph."""
    writer = ModelWriter()
    condition, x = writer.input((), "bool", name="condition"), writer.input((1, 4, 4, 4))
    branches = {"then_subgraph_index": 1, "else_subgraph_index": 2}
    chosen = writer.op("IF", [condition, step(writer, "ABS", x)], [x.shape], options=branches)
    writer.output(step(writer, "NEG", chosen))
    model = with_subgraphs(writer.build(), chain(["EXP", "SQRT"]), chain(["TANH", CPU_ONLY]))
    delegate = GpuDelegate(max_delegated_partitions=9)
    target, value = interpreter(model, delegate), random(1, 4, 4, 4)
    for selected in (True, False, True):
        inputs = (np.array(selected), value)
        assert_close(run(target, *inputs), run(interpreter(model), *inputs))
    report = report_of(delegate)
    assert [node.op for node in report.rejected] == ["IF", "NEG"]
    assert "known only when the model runs" in report.rejected[1].reason
    assert report.delegated_nodes == [0]
    then, otherwise = report.subgraphs
    assert then.whole_graph
    assert (otherwise.delegated_nodes, otherwise.total_nodes) == ([0], 2)
    text = str(report)
    assert "\n\nsubgraph 1 (another signature, or the body of an IF or WHILE)\n2 operations" in text
    assert f"on the CPU\n  {CPU_ONLY} v1 (node 1): {WHY_ON_CPU}" in text
    assert len(report.to_dict()["subgraphs"]) == 2
    interpreter(chain(["ABS"]), delegate)
    assert report_of(delegate).whole_graph and report_of(delegate).subgraphs == ()
