"""Models of any number of nodes, in patterns for which naive code takes quadratic time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from litegpu.zoo.writer import ModelWriter, TensorRef
from small_models import CPU_ONLY, step

Grow = Callable[[int], bytes]

_SHAPE = (1, 4)


def _numbers(writer: ModelWriter, *numbers: int) -> TensorRef:
    return writer.constant(np.array(numbers, np.int32))


def _sums(writer: ModelWriter, x: TensorRef, count: int) -> list[TensorRef]:
    """Return sums of a value and numbers: no two are equal."""
    return [writer.op("ADD", [x, writer.constant(np.float32(i))], [_SHAPE]) for i in range(count)]


def constant_readers(count: int) -> bytes:
    """Return a chain whose operations all read the same constant."""
    writer = ModelWriter()
    x, constant = writer.input(_SHAPE), writer.constant(np.ones(4, np.float32))
    for _ in range(count):
        x = writer.op("ADD", [x, constant], [_SHAPE])
    writer.output(x)
    return writer.build()


def constant_fan(count: int) -> bytes:
    """Return operations that all read the same input and the same constant, all of them outputs."""
    writer = ModelWriter()
    x, constant = writer.input(_SHAPE), writer.constant(np.ones(4, np.float32))
    writer.output(*(writer.op("ADD", [x, constant], [_SHAPE]) for _ in range(count)))
    return writer.build()


def chain(count: int) -> bytes:
    """Return a chain of element-wise operations."""
    writer = ModelWriter()
    x = writer.input(_SHAPE)
    for number in range(count):
        x = writer.op(("NEG", "ABS", "TANH", "SQUARE")[number % 4], [x], [_SHAPE])
    writer.output(x)
    return writer.build()


def pools(count: int) -> bytes:
    """Return a chain of operations of which each has a kernel of its own."""
    writer = ModelWriter()
    x = writer.input((1, 4, 4, 4))
    options = {"padding": "SAME", "stride_w": 1, "stride_h": 1}
    for number in range(count):
        window = {"filter_width": 1 + number % 3, "filter_height": 1 + number % 2}
        x = writer.op("MAX_POOL_2D", [x], [(1, 4, 4, 4)], options={**options, **window})
    writer.output(x)
    return writer.build()


def tree(count: int) -> bytes:
    """Return a binary tree of sums."""
    writer = ModelWriter()
    x = writer.input(_SHAPE)
    level = [x] * (count + 1)
    while len(level) > 1:
        odd = level[len(level) // 2 * 2 :]
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [writer.op("ADD", [*pair], [_SHAPE]) for pair in pairs] + odd
    writer.output(*level)
    return writer.build()


def unpack_pack(count: int) -> bytes:
    """Return a chain that takes a tensor apart and puts it together again."""
    writer = ModelWriter()
    x = writer.input((4, 4))
    for _ in range(count // 2):
        options = {"num": 4, "axis": 0}
        parts = writer.multi("UNPACK", [x], [(4,)] * 4, options=options)
        x = writer.op("PACK", parts[::-1], [(4, 4)], options={"values_count": 4, "axis": 0})
    writer.output(x)
    return writer.build()


def pad_slice(count: int) -> bytes:
    """Return a chain that adds rows and takes others away."""
    writer = ModelWriter()
    x = writer.input((4, 4))
    paddings = writer.constant(np.array([[1, 1], [0, 0]], np.int32))
    begin, size = _numbers(writer, 0, 0), _numbers(writer, 4, 4)
    for _ in range(count // 2):
        x = writer.op("PAD", [x, paddings], [(6, 4)])
        x = writer.op("SLICE", [x, begin, size], [(4, 4)])
    writer.output(x)
    return writer.build()


def reshapes(count: int) -> bytes:
    """Return a chain of operations that only move elements."""
    writer = ModelWriter()
    x = writer.input((2, 3, 4))
    order, shape = _numbers(writer, 1, 0, 2), _numbers(writer, 2, 3, 4)
    for _ in range(count // 2):
        x = writer.op("TRANSPOSE", [x, order], [(3, 2, 4)])
        x = writer.op("RESHAPE", [x, shape], [(2, 3, 4)])
    writer.output(x)
    return writer.build()


def slices(count: int) -> bytes:
    """Return slices of one tensor, joined again."""
    writer = ModelWriter()
    x = writer.input((count, 4))
    size = _numbers(writer, 1, 4)
    parts = [
        writer.op("SLICE", [x, _numbers(writer, row, 0), size], [(1, 4)]) for row in range(count)
    ]
    writer.output(writer.op("CONCATENATION", parts, [(count, 4)], options={"axis": 0}))
    return writer.build()


def dense_joins(count: int) -> bytes:
    """Return joins of all that was made before each; `count` operands in all."""
    writer = ModelWriter()
    values = [writer.input(_SHAPE)]
    while len(values) ** 2 < 2 * count:
        rows = len(values)
        joined = writer.op("CONCATENATION", values, [(rows, 4)], options={"axis": 0})
        begin, size = _numbers(writer, rows - 1, 0), _numbers(writer, 1, 4)
        values.append(writer.op("SLICE", [joined, begin, size], [_SHAPE]))
    writer.output(values[-1])
    return writer.build()


def pair_joins(count: int) -> bytes:
    """Return joins of pairs: each of some values with each other one."""
    writer = ModelWriter()
    x = writer.input(_SHAPE)
    sources: list[TensorRef] = []
    joins: list[TensorRef] = []
    while len(joins) < count:
        sources.append(writer.op("NEG", [x], [_SHAPE]))
        joins += [
            writer.op("CONCATENATION", [sources[-1], other], [(2, 4)], options={"axis": 0})
            for other in sources[:-1]
        ]
    writer.output(*joins)
    return writer.build()


def apart(count: int) -> bytes:
    """Return operations for a device and for the CPU by turns."""
    writer = ModelWriter()
    x = writer.input(_SHAPE)
    for number in range(count):
        x = step(writer, ("NEG", CPU_ONLY)[number % 2], x)
    writer.output(x)
    return writer.build()


def subgraphs(count: int) -> bytes:
    """Return as many graphs, half of them the branches that an IF of another one chooses."""
    writer = ModelWriter()
    x = writer.input(_SHAPE)
    yes = writer.input((1,), "bool", name="choice")
    for _ in range(count // 2):
        branches = [writer.subgraph() for _ in range(2)]
        for branch in branches:
            branch.output(branch.op("NEG", [branch.input(_SHAPE)], [_SHAPE]))
        first, second = (branch.number for branch in branches)
        options = {"then_subgraph_index": first, "else_subgraph_index": second}
        x = writer.op("IF", [yes, x], [_SHAPE], options=options)
    writer.output(x)
    return writer.build()


def layers(count: int) -> bytes:
    """Return a chain of small layers with weights of their own."""
    writer = ModelWriter()
    x = writer.input(_SHAPE)
    for number in range(count):
        weights = writer.constant(np.full((4, 4), number, np.float32))
        bias = writer.constant(np.full(4, number, np.float32))
        x = writer.op("FULLY_CONNECTED", [x, weights, bias], [_SHAPE])
    writer.output(x)
    return writer.build()


def siblings(count: int) -> bytes:
    """Return layers that all read the same input."""
    writer = ModelWriter()
    x = writer.input(_SHAPE)
    outputs = []
    for number in range(count):
        weights = writer.constant(np.full((4, 4), number, np.float32))
        outputs.append(writer.op("FULLY_CONNECTED", [x, weights, None], [_SHAPE]))
    writer.output(*outputs)
    return writer.build()


def views_joined(count: int) -> bytes:
    """Return views that change nothing, joined."""
    writer = ModelWriter()
    x, shape = writer.input(_SHAPE), _numbers(writer, *_SHAPE)
    parts = _sums(writer, x, count // 2)
    views = [writer.op("RESHAPE", [part, shape], [_SHAPE]) for part in parts]
    writer.output(writer.op("CONCATENATION", views, [(len(views), 4)], options={"axis": 0}))
    return writer.build()


def ops_after_join(count: int) -> bytes:
    """Return operations that could each be done to every part of a join."""
    writer = ModelWriter()
    x = writer.input(_SHAPE)
    parts = _sums(writer, x, count // 2)
    shape = (len(parts), 4)
    x = writer.op("CONCATENATION", parts, [shape], options={"axis": 0})
    for number in range(count // 2):
        x = writer.op(("TANH", "ABS")[number % 2], [x], [shape])
    writer.output(x)
    return writer.build()


def permutations(count: int) -> bytes:
    """Return a chain of transpositions of which each result is an output, too."""
    writer = ModelWriter()
    x, order = writer.input((2, 3, 4)), _numbers(writer, 1, 2, 0)
    shape: tuple[int, ...] = (2, 3, 4)
    for _ in range(count):
        shape = (shape[1], shape[2], shape[0])
        x = writer.op("TRANSPOSE", [x, order], [shape])
        writer.output(x)
    return writer.build()


def normalizations(count: int) -> bytes:
    """Return a chain of normalizations by the root of the mean square, spelled out."""
    writer = ModelWriter()
    x, axis = writer.input(_SHAPE), _numbers(writer, 1)
    epsilon = writer.constant(np.float32(1e-6))
    for _ in range(count // 5):
        square = writer.op("SQUARE", [x], [_SHAPE])
        mean = writer.op("MEAN", [square, axis], [(1, 1)], options={"keep_dims": True})
        shifted = writer.op("ADD", [mean, epsilon], [(1, 1)])
        root = writer.op("RSQRT", [shifted], [(1, 1)])
        x = writer.op("MUL", [x, root], [_SHAPE])
    writer.output(x)
    return writer.build()


def equal_pairs(count: int) -> bytes:
    """Return a chain of pairs of equal operations."""
    writer = ModelWriter()
    x = writer.input(_SHAPE)
    for _ in range(count // 3):
        pair = [writer.op("TANH", [x], [_SHAPE]) for _ in range(2)]
        x = writer.op("MUL", pair, [_SHAPE])
    writer.output(x)
    return writer.build()


def equal_operands(count: int) -> bytes:
    """Return equal operations whose results one reads, with others of their own."""
    writer = ModelWriter()
    x, shape = writer.input(_SHAPE), _numbers(writer, 4, 1)
    parts = [writer.op("TANH", [x], [_SHAPE]) for _ in range(count // 2)]
    parts += [writer.op("RESHAPE", [part, shape], [(4, 1)]) for part in parts]
    for some in (parts[: count // 2], parts[count // 2 :]):
        joined = writer.op("CONCATENATION", some, [_SHAPE], options={"axis": 0})
        writer.output(joined)
    return writer.build()


def shared_indices(count: int, size: int) -> bytes:
    """Return a chain of look-ups that all read the same list of `size` indices."""
    writer = ModelWriter()
    x, indices = writer.input((size, 2)), _numbers(writer, *reversed(range(size)))
    for _ in range(count):
        x = writer.op("GATHER", [x, indices], [(size, 2)], options={"axis": 0})
    writer.output(x)
    return writer.build()


def states(count: int) -> bytes:
    """Return recurrent layers, each with a state of its own, that read the same input."""
    writer = ModelWriter()
    x = writer.input(_SHAPE)
    feature, time = (writer.constant(np.ones((2, 4), np.float32)) for _ in range(2))
    for _ in range(count):
        state = writer.variable((1, 8))
        operands = [x, feature, time, None, state]
        writer.output(writer.op("SVDF", operands, [(1, 2)], options={"rank": 1}))
    return writer.build()


ALL: Mapping[str, Grow] = {
    grow.__name__: grow
    for grow in (
        *(constant_readers, constant_fan, chain, pools, tree, unpack_pack, pad_slice, reshapes),
        *(slices, dense_joins, pair_joins, apart, subgraphs, layers, siblings, views_joined),
        *(ops_after_join, permutations, normalizations, states, equal_pairs, equal_operands),
    )
}
