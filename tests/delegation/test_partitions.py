"""Selection of partitions by saved time, by size and by node numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from litegpu import (
    GpuDelegate,
    GpuDelegateKeywords,
)
from litegpu.backends import BACKENDS
from litegpu.delegation import partitioner as selection
from litegpu.delegation.cost_model import RATES, CostModel, CostPolicy, NodeCountPolicy
from litegpu.delegation.report import DelegationReport
from litegpu.errors import BindingError, ModelError, OptionsError
from litegpu.graph import DType, Graph, Node, Value
from litegpu.graph.partition import Candidates, Subset, choose
from litegpu.ops.common.work import Work, work_of
from litegpu.zoo.writer import ModelWriter, TensorRef
from paper_device import DEVICE, PaperDevice, on_paper
from small_models import (
    CPU_ONLY,
    assert_close,
    chain,
    convolution,
    interpreter,
    random,
    reference,
    run,
    step,
)


@pytest.fixture
def as_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose partitions as on a real GPU, whatever the device is."""
    monkeypatch.setattr(
        selection,
        "CostPolicy",
        lambda costs, _software, *requested: CostPolicy(costs, False, *requested),
    )


def report_of(delegate: GpuDelegate) -> DelegationReport:
    assert delegate.report is not None
    assert delegate.error is None
    return delegate.report


def small_and_large() -> bytes:
    """Nodes 0-4 are five steps on a few numbers, 6-7 two large convolutions; 5 is the CPU's."""
    writer = ModelWriter()
    small, large = writer.input((1, 2, 2, 3), name="small"), writer.input((1, 48, 48, 32))
    for _ in range(5):
        small = step(writer, "TANH", small)
    y = convolution(writer, step(writer, CPU_ONLY, large), 32, seed=1)
    writer.output(small, convolution(writer, y, 32, seed=2))
    return writer.build()


def small_and_large_inputs() -> tuple[np.ndarray, np.ndarray]:
    return random(1, 2, 2, 3), random(1, 48, 48, 32)


@pytest.mark.parametrize(
    ("options", "chosen", "left"),
    [
        ({}, [(6, 7)], [(0, 1, 2, 3, 4)]),
        ({"max_delegated_partitions": 2}, [(6, 7)], [(0, 1, 2, 3, 4)]),
        ({"min_nodes_per_partition": 0}, [(0, 1, 2, 3, 4), (6, 7)], []),
        (
            {"min_nodes_per_partition": 0, "max_delegated_partitions": 1},
            [(0, 1, 2, 3, 4)],
            [(6, 7)],
        ),
        (
            {"min_nodes_per_partition": 1, "max_delegated_partitions": 2},
            [(0, 1, 2, 3, 4), (6, 7)],
            [],
        ),
        (
            {"min_nodes_per_partition": 3, "max_delegated_partitions": 2},
            [(0, 1, 2, 3, 4)],
            [(6, 7)],
        ),
        ({"min_nodes_per_partition": 6}, [], [(0, 1, 2, 3, 4), (6, 7)]),
    ],
)
@pytest.mark.usefixtures("as_a_gpu")
def test_what_a_gpu_takes(
    options: GpuDelegateKeywords, chosen: list[tuple[int, ...]], left: list[tuple[int, ...]]
) -> None:
    model, inputs = small_and_large(), small_and_large_inputs()
    delegate = GpuDelegate(**options)
    assert_close(run(interpreter(model, delegate), *inputs), reference(model, *inputs))
    report = report_of(delegate)
    assert [part.nodes for part in report.partitions] == chosen
    assert [each.nodes for each in report.left_out] == left


@pytest.mark.usefixtures("as_a_gpu")
def test_each_partition_that_pays_for_its_copies_is_taken() -> None:
    """A node that stays on the CPU between two of them costs their copies, and no more."""
    writer = ModelWriter()
    y = step(writer, CPU_ONLY, writer.input((1, 48, 48, 32)))
    for seed in range(3):
        y = step(writer, CPU_ONLY, convolution(writer, y, 32, seed=seed))
    writer.output(y)
    model, x = writer.build(), random(1, 48, 48, 32)
    delegate, one = GpuDelegate(), GpuDelegate(max_delegated_partitions=1)
    assert_close(run(interpreter(model, delegate), x), reference(model, x), 1e-4)
    report = report_of(delegate)
    assert sorted(part.nodes for part in report.partitions) == [(1,), (3,), (5,)]
    assert all(part.estimate and part.estimate.saved_seconds > 0 for part in report.partitions)
    interpreter(model, one)
    assert len(report_of(one).partitions) == 1


