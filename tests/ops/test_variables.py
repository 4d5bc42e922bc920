"""Variables that several graphs of a model share, between invokes on the GPU."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from every_backend import first_devices
from litegpu import GpuDelegate
from litegpu.backends.buffers import MemoryKind
from litegpu.delegation.partition_kernel import PartitionKernel
from litegpu.delegation.variables import Variables
from litegpu.errors import CompilationError, DeviceLostError, ModelError
from litegpu.graph import DType, Graph, Node, Quantization, Value
from litegpu.ops import variables
from litegpu.ops.common.support import check_support
from litegpu.zoo.writer import ModelWriter
from small_models import CPU_ONLY, assert_close, interpreter, random, run
from variable_models import accumulator, assign, call_once, first_value, handle, read, stream

Array = npt.NDArray[Any]
ORDER = ("add", "get", "add", "set", "add", "get", "reset", "get", "add", "add", "get")


def call(target: Any, name: str, x: Array) -> Array:
    """Run a signature."""
    (found,) = target.get_signature_runner(name)(x=x).values()
    return np.asarray(found)


def check_in_order(model: bytes, delegate: GpuDelegate, order: tuple[str, ...] = ORDER) -> Any:
    """Require the CPU's results of signatures in an order; return the interpreter."""
    on_gpu, on_cpu = interpreter(model, delegate), interpreter(model)
    for number, name in enumerate(order):
        x = random(4, seed=number)
        assert_close([call(on_gpu, name, x)], [call(on_cpu, name, x)])
    return on_gpu


@pytest.mark.parametrize("number", range(3))
def test_signatures_share_a_variable_on_the_device(number: int) -> None:
    devices = first_devices()
    info = devices[number % len(devices)]
    delegate = GpuDelegate(backend=info.backend, device=info.index)
    target = check_in_order(accumulator(), delegate)
    assert delegate.error is None and delegate.report is not None
    assert all(each.whole_graph for each in (delegate.report, *delegate.report.subgraphs[1:]))
    kernels = list(delegate._kernels)
    (stored,) = {id(kernel._variables): kernel._variables for kernel in kernels}.values()
    assert stored is not None
    present = stored.present(("", "sum"), kernels[0].device)
    assert present.kind is MemoryKind.DEVICE
    assert present.nbytes == 16
    target.reset_all_variables()  # which the runtime's variables are not
    check_in_order(accumulator(), delegate)


@pytest.mark.parametrize("quantized", ["exact", "float"])
@pytest.mark.parametrize("number", range(3))
def test_quantized_rows_stay_on_the_device(
    quantized: Literal["exact", "float"], number: int
) -> None:
    devices = first_devices()
    info = devices[number % len(devices)]
    delegate = GpuDelegate(backend=info.backend, device=info.index, quantized=quantized)
    model = stream(Quantization((0.37,), (-5,)))
    on_gpu, on_cpu = interpreter(model, delegate), interpreter(model)
    assert delegate.report is not None and delegate.report.whole_graph
    for seed in range(4):
        x = np.random.default_rng(seed).integers(-128, 128, (1, 2, 4), np.int8)
        (total, last), (wanted, rows) = run(on_gpu, x), run(on_cpu, x)
        assert np.array_equal(last, rows)
        assert np.abs(total.astype(int) - wanted).max() <= (quantized == "float")


@pytest.mark.parametrize("quantized", ["exact", "float"])
def test_a_quantized_variable_may_be_assigned_first(quantized: Literal["exact", "float"]) -> None:
    """Without a first value, and in a signature that does not read it."""
    scale = Quantization((0.37,), (-5,))
    stored: dict[str, Any] = {"dtype": np.int8, "quantization": scale}
    writer = ModelWriter()
    x = writer.input((4,), np.int8, name="x", quantization=scale)
    assign(writer, handle(writer, "v"), x)
    y = writer.op("RELU", [x], [(4,)], version=2, **stored)
    writer.output(y)
    writer.signature("set", {"x": x}, {"y": y})
    other = writer.subgraph()
    x = other.input((4,), np.int8, name="x", quantization=scale)
    y = other.op("MAXIMUM", [read(other, handle(other, "v"), (4,), **stored), x], [(4,)], **stored)
    other.output(y)
    other.signature("get", {"x": x}, {"y": y})
    delegate = GpuDelegate(quantized=quantized, min_nodes_per_partition=1)
    on_gpu, on_cpu = interpreter(writer.build(), delegate), interpreter(writer.build())
    for name, values in (("set", [1, -128, 3, 127]), ("get", [-9, -9, -9, -9])):
        x_value = np.array(values, np.int8)
        assert np.array_equal(call(on_gpu, name, x_value), call(on_cpu, name, x_value))
    assert delegate.report is not None and delegate.report.whole_graph


