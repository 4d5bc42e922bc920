"""Shapes, and tensors computed from them, are folded in advance and do not split a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from litegpu import GpuDelegate
from litegpu.graph import ABSENT, DType, Graph, Node, Quantization, Value
from litegpu.ops.common import fold
from litegpu.runtime_abi import interpreter as runtime
from litegpu.runtime_abi import kernels
from litegpu.runtime_abi.params import PARAMS
from litegpu.zoo import schema
from litegpu.zoo.writer import ModelWriter, TensorRef
from small_models import CPU_ONLY, assert_close, interpreter, random, reference, run, step

Make = Callable[["Integers"], TensorRef]


class Integers:
    """Writes operations on integers."""

    def __init__(self) -> None:
        """Begin a model with one input."""
        self.writer = ModelWriter()
        self.x = self.writer.input((2, 3, 4, 5))
        self.shape = self.op("SHAPE", self.x, size=4, out_type="INT32")

    def op(self, name: str, *inputs: Any, size: int | None = 1, **options: Any) -> TensorRef:
        """Add an operation; numbers among its inputs become constants."""
        refs = [
            each if isinstance(each, TensorRef) else self.writer.constant(each, "int32")
            for each in inputs
        ]
        shape = () if size is None else (size,)
        return self.writer.op(name, refs, [shape], options=options, dtype="int32")

    def slice(self, begin: int, end: int, shrink: bool = True) -> TensorRef:
        """Take a part of the shape."""
        size = None if shrink else end - begin
        return self.op(
            "STRIDED_SLICE",
            self.shape,
            [begin],
            [end],
            [1],
            size=size,
            shrink_axis_mask=int(shrink),
        )


def _packed(m: Integers) -> TensorRef:
    rows = m.op("MUL", m.slice(0, 1), m.slice(1, 2), size=None)
    return m.op("PACK", rows, -1, size=2, values_count=2, axis=0)


def _joined(m: Integers) -> TensorRef:
    rest = m.op("REDUCE_PROD", m.slice(1, 4, shrink=False), [0], keep_dims=True)
    return m.op("CONCATENATION", m.slice(0, 1, shrink=False), rest, size=2, axis=0)


def _gathered(m: Integers) -> TensorRef:
    found = m.op("GATHER", m.shape, [0, 1], size=2, axis=0)
    return m.op("CONCATENATION", found, [-1], size=3, axis=0)


def _sliced(m: Integers) -> TensorRef:
    head = m.op("SLICE", m.shape, [0], [2], size=2)
    return m.op("CONCATENATION", m.op("MAXIMUM", head, 1, size=2), [-1], size=3, axis=0)


def _wide(m: Integers) -> TensorRef:
    options = {"in_data_type": "INT32", "out_data_type": "INT64"}
    wide = m.writer.op("CAST", [m.slice(3, 4)], [()], options=options, dtype="int64")
    back = {"in_data_type": "INT64", "out_data_type": "INT32"}
    narrow = m.op("CAST", wide, size=None, **back)
    return m.op("PACK", -1, narrow, size=2, values_count=2, axis=0)


def _divided(m: Integers) -> TensorRef:
    rank = m.op("RANK", m.x, size=None)
    half = m.op("FLOOR_DIV", rank, 2, size=None)
    rows = m.op("SUB", m.op("ADD", half, m.slice(1, 2), size=None), 3, size=None)
    expanded = m.op("EXPAND_DIMS", rows, 0)
    return m.op("CONCATENATION", m.op("RESHAPE", expanded, [1]), [-1], size=2, axis=0)


def _chosen(m: Integers) -> TensorRef:
    larger = m.writer.op("GREATER", [m.slice(2, 3), m.slice(1, 2)], [()], dtype="bool")
    rows = m.op("SELECT_V2", larger, m.slice(2, 3), 1, size=None)
    return m.op("PACK", rows, -1, size=2, values_count=2, axis=0)


RESULTS: dict[str, Make] = {
    make.__name__.strip("_"): make
    for make in (_packed, _joined, _gathered, _sliced, _wide, _divided, _chosen)
}


def written(make: Make) -> bytes:
    """Return a model that reshapes to a computed shape, between operations for the device."""
    m = Integers()
    squared = m.writer.op("SQUARE", [m.x], [(2, 3, 4, 5)])
    flat = m.writer.op("RESHAPE", [squared, make(m)], [(-1, 1)])
    m.writer.output(m.writer.op("NEG", [flat], [(-1, 1)]))
    return m.writer.build()


@pytest.mark.parametrize("name", RESULTS)
def test_a_computed_shape_does_not_split_a_graph(name: str) -> None:
    model = written(RESULTS[name])
    delegate = GpuDelegate(precision="fp32")
    target = interpreter(model, delegate)
    assert delegate.report is not None and delegate.report.whole_graph, str(delegate.report)
    x = random(2, 3, 4, 5)
    assert_close(run(target, x), reference(model, x))


@pytest.mark.parametrize("name", ["packed", "joined", "gathered"])
def test_computed_shapes_follow_other_input_shapes(name: str) -> None:
    model = written(RESULTS[name])
    target = interpreter(model, GpuDelegate(precision="fp32"))
    plain = runtime.interpreter(model, builtin_kernels=True)
    for shape in ((4, 3, 4, 5), (1, 2, 2, 5), (2, 3, 4, 5)):
        x = random(*shape)
        for each in (target, plain):
            each.resize_tensor_input(each.get_input_details()[0]["index"], shape)
            each.allocate_tensors()
        assert_close(run(target, x), run(plain, x))


def test_a_shape_that_the_cpu_reads_too() -> None:
    """The shape is that of a value which the partition has nothing else to do with."""
    m = Integers()
    wanted = m.op("PACK", m.slice(0, 1), -1, size=2, values_count=2, axis=0)
    rounded = step(m.writer, CPU_ONLY, m.x)
    flat = m.writer.op("RESHAPE", [rounded, wanted], [(2, 60)])
    m.writer.output(m.writer.op("NEG", [flat], [(2, 60)]), wanted)
    model = m.writer.build()
    delegate = GpuDelegate(precision="fp32")
    target = interpreter(model, delegate)
    plain = runtime.interpreter(model, builtin_kernels=True)
    assert delegate.report is not None
    assert [node.op for node in delegate.report.rejected] == [CPU_ONLY]
    for shape in ((2, 3, 4, 5), (3, 3, 4, 5)):
        x = 9 * random(*shape)
        for each in (target, plain):
            each.resize_tensor_input(each.get_input_details()[0]["index"], shape)
            each.allocate_tensors()
        for got, expected in zip(run(target, x), run(plain, x), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_a_shape_of_another_type_than_the_file_states() -> None:
    """The CPU's kernel goes by the parameter: its result is no constant of the stated type."""
    m = Integers()
    wide = m.op("SHAPE", m.x, size=4, out_type="INT64")
    m.writer.output(m.writer.op("NEG", [m.x], [(2, 3, 4, 5)]), wide)
    delegate = GpuDelegate(precision="fp32")
    target = interpreter(m.writer.build(), delegate)
    assert delegate.report is not None
    assert [node.op for node in delegate.report.rejected] == ["SHAPE"]
    shape = run(target, random(2, 3, 4, 5))[1]
    assert shape.dtype == np.int64 and shape.tolist() == [2, 3, 4, 5]


