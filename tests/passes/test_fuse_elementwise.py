"""Elementwise ops become epilogues of the kernels before them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from cases.quantized_chains import QuantizedResidual
from litegpu import backends
from litegpu.graph import SELF, EpilogueOp, Graph
from litegpu.passes.fuse_elementwise import MAX_OPERANDS, fuse_elementwise
from litegpu.zoo.writer import TensorRef
from op_runner import MODES, Outcome, run
from passes.graphs import BY_POSITION, RELU, GraphBuilder, applied, functions, ops, untouched
from passes.models import Model, Write, check_numbers

SHAPE = (1, 4, 4, 8)
NO_KERNEL = "no earlier kernel can include the operation"


def test_a_chain_collapses_into_its_first_kernel() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(*SHAPE), 8, epilogue=[RELU])
    value = builder.elementwise(output, EpilogueOp("NEG"))
    value = builder.elementwise(value, EpilogueOp("MUL", (builder.constant(8),)), RELU)
    out = builder.elementwise(value, EpilogueOp("ADD", (SELF,)))
    result = applied(fuse_elementwise, builder.graph(out))
    (node,) = result.graph.nodes
    assert functions(node) == ["RELU", "NEG", "MUL", "RELU", "ADD"]
    assert node.outputs == (out,)
    assert node.merged == (1, 2, 3)
    assert result.applied[0] == "NEG 1 into CONV_2D 0"


def test_a_chain_without_a_kernel_collapses_into_its_first_epilogue_op() -> None:
    builder = GraphBuilder()
    out = builder.elementwise(builder.elementwise(builder.input(*SHAPE), RELU), EpilogueOp("NEG"))
    result = applied(fuse_elementwise, builder.graph(out))
    assert [functions(node) for node in result.graph.nodes] == [["RELU", "NEG"]]
    assert result.declined == (f"COPY 0 (RELU): {NO_KERNEL}",)


def test_the_fused_kernel_stands_where_all_its_operands_are_ready() -> None:
    """The other operand is made after the kernel that takes the epilogue op."""
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    output = builder.conv(source, 8)
    late = builder.node("MAX_POOL_2D", [source], SHAPE)
    out = builder.elementwise(output, EpilogueOp("SUB", (late,)))
    extra = builder.conv(late, 2)
    result = applied(fuse_elementwise, builder.graph(out, extra))
    assert ops(result) == ["MAX_POOL_2D", "CONV_2D", "CONV_2D"]
    assert result.graph.nodes[1].epilogue == (EpilogueOp("SUB", (late,)),)


@pytest.mark.parametrize("position", [0, 1])
def test_the_later_of_two_producers_takes_the_epilogue_op(position: int) -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    early, late = builder.conv(source, 8), builder.conv(source, 8)
    out = builder.elementwise(early, EpilogueOp("SUB", (late,), position), RELU)
    result = applied(fuse_elementwise, builder.graph(out))
    first, second = result.graph.nodes
    assert first.outputs == (early,)
    assert second.outputs == (out,)
    # SUB keeps its order: the running value is the other one now.
    assert second.epilogue == (EpilogueOp("SUB", (early,), 1 - position), RELU)


def test_the_earlier_producer_takes_it_when_the_later_is_read_elsewhere() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    early, late = builder.conv(source, 8), builder.conv(source, 8)
    out = builder.elementwise(early, EpilogueOp("ADD", (late,)))
    result = applied(fuse_elementwise, builder.graph(out, builder.conv(late, 2)))
    assert ops(result) == ["CONV_2D"] * 3
    assert result.graph.nodes[1].epilogue == (EpilogueOp("ADD", (late,)),)


def test_the_order_of_a_broadcast_operand_is_not_exchanged() -> None:
    builder = GraphBuilder()
    gate = builder.conv(builder.input(1, 1, 1, 8), 8)
    out = builder.elementwise(builder.input(*SHAPE), EpilogueOp("MUL", (gate,)))
    result = untouched(fuse_elementwise, builder.graph(out))
    assert result.declined == (f"COPY 1 (MUL): {NO_KERNEL}",)


@pytest.mark.parametrize("first", [False, True])
def test_a_sum_with_leading_ones_is_the_products(first: bool) -> None:
    builder = GraphBuilder()
    product, other = builder.conv(builder.input(1, 1, 1, 6), 8), builder.input(1, 8)
    product = builder.node("CONV_2D", [product], (1, 8), (), builder.nodes[-1].attributes)
    inputs = (other, product) if first else (product, other)
    total = builder.elementwise(inputs[0], EpilogueOp("ADD", inputs[1:]), shape=(1, 1, 8))
    result = applied(fuse_elementwise, builder.graph(total))
    *_, node = result.graph.nodes
    assert (node.op, node.outputs, functions(node)) == ("CONV_2D", (total,), ["ADD"])


def test_an_extended_operand_is_not_exchanged() -> None:
    builder = GraphBuilder()
    narrow = builder.conv(builder.input(*SHAPE), 3)
    out = builder.elementwise(builder.input(*SHAPE), EpilogueOp("ADD", (narrow,), extend=True))
    assert untouched(fuse_elementwise, builder.graph(out)).declined


def test_a_quantized_residual_is_one_kernel_after_that_of_its_input() -> None:
    (outcome,) = run((QuantizedResidual(),), backends.list_devices()[0], MODES[0]).values()
    assert isinstance(outcome, Outcome)
    copy, convolution = outcome.kernels
    assert copy.startswith("copy_")
    assert convolution.startswith("quantized_conv_")


def test_epilogue_ops_of_one_kernel_are_limited() -> None:
    builder = GraphBuilder()
    value = builder.conv(builder.input(1, 4, 4, 4), 4)
    for _ in range(130):
        value = builder.elementwise(value, RELU)
    result = applied(fuse_elementwise, builder.graph(value))
    assert [len(node.epilogue) for node in result.graph.nodes] == [64, 64, 2]


def test_operands_of_one_kernel_are_limited() -> None:
    builder = GraphBuilder()
    value = builder.conv(builder.input(*SHAPE), 8)
    for _ in range(MAX_OPERANDS + 1):
        value = builder.elementwise(value, EpilogueOp("MUL", (builder.constant(1),)))
        value = builder.elementwise(value, EpilogueOp("ADD", (builder.input(*SHAPE),)))
    result = applied(fuse_elementwise, builder.graph(value))
    assert ops(result) == ["CONV_2D", "COPY"]
    assert functions(result.graph.nodes[0]).count("ADD") == MAX_OPERANDS
    # Scalars are part of the kernel's text and do not count.
    assert functions(result.graph.nodes[0]).count("MUL") == MAX_OPERANDS + 1
    assert result.declined == (f"COPY {2 * MAX_OPERANDS + 2} (ADD): {NO_KERNEL}",)


def _of_an_input(builder: GraphBuilder) -> Graph:
    return builder.graph(builder.elementwise(builder.input(*SHAPE), RELU))


def _of_an_output(builder: GraphBuilder) -> Graph:
    output = builder.conv(builder.input(*SHAPE), 8)
    return builder.graph(builder.elementwise(output, RELU), output)


def _of_a_shared_value(builder: GraphBuilder) -> Graph:
    output = builder.conv(builder.input(*SHAPE), 8)
    return builder.graph(builder.elementwise(output, RELU), builder.conv(output, 2))


def _of_a_broadcast_value(builder: GraphBuilder) -> Graph:
    output = builder.conv(builder.input(1, 1, 1, 8), 8)
    return builder.graph(
        builder.elementwise(output, EpilogueOp("MUL", (builder.constant(*SHAPE),)), shape=SHAPE)
    )


def _of_a_view(builder: GraphBuilder) -> Graph:
    output = builder.conv(builder.input(*SHAPE), 8)
    flat = builder.node("RESHAPE", [output], (1, 128))
    return builder.graph(builder.elementwise(flat, EpilogueOp("ADD", (builder.constant(128),))))


def _of_a_concatenation(builder: GraphBuilder) -> Graph:
    output = builder.conv(builder.input(*SHAPE), 8)
    joined = builder.concat(3, output, output)
    return builder.graph(builder.elementwise(joined, EpilogueOp("ADD", (builder.constant(16),))))


def _of_one_of_two_outputs(builder: GraphBuilder) -> Graph:
    output = builder.conv(builder.input(*SHAPE), 8)
    other = builder.value(SHAPE)
    builder.nodes[-1] = replace(builder.nodes[-1], op="SPLIT", outputs=(output, other))
    return builder.graph(builder.elementwise(output, RELU), other)


def _of_a_value_read_again_later(builder: GraphBuilder) -> Graph:
    """The second op would read what the fused kernel has not stored."""
    output = builder.conv(builder.input(*SHAPE), 8)
    return builder.graph(builder.elementwise(output, RELU, EpilogueOp("ADD", (output,))))


def _of_a_value_that_is_its_operand(builder: GraphBuilder) -> Graph:
    output = builder.conv(builder.input(*SHAPE), 8)
    return builder.graph(builder.elementwise(output, EpilogueOp("ADD", (output,))))


def _by_place_of_a_kernel_of_parts(builder: GraphBuilder) -> Graph:
    output = builder.node("TRANSPOSE_CONV", [builder.input(*SHAPE)], SHAPE)
    return builder.graph(builder.elementwise(output, BY_POSITION))


DECLINED: list[Callable[[GraphBuilder], Graph]] = [
    *(_of_an_input, _of_an_output, _of_a_shared_value, _of_a_broadcast_value, _of_a_view),
    *(_of_a_concatenation, _of_one_of_two_outputs, _of_a_value_read_again_later),
    *(_of_a_value_that_is_its_operand, _by_place_of_a_kernel_of_parts),
]


@pytest.mark.parametrize("make", DECLINED)
def test_declines(make: Callable[[GraphBuilder], Graph]) -> None:
    (line,) = untouched(fuse_elementwise, make(GraphBuilder())).declined
    assert line.startswith("COPY ")
    assert line.endswith(f": {NO_KERNEL}")


def test_nodes_without_epilogue_ops_are_left_alone() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(*SHAPE), 8)
    assert untouched(fuse_elementwise, builder.graph(builder.elementwise(output))).declined == ()


def _chain(model: Model) -> list[TensorRef]:
    output = model.conv(model.input(2, 4, 3, 5), (6, 1, 1, 5))
    output = model.op("PRELU", output, model.constant(4, 3, 6))
    return [model.op("SUB", model.constant(6), model.op("ABS", output))]


def _difference_with_a_later_value(model: Model) -> list[TensorRef]:
    source = model.input(1, 4, 3, 5)
    first = model.conv(source, (6, 1, 1, 5))
    second = model.conv(model.max_pool(source), (6, 1, 1, 5))
    return [model.op("SUB", first, second), model.op("NEG", source)]


def _difference_the_other_way(model: Model) -> list[TensorRef]:
    source = model.input(1, 4, 3, 5)
    first = model.conv(source, (6, 1, 1, 5))
    second = model.conv(model.max_pool(source), (6, 1, 1, 5))
    return [model.op("SUB", second, first)]


def _with_itself(model: Model) -> list[TensorRef]:
    output = model.conv(model.input(1, 4, 3, 5), (6, 1, 1, 5))
    return [model.op("ADD", output, output)]


def _read_twice(model: Model) -> list[TensorRef]:
    output = model.conv(model.input(1, 4, 3, 5), (6, 1, 1, 5))
    return [model.op("SUB", model.op("RELU", output), output)]


def _value_that_is_an_output(model: Model) -> list[TensorRef]:
    output = model.conv(model.input(1, 4, 3, 5), (6, 1, 1, 5))
    return [output, model.op("RELU", output)]


def _broadcast_running_value(model: Model) -> list[TensorRef]:
    output = model.conv(model.input(1, 1, 1, 5), (6, 1, 1, 5))
    return [model.op("SUB", output, model.input(1, 4, 3, 6))]


def _broadcast_of_both(model: Model) -> list[TensorRef]:
    row = model.conv(model.input(1, 1, 3, 5), (6, 1, 1, 5))
    column = model.conv(model.input(1, 4, 1, 5), (6, 1, 1, 5))
    return [model.op("RELU", model.op("SUB", row, column))]


def _many_operands(model: Model) -> list[TensorRef]:
    value = model.conv(model.input(1, 2, 3, 5), (6, 1, 1, 5))
    for _ in range(MAX_OPERANDS + 2):
        value = model.op("ADD", value, model.input(1, 2, 3, 6))
    return [value]


def _after_a_pad(model: Model) -> list[TensorRef]:
    """The epilogue op applies to the padding too."""
    padded = model.pad(model.input(1, 4, 3, 5), (0, 0), (1, 0), (0, 1), (1, 2))
    return [model.op("ADD", padded, model.constant(8))]


def _residuals(model: Model) -> list[TensorRef]:
    value = model.conv(model.input(1, 4, 3, 5), (6, 1, 1, 5))
    for _ in range(2):
        output = model.op("RELU", model.conv(value, (6, 1, 1, 6)))
        value = model.op("ADD", value, output)
    return [value]


MODELS: list[tuple[Write, int]] = [
    (_chain, 3),
    (_difference_with_a_later_value, 1),
    (_difference_the_other_way, 1),
    (_with_itself, 1),
    (_read_twice, 1),
    (_value_that_is_an_output, 0),
    (_broadcast_running_value, 0),
    (_broadcast_of_both, 1),
    (_many_operands, MAX_OPERANDS + 1),
    (_after_a_pad, 1),
    (_residuals, 4),
]


@pytest.mark.parametrize(("write", "saved"), MODELS)
def test_keeps_the_numbers(write: Write, saved: int) -> None:
    check_numbers(write, "fuse_elementwise", saved)
