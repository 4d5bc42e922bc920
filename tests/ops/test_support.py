"""Support checks before partitioning: supported nodes, and the reasons for unsupported ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

import op_types
import turns
from fuzzing.mutations import pack, parse
from litegpu import GpuDelegate
from litegpu.graph import ABSENT, DType, Graph, Node, Quantization, Value
from litegpu.ops.base import all_ops, find
from litegpu.ops.common.support import check_support
from litegpu.ops.common.work import states_of, work_of
from litegpu.ops.cpu_only import STAYS_ON_CPU
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo.writer import ModelWriter
from small_models import chain


def value(number: int, shape: tuple[int, ...], data: float | None = None) -> Value:
    filled = None if data is None else np.full(shape, data, np.float32)
    return Value(number, f"v{number}", shape, DType.FLOAT32, filled)


ODD_VALUES = {
    0: value(0, (1, 4, 4, 3)),
    1: value(1, ()),
    2: value(2, (0,)),
    3: value(3, (2, 2), 0.0),
    4: Value(4, "integers", (2,), DType.INT32, np.array([-7, 1 << 30], np.int32)),
    5: Value(5, "no data", (4,), DType.INT32),
    6: value(6, (1, 1, 1, 1, 1, 1)),
    7: Value(7, "half", (3,), DType.FLOAT16, np.ones(3, np.float16)),
    8: value(8, (-1,)),
    9: value(9, (2,)),
}


@pytest.mark.parametrize("op", [op.name for op in all_ops()])
def test_odd_operands_are_refused_or_run_never_raise(op: str) -> None:
    """Damaged files give operations any operands: none, too many, absent ones, wrong ranks.

    Outputs take turns where there are three inputs.
    """
    results: Sequence[tuple[int, ...]] = ((), (9,), (9, 9))
    choices = (ABSENT, *ODD_VALUES)
    operands = itertools.chain.from_iterable(
        itertools.product(choices, repeat=count) for count in range(4)
    )
    for number, inputs in enumerate(operands):
        one = number % len(results)
        few = turns.ALL or len(inputs) < 3
        for outputs in results if few else results[one : one + 1]:
            node = Node(0, op, 1, inputs, outputs)
            graph = Graph(ODD_VALUES, (node,), (), ())
            check_support(graph)
            assert work_of(graph, node).nbytes >= 0
            assert all(v in inputs for v in states_of(node))


def test_conversions_of_unknown_shapes_stay_on_the_cpu() -> None:
    """Between integers that are read as floats, too, where they compute nothing."""
    scale = Quantization((0.5,), (0,), 0)
    values = {v: Value(v, f"v{v}", (-1,), DType.INT8, quantization=scale) for v in (0, 1)}
    for op in ("QUANTIZE", "DEQUANTIZE"):
        graph = Graph(values, (Node(0, op, 1, (0,), (1,)),), (0,), (1,))
        found = check_support(graph, "float")
        assert found.reasons == {0: "The shape of tensor 0 is known only when the model runs."}


def test_tensors_that_do_not_exist() -> None:
    for inputs in ((77,), (0, 77)):
        node = Node(0, "ABS", 1, inputs, (9,))
        found = check_support(Graph(ODD_VALUES, (node,), (), ()))
        assert found.reasons == {0: "The node refers to tensors that the model does not have."}


def test_a_node_that_makes_no_sense_does_not_spoil_the_others() -> None:
    nodes = (Node(0, "CONV_2D", 1, (ABSENT, ABSENT), (9,)), Node(1, "ABS", 1, (0,), (1,)))
    found = check_support(Graph(ODD_VALUES, nodes, (), ()))
    assert list(found.reasons) == [0]
    assert found.reasons[0] != ""


def test_a_node_whose_result_is_a_constant() -> None:
    values = {0: value(0, (2, 3)), 1: Value(1, "fixed", (2, 3), DType.FLOAT32, np.ones((2, 3)))}
    found = check_support(Graph(values, (Node(0, "ABS", 1, (0,), (1,)),), (), ()))
    assert "Node 0 (ABS) overwrites tensor 1: such a model" in found.reasons[0]
    assert not found.divisible


@pytest.mark.parametrize("second", [(0, 9), (9, 9)], ids=["made twice", "itself"])
def test_a_tensor_that_is_overwritten(second: tuple[int, int]) -> None:
    """The runtime finds no order for the parts of such a graph, whatever the delegate takes."""
    source, target = second
    nodes = (Node(0, "ABS", 1, (0,), (9,)), Node(1, "NEG", 1, (source,), (target,)))
    reason = (
        f"Node 1 (NEG) overwrites tensor {target}: such a model cannot be divided between the CPU "
        "and a device."
    )
    found = check_support(Graph(ODD_VALUES, nodes, (), ()))
    assert found.reasons == {0: reason, 1: reason}
    assert not found.divisible


@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8])
def test_without_quantization_computed_bytes_stay_on_the_cpu(dtype: DType) -> None:
    """Weights of 8 bits are no such tensors."""
    values = {
        0: Value(0, "bytes", (2, 3), dtype),
        1: value(1, (2, 3)),
        2: Value(2, "weights", (3,), dtype, np.ones(3, dtype.value)),
        3: value(3, (2, 3)),
        4: value(4, (2, 3)),
    }
    nodes = (
        Node(0, "DEQUANTIZE", 1, (0,), (1,)),
        Node(1, "ADD", 1, (1, 2), (3,)),
        Node(2, "ABS", 1, (1,), (4,)),
    )
    graph = Graph(values, nodes, (), ())
    with_it, without = check_support(graph).reasons, check_support(graph, None).reasons
    assert without[0] == (
        "8-bit tensors are left to the CPU: experimental_flags lacks ENABLE_QUANT (1)."
    )
    assert "ENABLE_QUANT" not in with_it[0]
    assert without[1] == with_it[1]
    assert 2 not in without


def test_without_quantization_floats_beside_quantized_weights_stay_on_the_cpu() -> None:
    """Whose reference quantizes the floats."""
    weights = Value(
        1, "weights", (4, 3), DType.INT8, np.ones((4, 3), "int8"), False, Quantization((0.5,), (0,))
    )
    values = {0: value(0, (2, 3)), 1: weights, 2: value(2, (2, 4))}
    graph = Graph(values, (Node(0, "FULLY_CONNECTED", 3, (0, 1), (2,)),), (), ())
    assert check_support(graph).reasons == {}
    assert check_support(graph, "float").reasons == {}
    assert "ENABLE_QUANT" in check_support(graph, None).reasons[0]


@pytest.mark.parametrize("kind", ["int8", "float32"])
def test_versions_are_those_of_the_runtime_for_all_types(kind: str) -> None:
    """Converters write the version of quantized weights also for those that they left floats."""
    scales = Quantization((0.5,), (0,)) if kind == "int8" else None
    weights = Value(1, "weights", (4, 3), DType(kind), np.ones((4, 3), kind), False, scales)
    values = {0: value(0, (2, 3)), 1: weights, 2: value(2, (2, 4))}
    for version, reason in ((14, None), (15, "Max version supported: 14. Requested version 15.")):
        graph = Graph(values, (Node(0, "FULLY_CONNECTED", version, (0, 1), (2,)),), (), ())
        expected = {} if reason is None else {0: reason}
        for quantized in ("exact", "float"):
            assert check_support(graph, quantized).reasons == expected
        if kind == "float32":
            assert check_support(graph, None).reasons == expected


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ("WHERE", "Operation is not supported: results whose shape depends on values."),
        ("HASHTABLE_FIND", "Operation is not supported: strings and hash tables, which no GPU"),
        ("RANDOM_UNIFORM", "Operation is not supported: random numbers, which would not be"),
        ("RANGE", "The operands of this operation are known only when the model runs."),
        ("BROADCAST_ARGS", "The operands of this operation are known only when the model runs."),
    ],
)
def test_operations_without_a_kernel_say_why(op: str, reason: str) -> None:
    values = {n: Value(n, f"v{n}", (2,), DType.INT32) for n in range(4)}
    graph = Graph(values, (Node(0, op, 1, (0, 1, 2), (3,)),), (0, 1, 2), (3,))
    assert check_support(graph).reasons[0].startswith(reason)
    assert all(find(name) is None for names in STAYS_ON_CPU.values() for name in names)


def test_types_are_tried_on_models_of_one_node() -> None:
    models = {model.types: model for model in op_types.variants("NEG", chain(["NEG"], (2, 3)))}
    assert len(models) == 16, "13 types, 3 of them with scales"
    assert op_types.runs_on_gpu(models["int16 → int16"])
    assert op_types.runs_on_gpu(models["int8 with a scale → int8"])
    assert not op_types.runs_on_gpu(models["float64 → float64"])


def test_a_model_that_overwrites_a_tensor_runs_on_the_cpu() -> None:
    writer = ModelWriter()
    x = writer.input((2, 3))
    y = writer.op("ABS", [x], [(2, 3)])
    writer.output(y)
    model = parse(writer.build())
    (operator,) = model.subgraphs[0].operators
    operator.inputs = [y.index]  # its own result, which the runtime gives it as it was before
    delegate = GpuDelegate(precision="fp32")
    runtime.interpreter(pack(model), delegate, builtin_kernels=True).invoke()
    assert delegate.error is None
    assert delegate.report is not None and delegate.report.delegated_nodes == []


def test_a_comparison_on_the_cpu_makes_bools_whatever_the_file_says() -> None:
    """Read as floats they would be four times as many bytes as there are."""
    writer = ModelWriter()
    x = writer.input((1, 4))
    less = writer.op("LESS_EQUAL", [x, writer.constant(np.zeros(4, np.float32))], [(1, 4)])
    cast = {"in_data_type": "FLOAT32", "out_data_type": "FLOAT32"}
    as_float = writer.op("CAST", [less], [(1, 4)], options=cast)
    writer.output(writer.op("NEG", [as_float], [(1, 4)]))
    model = writer.build()
    x_data = np.array([[-1, 0, 1, 2]], np.float32)
    results = []
    for delegate in (None, GpuDelegate(precision="fp32")):
        target = runtime.interpreter(model, delegate, builtin_kernels=True)
        target.set_tensor(0, x_data)
        target.invoke()
        results.append(target.get_tensor(target.get_output_details()[0]["index"]))
    assert results[0].tobytes() == results[1].tobytes()


def test_integers_that_follow_from_shapes_stay_on_the_cpu() -> None:
    """What is made of them for a RESHAPE would come too late; floats of them are data."""
    values = {
        0: value(0, (2, 3)),
        1: Value(1, "shape", (2,), DType.INT32),
        2: Value(2, "one", (2,), DType.INT32, np.ones(2, np.int32)),
        3: Value(3, "longer", (2,), DType.INT32),
        4: value(4, (2,)),
    }
    nodes = (
        Node(0, "SHAPE", 1, (0,), (1,)),
        Node(1, "ADD", 1, (1, 2), (3,)),
        Node(2, "CAST", 1, (3,), (4,)),
    )
    found = check_support(Graph(values, nodes, (0,), (4,)))
    assert found.reasons[1].startswith("The node computes only with shapes")
    assert 2 not in found.reasons


@pytest.mark.parametrize("op", ["PAD", "PADV2", "MIRROR_PAD"])
def test_what_is_padded_by_computed_numbers_has_no_known_shape(op: str) -> None:
    values = {
        0: value(0, (2, 3)),
        1: Value(1, "padding", (2, 2), DType.INT32),
        2: value(2, (), 0.0),
        3: value(3, (4, 5)),
        4: value(4, (4, 5)),
    }
    inputs = (0, 1, 2) if op == "PADV2" else (0, 1)
    nodes = (Node(0, op, 1, inputs, (3,)), Node(1, "ABS", 1, (3,), (4,)))
    found = check_support(Graph(values, nodes, (0, 1), (4,)))
    assert found.reasons[1] == "The shape of tensor 3 is known only when the model runs."


@pytest.mark.parametrize(
    ("shape", "fits"),
    [
        ((1, 1 << 14, 1 << 12, 8), True),  # 2^29 elements
        ((1, 2160, 3840, 64), True),
        ((1, 1 << 14, 1 << 14, 8), False),
        ((1 << 28, 1), False),  # rows of one channel may be padded to 8
    ],
)
def test_as_many_elements_as_32_bits_index(shape: tuple[int, ...], fits: bool) -> None:
    values = {v: Value(v, "", shape, DType.FLOAT32) for v in (0, 1)}
    graph = Graph(values, (Node(0, "NEG", 1, (0,), (1,)),), (0,), (1,))
    assert (not check_support(graph).reasons) == fits