def test_constants_of_integers_are_handed_out() -> None:
    m = Integers()
    m.writer.output(m.writer.op("NEG", [m.x], [(2, 3, 4, 5)]), m.shape, m.slice(1, 3, shrink=False))
    model = m.writer.build()
    delegate = GpuDelegate(precision="fp32")
    target = interpreter(model, delegate)
    assert delegate.report is not None and delegate.report.whole_graph
    x = random(2, 3, 4, 5)
    negative, shape, part = run(target, x)
    np.testing.assert_array_equal(negative, -x)
    assert (shape.tolist(), part.tolist()) == ([2, 3, 4, 5], [3, 4])
    assert shape.dtype == part.dtype == np.int32


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_a_rank_is_an_integer_whatever_the_file_says(dtype: str) -> None:
    writer = ModelWriter()
    x = writer.input((2, 3))
    rank = writer.op("RANK", [step(writer, "NEG", x)], [()], dtype=dtype)
    writer.output(rank, step(writer, "ABS", x))
    values = random(2, 3)
    got = run(interpreter(writer.build(), GpuDelegate()), values)
    for wanted, found in zip(reference(writer.build(), values), got, strict=True):
        assert wanted.dtype == found.dtype
        np.testing.assert_array_equal(wanted, found)


@pytest.mark.parametrize(("stated", "folded"), [(DType.FLOAT32, True), (DType.INT16, False)])
def test_float16_weights_that_the_file_calls_integers(stated: DType, folded: bool) -> None:
    """What the CPU makes of them is float32 all the same."""
    half = Value(0, "half", (3,), DType.FLOAT16, np.ones(3, np.float16))
    graph = Graph(
        {0: half, 1: Value(1, "full", (3,), stated)},
        (Node(0, "DEQUANTIZE", 3, (0,), (1,)),),
        *((), ()),
    )
    assert (fold.evaluate(graph, graph.nodes[0], fold.Budget()) is not None) == folded


