"""The .tflite writer: the runtime and the schema read back what it writes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from litegpu.errors import MissingDependencyError, ModelError, OptionsError
from litegpu.graph import Quantization
from litegpu.zoo import ModelWriter, TensorRef, schema

interpreter = pytest.importorskip(
    "ai_edge_litert.interpreter", reason="needs the package ai-edge-litert"
)


def read(data: bytes) -> Any:
    """Return the model as the schema's object tree."""
    tables = schema.tables()
    return tables.ModelT.InitFromObj(tables.Model.GetRootAs(data, 0))


def run(data: bytes, *inputs: npt.ArrayLike) -> list[npt.NDArray[Any]]:
    """Run the model on the runtime's own kernels."""
    resolver = interpreter.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    model = interpreter.Interpreter(model_content=data, experimental_op_resolver_type=resolver)
    model.allocate_tensors()
    for detail, value in zip(model.get_input_details(), inputs, strict=True):
        model.set_tensor(detail["index"], np.asarray(value, detail["dtype"]))
    model.invoke()
    return [model.get_tensor(detail["index"]) for detail in model.get_output_details()]


def unary(writer: ModelWriter, builtin: str = "RELU", **options: Any) -> TensorRef:
    """Add an input of four floats and one operation on it."""
    x = writer.input([1, 4], name="x")
    return writer.op(builtin, [x], [[1, 4]], options=options)


def test_a_convolution_computes_what_its_constants_say() -> None:
    writer = ModelWriter()
    x = writer.input([1, 4, 4, 1])
    kernel = writer.constant(np.full((2, 2, 2, 1), [[[[1.0]]], [[[-1.0]]]], np.float32))
    bias = writer.constant([0.5, 100.0], np.float32)
    y = writer.op(
        "CONV_2D",
        [x, kernel, bias],
        [[1, 2, 2, 2]],
        options={
            "stride_h": 2,
            "stride_w": 2,
            "padding": "VALID",
            "fused_activation_function": "RELU",
        },
    )
    writer.output(y)
    picture = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1)
    (result,) = run(writer.build(), picture)
    sums = np.array([[10, 18], [42, 50]])
    np.testing.assert_array_equal(result[0, ..., 0], sums + 0.5)
    np.testing.assert_array_equal(result[0, ..., 1], 100 - sums)


def test_a_file_is_recognised_and_its_data_is_aligned() -> None:
    writer = ModelWriter("words")
    for length in (1, 3, 17, 64):
        writer.constant(np.arange(length, dtype=np.uint8))
    data = writer.build()
    assert data[4:8] == b"TFL3"
    root = schema.tables().Model.GetRootAs(data, 0)
    assert root.Version() == 3
    assert root.Description() == b"words"
    filled = [root.Buffers(i) for i in range(1, root.BuffersLength())]
    assert len(filled) == 4
    for buffer in filled:
        start = buffer._tab.Vector(buffer._tab.Offset(4))
        assert start % 16 == 0


def test_equal_contents_share_a_buffer() -> None:
    writer = ModelWriter()
    writer.constant(np.ones(3, np.float32))
    writer.constant(np.ones((3, 1), np.float32))
    writer.constant(np.zeros(3, np.float32))
    model = read(writer.build())
    assert [tensor.buffer for tensor in model.subgraphs[0].tensors] == [1, 1, 2]
    assert len(model.buffers) == 3


@pytest.mark.parametrize(
    "array",
    [
        np.array([1.5, -2.0], np.float16),
        np.array([1, 2, 3], ">i4"),
        np.arange(12, dtype=np.int64).reshape(3, 4).T,
        np.array(7.25, np.float32),
        np.array([True, False]),
    ],
)
def test_a_constant_keeps_type_shape_and_content(array: npt.NDArray[Any]) -> None:
    writer = ModelWriter()
    ref = writer.constant(array)
    writer.output(ref)
    (result,) = run(writer.build())
    assert ref.shape == result.shape == array.shape
    assert ref.dtype == result.dtype.name
    np.testing.assert_array_equal(result, array)


