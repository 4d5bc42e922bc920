"""Models whose files leave sizes open: nodes on the GPU before and after a resize."""

from __future__ import annotations

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from cases.base import Sheet
from cases.mediapipe import ArgmaxPool
from litegpu import GpuDelegate
from litegpu.compiled_model import CompiledModel
from litegpu.delegation.report import DelegationReport
from litegpu.runtime_abi.cpu_nodes import CpuNodes
from litegpu.zoo.writer import ModelWriter, TensorRef
from small_models import (
    CPU_ONLY,
    Array,
    assert_close,
    chain,
    convolution,
    interpreter,
    random,
    reference,
    run,
    step,
    waveform,
)

OPEN = (1, -1, -1, 8)
POOL = {"stride_h": 2, "stride_w": 2, "filter_height": 2, "filter_width": 2}


def report_of(delegate: GpuDelegate) -> DelegationReport:
    assert delegate.report is not None
    assert delegate.error is None
    return delegate.report


def resized(target: object, *inputs: Array) -> list[Array]:
    """Resize the inputs of an interpreter to the shapes of arrays, and run it."""
    for detail, value in zip(target.get_input_details(), inputs, strict=True):  # type: ignore[attr-defined]
        target.resize_tensor_input(detail["index"], value.shape)  # type: ignore[attr-defined]
    target.allocate_tensors()  # type: ignore[attr-defined]
    return run(target, *inputs)


def up_and_down() -> bytes:
    """Return a U-Net of one level for pictures of even sizes; the file states 1x1."""
    writer = ModelWriter()
    x = convolution(writer, writer.input((1, -1, -1, 3)), 8, seed=1)
    low = writer.op("MAX_POOL_2D", [x], [OPEN], options={"padding": "SAME", **POOL})
    shape = writer.op("SHAPE", [low], [(4,)], dtype="int32", options={"out_type": "INT32"})
    two = writer.constant(2, "int32", name="two")
    sizes: list[TensorRef] = [writer.constant(1, "int32", name="batch")]
    ones = writer.constant([1], "int32", name="ones")
    for axis in (1, 2):
        begin = writer.constant([axis], "int32", name=f"begin{axis}")
        end = writer.constant([axis + 1], "int32", name=f"end{axis}")
        size = writer.op(
            *("STRIDED_SLICE", [shape, begin, end, ones], [()]),
            dtype="int32",
            options={"shrink_axis_mask": 1},
        )
        sizes.append(writer.op("MUL", [size, two], [()], dtype="int32"))
    sizes.append(writer.constant(8, "int32", name="channels"))
    target = writer.op(
        *("PACK", sizes, [(4,)]), dtype="int32", options={"values_count": 4, "axis": 0}
    )
    weights = writer.constant(random(8, 2, 2, 8), name="up")
    options = {"padding": "VALID", "stride_h": 2, "stride_w": 2}
    high = writer.op("TRANSPOSE_CONV", [target, weights, low], [OPEN], options=options)
    both = writer.op("CONCATENATION", [x, high], [(1, -1, -1, 16)], options={"axis": 3})
    writer.output(convolution(writer, both, 4, seed=2))
    return writer.build()


def test_all_that_runs_at_sizes_of_pictures_is_taken_and_follows_each_resize() -> None:
    model, delegate = up_and_down(), GpuDelegate()
    target = interpreter(model, delegate)  # allocated for 1x1, as the plain interpreter is
    assert report_of(delegate).whole_graph
    for height, width in ((8, 6), (32, 16), (2, 2), (8, 6)):
        x = random(1, height, width, 3)
        assert_close(resized(target, x), reference(model, x))
        assert [part.on_cpu for part in report_of(delegate).partitions] == [""]