@pytest.mark.parametrize(("op", "inputs"), [("ADD", 3), ("MAXIMUM", 3), ("NEG", 2), ("ABS", 2)])
def test_operands_too_many_are_left_alone(op: str, inputs: int) -> None:
    """NumPy would take one more as the array to write the result into."""
    array = {v: Value(v, "", (1,), DType.INT32, np.full(1, 5 + v, "int32")) for v in range(inputs)}
    node = Node(0, op, 1, tuple(array), (9,))
    graph = Graph({**array, 9: Value(9, "", (1,), DType.INT32)}, (node,), (), ())
    assert fold.evaluate(graph, node, fold.Budget()) is None
    assert [value.data.item() for value in array.values() if value.data is not None] == [
        *range(5, 5 + inputs)
    ]


def _chosen_floats(writer: ModelWriter) -> TensorRef:
    sides = [writer.constant(np.array(each, np.float32)) for each in ([[0.5], [-1]], [1, 2, 3])]
    condition = writer.constant(np.array([[True, False, True], [False, False, True]]))
    return writer.op("SELECT_V2", [condition, *sides], [(2, 3)])


def _many_integers(writer: ModelWriter) -> TensorRef:
    sides = [writer.constant(np.arange(65537, dtype=np.int32) * each) for each in (3, -7)]
    total = writer.op("ADD", sides, [(65537,)], dtype="int32")
    bounds = [writer.constant(np.array([each], np.int32)) for each in (65531, 6)]
    part = writer.op("SLICE", [total, *bounds], [(6,)], dtype="int32")
    options = {"in_data_type": "INT32", "out_data_type": "FLOAT32"}
    return writer.op("CAST", [part], [(6,)], options=options)


def _repeated(writer: ModelWriter) -> TensorRef:
    wide = writer.constant(np.array([4, 3], np.int32))
    row = writer.op("EXP", [writer.constant(np.array([0.3, 2, -4], np.float32))], [(3,)])
    return writer.op("BROADCAST_TO", [row, wide], [(4, 3)], version=2)


def _largest(writer: ModelWriter) -> TensorRef:
    """The second result of an operation with two, whose first nobody reads."""
    row = writer.constant(np.array([[3, 1, 9, 4]], np.float32))
    two = writer.constant(np.array(2, np.int32))
    shapes = [(1, 2), (1, 2)]
    _, places = writer.multi("TOPK_V2", [row, two], shapes, dtypes=["float32", "int32"])
    options = {"in_data_type": "INT32", "out_data_type": "FLOAT32"}
    return writer.op("CAST", [places], [(1, 2)], options=options)