@pytest.mark.usefixtures("as_a_gpu")
def test_what_is_left_says_why_with_figures() -> None:
    delegate = GpuDelegate()
    interpreter(small_and_large(), delegate)
    (left,) = report_of(delegate).left_out
    assert left.estimate is not None
    assert left.estimate.saved_seconds < 0
    assert left.estimate.copied_bytes == 2 * 2 * 2 * 3 * 4
    assert "The partition would take about" in left.reason
    assert "on the GPU, with 96 B copied, and less than 1 us on the CPU" in left.reason
    assert "min_nodes_per_partition" in left.reason
    assert "TANH x5 (nodes 0, 1, 2, 3, 4): The partition would take" in str(report_of(delegate))
    (chosen,) = report_of(delegate).partitions
    assert chosen.estimate is not None
    assert chosen.estimate.saved_seconds > 0
    few = GpuDelegate(min_nodes_per_partition=6)
    interpreter(small_and_large(), few)
    reasons = {each.reason for each in report_of(few).left_out}
    assert reasons == {"The partition has fewer nodes than min_nodes_per_partition=6."}


@pytest.mark.usefixtures("as_a_gpu")
def test_where_nothing_pays_off_the_log_and_a_profile_say_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    delegate = GpuDelegate()
    running = interpreter(chain(["ABS", CPU_ONLY, "NEG"]), delegate)
    said = [text for text in caplog.messages if text.startswith("Left to the CPU: ")]
    assert len(said) == 1
    assert said[0].startswith(
        "Left to the CPU: ABS, NEG (2 parts: nodes 0, 2): The partition would take about"
    )
    with pytest.raises(
        ModelError, match=r"no node of this model runs .* The partition would take about"
    ):
        delegate.profile(running)


@pytest.mark.parametrize(
    ("options", "whole"),
    [({}, False), ({"min_nodes_per_partition": 9}, True), ({"device": 0}, True)],
)
@pytest.mark.usefixtures("as_a_gpu")
def test_a_small_whole_graph_is_for_those_who_ask_for_it(
    options: GpuDelegateKeywords, whole: bool, caplog: pytest.LogCaptureFixture
) -> None:
    delegate = GpuDelegate(**options)
    running = interpreter(chain(["ABS"]), delegate)
    report = report_of(delegate)
    assert report.whole_graph == whole
    reasons = [text for text in caplog.messages if text.startswith("Left to the CPU: ")]
    if whole:
        assert (report.left_out, reasons) == ((), [])
    else:
        assert reasons and reasons[0].startswith(
            "Left to the CPU: ABS (node 0): The partition would take"
        )
        assert "ABS (node 0): The partition would take about" in str(report)
        with pytest.raises(BindingError, match="min_nodes_per_partition=0 puts small models on"):
            delegate.bind_buffer(running, running.get_input_details()[0]["index"], None)


@pytest.mark.parametrize("backend", RATES)
@pytest.mark.usefixtures("as_a_gpu")
def test_a_whole_graph_is_left_to_the_cpu_where_it_would_be_clearly_slower(backend: str) -> None:
    """It may take 1.05 times the CPU's time and 20 us more, for the estimates are that rough."""

    def is_delegated(units: int) -> bool:
        writer = ModelWriter()
        y = writer.input((1, units))
        weights = writer.constant(np.zeros((units, units), np.float32))
        writer.output(writer.op("FULLY_CONNECTED", [y, weights, None], [y.shape]))
        delegate = GpuDelegate()
        interpreter(writer.build(), delegate)
        report = report_of(delegate)
        (part,) = report.partitions or report.left_out
        assert part.estimate is not None
        slower = part.estimate.gpu_seconds > 1.05 * part.estimate.cpu_seconds + 20e-6
        assert bool(report.partitions) != slower
        return not slower

    with on_paper(PaperDevice(replace(DEVICE, backend=backend))):
        found = [is_delegated(units) for units in range(64, 3072, 384)]
    assert found == sorted(found)
    assert {*found} == {False, True}


