"""WHILE: counted loops run in a partition, others in batches of iterations or on the CPU."""

from __future__ import annotations

import copy
import ctypes
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cases.base import SUMS, Sheet
from cases.while_loop import Numbered
from comparing import mismatch
from cuda_emulator import EmulatedDevice
from every_backend import open_device
from litegpu import Composite, DelegationReport, GpuDelegate
from litegpu.backends.base import Device
from litegpu.delegation.cost_model import CostModel
from litegpu.engine.loop import DeviceLoop
from litegpu.engine.partition import compile_partition
from litegpu.graph import DType, Graph, Node, Quantization, Value
from litegpu.numeric_policy import FP32
from litegpu.ops import while_loop
from litegpu.ops.common.support import check_support
from litegpu.ops.common.work import work_of
from litegpu.runtime_abi import interpreter as runtime
from litegpu.runtime_abi import structs
from litegpu.runtime_abi.file import ModelFile
from litegpu.zoo.writer import ModelWriter, TensorRef
from loop_models import Carried, composite, counted, loop, recurrent, run_loop, with_row
from model_runner import cpu_answers, invoke
from small_models import CPU_ONLY, CPU_OPTIONS, WHY_ON_CPU, step

Inputs = list[npt.NDArray[Any]]


def both(model: bytes, inputs: Inputs, limit: float = SUMS, **options: Any) -> DelegationReport:
    """Require the CPU's results of a delegate, and return what it did."""
    delegate = GpuDelegate(**options)
    interpreter = runtime.interpreter(model, delegate, builtin_kernels=True)
    (expected,) = cpu_answers(model, [inputs])
    for number, (wanted, found) in enumerate(
        zip(expected, invoke(interpreter, inputs), strict=True)
    ):
        if wanted.dtype == np.float32:
            assert not (problem := mismatch(wanted, found, limit)), f"output {number}: {problem}"
        else:
            np.testing.assert_array_equal(wanted, found)
    assert delegate.error is None
    assert delegate.report is not None
    return delegate.report


def reason(report: DelegationReport) -> str:
    """Return why the loop of a model stays on the CPU."""
    (found,) = (node.reason for node in report.rejected if node.op == "WHILE")
    return found


@pytest.fixture
def file_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runtime not say where the model's file is."""
    monkeypatch.setattr(ModelFile, "around", lambda _tensor: None)


