"""Preprocessing inside models, compared with NumPy on the CPU and each device."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import picture_reference as reference
import turns
from every_backend import on_every_backend, present
from litegpu import GpuDelegate
from litegpu.graph.ir import Quantization
from litegpu.pictures import images, with_picture_input
from litegpu.pictures.formats import COLORS, FORMATS, RESIZES
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools.engines.jobs import Tensor
from litegpu.tools.evaluation import preprocessing
from litegpu.zoo.writer import ModelWriter
from small_models import fully_convolutional, run

SHAPE = (2, 6, 8, 3)
QUANTIZATIONS = {
    "float32": None,
    "uint8": Quantization((0.02,), (117,)),
    "int8": Quantization((1 / 128,), (-3,)),
}
SCALE = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)


def identity(
    dtype: str = "float32",
    shape: tuple[int, ...] = SHAPE,
    quantization: Quantization | None = None,
) -> bytes:
    """Return a model whose output is its input."""
    writer = ModelWriter()
    quantization = quantization or QUANTIZATIONS[dtype]
    x = writer.input(shape, dtype, quantization=quantization)
    options = {"stride_w": 1, "stride_h": 1, "filter_width": 1, "filter_height": 1}
    y = writer.op(
        *("MAX_POOL_2D", [x], [x.shape]),
        options=options | {"padding": "VALID"},
        dtype=dtype,
        quantization=quantization,
        version=2,
    )
    writer.output(y)
    return writer.build()


def random_picture(input_format: str, size: tuple[int, int], batch: int = 2, seed: int = 0) -> Any:
    high = size[0] * 3 // 2 if input_format == "nv12" else size[0]
    shape = (batch, high, size[1], FORMATS[input_format].channels)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def by_cpu(content: bytes, picture: Any) -> Any:
    interpreter = runtime.interpreter(content, builtin_kernels=True)
    detail = interpreter.get_input_details()[0]
    if tuple(detail["shape"]) != picture.shape:
        interpreter.resize_tensor_input(detail["index"], picture.shape)
        interpreter.allocate_tensors()
    return run(interpreter, picture)[0]


def by_device(content: bytes, picture: Any, backend: str, **options: Any) -> Any:
    delegate = GpuDelegate(backend=backend, **options)
    interpreter = runtime.interpreter(content, delegate, builtin_kernels=True)
    (result,) = run(interpreter, picture)
    assert delegate.report is not None
    assert delegate.report.whole_graph, str(delegate.report)
    return result


def expected(picture: Any, dtype: str, scale: Any = SCALE, **options: Any) -> Any:
    shape = options.pop("shape", SHAPE)
    real = reference.value(picture, options.pop("input_format"), shape, *scale, **options)
    quantization = QUANTIZATIONS[dtype]
    return real if quantization is None else reference.stored(real, dtype, quantization)


def check(wanted: Any, got: Any, steps: int = 0) -> None:
    """Floats within 1e-5; integers equal, but for those that rounding may move by `steps`."""
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    limit = 1e-5 if got.dtype == np.float32 else steps
    assert np.abs(got.astype(np.float64) - wanted).max() <= limit


@pytest.mark.parametrize("dtype", QUANTIZATIONS)
@pytest.mark.parametrize("input_format", FORMATS)
def test_on_the_cpu(input_format: str, dtype: str) -> None:
    content = identity(dtype)
    for size, resize in itertools.product((None, (10, 14), (4, 6), (12, 2)), RESIZES):
        if size is None and resize != "bilinear":
            continue
        picture = random_picture(input_format, size or (6, 8))
        changed = with_picture_input(
            content,
            input_format,
            size=size,
            mean=SCALE[0],
            std=SCALE[1],
            resize=None if size is None else resize,
        )
        wanted = expected(picture, dtype, input_format=input_format, resize=resize)
        check(wanted, by_cpu(changed, picture), steps=size is not None)


@pytest.mark.parametrize("dtype", QUANTIZATIONS)
@pytest.mark.parametrize("input_format", FORMATS)
def test_on_a_device(input_format: str, dtype: str) -> None:
    """Quantized values are those of the CPU, in every bit; floats are those of NumPy.

    What resizing leaves halfway between two integers may go either way.
    """
    content = identity(dtype)
    found = present()
    number = turns.turn(input_format + dtype, len(found))
    for backend in found if turns.ALL else found[number : number + 1]:
        for size in (None, (10, 14)):
            picture = random_picture(input_format, size or (6, 8))
            mean, std = SCALE
            changed = with_picture_input(content, input_format, size=size, mean=mean, std=std)
            wanted = expected(picture, dtype, input_format=input_format)
            if dtype != "float32":
                wanted = by_cpu(changed, picture)
            check(wanted, by_device(changed, picture, backend), steps=size is not None)


@on_every_backend
def test_in_half_precision(backend: str) -> None:
    picture = random_picture("bgra8", (11, 15))
    changed = with_picture_input(identity(), "bgra8", size=(11, 15))
    wanted = reference.value(picture, "bgra8", SHAPE)
    got = by_device(changed, picture, backend, precision="fp16")
    assert np.abs(got - wanted).max() < 4e-3


@on_every_backend
def test_a_convolution_reads_the_picture(backend: str) -> None:
    """Its padding is zero as it was, not the mean."""
    content = fully_convolutional((2, 9, 7, 3))
    picture = random_picture("rgba8", (9, 7))
    value = reference.value(picture, "rgba8", (2, 9, 7, 3), *SCALE)
    changed = with_picture_input(content, "rgba8", mean=SCALE[0], std=SCALE[1])
    got = by_device(changed, picture, backend)
    np.testing.assert_allclose(got, by_cpu(content, value), atol=1e-5)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("input_format", FORMATS)
def test_quantized_inputs_store_bytes(input_format: str, dtype: str) -> None:
    """Without mean and std, int8 less 128, as TensorFlow Lite's evaluation tasks prepare them."""
    changed = with_picture_input(identity(dtype), input_format)
    picture = random_picture(input_format, (6, 8))
    pixels = np.rint(reference.rgb(picture, input_format)).astype(np.int16)
    wanted = (pixels - 128 * (dtype == "int8")).astype(dtype)
    check(wanted, by_cpu(changed, picture), steps=input_format == "nv12")


