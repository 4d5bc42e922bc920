"""The positions of nodes in a drawn graph, and the texts of the drawing."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from litegpu.delegation.report import DelegationReport, LeftOut, Partition, RejectedNode
from litegpu.tools.reports.charts import bars, histogram, lines
from litegpu.tools.reports.delegation import matched
from litegpu.tools.reports.drawing import NodeFacts, draw, places_of
from litegpu.tools.reports.layout import Layout, layered
from litegpu.tools.reports.model_graph import read_graphs
from litegpu.zoo.writer import ModelWriter
from small_models import chain, fully_convolutional, step, with_subgraphs

new_python = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="graphs are laid out in one column here"
)


def assert_readable(layout: Layout, edges: list[tuple[int, int]]) -> None:
    """Edges lead down, from their node to their node; nodes of a layer have their own columns."""
    for edge in edges:
        path = layout.edges[edge]
        assert (path[0], path[-1]) == (layout.nodes[edge[0]], layout.nodes[edge[1]])
        heights = [y for _, y in path]
        assert heights == sorted(heights)
        assert heights[0] < heights[-1]
    layers = defaultdict(list)
    for x, y in layout.nodes.values():
        layers[y].append(x)
    for columns in layers.values():
        assert np.diff(sorted(columns)).min(initial=1) > 0.99
    assert min(x for x, _ in layout.nodes.values()) >= 0
    assert max(y for _, y in layout.nodes.values()) <= layout.height


@new_python
def test_a_large_graph_with_shortcuts() -> None:
    count = 1500
    edges = [(n, n + 1) for n in range(count - 1)]
    edges += [(n, n + 5) for n in range(0, count - 5, 3)]
    edges += [(n, n + 40) for n in range(0, count - 40, 60)]
    start = time.perf_counter()
    layout = layered(range(count), edges)
    assert time.perf_counter() - start < 5
    assert_readable(layout, edges)
    far = layout.edges[0, 40]
    others = {layout.nodes[n] for n in range(1, 40)}
    assert len(far) == 41
    assert not set(far[1:-1]) & others, "a long edge goes around the nodes that it passes"


@new_python
def test_edges_that_pass_too_much_are_left_to_bend() -> None:
    """Node 0 is read by every second one of a chain: 4 million places that its edges pass."""
    chained = [(n, n + 1) for n in range(4000)]
    edges = [*chained, *((0, n) for n in range(2, 4001, 2))]
    start = time.perf_counter()
    layout = layered(range(4001), edges)
    assert time.perf_counter() - start < 15
    assert_readable(layout, edges)
    assert sum(map(len, layout.edges.values())) < 60_000
    assert len(layout.edges[0, 6]) == 7, "short ones pass each layer at a place of their own"
    assert len(layout.edges[0, 4000]) == 3


@new_python
def test_parts_without_connection_and_single_nodes() -> None:
    edges = [(10, 20), (20, 30), (5, 7)]
    layout = layered([5, 7, 10, 20, 30, 99], edges)
    assert_readable(layout, edges)
    assert set(layout.nodes) == {5, 7, 10, 20, 30, 99}
    assert len(set(layout.nodes.values())) == 6


@new_python
def test_circles_and_loops() -> None:
    layout = layered([0, 1, 2], [(0, 1), (1, 2), (2, 0), (1, 1)])
    assert set(layout.edges) == {(0, 1), (1, 2), (2, 0)}
    for (source, target), path in layout.edges.items():
        assert (path[0], path[-1]) == (layout.nodes[source], layout.nodes[target])


def test_nothing() -> None:
    assert layered([], []) == Layout({}, {}, 0, 0)
    assert layered([3], []).nodes == {3: (0, 0)}


def test_an_old_python_has_one_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))
    edges = [(0, 1), (1, 2), (0, 2)]
    layout = layered([0, 1, 2], edges)
    assert_readable(layout, edges)
    assert layout.nodes == {0: (0, 0), 1: (0, 1), 2: (0, 2)}
    (_, middle, _) = layout.edges[0, 2]
    assert middle[0] > 1, "it bends around node 1"


# Drawings


def half_weights() -> bytes:
    """Return a model whose weights and biases are float16: each has a DEQUANTIZE."""
    return fully_convolutional(float16_weights=True)


def test_what_computes_constants_is_drawn_in_its_reader() -> None:
    graph = read_graphs(half_weights())[0]
    dequantize = [node.index for node in graph.nodes if node.op == "DEQUANTIZE"]
    drawing = draw(graph, NodeFacts(), "")
    keys = {box.key for box in drawing.boxes}
    chips = {chip.key for box in drawing.boxes for chip in box.chips}
    assert dequantize
    assert chips == {str(node) for node in dequantize}
    assert not keys & chips
    assert keys | chips == set(drawing.details)
    assert f"{len(dequantize)} nodes that compute constants only" in drawing.note


def test_places_and_reasons() -> None:
    report = a_report(chain(["SIN", "ABS", "COS", "NEG"]))
    positions = places_of(report)
    assert positions == {
        0: ("gpu0", "on the GPU, partition 0"),
        1: ("cpu", "on the CPU: Why not."),
        2: ("left", "on the CPU, although the GPU could run it: Too small."),
    }
    facts = NodeFacts(positions, errors={0: 1e-7, 1: float("inf")}, marked=frozenset({1}))
    drawing = draw(read_graphs(chain(["SIN", "ABS", "COS", "NEG"]))[0], facts, "")
    names = ["GPU (1)", "CPU (2)", "CPU, though the GPU could (1)"]
    assert [name for _, name in drawing.legend] == names
    found = {box.key: box for box in drawing.boxes}
    assert found["1"].place == "cpu marked"
    assert found["1"].heat == {"error": 1.0}, "an infinite error is as bad as a whole one"
    assert found["3"].heat == {}
    assert [heat.title for heat in drawing.heats] == ["error"]


def a_report(model: bytes, **changes: Any) -> DelegationReport:
    ops = {node.index: node.op for node in read_graphs(model)[0].nodes}
    return DelegationReport(
        *("opencl", "A GPU", "fp32", len(ops), ops),
        rejected=(RejectedNode(1, "ABS", 1, "Why not."),),
        partitions=(Partition((0,), 1, 0, 0, 0),),
        left_out=(LeftOut((2,), "Too small."),),
        **changes,
    )


def test_reports_find_their_graphs() -> None:
    models = [chain(["SIN"]), chain(["COS"]), chain(["ABS"])]
    graphs = read_graphs(with_subgraphs(*models))
    third = a_report(models[2])
    main = a_report(models[0], subgraphs=(third,))
    assert matched(graphs, main) == [main, None, third], "the runtime did not offer the second"
    assert matched(graphs, None) == [None, None, None]


def test_one_axis_of_a_chart_at_most_has_automatic_margins() -> None:
    """Those of two axes can widen and narrow each other without end."""
    named = {"a": [1.0, 2.0]}
    charts = [bars("", ["a"], [1.0], "ms"), histogram("", named, "ms")]
    charts.append(lines("", {"a": [(0, 1.0), (1, 2.0)]}, "run", "ms"))
    for each in charts:
        layout = each.figure["layout"]
        assert [axis for axis in ("xaxis", "yaxis") if "automargin" in layout[axis]] == ["yaxis"]


def test_all_inputs_and_outputs_are_drawn() -> None:
    writer = ModelWriter()
    x, y = writer.input((1, 4), name="a/first"), writer.input((1, 4), name="second")
    total = writer.op("ADD", [x, y], [x.shape])
    writer.output(total, step(writer, "SIN", total))
    drawing = draw(read_graphs(writer.build())[0], NodeFacts(), "")
    ends = [box.label for box in drawing.boxes if box.place in ("input", "output")]
    assert ends[:2] == ["first", "second"]
    assert len(ends) == 4
    assert len(drawing.lines) == 5
    assert all(line.path.startswith("M") and "nan" not in line.path for line in drawing.lines)
    assert drawing.details["2"]["title"] == "input 0"
    assert drawing.details["2"]["groups"] == [["", [["a/first", "1×4 float32"]]]]


def test_options_tensors_and_quantization_are_read() -> None:
    node = read_graphs(fully_convolutional())[0].nodes[0]
    assert node.options["padding"] == "SAME"
    assert node.options["fused_activation_function"] == "RELU6"
    assert node.options["stride_w"] == "2"