@pytest.mark.parametrize("shape", [(-1,), (-1, -1), (1, -1)], ids=str)
def test_a_waveform_is_longer_than_a_picture_is_wide(shape: tuple[int, ...]) -> None:
    """A window of 200 samples fits no 128."""
    model, delegate = waveform(shape), GpuDelegate()
    # A single sample, which the file states, cannot be allocated.
    on_gpu = Interpreter(model_content=model, experimental_delegates=[delegate])
    on_cpu = Interpreter(model_content=model)
    assert report_of(delegate).whole_graph
    for samples in (450, 16000):
        x_value = random(*(1,) * (len(shape) - 1), samples)
        assert_close(resized(on_gpu, x_value), resized(on_cpu, x_value))


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((1, 1, 1, 3), r"cannot prepare node 9 \(CONCATENATION\) for the current shapes"),
        ((2, 8, 6, 3), r"cannot run node 8 \(TRANSPOSE_CONV\) for the current shapes"),
    ],
)
def test_what_the_runtime_rejects_in_a_run_it_rejects_here(
    shape: tuple[int, ...], text: str
) -> None:
    model, x, delegate = up_and_down(), random(*shape), GpuDelegate()
    with pytest.raises(RuntimeError):
        reference(model, x)
    target = interpreter(model, delegate)
    with pytest.raises(RuntimeError, match=text):
        resized(target, x)
    assert_close(resized(target, random(1, 4, 4, 3)), reference(model, random(1, 4, 4, 3)))


def test_a_compiled_model_opens_such_a_file() -> None:
    model, x = up_and_down(), random(1, 8, 6, 3)
    with CompiledModel.from_buffer(model) as compiled:
        for value in (x, random(1, 4, 4, 3)):
            compiled.resize_input_tensor(0, value.shape)
            assert_close([compiled(value)], reference(model, value))


def test_open_sizes_are_no_ones_for_estimates() -> None:
    """At 1x1 no partition saves time, and one node stays on the CPU."""
    writer = ModelWriter()
    x = step(writer, CPU_ONLY, writer.input((1, -1, -1, 3)))
    writer.output(convolution(writer, convolution(writer, x, 64, seed=1), 64, seed=2))
    delegate = GpuDelegate()
    interpreter(writer.build(), delegate)
    (part,) = report_of(delegate).partitions
    assert part.estimate is not None
    assert part.estimate.copied_bytes > 4 * 100 * 100 * 3


def behind_the_cpu() -> bytes:
    """Return a model whose file leaves sizes open after an operation on the CPU."""
    writer = ModelWriter()
    x = writer.input((1, 48))
    axis = writer.constant([2, 8, 3], "int32", name="shape")
    rows = writer.op("RESHAPE", [x, axis], [(-1, -1, 3)])
    rounded = step(writer, CPU_ONLY, rows)
    end = writer.constant(3, "int32", name="end")
    image = writer.op("EXPAND_DIMS", [rounded, end], [(-1, -1, 3, 1)])
    options = {"padding": "VALID", **POOL}
    writer.output(writer.op("AVERAGE_POOL_2D", [image], [(-1, -1, 1, 1)], options=options))
    return writer.build()


def test_behind_the_cpu_a_shape_is_what_the_runtime_computes() -> None:
    model, x, delegate = behind_the_cpu(), random(1, 48), GpuDelegate(max_delegated_partitions=2)
    assert_close(run(interpreter(model, delegate), x), reference(model, x))
    report = report_of(delegate)
    assert report.delegated_nodes == [0, 2, 3]
    assert [node.op for node in report.rejected] == [CPU_ONLY]


