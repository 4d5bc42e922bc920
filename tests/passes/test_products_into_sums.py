"""Products that no kernel can fuse are computed in the sums that read them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from litegpu.graph import EpilogueOp, Graph
from litegpu.ops.common import functions as table
from litegpu.ops.exact.functions import EXACT
from litegpu.passes.products_into_sums import products_into_sums
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, GraphBuilder, applied, functions, untouched
from passes.models import Model, check_numbers

SHAPE = (2, 3, 4, 8)


def _graph(builder: GraphBuilder, *, swapped: bool = False, outer: bool = False) -> Graph:
    """Add x * factor to what is computed of x in another way."""
    x = builder.input(*SHAPE)
    product = builder.elementwise(x, EpilogueOp("MUL", (builder.constant(8),)))
    other = builder.depthwise(builder.pad(x, (0, 0), (1, 1), (1, 1), (0, 0)))
    first, second = (other, product) if swapped else (product, other)
    total = builder.elementwise(first, EpilogueOp("ADD", (second,)), RELU)
    return builder.graph(total, *([other] if outer else []))


@pytest.mark.parametrize("swapped", [False, True])
def test_the_sum_multiplies(swapped: bool) -> None:
    builder = GraphBuilder()
    result = applied(products_into_sums, _graph(builder, swapped=swapped))
    node = result.graph.nodes[-1]
    assert functions(node) == ["MULTIPLY_ADD", "RELU"]
    assert node.inputs == result.graph.nodes[-2].outputs
    assert node.epilogue[0].operands[0] == builder.inputs[0]
    assert node.merged == (0,)


def test_another_reader_of_the_summand() -> None:
    result = untouched(products_into_sums, _graph(GraphBuilder(), outer=True))
    assert result.declined == ("COPY 0: other nodes also read the other summand",)


def test_the_product_of_a_slice() -> None:
    builder = GraphBuilder()
    x = builder.input(*SHAPE)
    half = (*SHAPE[:3], 4)
    low, high = (
        builder.normalized("STRIDED_SLICE", x, half, [0, 0, 0, i], [*SHAPE[:3], i + 4], [1] * 4)
        for i in (0, 4)
    )
    products = [
        builder.elementwise(each, EpilogueOp("MUL", (builder.input(*half),)))
        for each in (low, high)
    ]
    total = builder.elementwise(products[0], EpilogueOp("ADD", (products[1],)))
    result = applied(products_into_sums, builder.graph(total))
    (*_, node) = result.graph.nodes
    assert functions(node) == ["MULTIPLY_ADD"]
    assert node.epilogue[0].operands[0] == low


def _alone(builder: GraphBuilder, x: int) -> int:
    """A kernel before the product can multiply: nobody else reads its result."""
    product = builder.elementwise(builder.conv(x, 8), EpilogueOp("MUL", (builder.constant(8),)))
    return builder.elementwise(builder.conv(x, 8), EpilogueOp("ADD", (product,)))


def _more_than_a_product(builder: GraphBuilder, x: int) -> int:
    product = builder.elementwise(x, EpilogueOp("MUL", (builder.constant(8),)), RELU)
    return builder.elementwise(builder.conv(x, 8), EpilogueOp("ADD", (product,)))


def _smaller(builder: GraphBuilder, x: int) -> int:
    row = builder.conv(builder.input(1, 1, 1, 8), 8)
    both = builder.elementwise(row, RELU)
    product = builder.elementwise(row, EpilogueOp("MUL", (builder.constant(8),)))
    total = builder.elementwise(builder.conv(x, 8), EpilogueOp("ADD", (product,)))
    return builder.elementwise(total, EpilogueOp("SUB", (both,)))


def _square(builder: GraphBuilder, x: int) -> int:
    product = builder.elementwise(x, EpilogueOp("MUL", (-2,)))
    return builder.elementwise(builder.conv(x, 8), EpilogueOp("ADD", (product,)))


@pytest.mark.parametrize("write", [_alone, _more_than_a_product, _smaller, _square])
def test_other_sums_stay(write: Callable[[GraphBuilder, int], int]) -> None:
    builder = GraphBuilder()
    untouched(products_into_sums, builder.graph(write(builder, builder.input(*SHAPE))))


# Numbers


@pytest.mark.parametrize("channels", [5, 8])
@pytest.mark.parametrize("first", [False, True])
def test_keeps_the_numbers(channels: int, first: bool) -> None:
    def write(model: Model) -> list[TensorRef]:
        x = model.conv(model.input(2, 3, 4, 5), (channels, 1, 1, 5))
        pair = (model.op("MUL", x, model.constant(channels)), model.max_pool(x))
        return [model.op("ADD", *(pair if first else pair[::-1]))]

    check_numbers(write, "products_into_sums", 1)


def test_no_two_functions_have_one_name() -> None:
    tables = (table.UNARY, table.BINARY, table.STABLEHLO, table.EPILOGUE_ONLY)
    names = [name for each in (*tables, table.CASTS, EXACT) for name in each]
    assert len(names) == len(set(names))
