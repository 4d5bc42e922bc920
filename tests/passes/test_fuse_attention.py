"""Products of queries and keys, a softmax and products with the values become one kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cases.base import Sheet
from dice import Seeded
from litegpu import GpuDelegate
from litegpu.backends.execution import Executable
from litegpu.backends.failures import Failures
from litegpu.backends.program import Program
from litegpu.engine.target import DeviceTarget
from litegpu.graph import DType, EpilogueOp, Graph
from litegpu.host.private_files import Folder
from litegpu.kernels.selector import Fusions
from litegpu.numeric_policy import FP32
from litegpu.ops.attention import ATTENTION, STATE
from litegpu.ops.common.matmul_spec import MatmulAttributes
from litegpu.ops.join_attention import JOIN_ATTENTION
from litegpu.ops.softmax import SoftmaxAttributes
from litegpu.passes.base import PassResult
from litegpu.passes.fuse_attention import fuse_attention as merge
from litegpu.runtime_abi import interpreter as runtime
from paper_device import DEVICE, PaperDevice, on_paper
from passes.graphs import RELU, GraphBuilder, Shape, applied, ops, untouched
from random_layers import attention as draw_attention

PLAIN = Fusions(DeviceTarget(DEVICE, FP32))
HEADS = (2, 3)


def fuse_attention(graph: Graph) -> PassResult:
    """Run the pass for a device without tensor cores."""
    return merge(graph, PLAIN)


def matmul(
    builder: GraphBuilder,
    left: int,
    right: int,
    shape: Shape,
    *epilogue: EpilogueOp,
    transposed: tuple[bool, bool] = (False, False),
    batches: tuple[Any, Any] = ((1, *HEADS), (1, *HEADS)),
    batch: Shape = HEADS,
) -> int:
    attributes = MatmulAttributes(transposed, batches, (1, batch[0], batch[1]))
    return builder.node("BATCH_MATMUL", [left, right], shape, epilogue, attributes)


def transpose(builder: GraphBuilder, source: int, *order: int) -> int:
    shape = tuple(builder.shape(source)[axis] for axis in order)
    return builder.normalized("TRANSPOSE", source, shape, order)


def attention(
    builder: GraphBuilder,
    *,
    scores: tuple[EpilogueOp, ...] = (),
    beta: float = 1.0,
    depth: int = 8,
    last: tuple[EpilogueOp, ...] = (),
) -> tuple[int, int, int]:
    """Add attention of 5 queries and 7 keys; return the scores, their softmax and the result."""
    query, key, value = (builder.input(*HEADS, tokens, depth) for tokens in (5, 7, 7))
    found = matmul(builder, query, key, (*HEADS, 5, 7), *scores, transposed=(False, True))
    chances = softmax(builder, found, beta)
    return found, chances, matmul(builder, chances, value, (*HEADS, 5, depth), *last)


def softmax(builder: GraphBuilder, source: int, beta: float = 1.0, *epilogue: EpilogueOp) -> int:
    shape = builder.shape(source)
    return builder.node("SOFTMAX", [source], shape, epilogue, SoftmaxAttributes(beta))


def test_three_nodes_are_one() -> None:
    builder = GraphBuilder()
    scale, mask = builder.number(0.5), builder.input(1, 1, 5, 7)
    steps = (EpilogueOp("MUL", (scale,)), EpilogueOp("ADD", (mask,)))
    *_, result = attention(builder, scores=steps, beta=2.0, last=(RELU,))
    found = applied(fuse_attention, builder.graph(result))
    (node,) = found.graph.nodes
    assert found.applied == ("BATCH_MATMUL 0, SOFTMAX 1, BATCH_MATMUL 2 are one",)
    assert (node.op, node.merged, node.epilogue) == (ATTENTION, (0, 1), (RELU,))
    assert set(node.inputs) == {*builder.inputs, scale}
    attributes = node.attributes
    assert attributes.beta == 2.0
    assert attributes.scores == (*HEADS, 5, 7)
    assert attributes.across == (False, False, False, False)
    assert [node.inputs[each.operands[0]] for each in attributes.epilogue] == [scale, mask]


@pytest.mark.parametrize("turned", [False, True])
def test_heads_are_read_and_written_across_tokens(turned: bool) -> None:
    builder = GraphBuilder()
    query, key, value = (builder.input(2, tokens, 3, 8) for tokens in (5, 7, 7))
    first = transpose(builder, query, 0, 2, 1, 3)
    second = transpose(builder, key, 0, 2, *((3, 1) if turned else (1, 3)))
    third = transpose(builder, value, 0, 2, 1, 3)
    scores = matmul(builder, first, second, (*HEADS, 5, 7), transposed=(False, not turned))
    together = matmul(builder, softmax(builder, scores), third, (*HEADS, 5, 8))
    back = transpose(builder, together, 0, 2, 1, 3)
    graph = builder.graph(builder.reshape(back, 2, 5, 24))
    node, view = applied(fuse_attention, graph).graph.nodes
    assert node.inputs == (query, key, value)
    assert node.outputs == (back,)
    assert node.attributes.across == (True, True, True, True)
    assert view.op == "RESHAPE"


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("across", [False, True])
def test_keys_that_lie_the_other_way_round(across: bool, shared: bool) -> None:
    builder = GraphBuilder()
    heads = 1 if shared else 3
    query, value = (builder.input(*HEADS, tokens, 8) for tokens in (5, 7))
    key = builder.input(*((2, 8, heads, 7) if across else (2, heads, 8, 7)))
    turned = transpose(builder, key, 0, 2, 1, 3) if across else key
    batches = ((1, *HEADS), (1, 2, heads))
    scores = matmul(builder, query, turned, (*HEADS, 5, 7), batches=batches)
    result = matmul(builder, softmax(builder, scores), value, (*HEADS, 5, 8))
    found = applied(fuse_attention, builder.graph(result))
    move, node = found.graph.nodes
    assert (move.op, move.inputs, node.op) == ("INDEX_MAP", (key,), ATTENTION)
    assert found.graph.values[move.outputs[0]].shape == (2, heads, 7, 8)
    assert node.inputs == (query, *move.outputs, value)
    assert node.attributes.across == (False, False, False, False)


def long_cache(rows: int, turned: bool = True) -> Graph:
    """Return attention of a cache of 4096 positions; `turned` values are [depth, positions]."""
    builder = GraphBuilder()
    sizes = ((rows, 64), (4096, 64), (64, 4096) if turned else (4096, 64))
    query, key, value = (builder.input(1, 1, *size) for size in sizes)
    scores = matmul(builder, query, key, (1, 1, rows, 4096), transposed=(False, True))
    weights = softmax(builder, scores)
    result = matmul(builder, weights, value, (1, 1, rows, 64), RELU, transposed=(False, turned))
    return builder.graph(result)


@pytest.mark.parametrize("turned", [False, True])
def test_few_queries_read_a_long_cache_in_place(turned: bool) -> None:
    graph = long_cache(4, turned)
    parts, join = applied(fuse_attention, graph).graph.nodes
    assert (parts.op, join.op) == (ATTENTION, JOIN_ATTENTION)
    assert parts.inputs == graph.inputs
    assert (parts.attributes.turned, parts.attributes.parts) == (turned, 4 * DEVICE.compute_units)
    assert (parts.epilogue, join.epilogue) == ((), (RELU,))
    assert (parts.index, parts.merged, join.index, join.merged) == (0, (1,), 2, ())
    assert join.outputs == graph.outputs
    found = applied(fuse_attention, graph).graph.values[parts.outputs[0]]
    assert found.shape == (1, 4 * DEVICE.compute_units, 4, 64 + STATE)
    assert found.precise


@pytest.mark.parametrize("across", [False, True])
def test_heads_that_share_keys_are_queries_of_one_head(across: bool) -> None:
    builder = GraphBuilder()
    query = builder.input(2, *((1, 6, 8) if across else (6, 1, 8)))
    key, value = builder.input(2, 2, 64, 8), builder.input(2, 2, 64, 8)
    heads = (2, 6)
    ways: dict[str, Any] = {"batches": ((1, *heads), (1, *heads)), "batch": heads}
    turned = transpose(builder, query, 0, 2, 1, 3) if across else query
    mask, biases = builder.input(2, 1, 1, 64), builder.constant(1, 6, 1, 64)
    epilogue = (EpilogueOp("ADD", (mask,)), EpilogueOp("ADD", (biases,)))
    keys, values = (_gathered_heads(builder, each, 3) for each in (key, value))
    scores = matmul(
        *(builder, turned, keys, (*heads, 1, 64), *epilogue), transposed=(False, True), **ways
    )
    result = matmul(builder, softmax(builder, scores), values, (*heads, 1, 8), **ways)
    if across:
        result = transpose(builder, result, 0, 2, 1, 3)
    found = applied(fuse_attention, builder.graph(result)).graph
    before, node, after = found.nodes
    assert (before.op, before.inputs, after.op) == ("RESHAPE", (query,), "RESHAPE")
    assert node.attributes.scores == (2, 2, 3, 64)
    assert node.attributes.across == (False, False, False, False)
    shapes = [found.values[v].shape for v in node.inputs]
    assert shapes[:3] == [(2, 2, 3, 8), (2, 2, 64, 8), (2, 2, 64, 8)]
    assert shapes[3:] == [(2, 1, 1, 64), (1, 2, 3, 64)]
    assert after.outputs == (result,)


@pytest.mark.parametrize("kind", ["mask", "epilogue"])
def test_what_keeps_heads_apart(kind: str) -> None:
    """A mask of each query of all heads cannot be a mask of grouped queries; nor an epilogue."""
    builder = GraphBuilder()
    query, key, value = (builder.input(1, *each) for each in ((4, 2, 8), (2, 64, 8), (2, 64, 8)))
    ways: dict[str, Any] = {"batches": ((1, 1, 4), (1, 1, 4)), "batch": (1, 4)}
    steps = (EpilogueOp("ADD", (builder.input(1, 1, 2, 64),)),) if kind == "mask" else ()
    keys, values = (_gathered_heads(builder, each, 2) for each in (key, value))
    shape = (1, 4, 2, 64)
    scores = matmul(builder, query, keys, shape, *steps, transposed=(False, True), **ways)
    last = (RELU,) if kind == "epilogue" else ()
    result = matmul(builder, softmax(builder, scores), values, (1, 4, 2, 8), *last, **ways)
    (node,) = applied(fuse_attention, builder.graph(result)).graph.nodes
    assert node.attributes.scores == shape


def test_few_queries_do_not_transpose_a_long_cache() -> None:
    assert ops(applied(fuse_attention, long_cache(128))) == ["INDEX_MAP", ATTENTION]
    (line,) = untouched(fuse_attention, long_cache(16)).declined
    assert line.startswith("SOFTMAX 1: there are more than 8 queries per head")
    assert line.endswith("few queries would transpose many keys or values")


@pytest.mark.parametrize("turned", [False, True])
def test_other_kernels_replace_one_that_failed_before(turned: bool) -> None:
    failures = Failures(unsafe={"attention_split": "the device was lost"})
    fusions = Fusions(DeviceTarget(DEVICE, FP32, failures=failures))
    graph = long_cache(4, turned)
    found = merge(graph, fusions)
    assert [node.op for node in found.graph.nodes] == (
        [node.op for node in graph.nodes] if turned else [ATTENTION]
    )
    assert [selection.failed for _, selection in fusions.failed] == [
        {"attention_split": "the device was lost"}
    ]


def test_values_that_lie_the_other_way_round() -> None:
    builder = GraphBuilder()
    query, key, value = (builder.input(*HEADS, *size) for size in ((5, 8), (7, 8), (8, 7)))
    ways = (False, True)
    scores = matmul(builder, query, key, (*HEADS, 5, 7), transposed=ways)
    result = matmul(builder, softmax(builder, scores), value, (*HEADS, 5, 8), transposed=ways)
    move, node = applied(fuse_attention, builder.graph(result)).graph.nodes
    assert (move.op, move.inputs, node.op) == ("INDEX_MAP", (value,), ATTENTION)
    assert node.inputs == (query, key, *move.outputs)


def test_heads_that_are_rows_of_a_batch() -> None:
    builder = GraphBuilder()
    sources = [builder.input(2, tokens, 3, 8) for tokens in (5, 7, 7)]
    query, key, value = (
        builder.reshape(transpose(builder, source, 0, 2, 1, 3), 6, tokens, 8)
        for source, tokens in zip(sources, (5, 7, 7), strict=True)
    )
    scores = matmul(builder, query, key, (6, 5, 7), transposed=(False, True))
    together = matmul(builder, softmax(builder, scores), value, (6, 5, 8))
    back = transpose(builder, builder.reshape(together, 2, 3, 5, 8), 0, 2, 1, 3)
    (node,) = applied(fuse_attention, builder.graph(back)).graph.nodes
    assert node.inputs == tuple(sources)
    assert node.outputs == (back,)


def _broadcast_heads(builder: GraphBuilder, source: int, share: int) -> int:
    batch, heads, tokens, depth = builder.shape(source)
    rows = builder.reshape(source, batch, heads, 1, tokens, depth)
    shape = (batch, heads, share, tokens, depth)
    return builder.normalized("BROADCAST_TO", rows, shape, shape)


def _tiled_heads(builder: GraphBuilder, source: int, share: int) -> int:
    batch, heads, tokens, depth = builder.shape(source)
    rows = builder.reshape(source, batch, heads, 1, tokens, depth)
    return builder.normalized(
        "TILE", rows, (batch, heads, share, tokens, depth), (1, 1, share, 1, 1)
    )


def _gathered_heads(builder: GraphBuilder, source: int, share: int) -> int:
    batch, heads, *matrix = builder.shape(source)
    indices = [head for head in range(heads) for _ in range(share)]
    shape = (batch, heads * share, *matrix)
    return builder.normalized("GATHER", source, shape, indices, axis=1)


def _joined_heads(builder: GraphBuilder, source: int, share: int) -> int:
    batch, heads, *matrix = builder.shape(source)
    rows = builder.reshape(source, batch * heads, 1, *matrix)
    return builder.concat(1, *[rows] * share)


REPEATS = [_broadcast_heads, _tiled_heads, _gathered_heads, _joined_heads]


def grouped(builder: GraphBuilder, sources: list[int], *, turned: bool) -> Graph:
    """Add attention of queries [2, 5, 6, 8] whose keys and values `sources` are [2, 6, 7, 8]."""
    heads = (2, 6)
    query = transpose(builder, builder.input(2, 5, 6, 8), 0, 2, 1, 3)
    key, value = (builder.reshape(each, *heads, 7, 8) for each in sources)
    if turned:
        key = transpose(builder, key, 0, 1, 3, 2)
    batches = ((1, *heads), (1, *heads))
    shape = (*heads, 5, 7)
    scores = matmul(
        *(builder, query, key, shape), transposed=(False, not turned), batches=batches, batch=heads
    )
    result = matmul(
        *(builder, softmax(builder, scores), value, (*heads, 5, 8)), batches=batches, batch=heads
    )
    return builder.graph(transpose(builder, result, 0, 2, 1, 3))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("repeat", REPEATS)
def test_heads_of_keys_and_values_are_read_for_several_heads_of_queries(
    repeat: Callable[[GraphBuilder, int, int], int], turned: bool
) -> None:
    builder = GraphBuilder()
    sources = [builder.input(2, 7, 2, 8), builder.input(2, 2, 7, 8)]
    heads = [transpose(builder, sources[0], 0, 2, 1, 3), sources[1]]
    graph = grouped(builder, [repeat(builder, each, 3) for each in heads], turned=turned)
    (node,) = applied(fuse_attention, graph).graph.nodes
    assert node.inputs[1:] == tuple(sources)
    assert node.attributes.across == (True, True, False, True)


def test_heads_that_are_repeated_in_another_order_are_repeated_first() -> None:
    builder = GraphBuilder()
    source = builder.input(2, 2, 7, 8)
    tiled = builder.normalized("TILE", source, (2, 6, 7, 8), (1, 3, 1, 1))
    nodes = applied(fuse_attention, grouped(builder, [tiled, tiled], turned=False)).graph.nodes
    assert [each.op for each in nodes] == ["INDEX_MAP", ATTENTION]
    assert nodes[1].inputs[1:] == (tiled, tiled)


def test_a_product_that_broadcasts_one_head() -> None:
    builder = GraphBuilder()
    query, key, value = (
        builder.input(*shape) for shape in ((2, 3, 5, 8), (2, 1, 7, 8), (2, 1, 7, 8))
    )
    batches = ((1, *HEADS), (1, 2, 1))
    scores = matmul(
        *(builder, query, key, (*HEADS, 5, 7)), transposed=(False, True), batches=batches
    )
    result = matmul(builder, softmax(builder, scores), value, (*HEADS, 5, 8), batches=batches)
    (node,) = applied(fuse_attention, builder.graph(result)).graph.nodes
    assert node.inputs == (query, key, value)


def test_what_others_read_before_its_transposition_stays() -> None:
    builder = GraphBuilder()
    *_, result = attention(builder)
    graph = builder.graph(transpose(builder, result, 0, 2, 1, 3), result)
    node, moved = applied(fuse_attention, graph).graph.nodes
    assert node.outputs == (result,)
    assert not node.attributes.across[3]
    assert moved.op == "INDEX_MAP"


class _Recorder(PaperDevice):
    """Records the names of the kernels that it is given."""

    def compile(self, program: Program, cache_dir: Folder | None = None) -> Executable:
        self.kernels = [launch.kernel for launch in program.launches]
        return super().compile(program, cache_dir)


@pytest.mark.parametrize("seed", range(0, 60, 20))
def test_every_spelling_is_one_kernel(seed: int) -> None:
    """Scales, masks, casts, repeated heads and transposes in any order and form."""
    for case in (draw_attention(Seeded(number)) for number in range(seed, seed + 20)):
        sheet = Sheet()
        sheet.add(case)
        with on_paper(_Recorder()) as device:
            delegate = GpuDelegate(backend="opencl", cache=False, inference_preference=0)
            runtime.interpreter(sheet.writer.build(), delegate, builtin_kernels=True)
        assert isinstance(device, _Recorder)
        found = [name.split("_")[0] for name in device.kernels]
        assert found.count("attention") == 1, case
        assert not {"softmax", "matmul"} & set(found), case


Write = Callable[[GraphBuilder], Graph]


def _scores_read(builder: GraphBuilder) -> Graph:
    scores, _, result = attention(builder)
    return builder.graph(result, scores)


def _chances_read(builder: GraphBuilder) -> Graph:
    _, chances, result = attention(builder)
    return builder.graph(result, chances)


def _other_side(builder: GraphBuilder) -> Graph:
    scores = matmul(builder, builder.input(*HEADS, 5, 8), builder.input(*HEADS, 8, 7), (2, 3, 5, 7))
    chances = softmax(builder, scores)
    return builder.graph(matmul(builder, builder.input(*HEADS, 4, 5), chances, (2, 3, 4, 7)))


def _activated(builder: GraphBuilder) -> Graph:
    scores = matmul(builder, builder.input(*HEADS, 5, 8), builder.input(*HEADS, 8, 7), (2, 3, 5, 7))
    chances = softmax(builder, scores, 1.0, RELU)
    return builder.graph(matmul(builder, chances, builder.input(*HEADS, 7, 8), (2, 3, 5, 8)))


def _broadcast(builder: GraphBuilder) -> Graph:
    shared = ((1, 1, 1), (1, *HEADS))
    first, second = builder.input(5, 8), builder.input(*HEADS, 8, 7)
    scores = matmul(builder, first, second, (*HEADS, 5, 7), batches=shared)
    value = builder.input(*HEADS, 7, 8)
    return builder.graph(matmul(builder, softmax(builder, scores), value, (2, 3, 5, 8)))


def _queries_turned(builder: GraphBuilder) -> Graph:
    ways = (True, False)
    first, second = builder.input(*HEADS, 8, 5), builder.input(*HEADS, 8, 7)
    scores = matmul(builder, first, second, (*HEADS, 5, 7), transposed=ways)
    value = builder.input(*HEADS, 7, 8)
    return builder.graph(matmul(builder, softmax(builder, scores), value, (2, 3, 5, 8)))


def _keys_of_batches(builder: GraphBuilder) -> Graph:
    shared = ((1, *HEADS), (1, 1, 3))
    first, second = builder.input(*HEADS, 5, 8), builder.input(1, 3, 7, 8)
    ways = (False, True)
    scores = matmul(builder, first, second, (*HEADS, 5, 7), transposed=ways, batches=shared)
    value = builder.input(*HEADS, 7, 8)
    return builder.graph(matmul(builder, softmax(builder, scores), value, (2, 3, 5, 8)))


def _integers(builder: GraphBuilder) -> Graph:
    *_, result = attention(builder)
    builder.values[result] = replace(builder.values[result], dtype=DType.FLOAT16)
    return builder.graph(result)


def _many_dimensions(builder: GraphBuilder) -> Graph:
    *_, result = attention(builder)
    builder.values[result] = replace(builder.values[result], shape=(1, 2, 3, 5, 8))
    return builder.graph(result)


def _deep(builder: GraphBuilder) -> Graph:
    return builder.graph(attention(builder, depth=129)[2])


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (_scores_read, "other nodes also read the scores"),
        (_chances_read, "not read by one product alone, as its first operand"),
        (_other_side, "not read by one product alone, as its first operand"),
        (_activated, "the result has further epilogue ops"),
        (_broadcast, "queries or scores are broadcast"),
        (_queries_turned, "queries or scores are transposed"),
        (_keys_of_batches, "keys or values are broadcast to batches"),
        (_integers, "not all values are float32"),
        (_many_dimensions, "values have more than 4 dimensions"),
        (
            _deep,
            "there are too few keys to divide them between work items; the kernel is for cuda "
            "devices; heads have 129 channels; at most 128 are supported",
        ),
    ],
)
def test_why_it_declines(write: Write, reason: str) -> None:
    result = untouched(fuse_attention, write(GraphBuilder()))
    assert result.declined == (f"SOFTMAX 1: {reason}",)


CUDA = {"backend": "cuda", "compute_capability": (9, 0)}
FEW_KEYS = "there are too few keys to divide them between work items"
MANY_QUERIES = "there are more than 8 queries per head"
FEW_BUFFERS = "the kernel needs 5 buffers, but the device permits 4"


@pytest.mark.parametrize(
    ("facts", "tokens", "reason"),
    [
        ({"max_arguments": 4}, 7, f"{FEW_KEYS}; the kernel is for cuda devices; {FEW_BUFFERS}"),
        ({**CUDA, "max_arguments": 4}, 7, f"{FEW_KEYS}; {FEW_BUFFERS}"),
        ({**CUDA, "max_arguments": 4}, 40, f"{MANY_QUERIES}; {FEW_BUFFERS}"),
    ],
)
def test_devices_that_decline(facts: dict[str, Any], tokens: int, reason: str) -> None:
    builder = GraphBuilder()
    query, key, value = (builder.input(*HEADS, tokens, 8) for _ in range(3))
    mask = builder.input(1, 1, tokens, tokens)
    add, shape = EpilogueOp("ADD", (mask,)), (*HEADS, tokens, tokens)
    scores = matmul(builder, query, key, shape, add, transposed=(False, True))
    result = matmul(builder, softmax(builder, scores), value, (*HEADS, tokens, 8))
    fusions = Fusions(DeviceTarget(replace(DEVICE, **facts), FP32))
    declined = untouched(lambda graph: merge(graph, fusions), builder.graph(result)).declined
    assert declined == (f"SOFTMAX 1: {reason}",)
