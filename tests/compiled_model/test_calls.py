"""Wrong arguments of calls; following the remedy of each error works."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from litegpu import (
    Batcher,
    CompiledModel,
    CompiledModelError,
    FileError,
    GpuDelegateOptions,
    OptionsError,
    TensorBuffer,
)
from litegpu.compiled_model import HardwareAccelerator
from litegpu.graph.ir import Quantization
from litegpu.pictures import images
from litegpu.zoo.writer import ModelWriter
from small_models import chain, encode_and_decode, fully_convolutional, two_signatures

SHAPE = (1, 4, 6, 3)
X = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
CPU = HardwareAccelerator.CPU


def error_of(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(CompiledModelError) as found:
        call(*args, **kwargs)
    return str(found.value)


def fixed_rows() -> bytes:
    """Return a model that concatenates along the batch, so the batch size cannot change."""
    writer = ModelWriter()
    x = writer.input(SHAPE, name="x")
    joined = writer.op("CONCATENATION", [x, x], [(2, *SHAPE[1:])], options={"axis": 0})
    writer.output(joined)
    return writer.build()


def test_another_batch() -> None:
    two = np.concatenate([X, -X])
    with CompiledModel.from_buffer(chain(["ABS"], SHAPE)) as model:
        for call in (model, model.submit, lambda x: model.resize_input_tensor(0, x.shape)):
            assert "model.at_batch(2) is the model for 2 rows." in error_of(call, two)
        with model.at_batch(2) as wider:
            np.testing.assert_array_equal(wider(two), np.abs(two))
    with CompiledModel.from_buffer(fixed_rows()) as model:
        text = error_of(model, two)
        assert "The model is for 1 at a time (" in text and "model(x[i : i + 1])" in text
        assert "at_batch" not in text
        found = [model(two[i : i + 1]) for i in range(2)]
        np.testing.assert_array_equal(np.concatenate(found)[::2], two)


def test_a_batch_that_the_model_leaves_open() -> None:
    content = chain(["ABS"], (-1, 4, 6, 3))
    two = np.concatenate([X, -X])
    with CompiledModel.from_buffer(content) as model:
        text = error_of(model, two)
        assert "model.resize_input_tensor(0, [2, 4, 6, 3]) changes the input to that shape." in text
        model.resize_input_tensor(0, [2, 4, 6, 3])
        np.testing.assert_array_equal(model(two), np.abs(two))


@pytest.mark.parametrize(
    ("given", "remedy", "follow"),
    [
        (X[0], "The batch dimension is missing: give x[np.newaxis].", lambda x: x[np.newaxis]),
        (
            X.transpose(0, 3, 1, 2),
            "channels must come last: give x.transpose(0, 2, 3, 1).",
            lambda x: x.transpose(0, 2, 3, 1),
        ),
        (
            X.ravel(),
            "number of elements is right: give np.reshape(x, [1, 4, 6, 3]).",
            lambda x: np.reshape(x, [1, 4, 6, 3]),
        ),
        (X[:, :2], "Give it [1, 4, 6, 3].", lambda x: np.concatenate([x, x], axis=1)),
    ],
)
def test_another_shape(given: Any, remedy: str, follow: Any) -> None:
    with CompiledModel.from_buffer(chain(["ABS"], SHAPE)) as model:
        assert remedy in error_of(model, given)
        assert model(follow(given)).shape == SHAPE


def test_other_sizes() -> None:
    """The remedy is proposed only if it works."""
    larger = np.ones((1, 18, 14, 3), np.float32)
    call = "model.resize_input_tensor(0, [1, 18, 14, 3], strict=False)"
    with CompiledModel.from_buffer(fully_convolutional()) as model:
        assert call in error_of(model, larger)
        text = error_of(model.resize_input_tensor, 0, larger.shape)
        assert "With strict=False the input can have this shape if" in text
        model.resize_input_tensor(0, larger.shape, strict=False)
        assert model(larger).shape == (1, 9, 7, 6)
    writer = ModelWriter()
    x = writer.input((1, 9, 7, 3))
    writer.output(writer.op("RESHAPE", [x, writer.constant([189], np.int32)], [(189,)]))
    with CompiledModel.from_buffer(writer.build()) as model:
        assert call in error_of(model, larger)
        text = error_of(model.resize_input_tensor, 0, larger.shape, strict=False)
        assert "operations are made for other shapes: keep [1, 9, 7, 3], or convert" in text
        assert "strict=False" not in text
        assert model(larger[:, ::2, ::2]).shape == (189,)


def test_what_holds_no_numbers() -> None:
    with CompiledModel.from_buffer(chain(["ABS"], SHAPE)) as model:
        for data, text in [
            (None, "is float32 [1, 4, 6, 3], and was given None. Give an array of numbers"),
            ([None], "was given a list without numbers."),
            ([[1, 2], [3]], "was given a list that is no array: setting an array element"),
            (X.astype(complex), "and was given complex128. Convert it: np.real(x).astype('float3"),
        ]:
            assert text in error_of(model, data)
        assert model(np.real(X.astype(complex)).astype("float32")).shape == SHAPE


def test_numbers_and_names_of_inputs() -> None:
    shape = (1, 2, 3)
    x, y = (np.full(shape, value, np.float32) for value in (3, 1))
    with CompiledModel.from_buffer(two_signatures()) as model:
        wrong: list[tuple[Any, dict[str, Any], str]] = [
            (
                (x, y, x),
                {},
                "takes 2 inputs, ['x', 'y'], and was given 3. Give one array for each input;",
            ),
            ((x,), {}, "takes ['x', 'y'], and was not given ['y']. Give all in this order, or"),
            ((), {}, "was not given ['x', 'y']. Give all in this order, or by name: model({'x':"),
            ((x,), {"z": y}, "no input 'z'. Known: x, y."),
            ((x, y), {"x": x}, "Input 'x' is given twice. Give it once."),
            (({"x": x, "yy": y},), {}, "no input 'yy'. Did you mean 'y'? Known: x, y."),
            ((x, y), {"signature": "mius"}, "Signature not found: 'mius'. Did you mean 'minus'?"),
        ]
        for args, named, text in wrong:
            assert text in error_of(model, *args, **named)
        ways = [
            model({"x": x, "y": y}),
            model({"y": y}, x=x),
            model(x, y=y),
            model(x, y, signature="less"),
            model({"from": x, "what": y}, signature="less"),
            model.submit(x, y, signature="less").result(),
            model({"a": x, "b": y}),  # names of tensors
        ]
        for found in ways:
            np.testing.assert_array_equal(found, x - y)
        assert [*model(x, y, by_name=True)] == ["z"]
        assert [*model.submit(x, y, by_name=True, signature="less").result()] == ["rest"]
        buffers = {"from": TensorBuffer.of(x), "what": TensorBuffer.of(y)}
        np.testing.assert_array_equal(model(buffers, signature="less"), x - y)
        two = np.zeros((2, 2, 3), np.float32)
        text = error_of(model, two, two, signature="less")
        assert "model.at_batch(2) is the model for 2 rows." in text


def bytes_of(scale: float, zero_point: int) -> bytes:
    """Return a model of one quantized addition: x + x."""
    writer = ModelWriter()
    quantization = Quantization((scale,), (zero_point,))
    x = writer.input((1, 6), "int8", name="x", quantization=quantization)
    double = Quantization((2 * scale,), (zero_point,))
    writer.output(writer.op("ADD", [x, x], [(1, 6)], dtype="int8", quantization=double, version=2))
    return writer.build()


@pytest.mark.parametrize("place", [{}, {"hardware_accel": CPU}], ids=["gpu", "cpu"])
def test_real_numbers_for_a_quantized_model(place: dict[str, Any]) -> None:
    content = bytes_of(0.5, 3)
    real = np.array([[0.25, -0.25, 1, -5, 1000, -1000]], np.float32)
    with CompiledModel.from_buffer(content, **place) as model:
        text = error_of(model, real)
        assert "'x' is int8, and was given float32. Compile the model with quantize=True" in text
        # The code in the message is what it says.
        code = re.search(r"yourself: (.*)\.$", text)
        assert code is not None
        stored = eval(code[1], {"np": np, "x": real + 1e-3})
        assert stored.tolist() == [[4, 3, 5, -7, 127, -128]]
        raw = model(stored)
        assert raw.dtype == np.int8
    with CompiledModel.from_buffer(content, quantize=True, **place) as model:
        found = model(real)
        assert found.dtype == np.float32
        # 0.25 and -0.25 are half a step: rounded away from zero.
        np.testing.assert_array_equal(found, [[1, -1, 2, -10, 124, -131]])
        np.testing.assert_array_equal(model(np.array([[4, 2, 5, -7, 127, -128]], np.int8)), found)
        np.testing.assert_array_equal(model.submit(real.astype(np.float64)).result(), found)
        with Batcher(model, max_batch=2) as batcher:
            np.testing.assert_array_equal(batcher(real), found)
        assert "'x' was given NaN, which int8 cannot represent" in error_of(model, real * np.nan)
        assert "takes real numbers, and was given bool" in error_of(model, real > 0)


def test_pictures(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 16, 3), np.uint8))
    picture.save(path)
    detail = {"name": "x", "dtype": np.float32, "shape": SHAPE}
    expected = images.to_tensor(picture, detail)
    kinds = [str(path), path, path.read_bytes(), bytearray(path.read_bytes()), picture]
    content = chain(["NEG"], SHAPE)
    with CompiledModel.from_buffer(content) as model:
        for kind in kinds:
            text = error_of(model, kind)
            assert "takes an array, float32 [1, 4, 6, 3], and was given" in text
            assert 'Compile the model with input_format="rgb8"' in text
    for input_format in ("rgb8", "bgr8", "rgba8", "bgra8"):
        with CompiledModel.from_buffer(content, input_format=input_format) as model:
            for kind in kinds:
                np.testing.assert_allclose(model(kind), -expected, atol=1e-5)
            with pytest.raises(FileError, match=r"'nothing.jpg' cannot be read: there is no such"):
                model("nothing.jpg")
            with pytest.raises(FileError, match=r"The picture '\(3 bytes\)' cannot be read"):
                model(b"abc")
            assert "model.at_batch(2)" in error_of(model, [path, picture])
            with model.at_batch(2) as two:
                np.testing.assert_allclose(two([path, picture])[1:], -expected, atol=1e-5)
    with CompiledModel.from_buffer(content, input_format="rgb8", size="any") as model:
        assert "resize_input_tensor(0, [1, 8, 16, 3]) changes the input to that shape" in error_of(
            model, path
        )
        several = error_of(model, [picture, picture.resize((9, 7))])
        assert "was given pictures of several sizes, [7, 9] and [8, 16] among them" in several
        model.resize_input_tensor(0, [1, 8, 16, 3])
        assert model(path).shape == SHAPE
    with CompiledModel.from_buffer(content, input_format="nv12") as model:
        text = error_of(model, path)
        assert f"takes NV12, as cameras give it, and was given '{path}'" in text
    with CompiledModel.from_buffer(chain(["ABS"], (1, 5))) as model:
        assert "was given bytes. Give an array of that shape." in error_of(model, b"abc")
    buffer = io.BytesIO()
    picture.save(buffer, "png")
    with (
        CompiledModel.from_buffer(content, input_format="rgb8") as model,
        Batcher(model) as batcher,
    ):
        np.testing.assert_allclose(batcher(buffer.getvalue()), -expected, atol=1e-5)


def test_arguments_of_other_types() -> None:
    content = chain(["ABS"], SHAPE)
    options: list[tuple[dict[str, Any], str]] = [
        ({"options": {"precision": "fp16"}}, "options is a dict, and for LiteRT's Options alone."),
        ({"options": GpuDelegateOptions()}, "Give what is for litegpu as keywords: precision="),
        ({"quantize": "yes"}, "quantize is 'yes'. Use True or False."),
    ]
    for keywords, text in options:
        assert text in error_of(CompiledModel.from_buffer, content, **keywords)
    assert "path or zoo name is text, not NoneType." in error_of(CompiledModel.from_file, None)
    with CompiledModel.from_buffer(content) as model:
        buffers = (model.create_input_buffers(), model.create_output_buffers())
        key = model.get_signature_by_index(0)["key"]
        for call, args, text in [
            (model.run_by_index, ("main", *buffers), "Signature index is 'main'. Give a number"),
            (model.resize_input_tensor, ("x", SHAPE), "methods that end in `by_name` take names."),
            (model.run_by_index, (0, None, None), "input_buffers is a NoneType. Give a list of"),
            (model.run_by_index, (0, buffers[0], 5), "output_buffers is a int. Give a list of"),
            (model.run_by_name, (key, *buffers), "input_map is a list. Give a dict of Tensor"),
        ]:
            assert text in error_of(call, *args)


def test_options_that_do_not_exist() -> None:
    for name, close in [
        ("context", "contexts"),
        ("precison", "precision"),
        ("inputformat", "input_format"),
    ]:
        with pytest.raises(OptionsError, match=f"Unknown option '{name}'. Did you mean '{close}'"):
            CompiledModel.from_buffer(chain(["ABS"]), **{name: 1})


def test_what_a_model_shows_of_itself(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(chain(["ABS", "NEG"], SHAPE))
    with CompiledModel.from_file(path, precision="fp16") as model:
        device = model._main.delegate.device.title  # type: ignore[union-attr]
        assert repr(model) == (
            f"<CompiledModel {path} on {device}, fp16: 2 of 2 nodes on the GPU; "
            "input float32 [1, 4, 6, 3] -> NEG_1:0 float32 [1, 4, 6, 3]>"
        )
        html = model._repr_html_()
        assert f"<b>CompiledModel {path}</b>" in html and "2 operations will run on the GPU" in html
        assert html.count("float32</td>") == 2
        with model.at_batch(2) as two:
            assert str(path) in repr(two) and "[2, 4, 6, 3]" in repr(two)
    assert repr(model) == f"<CompiledModel {path}: closed>" and "closed" in model._repr_html_()
    with CompiledModel.from_buffer(path.read_bytes(), hardware_accel=CPU) as model:
        assert re.match(r"<CompiledModel of \d+ B on the CPU; input float32 ", repr(model))
        assert "on the CPU" in model._repr_html_()
        assert "profile() measures the GPU, which was not requested." in error_of(model.profile)


def test_a_profile() -> None:
    with CompiledModel.from_buffer(chain(["ABS", "NEG"], SHAPE), contexts=2) as model:
        future = model.submit(X)
        found = model.profile(repeats=2, peaks=False)
        np.testing.assert_array_equal(future.result(), -np.abs(X))
        assert [each.op for each in found.by_op()] and found.repeats == 2
        assert found.invoke_seconds and found.device == model.report.device  # type: ignore
        np.testing.assert_array_equal(model(X), -np.abs(X))


@pytest.mark.parametrize(
    ("signature", "op"), [(None, "ABS"), ("encode", "ABS"), ("decode", "LOGISTIC")]
)
def test_a_profile_of_a_signature(signature: str | None, op: str) -> None:
    """The same is true while signature runners exist, which prevent the runtime from invoking."""
    x = np.full((1, 2, 2, 4), 0.5, np.float32)
    with CompiledModel.from_buffer(encode_and_decode(), min_nodes_per_partition=0) as model:
        before = model(x, signature=signature)
        found = model.profile(signature=signature, repeats=2, peaks=False)
        (part,) = found.partitions
        assert part.graph == (op == "LOGISTIC") and [each.op for each in part.kernels] == [op]
        assert found.invoke_seconds and found.outside_seconds
        np.testing.assert_array_equal(model(x, signature=signature), before)
        assert "Signature not found: 'encod'. Did you mean 'encode'?" in error_of(
            lambda: model.profile(signature="encod")
        )