def test_a_variable_read_at_another_scale_stays_on_the_cpu() -> None:
    scale, other = Quantization((0.37,), (-5,)), Quantization((0.5,), (3,))
    writer = ModelWriter()
    x = writer.input((4,), np.int8, quantization=scale)
    variable = handle(writer, "v")
    assign(writer, variable, x)
    stored = read(writer, variable, (4,), dtype=np.int8, quantization=other)
    writer.output(writer.op("DEQUANTIZE", [stored], [(4,)], version=2))
    delegate = GpuDelegate(min_nodes_per_partition=1)
    on_gpu, on_cpu = interpreter(writer.build(), delegate), interpreter(writer.build())
    x_value = np.array([-128, -5, 3, 127], np.int8)
    assert_close(run(on_gpu, x_value), run(on_cpu, x_value))
    assert delegate.report is not None
    (reason, *_) = {node.reason for node in delegate.report.rejected}
    assert reason.startswith("Variables are on the GPU only if")


def test_another_interpreter_has_variables_of_its_own() -> None:
    delegate = GpuDelegate()
    first, second = (interpreter(accumulator(), delegate) for _ in range(2))
    ones = np.ones(4, np.float32)
    call(first, "set", 5 * ones)
    np.testing.assert_array_equal(call(second, "get", ones), [-1, 0, 1, 2])
    np.testing.assert_array_equal(call(first, "get", 0 * ones), [0, 1, 2, 3])


def test_first_values_come_with_the_first_call_of_a_graph_that_has_them() -> None:
    """Which overwrites what was assigned before, on the CPU, too."""
    check_in_order(accumulator(), GpuDelegate(), ("set", "get", "set", "get"))


def test_float16_overflow_runs_again_from_the_same_variable() -> None:
    model, delegate = accumulator(), GpuDelegate(precision="fp16")
    on_gpu, on_cpu = interpreter(model, delegate), interpreter(model)
    for scale in (1, 1e3, 1e5, 1):
        x = np.full(4, scale, np.float32)
        found, wanted = call(on_gpu, "add", x), call(on_cpu, "add", x)
        np.testing.assert_allclose(found, wanted, rtol=5e-3)


def test_a_node_of_the_cpu_keeps_all_variables_there() -> None:
    delegate = GpuDelegate(max_delegated_partitions=9)
    check_in_order(accumulator(on_cpu=CPU_ONLY), delegate)
    assert delegate.report is not None
    (found,) = {node.reason for node in delegate.report.rejected}
    assert (
        found
        == "Variables are on the GPU only if all nodes of all graphs with variables run on the GPU."
    )


def test_options_that_leave_nodes_to_the_cpu_keep_variables_there() -> None:
    delegate = GpuDelegate(first_delegate_node_index=1, max_delegated_partitions=9)
    check_in_order(accumulator(), delegate)
    assert delegate.report is not None and len(delegate.report.rejected) == 5


def unassigned(first: bool) -> bytes:
    """Return a model that reads a variable of its own to which only the other signature assigns."""
    writer = ModelWriter()
    x = writer.input((4,), name="x")
    y = writer.op("ADD", [read(writer, handle(writer, "sum"), (4,)), x], [(4,)])
    writer.output(y)
    writer.signature("get", {"x": x}, {"y": y})
    other = writer.subgraph()
    x = other.input((4,), name="x")
    assign(other, handle(other, "sum"), x)
    y = other.op("NEG", [x], [(4,)])
    other.output(y)
    other.signature("set", {"x": x}, {"y": y})
    if first:
        call_once(writer, other.number)
    return writer.build()


def test_a_variable_without_a_value() -> None:
    target, x = interpreter(unassigned(first=False), GpuDelegate()), random(4)
    with pytest.raises(RuntimeError, match=r"'sum' is read before it has a value\. First invoke"):
        call(target, "get", x)
    call(target, "set", x)
    np.testing.assert_allclose(call(target, "get", x), 2 * x)