def _dequantized(writer: ModelWriter) -> TensorRef:
    scales = Quantization((0.5, 0.25, 2.0), (0, 0, 0), 1)
    stored = writer.constant(np.arange(-6, 6, dtype=np.int8).reshape(4, 3), quantization=scales)
    return writer.op("DEQUANTIZE", [stored], [(4, 3)], version=5)


def _filtered(writer: ModelWriter) -> TensorRef:
    """An operation with padding, strides and a fused activation."""
    image = writer.constant(random(1, 5, 4, 2))
    weights, bias = writer.constant(random(3, 3, 3, 2)), writer.constant(random(3))
    options = {
        "padding": "SAME",
        "stride_h": 2,
        "stride_w": 1,
        "dilation_h_factor": 1,
        "dilation_w_factor": 1,
        "fused_activation_function": "RELU6",
    }
    return writer.op("CONV_2D", [image, weights, bias], [(1, 3, 4, 3)], options=options)


def _filtered_by_halves(writer: ModelWriter) -> TensorRef:
    """Weights of float16, which DEQUANTIZE makes float32."""
    stored = writer.constant(random(3, 2, 2, 4).astype(np.float16))
    weights = writer.op("DEQUANTIZE", [stored], [(3, 2, 2, 4)], version=3)
    image, bias = writer.constant(random(1, 5, 4, 4)), writer.constant(random(3))
    options = {"padding": "VALID", "stride_h": 1, "stride_w": 1}
    return writer.op("CONV_2D", [image, weights, bias], [(1, 4, 3, 3)], options=options)


def _projected(writer: ModelWriter) -> TensorRef:
    """An operation whose last operand is absent: there is no bias."""
    rows, weights = writer.constant(random(4, 3)), writer.constant(random(5, 3))
    return writer.op("FULLY_CONNECTED", [rows, weights, None], [(4, 5)])


def _logarithm(writer: ModelWriter) -> TensorRef:
    """Casts that state no types, as litert-torch writes them."""
    powers = writer.constant(np.array([1.0, 3.0, 9.0], np.float32))
    whole = writer.op("CAST", [writer.op("LOG", [powers], [(3,)])], [(3,)], dtype="int32")
    return writer.op("CAST", [whole], [(3,)])


def _chosen_places(writer: ModelWriter) -> TensorRef:
    """Two operations whose results are as long as their operands tell."""
    truth = writer.constant(np.array([[True, False, True], [False, False, True]]))
    places = writer.op("WHERE", [truth], [(3, 2)], dtype="int64")
    whole = writer.constant(np.array([2, 0], np.int64))
    column = writer.op("GATHER", [places, writer.constant(np.int32(0))], [(2,)], dtype="int64")
    both = writer.op("ADD", [column, whole], [(2,)], dtype="int64")
    options, dtypes = {"idx_out_type": "INT32"}, ["int64", "int32"]
    values, _ = writer.multi("UNIQUE", [both], [(2,), (2,)], options=options, dtypes=dtypes)
    options = {"in_data_type": "INT64", "out_data_type": "FLOAT32"}
    return writer.op("CAST", [values], [(2,)], options=options)


@pytest.mark.parametrize(
    "make",
    [
        _chosen_places,
        *(_chosen_floats, _many_integers, _repeated, _largest, _dequantized, _filtered),
        *(_projected, _logarithm, _filtered_by_halves),
    ],
)
def test_constants_are_computed_once_by_the_cpu(make: Callable[[ModelWriter], TensorRef]) -> None:
    """Whatever the operation, litegpu may have no kernel for it."""
    writer = ModelWriter()
    found = make(writer)
    x = writer.input(found.shape)
    writer.output(writer.op("SUB", [x, found], [found.shape]))
    model = writer.build()
    delegate = GpuDelegate(precision="fp32")
    target = interpreter(model, delegate)
    assert delegate.report is not None and delegate.report.whole_graph, str(delegate.report)
    assert [each.kernels for each in delegate.report.partitions] == [1]
    values = random(*found.shape)
    (wanted,), (got,) = reference(model, values), run(target, values)
    np.testing.assert_array_equal(got, wanted)


