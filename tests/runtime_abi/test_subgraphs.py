"""Graphs that other graphs call: delegation, number of runs, and reading."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

from litegpu import (
    DelegationReport,
    GpuDelegate,
)
from litegpu.delegation import partitioner as selection
from litegpu.delegation.cost_model import CostPolicy
from litegpu.delegation.partition_kernel import PartitionKernel
from litegpu.engine.compiled import CompiledPartition
from litegpu.graph import Graph
from litegpu.runtime_abi.file import ModelFile
from litegpu.zoo.writer import ModelWriter, TensorRef
from loop_models import Carried, counted, loop, loop_graphs, recurrent, run_loop
from small_models import (
    assert_close,
    chain,
    interpreter,
    random,
    reference,
    run,
    step,
    with_subgraphs,
)

STEPS = 6
LARGE = (1, 64, 64, 16)


def much(writer: ModelWriter, x: TensorRef) -> TensorRef:
    """Add steps that take a CPU longer than the copies of something large."""
    for _ in range(12):
        x = step(writer, "TANH", x)
    return x


@pytest.fixture(params=[False, True], ids=["gpu", "software"])
def real_policy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose by costs as on a GPU, or on a software device, whatever the device is."""

    def policy(costs: Any, software: bool, *requested: bool) -> CostPolicy:
        # What other graphs call is judged on a software device, too.
        return CostPolicy(costs, software and request.param, *requested)

    monkeypatch.setattr(selection, "CostPolicy", policy)


@pytest.fixture
def as_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose by costs as on a GPU, whatever the device is."""
    monkeypatch.setattr(
        selection,
        "CostPolicy",
        lambda costs, _software, *requested: CostPolicy(costs, False, *requested),
    )


@pytest.fixture
def file_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runtime not say where the model's file is, which leaves loops to the CPU."""
    monkeypatch.setattr(ModelFile, "around", lambda _tensor: None)


@pytest.fixture
def invokes(monkeypatch: pytest.MonkeyPatch) -> Counter[int | None]:
    """Count the invokes of partitions, by the number of their graph."""
    found = Counter[int | None]()
    before = PartitionKernel.invoke

    def counting(kernel: PartitionKernel, context: int) -> None:
        found[kernel.number] += 1
        before(kernel, context)

    monkeypatch.setattr(PartitionKernel, "invoke", counting)
    return found


def report_of(delegate: GpuDelegate) -> DelegationReport:
    assert delegate.report is not None
    assert delegate.error is None
    return delegate.report


def lstm() -> bytes:
    writer = ModelWriter()
    x = writer.input((STEPS, 1, 5))
    writer.output(recurrent(writer, x, 4, gru=False, backward=False, seed=1))
    return writer.build()


@pytest.mark.usefixtures("real_policy", "file_unknown")
def test_a_loop_on_the_cpu_calls_the_device_for_no_condition(invokes: Counter[int | None]) -> None:
    """The condition is a whole graph of three small operations, and runs before each pass."""
    delegate, x = GpuDelegate(), random(STEPS, 1, 5)
    assert_close(run(interpreter(lstm(), delegate), x), reference(lstm(), x))
    assert invokes.total() == 0
    condition, _ = report_of(delegate).subgraphs
    (left,) = condition.left_out
    assert left.nodes == (0, 1, 2)
    assert left.reason.startswith("The partition would take about")


@pytest.mark.usefixtures("as_a_gpu", "opencl_device")
def test_a_loop_of_many_small_kernels_is_not_unrolled(invokes: Counter[int | None]) -> None:
    """Even if that makes a whole graph of it: each kernel waits for the one before."""
    model, x = lstm(), random(STEPS, 1, 5)
    delegate = GpuDelegate(model=model, backend="opencl")
    assert_close(run(interpreter(model, delegate), x), reference(model, x))
    assert invokes.total() == 0
    report = report_of(delegate)
    (node,) = report.rejected
    assert re.match(
        r"The partition would take about \d+ us on the GPU, in \d\d dependent kernels, and \d+ us",
        node.reason,
    )
    forced = GpuDelegate(model=model, min_nodes_per_partition=0)
    assert_close(run(interpreter(model, forced), x), reference(model, x))
    assert report_of(forced).whole_graph


