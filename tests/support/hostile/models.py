"""Models of less than a megabyte that request a lot of work."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fuzzing.mutations import parse
from hostile import sharing
from hostile.nesting import in_itself
from hostile.sharing import Once
from litegpu.zoo.writer import ModelWriter, TensorRef
from small_models import CPU_ONLY
from sparse_tensors import DENSE, SPARSE, sparse_constant

Write = Callable[[], bytes]


def _integers(writer: ModelWriter, *shape: int) -> TensorRef:
    return writer.constant(np.zeros(shape, np.int32), name="zeros")


def _ending(writer: ModelWriter, found: TensorRef) -> bytes:
    """Let the result be an output, beside something for a device to do."""
    x = writer.input((1, 4, 4, 4))
    writer.output(writer.op("NEG", [x], [(1, 4, 4, 4)]), found)
    return writer.build()


def nested_options(size: int = 100, nesting: int = 7) -> bytes:
    """A custom operation whose options hold vectors that hold the vector before them."""
    writer = ModelWriter()
    x = writer.input((1, 3, 3))
    m = writer.input((1, 4, 4), name="matrix")
    options = in_itself(size, nesting)
    writer.output(*writer.custom("TransformLandmarks", [x, m], [(1, 3, 3)], custom_options=options))
    return writer.build()


def tables_of_sums() -> bytes:
    """A column and a row, added."""
    writer = ModelWriter()
    column, row = _integers(writer, 1 << 16, 1), _integers(writer, 1, 1 << 16)
    found = writer.op("ADD", [column, row], [(1 << 16, 1 << 16)], dtype="int32")
    return _ending(writer, found)


def many_fills(count: int = 4000) -> bytes:
    """Many constants of 65536 numbers, each written as one of them."""
    writer = ModelWriter()
    size, one = writer.constant(np.array([1 << 16], np.int32)), writer.constant(np.int32(1))
    fills = [writer.op("FILL", [size, one], [(1 << 16,)], dtype="int32") for _ in range(count)]
    return _ending(writer, fills[-1])


def many_runs(count: int = 4000) -> bytes:
    """Many functions of constants, each of which the CPU can compute beforehand."""
    writer = ModelWriter()
    one = writer.constant(np.ones(8, np.float32))
    found = [writer.op("EXP", [one], [(8,)]) for _ in range(count)]
    return _ending(writer, found[-1])


def sparse(rows: int = 20_000, columns: int = 20_000) -> bytes:
    """Weights of 1.6 GB, of which three are stored."""
    writer = ModelWriter()
    small = np.zeros((3, 3), np.float32)
    small[:, 1] = 1
    weights_ref = sparse_constant(writer, small, (0, 1), (DENSE, SPARSE), {})
    tensor = writer._tensors[weights_ref.index]
    tensor.shape = [rows, columns]
    metadata = tensor.sparsity.dimMetadata
    metadata[0].denseSize = rows
    metadata[1].arraySegments.values = [0, 1, 2, *[3] * (rows - 2)]
    dense = writer.op("DENSIFY", [weights_ref], [(rows, columns)])
    x = writer.input((1, columns))
    writer.output(writer.op("FULLY_CONNECTED", [x, dense, None], [(1, rows)]))
    return writer.build()


def groups(count: int = 480) -> bytes:
    """A convolution in groups that are no whole channel blocks: each is padded to these."""
    writer = ModelWriter()
    x = writer.input((1, 1, 1, count * 510))
    weights = writer.constant(np.ones((count, 1, 1, 510), np.float32))
    bias = writer.constant(np.zeros(count, np.float32))
    options = {"stride_w": 1, "stride_h": 1, "padding": "SAME"}
    shapes = [(1, 1, 1, count)]
    writer.output(writer.op("CONV_2D", [x, weights, bias], shapes, options=options, version=6))
    return writer.build()


def same_weights(count: int = 1500) -> bytes:
    """Many layers that read the same weights."""
    writer = ModelWriter()
    weights = writer.constant(np.ones((450, 450), np.float32))
    x = writer.input((1, 450))
    for _ in range(count):
        x = writer.op("FULLY_CONNECTED", [x, weights, None], [(1, 450)])
    writer.output(x)
    return writer.build()


def one_hots(count: int = 500) -> bytes:
    """Many rows of 2^20 places of which one is hot."""
    writer = ModelWriter()
    x = writer.input((1,), "int32")
    depth = writer.constant(np.int32(1 << 20))
    on, off = (writer.constant(np.float32(n)) for n in (1, 0))
    for _ in range(count):
        found = writer.op("ONE_HOT", [x, depth, on, off], [(1, 1 << 20)], options={"axis": -1})
    writer.output(found)
    return writer.build()


def chain(count: int = 4000, ops: tuple[str, ...] = ("NEG", "ABS")) -> bytes:
    """A long chain of operations."""
    writer = ModelWriter()
    x = writer.input((1, 4, 4, 4))
    for number in range(count):
        x = writer.op(ops[number % len(ops)], [x], [(1, 4, 4, 4)])
    writer.output(x)
    return writer.build()


def fan(count: int = 4000) -> bytes:
    """Many operations on the same input, each with a result of its own."""
    writer = ModelWriter()
    x = writer.input((1, 4, 4, 4))
    writer.output(*(writer.op("NEG", [x], [(1, 4, 4, 4)]) for _ in range(count)))
    return writer.build()


def moves(count: int = 4000) -> bytes:
    """A long chain of reshapes and transposes."""
    writer = ModelWriter()
    x = writer.input((2, 3, 4))
    order, shape = (
        writer.constant(np.array([1, 0, 2], np.int32)),
        writer.constant(np.array([2, 3, 4], np.int32)),
    )
    for number in range(count):
        op = ("TRANSPOSE", "RESHAPE")[number % 2]
        x = writer.op(op, [x, (order, shape)[number % 2]], [((3, 2, 4), (2, 3, 4))[number % 2]])
    writer.output(x)
    return writer.build()


def sums(count: int = 3000) -> bytes:
    """A long chain of sums, each with all that lies two before."""
    writer = ModelWriter()
    a = b = writer.input((1, 4, 4, 4))
    for _ in range(count):
        a, b = writer.op("ADD", [a, b], [(1, 4, 4, 4)], options={}), a
    writer.output(a)
    return writer.build()


def pieces(count: int = 1000) -> bytes:
    """Operations for a device and for the CPU by turns."""
    return chain(2 * count, ("NEG", CPU_ONLY))


def long_shapes(count: int = 3000) -> bytes:
    """Many tensors of the same 100,000 dimensions."""
    model = parse(chain(count))
    shape = np.ones(100_000, np.int32)
    for tensor in model.subgraphs[0].tensors:
        tensor.shape = shape
    return sharing.pack(model)


def long_names(count: int = 3000) -> bytes:
    """Many tensors of the same name of 500 KB."""
    model = parse(chain(count))
    for tensor in model.subgraphs[0].tensors:
        tensor.name = "n" * 500_000
    return sharing.pack(model)


def many_operands(count: int = 1000) -> bytes:
    """Many operations with the same 50,000 operands."""
    model = parse(chain(count))
    graph = model.subgraphs[0]
    inputs = np.zeros(50_000, np.int32)
    for operator in graph.operators:
        operator.inputs = inputs
    return sharing.pack(model)


def many_operations(count: int = 150_000) -> bytes:
    """One operation, listed again and again."""
    model = parse(chain(1))
    graph = model.subgraphs[0]
    graph.operators = [Once(graph.operators[0])] * count
    return sharing.pack(model)


def custom_options(count: int = 2000) -> bytes:
    """Many custom operations with the same options of 60 KB."""
    writer = ModelWriter()
    x = writer.input((1, 3, 3))
    m = writer.input((1, 4, 4), name="matrix")
    for _ in range(count):
        (x,) = writer.custom("TransformLandmarks", [x, m], [(1, 3, 3)], custom_options=b"\1")
    writer.output(x)
    model = parse(writer.build())
    weights_ref = np.ones(60_000, np.uint8)
    for operator in model.subgraphs[0].operators:
        operator.customOptions = weights_ref
    return sharing.pack(model)


def wide_join(count: int = 1000) -> bytes:
    """Many results, joined; PoCL's compiler takes more than linear time for them."""
    writer = ModelWriter()
    x = writer.input((1, 4, 4, 1))
    parts = [writer.op("NEG", [x], [(1, 4, 4, 1)]) for _ in range(count)]
    writer.output(writer.op("CONCATENATION", parts, [(1, 4, 4, count)], options={"axis": 3}))
    return writer.build()


def convolutions(count: int = 2000) -> bytes:
    """A long chain of small convolutions of different shapes."""
    writer = ModelWriter()
    x, channels = writer.input((1, 8, 8, 1)), 1
    options = {"stride_w": 1, "stride_h": 1, "padding": "SAME"}
    for number in range(count):
        wide = number % 7 + 1
        weights = writer.constant(np.full((wide, 1, 1, channels), 0.5, np.float32))
        bias = writer.constant(np.zeros(wide, np.float32))
        x = writer.op("CONV_2D", [x, weights, bias], [(1, 8, 8, wide)], options=options)
        channels = wide
    writer.output(x)
    return writer.build()


ALL: Mapping[str, Write] = {
    write.__name__: write
    for write in (
        *(nested_options, tables_of_sums, many_fills, many_runs, sparse, groups),
        *(same_weights, one_hots, chain, fan, moves, sums, pieces, long_shapes, long_names),
        *(many_operands, many_operations, custom_options, wide_join, convolutions),
    )
}
