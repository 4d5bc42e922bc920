"""Epilogues that change the result's type are split if a kernel may read few buffers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from litegpu.engine.target import DeviceTarget
from litegpu.graph import DType, EpilogueOp, Graph
from litegpu.kernels.selector import Fusions
from litegpu.numeric_policy import FP32
from litegpu.passes.base import PassResult
from litegpu.passes.split_epilogues import split_epilogues as split
from paper_device import DEVICE
from passes.graphs import GraphBuilder, applied, functions, ops, untouched

CLAMP = EpilogueOp("CLAMP", attributes=(("low", -128), ("high", 127)))


def split_epilogues(graph: Graph, most: int) -> PassResult:
    """Run the pass for a device whose kernels read so many buffers."""
    target = DeviceTarget(replace(DEVICE, max_arguments=most), FP32)
    return split(graph, Fusions(target))


def requantized(builder: GraphBuilder, vectors: int = 3) -> Graph:
    """Return sums of bytes that become bytes, by so many constants for each channel."""
    operands = [builder.constant(8, dtype="int32") for _ in range(vectors)]
    operands += [builder.constant(1, dtype="int32") for _ in range(4 - vectors)]
    source, residual = builder.input(1, 4, 4, 8), builder.input(1, 4, 4, 8)
    scaled = EpilogueOp("REQUANTIZE", tuple(operands))
    added = EpilogueOp("INTEGER_ADD", (residual,))
    epilogue = [scaled, CLAMP, added, CLAMP]
    output = builder.node("QUANTIZED_CONV", [source], (1, 4, 4, 8), epilogue)
    for v in (source, residual, output):
        builder.values[v] = replace(builder.values[v], dtype=DType.INT8)
    return builder.graph(output)


def test_sums_lie_in_memory_of_their_own_before_they_become_bytes() -> None:
    result = applied(lambda graph: split_epilogues(graph, 6), requantized(GraphBuilder()))
    assert ops(result) == ["QUANTIZED_CONV", "COPY"]
    sums, rest = result.graph.nodes
    assert result.graph.values[sums.outputs[0]].dtype is DType.INT32
    assert (functions(sums), functions(rest)) == (
        [],
        ["REQUANTIZE", "CLAMP", "INTEGER_ADD", "CLAMP"],
    )
    assert rest.inputs == sums.outputs
    assert result.applied == ("QUANTIZED_CONV 0 after 0 of 4",)


def test_the_rest_is_split_once_more() -> None:
    result = applied(lambda graph: split_epilogues(graph, 5), requantized(GraphBuilder()))
    assert [functions(node) for node in result.graph.nodes] == [
        [],
        ["REQUANTIZE", "CLAMP"],
        ["INTEGER_ADD", "CLAMP"],
    ]
    middle = result.graph.values[result.graph.nodes[1].outputs[0]]
    assert (middle.dtype, middle.precise) == (DType.INT32, True)


@pytest.mark.parametrize("most", [8, 128])
def test_where_there_is_room_nothing_changes(most: int) -> None:
    untouched(lambda graph: split_epilogues(graph, most), requantized(GraphBuilder()))


def test_floats_are_split_in_place() -> None:
    builder = GraphBuilder()
    added = EpilogueOp("ADD", (builder.constant(8),))
    graph = builder.graph(builder.conv(builder.input(1, 4, 4, 8), 8, epilogue=[added] * 3))
    untouched(lambda graph: split_epilogues(graph, 5), graph)