@pytest.mark.parametrize("dtype", QUANTIZATIONS)
def test_as_the_evaluation_tasks_prepare_pictures(dtype: str, tmp_path: Any) -> None:
    picture = random_picture("rgb8", (6, 8), batch=1)
    path = tmp_path / "picture.rgb8"
    path.write_bytes(picture.tobytes())
    tensor = Tensor("x", (1, 6, 8, 3), np.dtype(dtype))
    prepared = preprocessing.for_input(tensor, batched=False)(str(path))
    changed = with_picture_input(identity(dtype, (1, 6, 8, 3)), "rgb8")
    np.testing.assert_array_equal(by_cpu(changed, picture)[0], prepared)


def test_as_the_evaluation_tasks_resize_pictures() -> None:
    picture = random_picture("rgb8", (13, 31), batch=1)
    changed = with_picture_input(identity(shape=(1, 6, 8, 3)), "rgb8", size="any")
    prepared = (preprocessing.resize_bilinear(picture[0], 6, 8) - 127.5) * np.float32(1 / 127.5)
    np.testing.assert_allclose(by_cpu(changed, picture)[0], prepared, atol=1e-6)


@pytest.mark.parametrize("dtype", QUANTIZATIONS)
def test_as_the_tools_prepare_pictures(dtype: str) -> None:
    from PIL import Image

    shape = (1, 6, 8, 3)
    picture = random_picture("rgb8", (6, 8), batch=1)
    detail = {"shape": shape, "dtype": np.dtype(dtype), "name": "x"}
    prepared = images.to_tensor(Image.fromarray(picture[0]), detail)
    changed = with_picture_input(identity(dtype, shape), "rgb8")
    np.testing.assert_allclose(by_cpu(changed, picture), prepared, atol=1e-6)