def test_a_software_device_takes_what_a_gpu_could_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """No partition is faster there; it is for trying things out."""
    reported = []

    def noted(costs: CostModel, software: bool, *requested: bool) -> CostPolicy:
        reported.append(software)
        return CostPolicy(costs, software, *requested)

    monkeypatch.setattr(selection, "CostPolicy", noted)
    delegate = GpuDelegate()
    interpreter(chain(["ABS", CPU_ONLY]), delegate)
    assert reported == [delegate.device.software]
    assert report_of(delegate).delegated_nodes == ([0] if delegate.device.software else [])


def test_a_software_device_takes_the_most_work() -> None:
    """All partitions are a loss by the estimates there, and the smallest the smallest."""
    delegate = GpuDelegate()
    interpreter(small_and_large(), delegate)
    report = report_of(delegate)
    assert [part.nodes for part in report.partitions] == [(6, 7)]
    (left,) = report.left_out
    assert left.nodes == (0, 1, 2, 3, 4)
    assert "max_delegated_partitions=1" in left.reason


def test_threads_of_the_cpu_count() -> None:
    """With eight threads the CPU is several times as fast, which the estimate knows."""
    found = []
    for threads in (None, 8):
        delegate = GpuDelegate()
        Interpreter(
            model_content=small_and_large(),
            experimental_delegates=[delegate],
            num_threads=threads,
        )
        estimate = report_of(delegate).partitions[0].estimate
        assert estimate is not None
        found.append(estimate)
    assert 4 < found[0].cpu_seconds / found[1].cpu_seconds < 5
    assert found[0].gpu_seconds == found[1].gpu_seconds


@pytest.mark.parametrize(
    ("first", "last", "chosen"),
    [(0, 9, [0, 1, 2, 3]), (1, 2, [1, 2]), (2, 2, [2]), (3, 99, [3]), (7, 8, [])],
)
def test_only_nodes_in_a_range_are_delegated(first: int, last: int, chosen: list[int]) -> None:
    model, x = chain(["ABS", "SQRT", "NEG", "EXP"]), random(1, 4, 4, 4)
    delegate = GpuDelegate(first_delegate_node_index=first, last_delegate_node_index=last)
    assert_close(run(interpreter(model, delegate), x), reference(model, x))
    report = report_of(delegate)
    assert report.delegated_nodes == chosen
    outside = tuple(index for index in range(4) if index not in chosen)
    assert [each.nodes for each in report.left_out] == ([outside] if outside else [])
    assert all("last_delegate_node_index" in each.reason for each in report.left_out)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"first_delegate_node_index": 5, "last_delegate_node_index": 3},
            "No node is both from first_delegate_node_index=5 on and up to "
            "last_delegate_node_index=3",
        ),
        ({"first_delegate_node_index": -1}, "first_delegate_node_index=-1"),
        ({"last_delegate_node_index": -1}, "last_delegate_node_index=-1"),
        (
            {"min_nodes_per_partition": -1},
            "min_nodes_per_partition must be None or a number of nodes, not -1.",
        ),
        ({"min_nodes_per_partition": 1.5}, "min_nodes_per_partition must be a whole number"),
        ({"first_delegate_node_index": "a"}, "first_delegate_node_index must be a whole number"),
    ],
)
def test_impossible_limits(options: GpuDelegateKeywords, text: str) -> None:
    with pytest.raises(OptionsError, match=text):
        GpuDelegate(**options)


def custom_operations() -> bytes:
    """Return a model of two Resamplers, which the runtime has no kernel for, one node apart."""
    writer = ModelWriter()
    x, where = writer.input((1, 2, 2, 3)), writer.input((1, 2, 2, 2), name="where")
    (y,) = writer.custom("Resampler", [x, where], [x.shape])
    (y,) = writer.custom("Resampler", [step(writer, CPU_ONLY, y), where], [x.shape])
    writer.output(step(writer, "ABS", step(writer, CPU_ONLY, y)))
    return writer.build()


@pytest.mark.parametrize("options", [{}, {"min_nodes_per_partition": 5}])
@pytest.mark.usefixtures("as_a_gpu")
def test_what_the_cpu_cannot_run_is_taken_in_any_case(options: GpuDelegateKeywords) -> None:
    """However small, and beyond max_delegated_partitions: the model would not load otherwise."""
    x, where = random(1, 2, 2, 3), np.zeros((1, 2, 2, 2), np.float32)
    delegate = GpuDelegate(**options)
    (got,) = run(interpreter(custom_operations(), delegate), x, where)
    assert_close([got], [np.broadcast_to(np.abs(x[:, :1, :1]), x.shape)])
    report = report_of(delegate)
    assert [part.nodes for part in report.partitions] == [(0,), (2,)]
    assert [left.nodes for left in report.left_out] == [(4,)]