@pytest.mark.usefixtures("as_a_gpu", "file_unknown")
def test_a_body_that_pays_for_its_copies_is_taken(invokes: Counter[int | None]) -> None:
    writer = ModelWriter()
    x = writer.input(LARGE)

    def body(inner: ModelWriter, values: Carried) -> list[TensorRef]:
        return [counted(inner, values[0]), much(inner, values[1])]

    writer.output(loop(writer, (writer.constant(0, np.int32), x), body, 3)[1])
    model, value = writer.build(), random(*LARGE)
    delegate = GpuDelegate()
    assert_close(run(interpreter(model, delegate), value), reference(model, value), 1e-4)
    assert invokes == {2: 3}
    assert [each.whole_graph for each in report_of(delegate).subgraphs] == [False, True]


@pytest.mark.usefixtures("real_policy")
def test_what_a_user_invokes_is_taken_whole_on_a_named_device_whatever_its_size(
    invokes: Counter[int | None],
) -> None:
    """No graph calls that of the second signature, which only its place tells from a body."""
    first, second = chain(["EXP"]), chain(["ABS", "NEG"])
    delegate = GpuDelegate(device=0)
    interpreter(with_subgraphs(first, second), delegate)
    assert report_of(delegate).whole_graph
    assert [each.whole_graph for each in report_of(delegate).subgraphs] == [True]


@pytest.mark.usefixtures("as_a_gpu")
def test_the_branches_of_a_condition_are_judged() -> None:
    writer = ModelWriter()
    condition, x = writer.input((), "bool", name="condition"), writer.input(LARGE)
    branches = {"then_subgraph_index": 1, "else_subgraph_index": 2}
    writer.output(writer.op("IF", [condition, x], [x.shape], options=branches))
    small, large = ModelWriter(), ModelWriter()
    small.output(step(small, "ABS", small.input(x.shape)))
    large.output(much(large, large.input(x.shape)))
    model = with_subgraphs(writer.build(), small.build(), large.build())
    delegate, value = GpuDelegate(), random(*x.shape)
    target = interpreter(model, delegate)
    for chosen in (True, False):
        inputs = (np.array(chosen), value)
        assert_close(run(target, *inputs), run(interpreter(model), *inputs), 1e-4)
    assert [each.whole_graph for each in report_of(delegate).subgraphs] == [False, True]


@pytest.mark.usefixtures("as_a_gpu")
def test_what_runs_once_is_not_worth_compiling() -> None:
    writer = ModelWriter()
    once = writer.subgraph()
    noise = once.op("RANDOM_UNIFORM", [once.constant(LARGE, np.int32)], [LARGE])
    assert much(once, noise)
    writer.multi("CALL_ONCE", [], [], options={"init_subgraph_index": once.number})
    writer.output(step(writer, "ABS", writer.input((1, 4))))
    delegate = GpuDelegate()
    interpreter(writer.build(), delegate)
    (graph,) = report_of(delegate).subgraphs
    assert graph.delegated_nodes == []
    assert [(left.nodes, left.reason) for left in graph.left_out] == [
        (
            tuple(range(1, 13)),
            "The graph runs only once, and compiling it takes longer than running it on the CPU.",
        )
    ]


def test_the_numbers_of_graphs_without_the_file(caplog: pytest.LogCaptureFixture) -> None:
    """How many there are the runtime tells by an error, which is not left to the next exception."""
    delegate = GpuDelegate()
    target = interpreter(with_subgraphs(chain(["EXP"]), chain(["ABS"])), delegate)
    assert {kernel.number for kernel in delegate._kernels} == {0, 1}
    with pytest.raises(RuntimeError, match=r"dims\.size") as caught:
        target.resize_tensor_input(0, (2, 2, 2), strict=True)
    assert "subgraph_index" not in str(caught.value)


