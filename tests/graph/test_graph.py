"""The graph of a model as plain data."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from litegpu.graph import ABSENT, SELF, DType, EpilogueOp, Graph, Node, Value
from passes.graphs import RELU, GraphBuilder


def test_a_node_reads_its_inputs_and_the_operands_of_its_steps() -> None:
    epilogue = (EpilogueOp("ADD", (3,)), EpilogueOp("MUL", (SELF,)), EpilogueOp("SUB", (1,)))
    node = Node(0, "CONV_2D", 1, (1, ABSENT, 2), (9,), epilogue=epilogue)
    assert node.operands == (1, 2, 3, 1)


def test_reading_renames_inputs_and_operands_but_not_outputs() -> None:
    node = Node(
        0,
        "COPY",
        1,
        (1, ABSENT),
        (2,),
        epilogue=(EpilogueOp("ADD", (1,)), EpilogueOp("MUL", (SELF,))),
    )
    renamed = node.reading({1: 7, 2: 8})
    assert renamed.inputs == (7, ABSENT)
    assert renamed.epilogue == (EpilogueOp("ADD", (7,)), EpilogueOp("MUL", (SELF,)))
    assert renamed.outputs == (2,)
    assert node.reading({2: 8}) is node


def test_readers_are_listed_once_per_node() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 4, 4)
    builder.concat(3, source, source)
    builder.conv(source, 4, epilogue=[EpilogueOp("ADD", (source,))])
    graph = builder.graph()
    assert graph.consumers()[source] == list(graph.nodes)
    assert graph.producers() == {node.outputs[0]: node for node in graph.nodes}


def test_fresh_ids_are_not_in_use() -> None:
    builder = GraphBuilder()
    builder.input(1, 2)
    graph = builder.graph()
    assert not set(itertools.islice(graph.fresh_ids(), 5)) & set(graph.values)
    assert next(iter(Graph({}, (), (), ()).fresh_ids())) == 1


def test_verify_finds_a_value_read_too_early() -> None:
    builder = GraphBuilder()
    out = builder.conv(builder.elementwise(builder.input(1, 4, 4, 4), RELU), 2)
    graph = builder.graph(out)
    with pytest.raises(
        ValueError, match=r"node 1 \(CONV_2D\) reads value 1 before a node produces it"
    ):
        replace(graph, nodes=graph.nodes[::-1]).verify()


def test_verify_finds_an_operand_read_too_early() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 4, 4)
    late = builder.value((1, 4, 4, 4))
    graph = replace(builder.graph(), values=builder.values)
    node = Node(5, "COPY", 1, (source,), (late,), epilogue=(EpilogueOp("ADD", (late,)),))
    with pytest.raises(
        ValueError, match=rf"node 5 \(COPY\) reads value {late} before a node produces it"
    ):
        replace(graph, nodes=(node,)).verify()


def test_verify_finds_a_value_made_twice() -> None:
    builder = GraphBuilder()
    out = builder.conv(builder.input(1, 4, 4, 4), 2)
    graph = builder.graph(out)
    with pytest.raises(ValueError, match=rf"node 0 \(CONV_2D\) produces value {out} a second time"):
        replace(graph, nodes=graph.nodes * 2).verify()


def test_verify_finds_an_output_that_is_never_produced() -> None:
    builder = GraphBuilder()
    out = builder.conv(builder.input(1, 4, 4, 4), 2)
    graph = builder.graph(out)
    with pytest.raises(ValueError, match=rf"graph output {out} is never produced"):
        replace(graph, nodes=()).verify()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), (1, 1, 1, 1)),
        ((5,), (1, 1, 1, 5)),
        ((3, 5), (1, 1, 3, 5)),
        ((2, 3, 5), (1, 2, 3, 5)),
        ((7, 2, 3, 5), (7, 2, 3, 5)),
        ((7, 2, 3, 5, 4), (14, 3, 5, 4)),
        ((2, 7, 2, 3, 5, 4), (28, 3, 5, 4)),
    ],
)
def test_shapes_have_four_dimensions(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert Value(0, "", shape, DType.FLOAT32).shape4 == expected


@pytest.mark.parametrize(
    ("dtype", "size"),
    [(DType.FLOAT32, 4), (DType.INT8, 1), (DType.BOOL, 1), (DType.OTHER, 0), (DType.INT4, 0)],
)
def test_sizes_of_elements(dtype: DType, size: int) -> None:
    assert dtype.size == size