def _broadcast(size: int) -> Graph:
    one = Value(0, "one", (1,), DType.FLOAT32, np.ones(1, np.float32))
    wide = Value(1, "wide", (1,), DType.INT32, np.array([size], np.int32))
    values = {0: one, 1: wide, 2: Value(2, "result", (1,), DType.FLOAT32)}
    return Graph(values, (Node(0, "BROADCAST_TO", 2, (0, 1), (2,)),), (), ())


def test_what_the_cpu_computes_has_a_budget() -> None:
    graph, budget = _broadcast(100), fold.Budget(left=1000, runs=4)
    found = [fold.evaluate(graph, graph.nodes[0], budget) is not None for _ in range(4)]
    assert found == [True, True, False, False]
    assert (budget.left, budget.runs) == (200, 0)
    for small in (fold.Budget(runs=0), fold.Budget(operations=0)):
        assert fold.evaluate(graph, graph.nodes[0], small) is None
    large = _broadcast(1 << 30)
    assert fold.evaluate(large, large.nodes[0], fold.Budget()) is None


def test_a_budget_grows_with_the_constants_of_a_graph() -> None:
    weights = np.zeros(1 << 20, np.int8)
    values = {v: Value(v, "", weights.shape, DType.INT8, weights) for v in range(3)}
    assert fold.Budget.of(Graph(values, (), (), ())).left == (1 << 24) + (4 << 20)


def test_a_single_number_is_an_array_too() -> None:
    """The runtime's Python gives single numbers as scalars, which no fingerprint can hold."""
    found = fold.constant(Value(0, "sum", (), DType.FLOAT32), np.float32(2))  # type: ignore[arg-type]
    assert isinstance(found.data, np.ndarray)
    assert found.shape == ()


def test_without_a_runtime_constants_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = _broadcast(3)
    monkeypatch.setattr(kernels, "RUNTIMES", ("no_such_runtime",))
    assert fold.evaluate(graph, graph.nodes[0], fold.Budget()) is None
    monkeypatch.undo()
    assert fold.evaluate(graph, graph.nodes[0], fold.Budget()) is not None


@pytest.mark.parametrize(
    ("op", "params"),
    [
        ("RANDOM_UNIFORM", {"seed": 1, "seed2": 2}),
        ("IF", {"then_subgraph_index": 1, "else_subgraph_index": 2}),
        ("LEAKY_RELU", {}),  # its factor is not known
        ("NO_SUCH_OPERATION", {}),
        ("CONV_2D", {}),
    ],
)
def test_nodes_that_the_cpu_is_not_asked_to_compute(op: str, params: dict[str, int]) -> None:
    graph = _broadcast(3)
    node = Node(0, op, 1, (1,), (2,), params)
    assert fold.evaluate(graph, node, fold.Budget()) is None


def test_absent_operands_are_not_shown_to_the_cpu() -> None:
    """BATCH_TO_SPACE_ND would end the process."""
    graph = _broadcast(3)
    node = Node(0, "BATCH_TO_SPACE_ND", 1, (ABSENT, 1, 1), (2,))
    assert fold.evaluate(graph, node, fold.Budget()) is None


@pytest.mark.parametrize("op", sorted(PARAMS.keys() - {"STABLEHLO_COMPOSITE"}))
def test_parameters_are_options_of_the_file(op: str) -> None:
    """An operation is written as it was read."""
    names = schema.option_names(op) - kernels.NO_PARAMETERS
    fields = [(name, kind) for name, kind in PARAMS[op] if not name.startswith("num_")]
    fields += [("num_splits", "int32")] * (op in ("SPLIT", "SPLIT_V"))
    fields += [("num_bits", "int32")] * (op == "FAKE_QUANT")
    assert {kernels.OPTIONS.get(name, name) for name, _ in fields} == names