def noise(*shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("hybrid", [False, True], ids=["float", "hybrid"])
@pytest.mark.parametrize(("gru", "batch"), [(False, 1), (True, 3)], ids=["lstm", "gru"])
def test_recurrent_layers(gru: bool, batch: int, hybrid: bool, precision: str) -> None:
    """Two layers, the second backward, of 4 and 3 steps' states."""
    writer = ModelWriter()
    x = writer.input((4, batch, 5))
    first = recurrent(writer, x, 6, gru=gru, backward=False, seed=1, hybrid=hybrid)
    writer.output(recurrent(writer, first, 3, gru=not gru, backward=True, seed=2, hybrid=hybrid))
    limit = SUMS if precision == "fp32" and not hybrid else 1e-2
    report = both(writer.build(), [noise(4, batch, 5)], limit, precision=precision)
    assert report.whole_graph
    assert report.subgraphs == ()  # bodies that nobody runs are not compiled
    assert [part.nodes for part in report.partitions] == [(0, 1, 2)]


def decaying(passes: int | None, start: int = 0, shape: tuple[int, ...] = (2, 5)) -> bytes:
    """Return a model that halves its input some times, as a carried value says without `passes`.

    The body does nothing with its counter but count.
    """
    writer = ModelWriter()
    x = writer.input(shape)
    carried: Carried = (writer.constant(start, np.int32), x)
    if passes is None:
        carried = (*carried, writer.input((), np.int32, name="passes"))

    def body(inner: ModelWriter, values: Carried) -> list[TensorRef]:
        half = inner.op("MUL", [values[1], inner.constant(np.float32(0.5))], [shape])
        return [counted(inner, values[0]), half, *values[2:]]

    writer.output(*loop(writer, carried, body, passes)[:2])
    return writer.build()


@pytest.mark.parametrize(("passes", "start"), [(0, 0), (1, 0), (3, 0), (5, 3), (256, 0)])
def test_the_passes_of_a_loop(passes: int, start: int) -> None:
    assert both(decaying(passes, start), [noise(2, 5)]).whole_graph


@pytest.mark.parametrize(("passes", "most", "whole"), [(3, 64, True), (3, 1, False)])
def test_a_state_of_constants_is_computed_by_the_cpu(
    monkeypatch: pytest.MonkeyPatch, passes: int, most: int, whole: bool
) -> None:
    """The first pass of ConvLSTM2D convolves zeros; GPU nodes need a computed input."""
    monkeypatch.setattr(while_loop, "_MAX_RUNS", most)
    writer = ModelWriter()
    state, weights = writer.constant(np.zeros((1, 3, 4, 2), np.float32)), noise(2, 3, 3, 2)
    carried = (writer.constant(0, np.int32), state, writer.input((1, 3, 4, 2)))

    def body(inner: ModelWriter, values: Carried) -> list[TensorRef]:
        count, state, x = values
        options = {"padding": "SAME", "stride_w": 1, "stride_h": 1}
        operands = [state, inner.constant(weights), inner.constant(noise(2))]
        convolved = inner.op("CONV_2D", operands, [(1, 3, 4, 2)], options=options)
        bent = inner.op("TANH", [convolved], [(1, 3, 4, 2)])
        return [counted(inner, count), inner.op("ADD", [bent, x], [(1, 3, 4, 2)]), x]

    writer.output(loop(writer, carried, body, passes)[1])
    report = both(writer.build(), [noise(1, 3, 4, 2)])
    assert report.whole_graph is whole
    if not whole:
        assert "node has 0 runtime input(s)" in reason(report)


def test_a_loop_of_too_many_passes() -> None:
    found = reason(both(decaying(257), [noise(2, 5)]))
    assert found == "The loop has more than 256 iterations."


@pytest.mark.parametrize(
    ("order", "handed"),
    [
        (lambda a, b, s: (a, b, s), ""),
        (lambda a, b, s: (a, s, b), "The body returns input 2 as result 3, "),
        (lambda a, b, s: (b, s, a), "The body returns input 1 as result 3, "),
        (lambda a, b, s: (b, a, s), "The body returns input 1 as result 2, "),
        (lambda a, b, s: (b, s, s), ""),
        (lambda a, b, s: (a, b, a), ""),
    ],
)
def test_bodies_that_hand_inputs_on(
    order: Callable[[TensorRef, TensorRef, TensorRef], Carried], handed: str
) -> None:
    """The CPU copies the results to the inputs one by one: some are overwritten before."""
    writer = ModelWriter()
    carried = (writer.constant(0, np.int32), *(writer.input((2, 3)) for _ in range(3)))

    def body(inner: ModelWriter, values: Carried) -> list[TensorRef]:
        count, a, b, c = values
        total = inner.op("ADD", [inner.op("ADD", [a, b], [(2, 3)]), c], [(2, 3)])
        return [counted(inner, count), *order(a, b, total)]

    writer.output(*loop(writer, carried, body, 3)[1:])
    report = both(writer.build(), [noise(2, 3), 2 * noise(2, 3), 3 * noise(2, 3)])
    assert report.whole_graph is not bool(handed)
    if handed:
        assert reason(report) == f"{handed}which the CPU may overwrite first."


@pytest.mark.usefixtures("file_unknown")
def test_without_its_file_a_loop_stays_on_the_cpu() -> None:
    model = decaying(2)
    delegate = GpuDelegate()
    runtime.load().Interpreter(model_content=model, experimental_delegates=[delegate])
    assert delegate.report is not None
    assert (
        reason(delegate.report)
        == "The body is read from the model file: pass GpuDelegate(model=...)."
    )


def test_the_file_is_found_around_a_constant_of_the_runtime() -> None:
    model = ctypes.create_string_buffer(decaying(2))
    begin, size = ctypes.addressof(model), len(model) - 1
    words = (ctypes.c_uint64 * 5)(0, 0, 0, begin, size)
    tensor = structs.TfLiteTensor(data=begin + 64, bytes=size - 64)
    assert ModelFile.around(tensor) is None
    tensor.allocation = ctypes.addressof(words)
    assert (found := ModelFile.around(tensor)) is not None
    nodes = [Node(0, "LESS", 1, (0, 2), (3,)), Node(1, "ADD", 1, (0, 1), (2,))]
    whole = ModelFile.open(model.raw[:-1])
    assert found.graph_io(1, nodes) == whole.graph_io(1, nodes)
    for lie in ({"bytes": size}, {"data": begin - 1}, {"data": None}):
        other = structs.TfLiteTensor(data=begin, bytes=8, allocation=tensor.allocation)
        for name, value in lie.items():
            setattr(other, name, value)
        assert (ModelFile.around(other) is None) == (lie != {"bytes": size})
    words[4] -= 1
    assert ModelFile.around(tensor) is None
    words[4] += 1
    ctypes.memmove(begin + 4, b"TFLX", 4)
    assert ModelFile.around(tensor) is None


@pytest.mark.parametrize("kind", ["bytes", "path"])
def test_the_delegate_takes_the_file_of_a_plain_interpreter(kind: str, tmp_path: Path) -> None:
    model, path = decaying(2), tmp_path / "loop.tflite"
    path.write_bytes(model)
    delegate = copy.copy(GpuDelegate(model=model if kind == "bytes" else path))
    runtime.load().Interpreter(model_content=model, experimental_delegates=[delegate])
    assert delegate.report is not None
    assert delegate.report.whole_graph


def test_the_file_of_another_model() -> None:
    delegate = GpuDelegate(model=decaying(None))
    runtime.load().Interpreter(model_content=decaying(2), experimental_delegates=[delegate])
    assert re.search(
        "Graph 2 of the delegate's model differs from the interpreter's", str(delegate.error)
    )


def test_a_file_that_is_not_there() -> None:
    delegate = GpuDelegate(model="nowhere.tflite")
    runtime.load().Interpreter(model_content=decaying(2), experimental_delegates=[delegate])
    assert re.search("The delegate's model 'nowhere.tflite' cannot be read", str(delegate.error))


def test_other_shapes() -> None:
    model = decaying(3)
    interpreters = [
        runtime.interpreter(model, delegate, builtin_kernels=True)
        for delegate in (None, GpuDelegate())
    ]
    for shape in ((4, 3), (2, 5), (1, 7)):
        results = []
        for each in interpreters:
            each.resize_tensor_input(each.get_input_details()[0]["index"], shape)
            each.allocate_tensors()
            results.append(invoke(each, [noise(*shape)])[1])
        np.testing.assert_array_equal(results[0], results[1])


def test_rows_that_are_updated() -> None:
    """DYNAMIC_UPDATE_SLICE moves what would reach out of the rows back into them."""
    writer = ModelWriter()
    x = writer.input((2, 3))
    rows = writer.input((5, 3))

    def body(inner: ModelWriter, values: Carried) -> list[TensorRef]:
        step, old, update = values
        one = inner.constant([1], np.int32)
        row = inner.op("RESHAPE", [step, one], [(1,)], dtype=np.int32)
        begin = inner.op(
            "CONCATENATION", [row, inner.constant([0], np.int32)], [(2,)], dtype=np.int32
        )
        update = inner.op("NEG", [update], [update.shape])
        old = inner.op("DYNAMIC_UPDATE_SLICE", [old, update, begin], [old.shape])
        return [counted(inner, step), old, update]

    writer.output(*loop(writer, (writer.constant(2, np.int32), rows, x), body, 6)[1:])
    assert both(writer.build(), [noise(2, 3), noise(5, 3)]).whole_graph


@pytest.mark.parametrize("updated", [False, True], ids=["joined", "updated"])
def test_rows_that_begin_as_half_constants(updated: bool) -> None:
    """With float16 weights, converters also store the zeros of a sequence as float16."""
    writer = ModelWriter()
    x = writer.input((2, 3))
    stored = writer.constant(noise(5, 2, 3), np.float16)
    rows = writer.op("DEQUANTIZE", [stored], [(5, 2, 3)], version=2)

    def body(inner: ModelWriter, values: Carried) -> list[TensorRef]:
        step, old, row = values
        row, after = inner.op("NEG", [row], [row.shape]), counted(inner, step)
        if not updated:
            return [after, with_row(inner, old, row, step, after), row]
        first = inner.op("RESHAPE", [step, inner.constant([1], np.int32)], [(1,)], dtype=np.int32)
        parts = [first, inner.constant([0, 0], np.int32)]
        begin = inner.op("CONCATENATION", parts, [(3,)], dtype=np.int32)
        wide = inner.op("RESHAPE", [row, inner.constant([1, 2, 3], np.int32)], [(1, 2, 3)])
        return [after, inner.op("DYNAMIC_UPDATE_SLICE", [old, wide, begin], [old.shape]), row]

    writer.output(*loop(writer, (writer.constant(0, np.int32), rows, x), body, 3)[1:])
    assert both(writer.build(), [noise(2, 3)]).whole_graph


def loop_in_a_loop(passes: int, steps: tuple[str, ...]) -> bytes:
    """Return a model of 2 passes of a loop whose inner one runs as often as the outer counter says.

    It takes so many `passes` more; `steps` are what the innermost body computes.
    """
    writer = ModelWriter()
    x = writer.input((2, 3))

    def inner_body(inner: ModelWriter, values: Carried) -> list[TensorRef]:
        y = values[1]
        for op in steps:
            y = inner.op(op, [y], [(2, 3)])
        return [counted(inner, values[0]), y, values[2]]

    def body(inner: ModelWriter, values: Carried) -> list[TensorRef]:
        count = inner.constant(passes, np.int32)
        limit = inner.op("ADD", [values[0], count], [()], dtype=np.int32)
        carried = (inner.constant(0, np.int32), values[1], limit)
        found = loop(inner, carried, inner_body, None)
        scaled = inner.op("MUL", [found[1], inner.constant(np.float32(1.5))], [(2, 3)])
        return [counted(inner, values[0]), scaled]

    writer.output(loop(writer, (writer.constant(0, np.int32), x), body, 2)[1])
    return writer.build()


def test_a_loop_in_a_loop() -> None:
    """The inner one runs 0 times in the first pass, and once in the second, or more often."""
    for passes in (0, 2):
        report = both(loop_in_a_loop(passes, ("SIN", "NEG")), [noise(2, 3)])
        assert report.whole_graph
        assert not report.subgraphs


def test_loops_in_loops_that_run_too_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that only count take no kernels, and all the time in the world."""
    monkeypatch.setattr(while_loop, "_MAX_STEPS", 40)
    found = reason(both(loop_in_a_loop(9, ()), [noise(2, 3)]))
    assert found == "Node 1 of its body (WHILE): The iterations run more than 40 nodes."


def test_a_loop_in_a_composite() -> None:
    writer = ModelWriter()
    x = writer.input((2, 3))

    def body(inner: ModelWriter, values: Carried) -> list[TensorRef]:
        return [counted(inner, values[0]), inner.op("SIN", [values[1]], [(2, 3)])]

    def outer(inner: ModelWriter, given: Carried) -> list[TensorRef]:
        return [loop(inner, (inner.constant(0, np.int32), given[0]), body, 3)[1]]

    writer.output(*composite(writer, (x,), outer))
    report = both(writer.build(), [noise(2, 3)])
    assert report.whole_graph
    assert not report.subgraphs
    assert report.composites == (Composite("odml.test", (0,), 1),)


def test_an_inner_loop_whose_passes_hang_on_data() -> None:
    writer = ModelWriter()
    x, limit = writer.input((2, 3)), writer.input((), "int32")

    def inner_body(inner: ModelWriter, values: Carried) -> list[TensorRef]:
        y = inner.op("NEG", [values[1]], [(2, 3)])
        return [counted(inner, values[0]), y, values[2]]

    def body(inner: ModelWriter, values: Carried) -> list[TensorRef]:
        carried = (inner.constant(0, np.int32), *values[1:])
        return [counted(inner, values[0]), *loop(inner, carried, inner_body, None)[1:]]

    writer.output(loop(writer, (writer.constant(0, np.int32), x, limit), body, 2)[1])
    found = reason(both(writer.build(), [noise(2, 3), np.array(3, np.int32)]))
    assert found.endswith(
        "of its body (WHILE): The number of iterations is known only when the model runs."
    )


def test_a_body_that_the_cpu_must_run() -> None:
    writer = ModelWriter()
    x = writer.input((2, 6))

    def body(inner: ModelWriter, values: Carried) -> list[TensorRef]:
        return [counted(inner, values[0]), step(inner, CPU_ONLY, values[1])]

    writer.output(loop(writer, (writer.constant(0, np.int32), x), body, 2)[1])
    found = reason(both(writer.build(), [noise(2, 6)]))
    assert found == f"Node 1 of its body ({CPU_ONLY}): {WHY_ON_CPU}"


@pytest.mark.parametrize("passes", [0, 1, 3])
def test_a_sequence_that_grows(passes: int) -> None:
    writer = ModelWriter()
    x = writer.input((2, 3))

    def x_of(inner: ModelWriter) -> TensorRef:
        return inner.constant(noise(1, 3))

    def body(inner: ModelWriter, values: Carried) -> list[TensorRef]:
        grown = inner.op("CONCATENATION", [values[1], x_of(inner)], [(-1, 3)])
        return [counted(inner, values[0]), inner.op("NEG", [grown], [(-1, 3)])]

    last = loop(writer, (writer.constant(0, np.int32), x), body, passes)[1]
    factor = writer.constant(np.float32(2.0))
    writer.output(last, writer.op("MUL", [last, factor], [(2 + passes, 3)]))
    report = both(writer.build(), [noise(2, 3)])
    assert report.whole_graph, report.rejected


def test_a_constant_that_others_read() -> None:
    writer = ModelWriter()
    x = writer.input((2, 3))

    def body(inner: ModelWriter, values: Carried) -> list[TensorRef]:
        return [counted(inner, values[0]), inner.op("NEG", [values[1]], [(2, 3)])]

    count, y = loop(writer, (writer.constant(0, np.int32), x), body, 2)
    writer.output(y, writer.op("NEG", [count], [()], dtype=np.int32))
    found = reason(both(writer.build(), [noise(2, 3)]))
    assert re.fullmatch(r"The loop's result \d+ is a constant, which other nodes read\.", found)


def value(
    v: int, shape: tuple[int, ...] = (), dtype: DType = DType.FLOAT32, **fields: Any
) -> Value:
    return replace(Value(v, "", shape, dtype), **fields)


def fixed(v: int, *elements: int) -> Value:
    return value(v, (len(elements),), DType.INT32, data=np.array(elements, np.int32))


COUNTER = value(0, (), DType.INT32)
LIMIT = replace(COUNTER, id=1, data=np.array(2, np.int32))
CONDITION = Graph(
    {0: COUNTER, 1: LIMIT, 2: value(2, (), DType.BOOL), 3: value(3, (4, 3))},
    (Node(0, "LESS", 1, (0, 1), (2,)),),
    (0, 3),
    (2,),
)
STEP = {0: COUNTER, 1: replace(LIMIT, data=np.array(1, np.int32)), 2: replace(COUNTER, id=2)}
COUNT = Node(0, "ADD", 1, (0, 1), (2,))
SCALED = Quantization((0.5,), (0,))


def body(changed: dict[int, Value], *nodes: Node, outputs: tuple[int, ...] = (2, 3)) -> Graph:
    return Graph({**STEP, 3: value(3, (4, 3)), **changed}, (COUNT, *nodes), (0, 3), outputs)


BODIES = {
    "The inputs and outputs of the condition and the body are not those of the loop.": body(
        {}, outputs=(2,)
    ),
    "The body refers to tensors that the model does not have.": body(
        {}, Node(1, "ABS", 1, (3,), (9,))
    ),
    "The body has variable tensors.": body({9: value(9, is_variable=True)}),
    "The body computes with quantized tensors.": body(
        {9: value(9, (), DType.INT8, quantization=SCALED)}
    ),
    "Tensor 3, which the loop carries, has another type in the body.": body(
        {3: value(3, (4, 3), DType.INT32)}
    ),
    "The body updates rows, but tensor 12 has no elements or an unknown size: [0, 3].": body(
        {4: fixed(4, 1, 0), 5: fixed(5, 0, 3), 6: value(6, (0, 3)), 7: value(7, (0, 3))},
        Node(1, "SLICE", 1, (3, 4, 5), (6,)),
        Node(2, "NEG", 1, (6,), (7,)),
    ),
}
"""Bodies that are not unrolled, by the reasons."""


@pytest.mark.parametrize("wanted", BODIES)
def test_bodies_that_are_not_unrolled(wanted: str) -> None:
    node = Node(0, "WHILE", 1, (1, 3), (4, 5), graphs=(CONDITION, BODIES[wanted]))
    results = {4: replace(COUNTER, id=4), 5: value(5, (4, 3))}
    graph = Graph({1: LIMIT, 3: value(3, (4, 3)), **results}, (node,), (3,), (5,))
    zero = {1: replace(LIMIT, data=np.array(0, np.int32))}
    graph = replace(graph, values={**graph.values, **zero})
    assert check_support(graph).reasons == {0: wanted}
    assert work_of(graph, node).launches == 1


@pytest.mark.parametrize(("axis", "whole", "inputs"), [(0, (4, 3), [2]), (1, (2, 6), [1, 2])])
def test_a_sequence_that_begins_without_elements(
    axis: int, whole: tuple[int, ...], inputs: list[int]
) -> None:
    """Files may store such a constant so that the runtime recognizes it."""
    rows, nothing = value(8, (2, 3)), (0, 3) if axis == 0 else (2, 0)
    grown = Node(1, "CONCATENATION", 1, (3, 8), (9,), {"axis": axis, "activation": "none"})
    changed = {3: value(3, nothing), 8: rows, 9: value(9, (2, 3))}
    inner = replace(body(changed, grown), inputs=(0, 3, 8), outputs=(2, 9, 8))
    condition = replace(CONDITION, values={**CONDITION.values, 8: rows}, inputs=(0, 3, 8))
    node = Node(0, "WHILE", 1, (7, 3, 8), (4, 5, 6), graphs=(condition, inner))
    start = replace(COUNTER, id=7, data=np.array(0, np.int32))
    empty = value(3, nothing, data=np.zeros(nothing, np.float32))
    results = {4: replace(COUNTER, id=4), 5: value(5, whole), 6: value(6, (2, 3))}
    graph = Graph({7: start, 3: empty, 8: rows, **results}, (node,), (8,), (5,))
    assert check_support(graph).reasons == {}
    unrolled = while_loop.inline_graphs(graph)
    assert unrolled.values[5].shape == whole
    joins = [each for each in unrolled.nodes if each.op == "CONCATENATION"]
    assert [len(each.inputs) for each in joins] == inputs


def test_a_condition_that_is_no_single_truth_value() -> None:
    limit = replace(LIMIT, data=np.array([[2]], np.int32), shape=(1, 1))
    condition = replace(CONDITION, values={**CONDITION.values, 1: limit})
    node = Node(0, "WHILE", 1, (1, 3), (4, 5), graphs=(condition, body({}, outputs=(2, 3))))
    values = {1: LIMIT, 3: value(3, (4, 3)), 4: replace(COUNTER, id=4), 5: value(5, (4, 3))}
    wanted = "The condition returns bool [1, 1] instead of one bool."
    assert check_support(Graph(values, (node,), (3,), (5,))).reasons == {0: wanted}


def test_a_body_that_never_runs_is_checked_all_the_same() -> None:
    """The CPU prepares it, and refuses what it could not run."""
    inner = body({9: value(9, (4, 3))}, Node(1, CPU_ONLY, 1, (3, 3), (9,), CPU_OPTIONS))
    node = Node(0, "WHILE", 1, (1, 3), (4, 5), graphs=(CONDITION, inner))
    values = {1: LIMIT, 3: value(3, (4, 3)), 4: replace(COUNTER, id=4), 5: value(5, (4, 3))}
    wanted = f"Node 1 of its body ({CPU_ONLY}): {WHY_ON_CPU}"
    assert check_support(Graph(values, (node,), (3,), (5,))).reasons == {0: wanted}


def test_an_unknown_number_of_passes_over_variables() -> None:
    handle = Node(1, "VAR_HANDLE", 1, (), (8,), {"shared_name": "state"})
    reading = Node(2, "READ_VARIABLE", 1, (8,), (9,))
    changed = {8: value(8, (), DType.OTHER), 9: value(9, (4, 3))}
    inner = body(changed, handle, reading, outputs=(2, 9))
    node = Node(0, "WHILE", 1, (1, 3), (4, 5), graphs=(CONDITION, inner))
    results = {4: replace(COUNTER, id=4), 5: value(5, (4, 3))}
    start = replace(COUNTER, id=1)
    graph = Graph({1: start, 3: value(3, (4, 3)), **results}, (node,), (1, 3), (4, 5))
    wanted = "The iterations read or assign variables, and the number of iterations is unknown."
    assert check_support(graph).reasons == {0: wanted}


ROWS = value(0, (2, 3))
SAME = Graph({0: ROWS}, (), (0,), (0,))
NEGATED = Graph({0: ROWS, 1: value(1, (2, 3))}, (Node(0, "NEG", 1, (0,), (1,)),), (0,), (1,))
TWICE = Graph(
    {0: ROWS, 1: value(1, (4, 3))},
    (Node(0, "CONCATENATION", 1, (0, 0), (1,), {"axis": 0}),),
    *((0,), (1,)),
)
READING = Graph(
    {0: ROWS, 1: value(1, (), DType.OTHER), 2: value(2, (2, 3))},
    (Node(0, "READ_VARIABLE", 1, (1,), (2,)),),
    *((0,), (2,)),
)


@pytest.mark.parametrize(
    ("other", "selection", "wanted"),
    [
        (
            SAME,
            value(1, (2,), DType.BOOL),
            "The branch is selected by BOOL [2] instead of one BOOL.",
        ),
        (
            SAME,
            value(1, (), DType.INT32),
            "The branch is selected by INT32 [] instead of one BOOL.",
        ),
        (
            TWICE,
            value(1, (), DType.BOOL),
            "The branches return values of [2, 3] and [4, 3], but all must have the same shape.",
        ),
        (READING, value(1, (), DType.BOOL), "The branches read or assign variables."),
        (
            NEGATED,
            value(1, (), DType.BOOL),
            "The branches compute 6 operations, but only one branch is selected.",
        ),
    ],
)
def test_branches_that_stay_on_the_cpu(
    other: Graph, selection: Value, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(while_loop, "_MAX_WORK", 5 if other is NEGATED else 1000)
    node = Node(0, "IF", 1, (1, 0), (2,), graphs=(SAME, other))
    graph = Graph({0: ROWS, 1: selection, 2: value(2, (2, 3))}, (node,), (0, 1), (2,))
    assert check_support(graph).reasons == {0: wanted}


def test_a_branch_without_a_condition() -> None:
    constant = Graph({0: replace(ROWS, data=np.zeros((2, 3), np.float32))}, (), (), (0,))
    node = Node(0, "IF", 1, (), (2,), graphs=(constant, constant))
    graph = Graph({2: value(2, (2, 3))}, (node,), (), (2,))
    assert check_support(graph).reasons == {0: "The loop has no condition."}


@pytest.mark.parametrize("fixed_number", [None, -1, 1, 9])
def test_branches_by_number(fixed_number: int | None) -> None:
    sheet = Sheet()
    sheet.add(Numbered(count=3, fixed=fixed_number))
    model, x = sheet.writer.build(), noise(2, 3, 5)
    for number in (-1, 0, 1, 2, 3) if fixed_number is None else (0,):
        given = [np.array(number, np.int32)] * (fixed_number is None)
        assert not both(model, [x, *given]).rejected


def test_a_loop_of_too_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(while_loop, "_MAX_NODES", 3)
    found = reason(both(decaying(4), [noise(2, 5)]))
    assert found == "The iterations have more than 3 nodes."


def test_the_work_of_a_loop_is_that_of_its_passes() -> None:
    halving = body({4: value(4, (4, 3))}, Node(1, "NEG", 1, (3,), (4,)), outputs=(2, 4))
    node = Node(0, "WHILE", 1, (1, 3), (4, 5), graphs=(CONDITION, halving))
    zero = replace(LIMIT, data=np.array(0, np.int32))
    values = {1: zero, 3: value(3, (4, 3)), 4: replace(COUNTER, id=4), 5: value(5, (4, 3))}
    work = work_of(Graph(values, (node,), (3,), (5,)), node)
    assert work.flops == 2 * 12
    assert work.inner_nodes == 2 * 3


def test_a_cache_tells_bodies_apart(tmp_path: Path) -> None:
    for passes in (2, 3, 2):
        assert both(decaying(passes), [noise(2, 5)], serialization_dir=str(tmp_path)).whole_graph


def test_a_damaged_file_has_no_graphs() -> None:
    """The runtime refuses it; but nobody knows which file a delegate is given."""
    model, ends = decaying(2), ((0, 1), (5, 3))
    nodes = Node(0, "MUL", 1, (1, 2), (3,)), Node(1, "ADD", 1, (0, 4), (5,))
    assert ModelFile.open(model).graph_io(2, nodes) == ends
    for size in range(0, len(model), 5):
        assert ModelFile.open(model[:size]).graph_io(2, nodes) in (None, ends)
        damaged = model[:size] + b"\xff" + model[size + 1 :]
        ModelFile.open(damaged).graph_io(2, nodes)
    for number in (-1, 1, 9):
        assert ModelFile.open(model).graph_io(number, nodes) is None
    assert ModelFile.open(model).graph_io(2, nodes[:1]) is None


def pair(first: tuple[int, ...], second: tuple[int, ...]) -> bytes:
    """Return a model with a composite within a composite, of inputs with two shapes."""
    writer = ModelWriter()

    def outer(graph: ModelWriter, given: Carried) -> list[TensorRef]:
        found = composite(graph, given, inner)
        return [graph.op("NEG", [*found], [given[0].shape])]

    def inner(graph: ModelWriter, given: Carried) -> list[TensorRef]:
        return [graph.op("SUB", [*given], [given[0].shape])]

    given = writer.input(first), writer.input(second)
    writer.output(*composite(writer, given, outer))
    return writer.build()


def plain(model: bytes, inputs: Inputs) -> DelegationReport:
    """Require the CPU's results of a delegate that is not given the file."""
    delegate = GpuDelegate()
    interpreter = runtime.load().Interpreter(model_content=model, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    (expected,) = cpu_answers(model, [inputs])
    for wanted, found in zip(expected, invoke(interpreter, inputs), strict=True):
        np.testing.assert_array_equal(wanted, found)
    assert delegate.report is not None
    return delegate.report


@pytest.mark.usefixtures("file_unknown")
def test_composites_need_no_file_where_shapes_tell_their_inputs_apart() -> None:
    report = plain(pair((3, 5), (5,)), [noise(3, 5), noise(5)])
    assert (report.delegated_nodes, report.whole_graph) == ([0], True)
    assert not report.subgraphs


def test_composites_need_the_file_where_shapes_tell_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, inputs = pair((3, 5), (3, 5)), [noise(3, 5), noise(3, 5) * 2]
    monkeypatch.setattr(ModelFile, "around", lambda _tensor: None)
    (found,) = plain(model, inputs).rejected
    assert found.reason == "The body is read from the model file: pass GpuDelegate(model=...)."
    assert both(model, inputs).whole_graph


def growing() -> bytes:
    """Return a model that grows an image until its sum exceeds a limit, and counts the passes."""
    writer = ModelWriter()
    x, limit = writer.input((2, 5)), writer.input(())
    carried = (writer.constant(0, np.int32), x, limit, writer.constant(1, np.int64))
    condition, inner = writer.subgraph(), writer.subgraph()
    tested, given = (tuple(g.input(v.shape, v.dtype) for v in carried) for g in (condition, inner))
    total = condition.op("SUM", [tested[1], condition.constant([0, 1], np.int32)], [()])
    condition.output(condition.op("LESS", [total, tested[2]], [()], dtype=bool))
    weights = np.random.default_rng(0).uniform(0, 0.25, (5, 5)).astype(np.float32)
    y = inner.op("FULLY_CONNECTED", [given[1], inner.constant(weights), None], [(2, 5)])
    y = inner.op("ADD", [y, inner.op("ABS", [given[1]], [(2, 5)])], [(2, 5)])
    twice = inner.op("ADD", [given[3], given[3]], [()], dtype=np.int64)
    inner.output(counted(inner, given[0]), y, given[2], twice)
    writer.output(*run_loop(writer, carried, (condition.number, inner.number)))
    return writer.build()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Graph, Node]]:
    """Return a list of the loops that are checked, with their graphs."""
    found: list[tuple[Graph, Node]] = []
    real = while_loop.While.check

    def check(self: while_loop.While, graph: Graph, node: Node) -> str:
        found.append((graph, node))
        return real(self, graph, node)

    monkeypatch.setattr(while_loop.While, "check", check)
    return found


