"""Whole models that take a picture's bytes, compared with preprocessing on the CPU."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from PIL import Image

import picture_reference as reference
from every_backend import on_every_backend, present
from litegpu import CompiledModel, CompiledModelError, GpuDelegate, OptionsError
from litegpu.graph.ir import Quantization
from litegpu.pictures import KEYWORDS, images, with_picture_input
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo import ModelWriter
from real_models import find, picture_paths
from small_models import fully_convolutional, run

SHAPE = (1, 9, 7, 3)


def test_the_keywords_are_those_of_the_function() -> None:
    assert tuple(inspect.signature(with_picture_input).parameters)[1:] == KEYWORDS


@on_every_backend
def test_a_compiled_model_takes_bytes(backend: str) -> None:
    content = fully_convolutional(SHAPE)
    picture = np.random.default_rng(0).integers(0, 256, (1, 12, 10, 4), np.uint8)
    value = reference.value(picture, "rgba8", SHAPE, 0, 255)
    wanted = run(runtime.interpreter(content, builtin_kernels=True), value)[0]
    options: dict[str, Any] = {"input_format": "rgba8", "size": "any", "mean": 0, "std": 255}
    with CompiledModel.from_buffer(content, backend=backend, **options) as model:
        model.resize_input_tensor(0, picture.shape)
        buffer = model.create_input_buffers()[0]
        assert buffer.array.dtype == np.uint8
        buffer.array[:] = picture
        outputs = model.create_output_buffers()
        model.run_by_index(0, [buffer], outputs)
        np.testing.assert_allclose(outputs[0].array, wanted, atol=1e-5)
        assert model.is_fully_accelerated()


def test_what_a_compiled_model_cannot_take() -> None:
    with pytest.raises(CompiledModelError, match="no picture"):
        CompiledModel.from_buffer(fully_convolutional((1, 9, 7, 5)), input_format="rgb8")
    with pytest.raises(CompiledModelError, match=r"size, mean: these are options of an image"):
        CompiledModel.from_buffer(fully_convolutional(), size=(4, 4), mean=1)
    with pytest.raises(OptionsError, match="Unknown input_format 'rgb'"):
        CompiledModel.from_buffer(fully_convolutional(), input_format="rgb")


def kernels(content: bytes) -> int:
    delegate = GpuDelegate(backend=present()[0])
    runtime.interpreter(content, delegate, builtin_kernels=True)
    assert delegate.report is not None and delegate.report.whole_graph, str(delegate.report)
    return delegate.report.partitions[0].kernels


def quantized() -> bytes:
    """Return a model of one average pool of int8."""
    writer = ModelWriter()
    scale = Quantization((0.02,), (3,))
    x = writer.input((1, 8, 6, 3), "int8", quantization=scale)
    options = {"stride_w": 2, "stride_h": 2, "filter_width": 2, "filter_height": 2}
    operands = [x], [(1, 4, 3, 3)]
    pool = writer.op(
        *("AVERAGE_POOL_2D", *operands),
        options=options | {"padding": "VALID"},
        dtype="int8",
        quantization=scale,
        version=2,
    )
    writer.output(pool)
    return writer.build()


@pytest.mark.parametrize("content", [fully_convolutional((1, 8, 6, 3)), quantized()])
@pytest.mark.parametrize(
    ("input_format", "resized", "more"),
    [
        ("rgba8", False, 1),
        ("bgr8", True, 1),
        ("bgra8", True, 1),
        ("gray8", True, 1),
        ("nv12", False, 1),
        ("nv12", True, 2),
    ],
)
def test_few_kernels_are_added(content: bytes, input_format: str, resized: bool, more: int) -> None:
    changed = with_picture_input(
        content, input_format, size=(16, 10) if resized else None, mean=(1, 2, 3), std=40
    )
    assert kernels(changed) - kernels(content) == more


def as_nothing_but_bytes(path: str, size: tuple[int, int], alpha: bool) -> Any:
    """Return what a decoder gives of the picture at that size: RGBA or RGB."""
    picture = images.centre_crop(images.open_picture(path), size[1], size[0])
    resized = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(resized.convert("RGBA" if alpha else "RGB"))[np.newaxis]


@pytest.mark.real_model
@pytest.mark.long_kernels
@pytest.mark.parametrize("name", ["mobilenet_v1_0.25_128_float32", "mobilenet_v1_0.25_128_quant"])
def test_a_trained_model_says_the_same_of_a_picture(name: str) -> None:
    content = find(name).read_bytes()
    path = picture_paths()[0]
    before = runtime.interpreter(content, builtin_kernels=True)
    detail = before.get_input_details()[0]
    prepared = images.to_tensor(images.open_picture(path), detail)
    (wanted,) = run(before, prepared)
    pixels = as_nothing_but_bytes(path, (128, 128), alpha=True)
    changed = with_picture_input(content, "rgba8")
    (cpu,) = run(runtime.interpreter(changed, builtin_kernels=True), pixels)
    delegate = GpuDelegate(backend=present()[0])
    (device,) = run(runtime.interpreter(changed, delegate, builtin_kernels=True), pixels)
    assert delegate.report is not None and delegate.report.whole_graph
    limit = 1e-5 if wanted.dtype == np.float32 else 0
    for found in (cpu, device):
        assert np.abs(found.astype(np.float64) - wanted).max() <= limit