def test_a_graph_that_does_not_compile_lets_none_of_the_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their variables would be two: one on the device, one in the runtime."""
    before, graphs = PartitionKernel._compile, []

    def failing(kernel: PartitionKernel, graph: Graph) -> Any:
        graphs.append(graph)
        if len(graphs) == 2:
            raise CompilationError("no second graph.")
        return before(kernel, graph)

    monkeypatch.setattr(PartitionKernel, "_compile", failing)
    target = interpreter(accumulator(), GpuDelegate(backend=first_devices()[0].backend))
    with pytest.raises(RuntimeError, match=r"shares variables with this one does not run: no sec"):
        call(target, "add", random(4))


def test_variables_are_lost_with_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    delegate, x = GpuDelegate(), random(4)
    target = interpreter(accumulator(), delegate)
    call(target, "add", x)
    kernel = next(each for each in delegate._kernels if each.number == 0)
    error = DeviceLostError("It is gone.", "Wait.")
    with pytest.raises(
        DeviceLostError, match=r"variables 'sum' were lost with the device\. Variables have"
    ):
        kernel._check_states(kernel.compiled, error)
    np.testing.assert_array_equal(call(target, "get", 0 * x), [0, 1, 2, 3])


def test_another_shape_of_what_is_assigned() -> None:
    model = accumulator()
    target = interpreter(model, GpuDelegate())
    target.resize_tensor_input(target.get_input_details()[0]["index"], (1,))
    target.allocate_tensors()  # (4) + (1) is (4)
    run(target, np.ones(1, np.float32))
    target.resize_tensor_input(target.get_input_details()[0]["index"], (2, 4))
    with pytest.raises(
        RuntimeError, match=r"a value of shape \[2, 4\] to a variable of shape \[4\]"
    ):
        target.allocate_tensors()


def test_a_variable_moves_to_another_device_with_its_value() -> None:
    devices = first_devices()
    if len(devices) < 2:
        pytest.skip("one device")
    opened = [GpuDelegate(backend=info.backend, device=info.index)._device for info in devices[:2]]
    name = ("", "v")
    stored = Variables({name: Value(0, "v", (3,), DType.FLOAT32)})
    first = Graph(
        {0: Value(0, "h", (), DType.OTHER), 1: constant(1)},
        (Node(0, "VAR_HANDLE", 1, (), (0,), NAMED), Node(1, "ASSIGN_VARIABLE", 1, (0, 1), ())),
        *((), ()),
    )
    once = Node(0, "CALL_ONCE", 1, (), (), {"init_subgraph_index": 1}, graphs=(first,))
    stored.start([once], opened[0])
    assert stored.present(name, opened[1]).read().view(np.float32).tolist() == [0, 1, 2]


# What is refused

NAMED = {"container": "", "shared_name": "v"}
HANDLE = Value(0, "handle", (), DType.OTHER)


def constant(v: int) -> Value:
    return Value(v, "c", (3,), DType.FLOAT32, np.arange(3, dtype=np.float32))


def value(v: int, **fields: Any) -> Value:
    return Value(v, "v", (3,), DType.FLOAT32, **fields)


def reason(node: Node, *values: Value) -> str:
    graph = Graph({each.id: each for each in values}, (node,), (), ())
    return check_support(graph).reasons.get(0, "")


def test_first_values_that_are_no_constants() -> None:
    assert (
        reason(Node(0, "CALL_ONCE", 1, (), ())) == "The graph that CALL_ONCE runs cannot be read."
    )
    other = Graph({1: value(1), 2: value(2)}, (Node(0, "NEG", 1, (1,), (2,)),), (), ())
    found = reason(Node(0, "CALL_ONCE", 1, (), (), graphs=(other,)))
    assert found == "The graph that CALL_ONCE runs does not only assign constants to variables."


def test_values_that_are_not_held() -> None:
    node = Node(0, "READ_VARIABLE", 1, (0,), (1,))
    open_size = value(1, signature=(-1,))
    wanted = "Tensor 1, the value of a variable, has no fixed size in the model file."
    assert reason(node, HANDLE, open_size) == wanted
    assert reason(Node(0, "ASSIGN_VARIABLE", 1, (0, 1), ()), HANDLE, open_size) == wanted


def test_handles_that_go_elsewhere() -> None:
    named = Node(0, "VAR_HANDLE", 1, (), (0,), NAMED)
    got = Node(1, "READ_VARIABLE", 1, (0,), (1,))
    values = {0: HANDLE, 1: value(1), 2: Value(2, "w", (4,), DType.FLOAT32)}
    plain = Graph(values, (named, got), (), (1,))
    assert variables.shared_values([plain]) == {("", "v"): values[1]}
    also = (named, got, Node(2, "READ_VARIABLE", 1, (0,), (2,)))
    other_shape = Graph(values, also, (), ())
    scaled = value(2, quantization=Quantization((0.5,), (0,)))
    other_scale = Graph({**values, 2: scaled}, also, (), ())
    elsewhere = Graph(values, (named, got, Node(2, "SHAPE", 1, (0,), (2,))), (), ())
    unnamed = Graph(values, (got,), (), ())
    for graph in (other_shape, other_scale, elsewhere, unnamed):
        assert variables.shared_values([plain, graph]) is None
    with pytest.raises(ModelError, match="handle of the variable 'v' is an output of the graph"):
        variables.with_variables(Graph(values, (named, got), (), (0,)), {("", "v"): values[1]})


def test_a_first_graph_that_computes_stays_with_all_variables_on_the_cpu() -> None:
    writer = ModelWriter()
    ones = np.ones(3, np.float32)
    first = writer._graphs[first_value(writer, {"v": ones})]
    first.op("NEG", [first.constant(ones)], [(3,)])
    x = writer.input((3,))
    writer.output(writer.op("ADD", [read(writer, handle(writer, "v"), (3,)), x], [(3,)]))
    delegate = GpuDelegate()
    target, x_value = interpreter(writer.build(), delegate), random(3)
    assert_close(run(target, x_value), [x_value + 1])
    assert delegate.report is not None and not delegate.report.whole_graph