def counting(again: bool, names: tuple[str, str] = ("sum", "sum")) -> bytes:
    """Return a model that adds its input to a variable, passing the CPU, and gives the sum.

    If it reads the variable `again`, by another handle, the runtime may do so too early.
    """
    writer = ModelWriter()
    first = writer.subgraph()
    zeros = first.constant(np.zeros((2, 3), np.float32), name="zeros")

    def handle(graph: ModelWriter, name: str) -> TensorRef:
        options = {"container": "", "shared_name": name}
        return graph.op("VAR_HANDLE", [], [()], dtype="int32", options=options)

    for name in sorted({*names}):
        first.multi("ASSIGN_VARIABLE", [handle(first, name), zeros], [])
    x = writer.input((2, 3))
    writer.multi("CALL_ONCE", [], [], options={"init_subgraph_index": first.number})
    variable, other = (handle(writer, name) for name in names)
    before = writer.op("READ_VARIABLE", [variable], [(2, 3)])
    after = step(writer, CPU_ONLY, writer.op("ADD", [before, x], [(2, 3)]))
    writer.multi("ASSIGN_VARIABLE", [variable, after], [])
    found = writer.op("READ_VARIABLE", [other], [(2, 3)]) if again else after
    writer.output(step(writer, "NEG", found))
    return writer.build()


@pytest.mark.parametrize(
    ("model", "nodes"),
    [
        (counting(again=False), [4, 7]),
        (counting(again=True), []),
        (counting(again=True, names=("sum", "none")), [4, 8]),
    ],
    ids=["once", "again", "another"],
)
def test_a_variable_has_the_shape_that_the_file_states(model: bytes, nodes: list[int]) -> None:
    delegate = GpuDelegate(max_delegated_partitions=9)
    on_gpu, on_cpu = interpreter(model, delegate), interpreter(model)
    for seed in range(4):
        x = 4 * random(2, 3, seed=seed)
        assert_close(run(on_gpu, x), run(on_cpu, x))
    assert report_of(delegate).delegated_nodes == nodes
    reasons = {each.reason for each in report_of(delegate).left_out}
    assert any("share the state tensor" in reason for reason in reasons) == (not nodes)


def wide(shape: tuple[int, ...] = (-1, 3)) -> bytes:
    """Return a model of operations that produce elements from empty inputs."""
    writer = ModelWriter()
    x, y = writer.input(shape, name="x"), writer.input(shape, name="y")
    both = writer.op("CONCATENATION", [x, y], [shape], options={"axis": 0})
    axis = writer.constant([0], "int32", name="axis")
    total = writer.op("SUM", [x, axis], [(3,)], options={"keep_dims": False})
    writer.output(step(writer, "ABS", both), step(writer, "EXP", total), step(writer, "NEG", x))
    return writer.build()


@pytest.mark.parametrize("rows", [(0, 2), (0, 0), (2, 0), (3, 1), (0, 1)])
def test_a_batch_of_none(rows: tuple[int, int]) -> None:
    model, delegate = wide(), GpuDelegate()
    inputs = [random(count, 3, seed=count) for count in rows]
    target = interpreter(model, delegate)
    assert report_of(delegate).whole_graph
    assert_close(resized(target, *inputs), reference(model, *inputs))
    (part,) = report_of(delegate).partitions
    assert ("no elements" in part.on_cpu) == (0 in rows)
    assert ("partition 0, for the present shapes: Node" in str(report_of(delegate))) == (0 in rows)
    full = [random(2, 3), random(3, 3)]
    assert_close(resized(target, *full), reference(model, *full))
    assert [part.on_cpu for part in report_of(delegate).partitions] == [""]


def by_its_own_sizes() -> bytes:
    """Return a model that computes a shape with PACK, reshapes, and uses the result."""
    writer = ModelWriter()
    x = writer.input((-1, -1, 3))
    shape = writer.op("SHAPE", [x], [(3,)], dtype="int32", options={"out_type": "INT32"})
    ends = [writer.constant([n], "int32", name=f"n{n}") for n in range(3)]
    sizes = [
        writer.op(
            *("STRIDED_SLICE", [shape, ends[axis], ends[axis + 1], ends[1]], [()]),
            dtype="int32",
            options={"shrink_axis_mask": 1},
        )
        for axis in (1, 0)
    ]
    sizes.append(writer.constant(3, "int32", name="three"))
    target = writer.op(
        *("PACK", sizes, [(3,)]), dtype="int32", options={"values_count": 3, "axis": 0}
    )
    y = step(writer, "ABS", writer.op("RESHAPE", [x, target], [(-1, -1, 3)]))
    writer.output(writer.op("CONCATENATION", [y, y], [(-1, -1, 6)], options={"axis": 2}))
    return writer.build()