# States


def svdf(writer: ModelWriter, x: TensorRef, state: TensorRef) -> TensorRef:
    """Add an operation of the CPU that changes its state."""
    features = writer.constant(random(4, 3, seed=1), name="features")
    time = writer.constant(random(4, 5, seed=2), name="time")
    return writer.op("SVDF", [x, features, time, None, state], [(1, 4)], options={"rank": 1})


def run_with_states(model: bytes, delegate: GpuDelegate) -> None:
    on_gpu, on_cpu = interpreter(model, delegate), interpreter(model)
    for seed in range(3):
        x = random(1, 3, seed=seed)
        assert_close(run(on_gpu, x), run(on_cpu, x))


def test_nodes_that_share_a_state_keep_their_order() -> None:
    """The runtime would run the second SVDF first, while it waits for nothing."""
    writer = ModelWriter()
    x, state = writer.input((1, 3)), writer.variable((1, 20))
    late = step(writer, "EXP", step(writer, CPU_ONLY, x))
    writer.output(svdf(writer, late, state), svdf(writer, x, state))
    delegate = GpuDelegate()
    run_with_states(writer.build(), delegate)
    (left,) = report_of(delegate).left_out
    assert left.nodes == (1,)
    assert left.reason == (
        "Nodes 2 and 3 share the state tensor 1, so a split of the graph might change the order "
        "in which the nodes run."
    )


def test_a_shared_state_is_no_obstacle_where_the_order_is_fixed() -> None:
    """The second SVDF needs what follows from the first."""
    writer = ModelWriter()
    x, state = writer.input((1, 3)), writer.variable((1, 20))
    first = svdf(writer, step(writer, "EXP", step(writer, CPU_ONLY, x)), state)
    cut = [writer.constant(ends, "int32", name=f"c{i}") for i, ends in enumerate(([0, 0], [1, 3]))]
    second = writer.op("SLICE", [step(writer, "NEG", first), *cut], [(1, 3)])
    writer.output(svdf(writer, second, state))
    delegate = GpuDelegate(max_delegated_partitions=9)
    run_with_states(writer.build(), delegate)
    assert report_of(delegate).delegated_nodes == [1, 3, 4]


def test_states_of_their_own_are_no_obstacle() -> None:
    writer = ModelWriter()
    x = writer.input((1, 3))
    late = step(writer, "EXP", step(writer, CPU_ONLY, x))
    states = [writer.variable((1, 20), name=f"state{i}") for i in range(2)]
    writer.output(svdf(writer, late, states[0]), svdf(writer, x, states[1]))
    delegate = GpuDelegate()
    run_with_states(writer.build(), delegate)
    assert report_of(delegate).delegated_nodes == [1, 2, 3]


def excited(places: Sequence[int]) -> bytes:
    """Return three layers that reshape by their own batch, as Keras writes it.

    An operation of the CPU comes before each of the layers in `places`, 3 for the end.
    """
    writer = ModelWriter()
    x = writer.input((1, 4, 4, 8))
    integers = dict[int, TensorRef]()
    for number in (0, 1, 8):
        integers[number] = writer.constant([number], "int32", name=f"n{number}")
    single = writer.constant(1, "int32", name="single")
    eight = writer.constant(8, "int32", name="eight")
    axes = writer.constant([1, 2], "int32", name="axes")
    for layer in range(4):
        x = step(writer, CPU_ONLY, x) if layer in places else x
        if layer == 3:
            break
        mean = writer.op("MEAN", [x, axes], [(1, 8)], options={"keep_dims": False})
        shape = writer.op("SHAPE", [mean], [(2,)], dtype="int32", options={"out_type": "INT32"})
        ends = [integers[0], integers[1], integers[1]]
        options = {"shrink_axis_mask": 1}
        batch = writer.op("STRIDED_SLICE", [shape, *ends], [()], dtype="int32", options=options)
        sizes = [batch, single, single, eight]
        packed = writer.op(
            *("PACK", sizes, [(4,)]), dtype="int32", options={"values_count": 4, "axis": 0}
        )
        scale = writer.op("RESHAPE", [mean, packed], [(1, 1, 1, 8)])
        x = convolution(writer, writer.op("MUL", [x, scale], [x.shape]), 8, seed=layer)
    writer.output(x)
    return writer.build()