@pytest.mark.parametrize("colors", COLORS)
def test_kinds_of_colors(colors: str) -> None:
    picture = random_picture("nv12", (6, 8))
    changed = with_picture_input(identity(), "nv12", mean=0, std=1, colors=colors)
    wanted = reference.value(picture, "nv12", SHAPE, 0, 1, colors=colors)
    np.testing.assert_allclose(by_cpu(changed, picture), wanted, atol=2e-3)


@pytest.mark.parametrize("input_format", ["gray8", "bgr8"])
def test_a_mask_behind_the_colors_is_empty(input_format: str) -> None:
    shape = (1, 6, 8, 4)
    picture = random_picture(input_format, (6, 8), batch=1)
    for dtype in QUANTIZATIONS:
        changed = with_picture_input(
            identity(dtype, shape), input_format, mean=SCALE[0], std=SCALE[1]
        )
        wanted = expected(picture, dtype, input_format=input_format, shape=shape)
        check(wanted, by_cpu(changed, picture))


def test_a_model_of_one_channel() -> None:
    shape = (1, 6, 8, 1)
    picture = random_picture("gray8", (5, 5), batch=1)
    changed = with_picture_input(identity(shape=shape), "gray8", size=(5, 5), mean=[7], std=[3.5])
    check(reference.value(picture, "gray8", shape, 7, 3.5), by_cpu(changed, picture))


def test_sizes_and_batches_that_a_run_tells() -> None:
    changed = with_picture_input(identity(), "bgra8", size="any", mean=0, std=255)
    for batch, size in ((1, (3, 50)), (3, (21, 4))):
        picture = random_picture("bgra8", size, batch)
        wanted = reference.value(picture, "bgra8", SHAPE, 0, 255)
        check(wanted, by_cpu(changed, picture))


def test_a_model_of_any_size() -> None:
    content = identity(shape=(-1, -1, -1, 3))
    picture = random_picture("rgba8", (5, 7), batch=3)
    wanted = reference.value(picture, "rgba8", (3, 5, 7, 3))
    for size in (None, "any", (5, 7)):
        check(wanted, by_cpu(with_picture_input(content, "rgba8", size=size), picture))
    decoded = random_picture("nv12", (4, 6), batch=3)
    changed = with_picture_input(content, "nv12", size=(4, 6))
    check(reference.value(decoded, "nv12", (3, 4, 6, 3)), by_cpu(changed, decoded))


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_drawn_pictures(data: st.DataObject) -> None:
    """Any format into any type, with any sizes and scales."""
    input_format = data.draw(st.sampled_from([*FORMATS]))
    dtype = data.draw(st.sampled_from([*QUANTIZATIONS]))
    even = 2 if input_format == "nv12" else 1
    sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))
    height, width = data.draw(sizes)
    size = height * even, width * even
    shape = (data.draw(st.integers(1, 3)), *data.draw(sizes), data.draw(st.sampled_from([3, 4])))
    resize = data.draw(st.sampled_from([*RESIZES])) if size != shape[1:3] else "bilinear"
    mean = data.draw(st.lists(st.floats(0, 255), min_size=3, max_size=3))
    std = data.draw(st.floats(20, 300))
    quantization = QUANTIZATIONS[dtype]
    changed = with_picture_input(
        identity(dtype, shape),
        input_format,
        size=size,
        mean=mean,
        std=std,
        resize=None if size == shape[1:3] else resize,
    )
    picture = random_picture(input_format, size, shape[0])
    real = reference.value(picture, input_format, shape, mean, std, resize=resize)
    wanted = real if quantization is None else reference.stored(real, dtype, quantization)
    # Whole numbers have sums that round alike; what is halfway may go either way.
    check(wanted, by_cpu(changed, picture), steps=1)