def test_nothing_is_reshaped_by_its_own_sizes() -> None:
    """The kernel of RESHAPE knows its result only when it runs, and those after it wait."""
    model, delegate = by_its_own_sizes(), GpuDelegate()
    target = interpreter(model, delegate)
    for rows, columns in ((0, 8), (2, 5), (3, 0), (1, 1), (0, 0)):
        x = random(rows, columns, 3)
        assert_close(resized(target, x), reference(model, x))
    assert report_of(delegate).whole_graph


def test_a_batch_of_none_in_a_compiled_model() -> None:
    with CompiledModel.from_buffer(wide()) as model:
        for rows in (0, 2):
            for number in (0, 1):
                model.resize_input_tensor(number, (rows, 3))
            results = model(np.ones((rows, 3), np.float32), np.ones((rows, 3), np.float32))
            shapes = [np.asarray(each).shape for each in results.values()]
            assert shapes == [(2 * rows, 3), (3,), (rows, 3)]


def test_bound_buffers_are_not_for_the_cpu() -> None:
    delegate = GpuDelegate()
    target = interpreter(chain(["ABS"], (1, 4)), delegate)
    delegate.bind_buffer(target, 0, np.ones((1, 4), np.float32))
    with pytest.raises(RuntimeError, match=r"reads and writes no bound buffers. .* Bind None."):
        resized(target, random(*[1] * 8, 4))


def test_a_result_of_another_size_than_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    target, x = interpreter(chain(["ABS"]), GpuDelegate()), random(*[1] * 7, 2, 4)
    monkeypatch.setattr(CpuNodes, "result", lambda *_: (x.shape, x.ctypes.data, 4))
    with pytest.raises(
        RuntimeError, match=r"has 32 bytes in the interpreter, .* compute 4. Use no"
    ):
        resized(target, x)


def test_an_operation_that_the_runtime_lacks_cannot_run_there() -> None:
    sheet, delegate = Sheet(), GpuDelegate()
    sheet.add(ArgmaxPool(image=(1, 4, 4, 4)))
    target = interpreter(sheet.writer.build(), delegate)
    with pytest.raises(RuntimeError, match="cannot run with the input shapes"):
        resized(target, random(0, 4, 4, 4))
    assert delegate.error is not None
    assert "no kernel that can run node 0 (MaxPool" in str(delegate.error.__cause__)


def test_more_dimensions_than_the_gpu_takes() -> None:
    model, delegate, x = chain(["ABS", "SQRT"]), GpuDelegate(), random(*[1] * 6, 2, 3, 4)
    target = interpreter(model, delegate)
    assert_close(resized(target, x), reference(model, x))
    (part,) = report_of(delegate).partitions
    assert "has 9 dimensions" in part.on_cpu


def test_a_shape_that_is_no_list_counts_for_nothing() -> None:
    """The CPU then takes the new shape of the options."""
    writer = ModelWriter()
    x, wanted = writer.input((2, 3)), writer.input((1, 1), "int32", name="wanted")
    first = writer.op("RESHAPE", [x, wanted], [(3, 2)], options={"new_shape": [3, 2]})
    table = writer.constant([[6, 1]], "int32", name="table")
    writer.output(writer.op("RESHAPE", [first, table], [(1, 6)], options={"new_shape": [1, 6]}))
    model, inputs = writer.build(), (random(2, 3), np.ones((1, 1), np.int32))
    delegate = GpuDelegate()
    (found,) = run(interpreter(model, delegate), *inputs)
    assert report_of(delegate).whole_graph
    assert found.shape == (1, 6)
    assert found.tolist() == reference(model, *inputs)[0].reshape(1, 6).tolist()