@pytest.mark.parametrize("places", [(0,), (1,), (2,), (3,), (0, 2), (1, 3)])
def test_nodes_that_follow_from_shapes_cut_nothing(places: tuple[int, ...]) -> None:
    model, x = excited(places), random(1, 4, 4, 8)
    delegate = GpuDelegate(max_delegated_partitions=9)
    assert_close(run(interpreter(model, delegate), x), reference(model, x))
    report = report_of(delegate)
    assert len(report.delegated_nodes) == report.total_nodes - len(places) == 21
    assert len(report.partitions) == 1 + len([place for place in places if place in (1, 2)])


def test_constants_that_no_partition_needs_stand_in_the_report() -> None:
    writer = ModelWriter()
    x = writer.input((1, 2, 3))
    first = step(writer, "ABS", x)
    rounded = step(writer, CPU_ONLY, x)
    shape = writer.op("SHAPE", [rounded], [(3,)], dtype="int32", options={"out_type": "INT32"})
    writer.output(first, shape)
    delegate = GpuDelegate()
    on_gpu = interpreter(writer.build(), delegate)
    assert run(on_gpu, random(1, 2, 3))[1].tolist() == [1, 2, 3]
    (left,) = report_of(delegate).left_out
    assert left.nodes == (2,)
    assert left.reason == "The results of these nodes are constant, and no partition needs them."


# The rules by themselves


def line(ops: Sequence[str], elements: int = 4) -> Graph:
    """Return a graph of operations one after the other."""
    values = {v: Value(v, f"v{v}", (elements,), DType.FLOAT32) for v in range(len(ops) + 1)}
    nodes = tuple(Node(i, op, 1, (i,), (i + 1,)) for i, op in enumerate(ops))
    return Graph(values, nodes, (), ())


def runs(nodes: Sequence[int]) -> list[Subset]:
    """Cut a line into runs of neighbours, as the runtime does."""
    found: list[list[int]] = []
    for index in nodes:
        if not found or found[-1][-1] != index - 1:
            found.append([])
        found[-1].append(index)
    return [Subset(tuple(run), (run[0],), (run[-1] + 1,)) for run in found]


def test_what_is_left_out_is_judged_no_more_but_the_rest_is_judged_again() -> None:
    """Without node 3 the runtime joins what is on both of its sides."""

    def preview(nodes: Sequence[int]) -> list[Subset]:
        return runs(nodes) if 3 in nodes else [Subset(tuple(nodes), (0,), (7,))]

    graph = line(["ABS"] * 7)
    choice = choose(Candidates(graph, {0, 1, 3, 5, 6}), preview, NodeCountPolicy(2), 1)
    assert [subset.nodes for subset in choice.delegated] == [(0, 1, 5, 6)]
    assert [subset.nodes for subset, _ in choice.left] == [(3,)]


def test_a_whole_graph_in_several_partitions_is_taken_and_not_judged() -> None:
    """So a runtime cuts it that was told not to cluster nodes; node 0 needs no kernel."""

    def preview(nodes: Sequence[int]) -> list[Subset]:
        return [Subset((index,), (index,), (index + 1,)) for index in nodes]

    graph = line(["DEQUANTIZE", "ABS", "EXP"])
    choice = choose(Candidates(graph, {0, 1, 2}, {0}), preview, NodeCountPolicy(9), 1)
    assert [subset.nodes for subset in choice.delegated] == [(1,), (2,)]
    assert choice.left == ()


def test_a_folded_node_that_no_partition_has_is_with_those_left() -> None:
    """Node 0 would be a partition alone; nodes 3 and 4 are given up together, 4 for good."""
    graph = line(["RANGE", CPU_ONLY, "ABS", CPU_ONLY, "ABS", "SHAPE"])
    choice = choose(Candidates(graph, {0, 2, 4, 5}, {0, 5}), runs, NodeCountPolicy(0), 1)
    assert [subset.nodes for subset in choice.delegated] == [(4, 5)]
    assert [subset.nodes for subset, _ in choice.left] == [(2,)]


def test_a_folded_node_joins_no_partition_that_it_would_cut() -> None:
    """Ready before all others, it would begin a partition that the CPU's node then ends."""

    def preview(nodes: Sequence[int]) -> list[Subset]:
        return runs(nodes) if 0 in nodes else [Subset((1, 3), (1,), (4,))]

    graph = line(["RANGE", "ABS", CPU_ONLY, "ABS"])
    choice = choose(Candidates(graph, {0, 1, 3}, {0}), preview, NodeCountPolicy(0), 9)
    assert [subset.nodes for subset in choice.delegated] == [(1, 3)]