# Graphs whose inputs have other shapes each time


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """List the sizes of the graphs that are compiled."""
    found: list[int] = []
    before = PartitionKernel._compile

    def noted(kernel: PartitionKernel, graph: Graph) -> CompiledPartition:
        found.append(len(graph.nodes))
        return before(kernel, graph)

    monkeypatch.setattr(PartitionKernel, "_compile", noted)
    return found


@pytest.mark.parametrize("rows", [-1, 1, 2], ids=["unknown", "as before", "one more"])
@pytest.mark.parametrize("with_file", [False, True])
def test_what_grows_with_each_pass_is_not_compiled_for_each(
    rows: int, with_file: bool, compiled: list[int]
) -> None:
    """Whatever the file says of the shape, which is a lie after the first pass."""
    writer = ModelWriter()
    x, passes = writer.input((1, 8)), writer.input((), "int32")

    def body(inner: ModelWriter, values: Carried) -> list[TensorRef]:
        y = inner.op("CONCATENATION", values[1:3], [(rows, 8)], options={"axis": 0})
        return [counted(inner, values[0]), inner.op("TANH", [y], [(rows, 8)]), *values[2:]]

    start = (writer.constant(0, np.int32), step(writer, "EXP", x), x, passes)
    writer.output(loop(writer, start, body, None)[1])
    model, given = writer.build(), (random(1, 8), np.array(4, np.int32))
    delegate = GpuDelegate(min_nodes_per_partition=0, model=model if with_file else None)
    target = interpreter(model, delegate)
    at_first = len(compiled)
    assert_close(run(target, *given), reference(model, *given))
    assert len(compiled) == at_first
    _, grown = report_of(delegate).subgraphs
    assert [grown.ops[node.index] for node in grown.rejected] == ["CONCATENATION", "TANH"]
    assert all("known only when the model runs" in node.reason for node in grown.rejected)


def test_what_a_branch_takes_of_an_unknown_size_is_not_compiled_for_each(
    compiled: list[int],
) -> None:
    writer = ModelWriter()
    x = writer.input((8,))
    found = writer.op("WHERE", [x], [(-1, 1)], dtype="int64")
    found = writer.op("CAST", [found], [(-1, 1)])
    branches = {"then_subgraph_index": 1, "else_subgraph_index": 1}
    chosen = writer.constant(True, bool)
    writer.output(writer.op("IF", [chosen, found], [(-1, 1)], options=branches))
    branch = ModelWriter()
    branch.output(branch.op("TANH", [branch.input((1, 1))], [(1, 1)]))
    model = with_subgraphs(writer.build(), branch.build())
    delegate = GpuDelegate(min_nodes_per_partition=0)
    target = interpreter(model, delegate)
    at_first = len(compiled)
    for count in (3, 5, 3):
        value = (np.arange(8) < count).astype(np.float32)
        assert_close(run(target, value), reference(model, value))
    assert len(compiled) == at_first
    assert report_of(delegate).subgraphs[0].delegated_nodes == []


# Loops whose graphs come before the graphs that run them


def halved(inner: ModelWriter, values: Carried) -> list[TensorRef]:
    y = inner.op("MUL", [values[1], inner.constant(np.float32(0.5))], [(2, 3)])
    return [counted(inner, values[0]), step(inner, "TANH", y)]


def like(writer: ModelWriter) -> Carried:
    return writer.constant(0, np.int32), writer.constant(np.zeros((2, 3), np.float32))


def nested(depth: int, *, inner_first: bool) -> bytes:
    """Return a model of a loop in a loop, and so on; all run two passes of the next one."""
    writer = ModelWriter()
    carried = like(writer)
    ready: list[tuple[int, int]] = []

    def around(inner: ModelWriter, values: Carried, level: int) -> list[TensorRef]:
        if not level:
            return halved(inner, values)
        start = (inner.constant(0, np.int32), values[1])
        graphs = ready[level - 1] if inner_first else graphs_of(inner, level - 1)
        return [counted(inner, values[0]), step(inner, "SIN", run_loop(inner, start, graphs)[1])]

    def graphs_of(here: ModelWriter, level: int) -> tuple[int, int]:
        return loop_graphs(here, carried, lambda g, v: around(g, v, level), 2, (0,))

    for level in range(depth if inner_first else 0):
        ready.append(graphs_of(writer, level))
    x = writer.input((2, 3))
    graphs = ready[-1] if inner_first else graphs_of(writer, depth - 1)
    start = (writer.constant(0, np.int32), step(writer, "EXP", x))
    writer.output(step(writer, "ABS", run_loop(writer, start, graphs)[1]))
    return writer.build()


