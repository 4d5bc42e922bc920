"""Files with another picture input: unchanged parts, and rejected files."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from litegpu import ModelError, OptionsError
from litegpu.graph.ir import Quantization
from litegpu.pictures import with_picture_input
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo import ModelWriter, objects, schema
from small_models import fully_convolutional, run, with_subgraphs

LABELS = b"a cat\na dog\n"


def two_inputs() -> bytes:
    """Return a model with a signature: a picture times a factor, and the factor."""
    writer = ModelWriter("two inputs")
    factor = writer.input((1, 1, 1, 3), name="serving_factor")
    picture = writer.input((1, 4, 4, 3), name="serving_picture")
    product = writer.op("MUL", [picture, factor], [picture.shape], name="product")
    same = writer.op("NEG", [factor], [factor.shape], name="same")
    writer.output(product, same)
    writer.signature(
        "serve", {"factor": factor, "picture": picture}, {"product": product, "same": same}
    )
    return writer.build()


def edited(content: bytes, edit: Callable[[Any], None]) -> bytes:
    model = objects.parse(content)
    edit(model)
    return objects.pack(model)


def note(name: bytes, data: bytes) -> Callable[[Any], None]:
    """Return an edit that keeps data as metadata."""

    def edit(model: Any) -> None:
        entry = schema.tables().MetadataT()
        entry.name, entry.buffer = name, len(model.buffers)
        model.metadata = [*(model.metadata or ()), entry]
        model.buffers = [*model.buffers, objects.buffer_of(data)]

    return edit


@pytest.mark.parametrize("which", [1, "serving_picture", "picture"])
def test_names_and_signatures_stay(which: int | str) -> None:
    content = with_picture_input(two_inputs(), "rgba8", mean=0, std=1, input=which)
    interpreter = runtime.interpreter(content, builtin_kernels=True)
    factor, picture = interpreter.get_input_details()
    assert (factor["name"], picture["name"]) == ("serving_factor", "serving_picture")
    assert picture["dtype"] is np.uint8 and picture["shape"].tolist() == [1, 4, 4, 4]
    runner = interpreter.get_signature_runner("serve")
    pixels = np.arange(64, dtype=np.uint8).reshape(1, 4, 4, 4)
    given = np.array([1, 2, 3], np.float32).reshape(1, 1, 1, 3)
    found = runner(picture=pixels, factor=given)
    np.testing.assert_array_equal(found["product"], pixels[..., :3] * given)
    np.testing.assert_array_equal(found["same"], -given)


def test_metadata_other_graphs_and_attached_files_stay() -> None:
    content = edited(with_subgraphs(two_inputs(), fully_convolutional()), note(b"about", b"more"))
    before = objects.parse(content)
    file = io.BytesIO(content)
    with zipfile.ZipFile(file, "a") as attached:
        attached.writestr("labels.txt", LABELS)
    changed = with_picture_input(file.getvalue(), "nv12", input="picture")
    with zipfile.ZipFile(io.BytesIO(changed)) as archive:
        assert archive.read("labels.txt") == LABELS
    after = objects.parse(changed)
    (entry,) = after.metadata
    assert objects.content(after.buffers[entry.buffer]) == b"more"
    assert after.description == before.description and len(after.subgraphs) == 2
    old, new = before.subgraphs[1], after.subgraphs[1]
    assert [t.name for t in old.tensors] == [t.name for t in new.tensors]
    assert [n.opcodeIndex for n in old.operators] == [n.opcodeIndex for n in new.operators]


def test_a_picture_that_is_the_input_already_changes_nothing() -> None:
    writer = ModelWriter()
    x = writer.input((1, 4, 4, 3), "uint8", quantization=Quantization((0.5,), (3,)))
    writer.output(writer.op("CAST", [x], [x.shape]))
    content = writer.build()
    assert with_picture_input(content, "rgb8") == content
    assert with_picture_input(content, "rgb8", mean=3, std=2) == content
    assert with_picture_input(content, "rgb8", mean=4, std=2) != content


def ops_of(content: bytes) -> list[str]:
    model = objects.parse(content)
    names = {number: name for name, number in schema.members("BuiltinOperator").items()}
    codes = [
        names[model.operatorCodes[n.opcodeIndex].builtinCode] for n in model.subgraphs[0].operators
    ]
    return codes[:-1]


@pytest.mark.parametrize(
    ("dtype", "zero", "scale", "ops"),
    [
        ("uint8", 128, (128, 128), ["STRIDED_SLICE"]),
        ("int8", 0, (128, 128), ["STRIDED_SLICE", "QUANTIZE"]),
        ("int8", 0, (127, 128), ["STRIDED_SLICE", "CAST", "SUB", "MUL", "QUANTIZE"]),
    ],
)
def test_bytes_stay_bytes_where_they_mean_the_same(
    dtype: str, zero: int, scale: tuple[float, float], ops: list[str]
) -> None:
    writer = ModelWriter()
    x = writer.input((1, 4, 4, 3), dtype, quantization=Quantization((1 / 128,), (zero,)))
    writer.output(writer.op("DEQUANTIZE", [x], [x.shape], version=2))
    content = writer.build()
    mean, std = scale
    changed = with_picture_input(content, "bgra8", mean=mean, std=std)
    assert ops_of(changed) == ops
    pixels = np.arange(64, dtype=np.uint8).reshape(1, 4, 4, 4) * 3
    (found,) = run(runtime.interpreter(changed, builtin_kernels=True), pixels)
    np.testing.assert_allclose(found, (pixels[..., 2::-1] - float(mean)) / std, atol=1 / 256)


def test_a_path_and_a_model_of_the_zoo(tmp_path: Any) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(two_inputs())
    assert with_picture_input(path, input=1) == with_picture_input(two_inputs(), input=1)
    assert with_picture_input("zoo:mobilenet_v1_0.25_128", "rgba8")[4:8] == b"TFL3"


def of(shape: tuple[int, ...] = (1, 4, 4, 3), dtype: str = "float32", **options: Any) -> bytes:
    writer = ModelWriter()
    x = writer.input(shape, dtype, name="x", **options)
    writer.output(writer.op("CAST", [x], [x.shape], dtype="int32"))
    return writer.build()


def _outside(model: Any) -> None:
    model.buffers[-1].offset = 1 << 20


@pytest.mark.parametrize(
    ("content", "options", "text"),
    [
        (b"nothing of the kind", {}, "cannot be read as a .tflite file: the model is"),
        (of()[:180], {}, "the model is damaged .* Convert it again"),
        (edited(of(), lambda m: setattr(m, "subgraphs", [])), {}, "the model has no graph"),
        (of((1, 4, 3)), {}, r"'x' is \[1, 4, 3\], no picture. Choose another input"),
        (of((1, 4, 4, 5)), {}, "no picture"),
        (of(dtype="int32"), {}, "is int32; pictures can be converted to float32, uint8, int8"),
        (of(dtype="int8"), {}, "without one scale and zero point"),
        (of((1, 4, 4, 1)), {"input_format": "rgb8"}, "takes one channel .* Use gray8"),
        (edited(of(), _outside), {}, r"Constant \d+ of the model would be at bytes 1048576 to"),
        (
            edited(of(), note(b"model_control_dependencies", b"0")),
            {},
            "refer to operations by index",
        ),
    ],
)
def test_models_that_take_no_picture(content: bytes, options: Any, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        with_picture_input(content, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"input_format": "rgb"}, "Unknown input_format 'rgb'. Did you mean 'rgb8'"),
        ({"resize": "cubic", "size": "any"}, "Unknown resize 'cubic'"),
        ({"resize": "nearest"}, r"has no effect: the input, \[1, 4, 4, 3\]"),
        ({"size": "all"}, "size='all' must be a height and a width, or 'any'"),
        ({"size": (4, 0)}, "is not a height and a width"),
        ({"size": (4, 4, 3)}, "is not a height and a width"),
        ({"input_format": "nv12", "size": "any"}, "nv12 needs a fixed size"),
        ({"input_format": "nv12", "size": (4, 5)}, "even heights and widths, not 4×5"),
        ({"input_format": "nv12", "colors": "bt2020"}, "Unknown colors 'bt2020'"),
        ({"colors": "bt601"}, "applies only to nv12, not to rgb8"),
        ({"mean": 1.0}, "mean and std belong together"),
        ({"mean": (1, 2), "std": 1}, "one for each of 3 channels"),
        ({"mean": 0, "std": (1, 0, 1)}, "std=.*a finite number other than 0"),
        ({"mean": float("nan"), "std": 1}, "mean=nan: give a finite number"),
        ({"input": 2}, "input=2: the model has 1 inputs"),
        ({"input": "picture"}, "Unknown input 'picture'"),
        ({"input": None}, "Unknown input None. Known: x"),
        ({"input_format": None}, "Unknown input_format None. .*Known: rgb8, bgr8"),
        ({"input_format": 3}, "Unknown input_format 3"),
        ({"resize": ["nearest"], "size": "any"}, "Unknown resize .'nearest'."),
        ({"size": 100}, "size=100 is not a height and a width. Give two whole numbers"),
        ({"size": (4, "5")}, "is not a height and a width"),
        ({"size": (4, float("inf"))}, "is not a height and a width"),
        ({"mean": "a", "std": 1}, "mean='a': give a finite number"),
        ({"mean": 0, "std": (1, None, 1)}, "std=.*a finite number other than 0"),
    ],
)
def test_arguments_that_cannot_be(options: Any, text: str) -> None:
    with pytest.raises(OptionsError, match=text):
        with_picture_input(of(), **options)