def test_ties_go_to_the_first() -> None:
    graph = line(["ABS"] * 8)
    choice = choose(Candidates(graph, {0, 1, 3, 4, 6, 7}), runs, NodeCountPolicy(0), 2)
    assert [subset.nodes for subset in choice.delegated] == [(0, 1), (3, 4)]


def test_every_backend_has_rates() -> None:
    assert set(RATES) == set(BACKENDS)


@pytest.mark.parametrize("backend", RATES)
@pytest.mark.usefixtures("as_a_gpu")
def test_the_rule_follows_from_the_figures(backend: str) -> None:
    """From some size on a step pays off, and there the estimate is what the rates say."""
    rates = RATES[backend]
    for elements in (1, 1000, 10**6, 10**8):
        costs = CostModel(line(["ABS", CPU_ONLY], elements), backend)
        (subset,) = runs([0])
        found = costs.estimate(subset)
        assert found.copied_bytes == 8 * elements
        copying = 8 * elements / rates.copied
        assert found.gpu_seconds == pytest.approx(rates.round_trip + rates.launch + copying)
        assert bool(CostPolicy(costs, False).reason_against(subset)) == (found.saved_seconds <= 0)
        assert not CostPolicy(costs, True).reason_against(subset)
        assert costs.invoke_seconds([subset]) - costs.invoke_seconds([]) == pytest.approx(
            -found.saved_seconds
        )


def test_tensors_that_the_model_does_not_have_cost_nothing() -> None:
    """Estimates are made for damaged nodes too: the advice asks what they stand in the way of."""
    lstm = Node(0, "UNIDIRECTIONAL_SEQUENCE_LSTM", 1, (*range(70, 94),), (95,))
    costs = CostModel(Graph({}, (lstm,), (), ()), "cuda")
    found = costs.estimate(Subset((0,), lstm.inputs, lstm.outputs))
    assert found.copied_bytes == 0
    assert found.cpu_seconds < 1e-6


def test_the_work_of_a_node_is_counted_once_and_only_if_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[int] = []

    def count(graph: Graph, node: Node) -> Work:
        counted.append(node.index)
        return work_of(graph, node)

    monkeypatch.setattr("litegpu.delegation.cost_model.work_of", count)
    model = CostModel(line(["ABS", "EXP", "NEG"]), "cuda")
    assert model.slow_loops() == {} and counted == []
    for _ in range(2):
        model.cpu_seconds([0, 1])
    assert counted == [0, 1]


def test_what_the_runtime_is_slow_at_pays_off_sooner() -> None:
    usual, slow = (CostModel(line([op], 10**5), "cuda") for op in ("ABS", "MIRROR_PAD"))
    assert slow.cpu_seconds([0]) > 20 * usual.cpu_seconds([0])


def test_what_a_split_costs() -> None:
    graph = line(["ABS", CPU_ONLY, "EXP", "NEG"], 1000)
    costs, rates = CostModel(graph, "cuda"), RATES["cuda"]
    first, second = runs([0, 2, 3])
    assert costs.split([]) is None
    assert costs.split(runs([0, 1, 2, 3])) is None
    both = costs.split([first, second])
    assert both is not None
    assert (both.round_trips, both.copied_bytes) == (2, 16000)
    assert both.seconds == pytest.approx(2 * rates.round_trip + 16000 / rates.copied)
    one = costs.split([first])
    assert one is not None
    assert (one.round_trips, one.copied_bytes) == (1, 8000)
    assert one.seconds == pytest.approx(rates.round_trip + 8000 / rates.copied)


def test_a_tensor_that_the_cpu_makes_of_another_type() -> None:
    """The file says float32, the CPU's NEG makes int64 of int64: its elements would be misread."""
    writer = ModelWriter()
    x = writer.input((2, 3), "int64")
    negative = writer.op("NEG", [x], [(2, 3)], dtype="float32")
    writer.output(step(writer, "EXP", step(writer, "ABS", negative)))
    delegate = GpuDelegate(min_nodes_per_partition=0)
    with pytest.raises(RuntimeError, match="Tensor 1 is INT64 in the interpreter"):
        interpreter(writer.build(), delegate)
    assert str(delegate.error) == (
        "Tensor 1 is INT64 in the interpreter, and FLOAT32 in the model's file. Use the "
        "interpreter without the delegate."
    )