def shared() -> bytes:
    """Return a model of two loops with one body, one of them in another signature, and an IF."""
    writer = ModelWriter()
    graphs = loop_graphs(writer, like(writer), halved, 3, (0,))
    branch, other = writer.subgraph(), writer.subgraph()
    for each in (branch, other):
        x = each.input((2, 3))
        start = (each.constant(0, np.int32), step(each, "ABS", x))
        y = run_loop(each, start, graphs)[1]
        each.output(y)
    other.signature("other", {"x": x}, {"y": y})
    x = writer.input((2, 3))
    start = (writer.constant(0, np.int32), step(writer, "EXP", x))
    y = run_loop(writer, start, graphs)[1]
    branches = {"then_subgraph_index": branch.number, "else_subgraph_index": branch.number}
    z = writer.op("IF", [writer.constant(True, bool), y], [(2, 3)], options=branches)
    writer.output(z)
    writer.signature("main", {"x": x}, {"z": z})
    return writer.build()


NESTED = {
    **{f"{depth} deep": nested(depth, inner_first=False) for depth in (1, 2, 3)},
    **{f"{depth} deep, inner first": nested(depth, inner_first=True) for depth in (1, 2, 3)},
    "shared": shared(),
}


@pytest.mark.parametrize("name", NESTED)
def test_with_its_file_a_model_is_delegated_as_far_as_without(name: str) -> None:
    model, x = NESTED[name], random(2, 3)
    delegates = (
        GpuDelegate(max_delegated_partitions=9),
        GpuDelegate(max_delegated_partitions=9, model=model),
    )
    answers = [run(interpreter(model, delegate), x) for delegate in delegates]
    for answer in answers:
        assert_close(answer, reference(model, x))
    without, with_file = map(report_of, delegates)
    assert set(without.delegated_nodes) <= set(with_file.delegated_nodes)


def test_a_file_of_another_model_costs_the_loops_only() -> None:
    model, x = nested(1, inner_first=True), random(2, 3)
    delegate = GpuDelegate(model=lstm(), max_delegated_partitions=9)
    assert_close(run(interpreter(model, delegate), x), reference(model, x))
    assert "Graph 1 of the delegate's model differs from the interpreter's" in str(delegate.error)
    assert delegate.report is not None
    assert [delegate.report.ops[n] for n in delegate.report.delegated_nodes] == ["EXP"]


def test_graphs_that_only_describe_a_function_stay_as_they_are() -> None:
    """The CPU's kernel of STABLEHLO_SCATTER looks for the operation in its graph."""
    writer = ModelWriter()
    body = writer.subgraph()
    sides = [body.input((), "int8") for _ in range(2)]
    body.output(body.op("STABLEHLO_ADD", sides, [()], dtype="int8"))
    x, update = (writer.input((n, 2), "int8") for n in (4, 3))
    positions = writer.constant([[1], [0], [1]], "int32")
    options = {
        "update_window_dims": [1],
        "inserted_window_dims": [0],
        "scatter_dims_to_operand_dims": [0],
        "index_vector_dim": 1,
        "update_computation_subgraph_index": body.number,
    }
    operands = [x, positions, update]
    writer.output(writer.op("STABLEHLO_SCATTER", operands, [(4, 2)], options=options, dtype="int8"))
    delegate = GpuDelegate(min_nodes_per_partition=1)
    target = interpreter(writer.build(), delegate)
    found = run(target, np.zeros((4, 2), np.int8), np.full((3, 2), 7, np.int8))
    np.testing.assert_array_equal(found[0][:, 0], [7, 14, 0, 0])
    assert report_of(delegate).subgraphs == ()