def test_operator_codes_are_shared_and_old_readers_find_their_field() -> None:
    writer = ModelWriter()
    x = writer.input([1, 4])
    for builtin, version in (("RELU", 1), ("GELU", 1), ("RELU", 1), ("RELU", 2)):
        writer.op(builtin, [x], [[1, 4]], version=version)
    model = read(writer.build())
    codes = [(c.builtinCode, c.deprecatedBuiltinCode, c.version) for c in model.operatorCodes]
    assert codes == [(19, 19, 1), (150, 127, 1), (19, 19, 2)]
    assert [op.opcodeIndex for op in model.subgraphs[0].operators] == [0, 1, 0, 2]


def test_an_input_that_is_left_out() -> None:
    writer = ModelWriter()
    x = writer.input([1, 2])
    matrix = writer.constant([[1, 2], [3, 4], [5, 6]], np.float32)
    writer.output(writer.op("FULLY_CONNECTED", [x, matrix, None], [[1, 3]]))
    data = writer.build()
    assert list(read(data).subgraphs[0].operators[0].inputs) == [0, 1, -1]
    np.testing.assert_array_equal(run(data, [[1, 10]])[0], [[21, 43, 65]])


def test_several_inputs_and_outputs_keep_their_order() -> None:
    writer = ModelWriter()
    a = writer.input([2, 2], name="a")
    b = writer.input([2, 2], name="b")
    difference = writer.op("SUB", [a, b], [[2, 2]], name="difference")
    axis = writer.constant(0, np.int32)
    first, second = writer.multi(
        "SPLIT", [axis, difference], [[1, 2], [1, 2]], options={"num_splits": 2}
    )
    writer.output(second, first)
    writer.output(difference)
    results = run(writer.build(), [[5, 6], [7, 8]], [[1, 1], [1, 2]])
    for result, expected in zip(results, ([[6, 6]], [[4, 5]], [[4, 5], [6, 6]]), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_intermediates_are_tensors_without_elements() -> None:
    writer = ModelWriter()
    x = writer.input([1, 3])
    y = writer.op("RELU", [x], [[1, 3]], intermediates=(None, Quantization((0.5,), (3,))))
    writer.output(y)
    graph = read(writer.build()).subgraphs[0]
    plain, scaled = (graph.tensors[i] for i in graph.operators[0].intermediates)
    types = writer._schema.TensorType
    assert [list(plain.shape), list(scaled.shape)] == [[0], [0]]
    assert (plain.type, scaled.type) == (types.FLOAT32, types.INT8)
    assert plain.quantization is None
    assert (list(scaled.quantization.scale), list(scaled.quantization.zeroPoint)) == ([0.5], [3])


def test_types_names_and_enumerations_of_outputs() -> None:
    writer = ModelWriter()
    x = writer.input([3], "int32", name="x")
    y = writer.op(
        "CAST",
        [x],
        [[3]],
        options={"in_data_type": "int32", "out_data_type": "FLOAT32"},
        dtype=np.float32,
        name="y",
    )
    best = writer.op(
        "ARG_MAX",
        [y, writer.constant(0, np.int32)],
        [[]],
        options={"output_type": 4},
        dtype=np.int64,
    )
    writer.output(y, best)
    assert (y.name, y.dtype, best.dtype) == ("y", "float32", "int64")
    values, index = run(writer.build(), [3, 9, 4])
    np.testing.assert_array_equal(values, np.array([3, 9, 4], np.float32))
    assert index == 1


def test_quantization_of_a_tensor_and_of_channels() -> None:
    writer = ModelWriter()
    x = writer.input([1, 1, 1, 2], "int8", quantization=Quantization((0.5,), (3,)))
    kernel = writer.constant(
        np.array([[[[2, 0]]], [[[0, 4]]]], np.int8),
        quantization=Quantization((0.25, 0.125), (0, 0), dimension=0),
    )
    y = writer.op(
        "CONV_2D",
        [x, kernel, writer.constant([0, 0], np.int32)],
        [[1, 1, 1, 2]],
        options={"stride_h": 1, "stride_w": 1},
        version=3,
        dtype="int8",
        quantization=Quantization((0.25,), (-1,)),
    )
    writer.output(y)
    data = writer.build()
    parameters = [tensor.quantization for tensor in read(data).subgraphs[0].tensors]
    assert [list(p.scale) for p in (parameters[1], parameters[3])] == [[0.25, 0.125], [0.25]]
    (result,) = run(data, [[[[13, 23]]]])
    real = (result.astype(np.float32) + 1) * 0.25
    np.testing.assert_array_equal(real, [[[[5 * 0.5, 10 * 0.5]]]])


def test_a_variable_is_marked_as_one() -> None:
    writer = ModelWriter()
    writer.input([1])
    writer.variable([2, 3], name="state")
    tensors = read(writer.build()).subgraphs[0].tensors
    assert [(t.isVariable, t.buffer) for t in tensors] == [(False, 0), (True, 0)]


def test_a_dimension_that_is_not_known_yet() -> None:
    writer = ModelWriter()
    x = writer.input([-1, 4])
    writer.output(writer.op("RELU", [x], [[-1, 4]]))
    (tensor, _) = read(writer.build()).subgraphs[0].tensors
    assert (list(tensor.shape), list(tensor.shapeSignature)) == ([1, 4], [-1, 4])


def test_a_signature_can_be_called_by_names() -> None:
    writer = ModelWriter()
    x = writer.input([2], name="x:0")
    y = writer.op("NEG", [x], [[2]], name="y:0")
    writer.output(y)
    writer.signature("serving_default", {"value": x}, {"negative": y})
    model = interpreter.Interpreter(model_content=writer.build())
    result = model.get_signature_runner("serving_default")(value=np.array([1, -2], np.float32))
    np.testing.assert_array_equal(result["negative"], [-1, 2])


def test_a_custom_operation_has_its_options() -> None:
    writer = ModelWriter()
    x = writer.input([1, 4])
    outputs = writer.custom("MyOp", [x], [[1, 4], [2]], custom_options=b"\x01\x02", version=5)
    writer.output(*outputs)
    model = read(writer.build())
    (operator,) = model.subgraphs[0].operators
    (code,) = model.operatorCodes
    assert (code.customCode, code.builtinCode, code.version) == (b"MyOp", 32, 5)
    assert bytes(operator.customOptions) == b"\x01\x02"
    assert list(operator.outputs) == [ref.index for ref in outputs] == [1, 2]


def test_every_options_table_belongs_to_an_operation() -> None:
    found = set()
    for builtin in schema.members("BuiltinOperator"):
        union, number, table = schema.builtin_options(builtin, {})
        assert (number == 0) == (table is None)
        if number:
            assert schema.members(union)[type(table).__name__.removesuffix("T")] == number
            found.add(type(table).__name__)
    tables = {*schema.members("BuiltinOptions"), *schema.members("BuiltinOptions2")} - {"NONE"}
    assert found == {f"{name}T" for name in tables}


def test_options_of_the_second_union() -> None:
    writer = ModelWriter()
    unary(writer, "REDUCE_WINDOW", reduce_function="ADD")
    (operator,) = read(writer.build()).subgraphs[0].operators
    assert (operator.builtinOptionsType, operator.builtinOptions2Type) == (0, 20)
    assert operator.builtinOptions2.reduceFunction == 1


@pytest.mark.parametrize("shape", [(1, 4), [1, 4], np.array([1, 4], np.int64)])
def test_an_option_that_is_a_vector(shape: Any) -> None:
    writer = ModelWriter()
    unary(writer, "RESHAPE", new_shape=shape)
    (operator,) = read(writer.build()).subgraphs[0].operators
    assert list(operator.builtinOptions.newShape) == [1, 4]


def test_float16_weights_come_first_and_are_rounded() -> None:
    values = np.array([[0.1, 1000.3]], np.float32)
    results = {}
    for half in (False, True):
        writer = ModelWriter(float16_weights=half)
        doubled = writer.op("ADD", [x := writer.input([1, 2]), x], [[1, 2]])
        weights = writer.weights(values, name="w")
        writer.output(writer.op("MUL", [doubled, weights], [[1, 2]]))
        data = writer.build()
        model = read(data)
        kinds = [model.operatorCodes[o.opcodeIndex] for o in model.subgraphs[0].operators]
        results[half] = [code.builtinCode for code in kinds], run(data, [[1, 1]])[0]
    assert results[False][0] == [0, 18]
    assert results[True][0] == [6, 0, 18]
    np.testing.assert_array_equal(results[False][1], values * 2)
    np.testing.assert_array_equal(results[True][1], values.astype(np.float16) * np.float32(2))


def test_an_unknown_operation() -> None:
    with pytest.raises(
        OptionsError, match=r"Unknown operation 'CONV2D'\. Did you mean 'CONV_2D'\?"
    ):
        unary(ModelWriter(), "CONV2D")


def test_an_unknown_option() -> None:
    message = r"SOFTMAX has no option 'betta'\. Did you mean 'beta'\? Known: beta\."
    with pytest.raises(OptionsError, match=message):
        unary(ModelWriter(), "SOFTMAX", betta=1.0)


def test_an_option_of_an_operation_without_any() -> None:
    with pytest.raises(OptionsError, match=r"RELU has no option 'alpha'\. It has no options\."):
        unary(ModelWriter(), "RELU", alpha=1.0)


def test_an_unknown_member_of_an_enumeration() -> None:
    message = r"Unknown ADD option fused_activation_function: 'RELU66'\. Did you mean 'RELU6'\?"
    with pytest.raises(OptionsError, match=message):
        unary(ModelWriter(), "ADD", fused_activation_function="RELU66")


def test_an_unknown_tensor_type() -> None:
    with pytest.raises(OptionsError, match=r"Unknown tensor type 'FLOAT33'\. Did you mean"):
        ModelWriter().input([1], "float33")


def test_one_output_is_what_op_is_for() -> None:
    writer = ModelWriter()
    x = writer.input([1, 4])
    with pytest.raises(ModelError, match=r"UNPACK was given 2 output shapes .* Use multi\(\)"):
        writer.op("UNPACK", [x], [[4], [4]])


def test_outputs_described_in_different_numbers() -> None:
    writer = ModelWriter()
    x = writer.input([1, 4])
    with pytest.raises(ModelError, match=r"SPLIT was given .* \(2, 1, 2, 2\)\. Give one of each"):
        writer.multi("SPLIT", [x], [[1, 2], [1, 2]], dtypes=["float32"])


def test_a_tensor_of_another_writer() -> None:
    stranger = ModelWriter().input([1, 4], name="stranger")
    writer = ModelWriter()
    writer.input([1, 4])
    with pytest.raises(ModelError, match="Tensor 'stranger' belongs to another ModelWriter"):
        writer.op("RELU", [stranger], [[1, 4]])


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the packages of the extra seem not installed."""
    found = importlib.import_module

    def import_module(name: str, package: str | None = None) -> ModuleType:
        if name.startswith(("ai_edge_litert", "flatbuffers")):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return found(name, package)

    monkeypatch.setattr(importlib, "import_module", import_module)
    schema.tables.cache_clear()
    yield
    schema.tables.cache_clear()


@pytest.mark.usefixtures("no_packages")
def test_packages_that_are_not_installed() -> None:
    message = r"Writing .tflite files needs .* 'flatbuffers'.* pip install 'litegpu\[zoo\]'"
    with pytest.raises(MissingDependencyError, match=message):
        ModelWriter()