@pytest.mark.parametrize("name", ["opencl", "webgpu", "opengl", "emulated"])
@pytest.mark.parametrize("passes", [1, 4])
def test_passes_that_depend_on_data(name: str, passes: int, seen: list[tuple[Graph, Node]]) -> None:
    """After 0, 1 and more passes; those after the last one change nothing."""
    model = growing()
    runtime.interpreter(model, GpuDelegate(), builtin_kernels=True)
    graph, node = seen[0]
    batch = while_loop.batch_of(graph, node, passes)
    assert batch.carried == (0, 1, 3)
    device = EmulatedDevice() if name == "emulated" else open_device(name)
    compiled = compile_partition(batch.graph, device, FP32)
    x, submitted = np.abs(noise(2, 5)), 0
    run = DeviceLoop(batch, compiled, device)
    for limit in (0.0, 10.0, 300.0):
        (expected,) = cpu_answers(model, [[x, np.array(limit, np.float32)]])
        first = [np.array(0, np.int32), x, np.array(1, np.int64)]
        got = run.run(
            [each.reshape(-1).view(np.uint8) for each in first],
            {node.inputs[2]: np.array([limit], np.float32).view(np.uint8)},
        )
        for place, found in zip(batch.carried, got, strict=True):
            wanted = np.asarray(expected[place])
            shaped = found.view(wanted.dtype).reshape(wanted.shape)
            np.testing.assert_allclose(shaped, wanted, rtol=1e-5)
        submitted += max(-(-int(expected[0]) // passes), 1)
        assert run.submissions == submitted
    run.close()
    compiled.close()


def searching(random: np.random.Generator, size: int) -> tuple[bytes, Inputs]:
    """Return a model with a loop that stops by one of several carried values, and random inputs.

    It carries a counter, floats, a bool that a branch in the body decides about, and integers,
    one of them as many as the floats. There are nodes before and after the loop, and a counted
    loop in its body.
    """
    writer = ModelWriter()
    x, most, limit = writer.input((size,)), writer.input((), np.int32), writer.input(())
    start = step(writer, "ABS", x)
    whole = writer.op("CAST", [start], [(size,)], dtype=np.int32)
    carried = (writer.constant(0, np.int32), start, whole, writer.constant(False), most, limit)
    condition, inner = writer.subgraph(), writer.subgraph()
    tested, given = (tuple(g.input(v.shape, v.dtype) for v in carried) for g in (condition, inner))
    more = condition.op("LESS", [tested[0], tested[4]], [()], dtype=bool)
    going = condition.op("LOGICAL_NOT", [tested[3]], [()], dtype=bool)
    condition.output(condition.op("LOGICAL_AND", [more, going], [()], dtype=bool))
    factor = inner.constant(np.float32(random.uniform(0.5, 0.9)))

    def scaled(nested: ModelWriter, values: Carried) -> list[TensorRef]:
        by = nested.constant(np.float32(random.uniform(0.8, 1.2)))
        return [counted(nested, values[0]), nested.op("MUL", [values[1], by], [(size,)])]

    y = loop(inner, (inner.constant(0, np.int32), given[1]), scaled, 2)[1]
    largest = inner.op("REDUCE_MAX", [y, inner.constant([0], np.int32)], [()])
    small = inner.op("LESS", [largest, given[5]], [()], dtype=bool)
    branches = []
    for offset in random.integers(1, 9, 2):
        branch = inner.subgraph()
        chosen = branch.input((size,), np.int32)
        added = [chosen, branch.constant(offset, np.int32)]
        branch.output(branch.op("ADD", added, [(size,)], dtype=np.int32))
        branches.append(branch.number)
    names = ("then_subgraph_index", "else_subgraph_index")
    options = dict(zip(names, branches, strict=True))
    (counts,) = inner.multi("IF", [small, given[2]], [(size,)], options=options, dtypes=[np.int32])
    y = inner.op("MUL", [y, factor], [(size,)])
    inner.output(counted(inner, given[0]), y, counts, small, *given[4:])
    found = run_loop(writer, carried, (condition.number, inner.number))
    writer.output(step(writer, "NEG", found[1]), *found[:1], *found[2:4])
    values = random.normal(0, 3, size).astype(np.float32)
    passes, least = np.int32(random.integers(0, 9)), np.float32(random.uniform(0, 2))
    return writer.build(), [values, np.array(passes), np.array(least)]


@pytest.mark.parametrize("size", [7, 66000])
@pytest.mark.parametrize("backend", ["opencl", "webgpu", "opengl"])
def test_random_loops_that_depend_on_data(backend: str, size: int) -> None:
    """Nodes before and after the loop are in other partitions."""
    open_device(backend)
    for seed in range(2):
        model, inputs = searching(np.random.default_rng([seed, size]), size)
        report = both(model, inputs, backend=backend, max_delegated_partitions=3)
        assert not report.rejected
        assert not report.left_out
        assert sorted(part.loop_passes for part in report.partitions) == [0, 0, 1]


def test_a_loop_whose_passes_depend_on_data() -> None:
    for count in (0, 1, 5):
        report = both(decaying(None), [noise(2, 5), np.array(count, np.int32)])
        assert report.whole_graph
    assert (
        "partition 0 is a loop whose condition the GPU computes; the host reads the condition "
        "after every 1 iteration"
    ) in str(report)
    assert "whose condition the GPU computes" in report._repr_html_()


def test_two_loops_that_depend_on_data_and_other_shapes() -> None:
    """The first one's results are what the second starts from; then the input has more rows."""
    writer = ModelWriter()
    x, count = writer.input((2, 5)), writer.input((), np.int32)
    for _ in range(2):
        carried = (writer.constant(0, np.int32), x, count)

        def body(inner: ModelWriter, values: Carried) -> list[TensorRef]:
            half = inner.op("MUL", [values[1], inner.constant(np.float32(0.5))], [(2, 5)])
            return [counted(inner, values[0]), half, *values[2:]]

        x = loop(writer, carried, body, None)[1]
    writer.output(x)
    model, delegate = writer.build(), GpuDelegate(min_nodes_per_partition=1)
    interpreter = runtime.interpreter(model, delegate)
    for rows in (2, 4):
        given = noise(rows, 5)
        interpreter.resize_tensor_input(interpreter.get_input_details()[0]["index"], (rows, 5))
        interpreter.allocate_tensors()
        (found,) = invoke(interpreter, [given, np.array(3, np.int32)])
        np.testing.assert_array_equal(found, given / 64)
    assert delegate.report is not None
    assert [part.nodes for part in delegate.report.partitions] == [(0,), (1,)]


def test_a_loop_starts_again_on_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is lost after three passes: what the loop starts from is not lost with it."""
    delegate, inputs = GpuDelegate(), [noise(2, 5), np.array(5, np.int32)]
    interpreter = runtime.interpreter(decaying(None), delegate)
    interpreter.allocate_tensors()
    (kernel,) = delegate._kernels
    real = DeviceLoop._submit
    lost: list[Device] = []

    def submit(self: DeviceLoop, turn: int) -> None:
        if self.submissions == 3 and not lost:
            lost.append(kernel.device)
            kernel.device.lost = True
            raise kernel.device.loss("it is unplugged")
        real(self, turn)

    monkeypatch.setattr(DeviceLoop, "_submit", submit)
    count, halves = invoke(interpreter, inputs)
    np.testing.assert_array_equal(halves, inputs[0] / 32)
    assert count == 5
    assert lost[0].lost
    assert kernel.device is not lost[0]


def test_a_loop_that_never_ends_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count never reaches its limit; after that the interpreter works as before."""
    delegate, x = GpuDelegate(), noise(2, 5)
    interpreter = runtime.interpreter(decaying(None), delegate)
    interpreter.allocate_tensors()
    real = DeviceLoop._submit

    def submit(self: DeviceLoop, turn: int) -> None:
        real(self, turn)
        if self.submissions == 20:
            raise KeyboardInterrupt

    monkeypatch.setattr(DeviceLoop, "_submit", submit)
    with pytest.raises(KeyboardInterrupt):
        invoke(interpreter, [x, np.array(2**31 - 1, np.int32)])
    assert delegate.error is None
    count, halves = invoke(interpreter, [x, np.array(2, np.int32)])
    np.testing.assert_array_equal(halves, x / 4)
    assert count == 2


def test_the_profile_of_a_loop_is_that_of_a_batch() -> None:
    """Scalars among the model's inputs and outputs, too."""
    delegate, inputs = GpuDelegate(), [noise(2, 5), np.array(2, np.int32)]
    interpreter = runtime.interpreter(decaying(None), delegate)
    invoke(interpreter, inputs)
    (part,) = delegate.profile(interpreter, repeats=1, peaks=False).partitions
    assert delegate.report is not None
    assert len(part.kernels) == delegate.report.partitions[0].kernels
    assert invoke(interpreter, inputs)[0] == 2


def refused(kind: str) -> bytes:
    """Return a model with a loop whose number of passes depends on data, and something else."""
    writer = ModelWriter()
    x, limit = writer.input((2, 5)), writer.input((), np.int32)
    one = writer.op("RESHAPE", [limit, writer.constant([1], np.int32)], [(1,)], dtype=np.int32)
    carried = (writer.constant(0, np.int32), x, one if kind == "list" else limit)
    condition, inner = writer.subgraph(), writer.subgraph()
    tested, given = (tuple(g.input(v.shape, v.dtype) for v in carried) for g in (condition, inner))
    shape = (1,) if kind == "list" else ()
    condition.output(condition.op("LESS", [tested[0], tested[2]], [shape], dtype=bool))
    y = inner.op("ABS", [given[1]], [x.shape])
    if kind == "grows":
        y = inner.op("CONCATENATION", [y, y], [(4, 5)], options={"axis": 0})
    inner.output(counted(inner, given[0]), y, given[2])
    writer.output(*run_loop(writer, carried, (condition.number, inner.number)))
    return writer.build()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("list", "The condition returns BOOL [1] instead of one bool."),
        ("grows", "The shape of a carried tensor changes."),
    ],
)
def test_loops_that_depend_on_data_and_stay_on_the_cpu(kind: str, text: str) -> None:
    delegate = GpuDelegate()
    runtime.interpreter(refused(kind), delegate)
    assert delegate.report is not None
    assert reason(delegate.report) == text


def test_loops_that_pay_off(seen: list[tuple[Graph, Node]]) -> None:
    """One pass a batch if a pass is cheap on the CPU, and more if it takes long."""
    for size in (5, 1_000_000):
        runtime.interpreter(decaying(None, shape=(2, size)), GpuDelegate())
    found = {graph.values[node.inputs[1]].elements: graph for graph, node in seen}
    small, large = (CostModel(found[elements], "cuda") for elements in (10, 2_000_000))
    assert small.passes(0) == 1
    assert large.passes(0) > 1
    assert "dependent kernels" in small.slow_loops()[0]
    assert not large.slow_loops()
