"""Trained models on real pictures, on every device, compared with the runtime's CPU kernels."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import pytest

import turns
from comparing import relative_error
from every_backend import first_devices
from litegpu import GpuDelegate
from litegpu.backends.base import DeviceInfo
from litegpu.delegation.report import DelegationReport
from litegpu.options import PRECISIONS
from litegpu.runtime_abi import interpreter as runtime
from model_runner import (
    ARENA_LIMIT,
    Arrays,
    check_close,
    check_delegation,
    check_repeats,
    cpu_answers,
    device_answers,
)
from real_models import SIGNED, UNIT, find, picture_paths, shown_to

FP32_LIMIT, FP16_LIMIT = 1e-5, 5e-3


@dataclass(frozen=True)
class Trained:
    """A trained model: its file, how it wants pixels, and the ops that stay on the CPU.

    XNNPACK is the reference where the built-in kernels lack operations. `fp32_limit` is wider where
    a maximum's place matters: which of two nearly equal elements is larger hangs on rounding.
    `arena` is the device memory that it may take, as a multiple of the lower bound.
    """

    name: str
    pixels: tuple[float, float] = SIGNED
    builtin_kernels: bool = True
    fp32_limit: float = FP32_LIMIT
    arena: float = ARENA_LIMIT
    large: bool = False
    """Whether it takes devices that a CPU plays a minute or more."""


MODELS = (
    Trained("deeplabv3_257_mv_gpu"),
    Trained("mobilenet_v1_0.25_128_float32"),
    Trained("mobilenet_v1_0.25_128_float16"),
    Trained("mobilenet_v2_1.0_224_float32"),
    Trained("mobilenet_v2_1.0_224_float16"),
    Trained("face_detection_front"),
    Trained("face_detection_short_range_float16"),
    Trained("face_landmark"),
    Trained("palm_detection_lite_float16", UNIT),
    Trained("pose_landmark_lite_float16", UNIT),
    Trained("hand_recrop", UNIT),
    Trained("hair_segmentation", UNIT, builtin_kernels=False, fp32_limit=1e-3),
    # Its values of float32 and half in turns leave gaps between each other.
    Trained("style_transfer_f16_384", UNIT, arena=1.3, large=True),
    Trained("ssd_mobilenet_v1_coco_float32"),
    Trained("ssd_mobilenet_v1_coco_float16"),
)


QUANTIZED = (Trained("style_transfer_quantized_dynamic"),)
"""Quantized models with float activations, too; all others must agree in every bit."""


@dataclass(frozen=True)
class Reference:
    """A model with its pictures, what the CPU says to each, and how far XNNPACK is from that."""

    content: bytes
    pictures: list[list[npt.NDArray[Any]]]
    outputs: tuple[Arrays, ...]
    xnnpack: list[list[float]]


@functools.lru_cache(maxsize=1)
def reference(model: Trained) -> Reference:
    content = find(model.name).read_bytes()
    target = runtime.interpreter(content, builtin_kernels=model.builtin_kernels)
    details = target.get_input_details()
    shown = [
        [shown_to(detail, path, model.pixels) for detail in details] for path in picture_paths()
    ]
    outputs = cpu_answers(content, shown, builtin_kernels=model.builtin_kernels)
    others = cpu_answers(content, shown, builtin_kernels=False)
    distances = [list(map(relative_error, a, b)) for a, b in zip(outputs, others, strict=True)]
    return Reference(content, shown, outputs, distances)


def precisions(model: Trained, device: DeviceInfo) -> Sequence[str]:
    """Return both for a GPU. Of the devices that a CPU plays, one has one of them.

    Models are dealt out in their order, so that each device has both. Where there is one such
    device alone, it has both of each model. Large models are left to the first of them.
    """
    played = [each for each in first_devices() if each.software]
    if turns.ALL or not device.software or (len(played) == 1 and not model.large):
        return PRECISIONS
    begins, place = divmod(MODELS.index(model), len(played))
    if device != (played[0] if model.large else played[place]):
        return ()
    return (PRECISIONS[begins % 2],)


@pytest.mark.real_model
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "model",
    [pytest.param(each, marks=[pytest.mark.long_kernels] * each.large) for each in MODELS],
    ids=lambda model: model.name,
)
def test_answers_of_the_cpu(model: Trained) -> None:
    """On every device: a test of a real model that is skipped anywhere fails CI."""
    for device in first_devices():
        for precision in precisions(model, device):
            check_answers(model, device, precision)


def check_answers(model: Trained, device: DeviceInfo, precision: str) -> None:
    wanted = reference(model)
    answers = device_answers(wanted.content, wanted.pictures, device, precision=precision)
    check_delegation(answers.report, model.arena)
    check_repeats(answers)
    for number, (expected, got) in enumerate(zip(wanted.outputs, answers.outputs, strict=True)):
        limits = [model.fp32_limit if precision == "fp32" else FP16_LIMIT] * len(expected)
        if number > 0:
            # A picture without what the model looks for: its answers hang on rounding, and
            # XNNPACK is not close to the built-in kernels either.
            limits = [max(pair) for pair in zip(limits, wanted.xnnpack[number], strict=True)]
        about = f"{model.name} on {device.title}, {precision}, picture {number}"
        check_close(expected, got, limits, about)


@pytest.mark.real_model
@pytest.mark.long_kernels
@pytest.mark.parametrize(
    ("model", "precision"),
    itertools.product(QUANTIZED, PRECISIONS)
    if turns.ALL
    else zip(QUANTIZED, PRECISIONS, strict=False),
    ids=lambda each: getattr(each, "name", each),
)
def test_quantized_models_are_split_and_right(model: Trained, precision: str) -> None:
    wanted = reference(model)
    answers = device_answers(
        wanted.content,
        wanted.pictures,
        first_devices()[0],
        precision=precision,
        max_delegated_partitions=8,
    )
    assert all(node.reason for node in answers.report.rejected)
    check_repeats(answers)
    for expected, got, others in zip(wanted.outputs, answers.outputs, wanted.xnnpack, strict=True):
        # Operations on the CPU quantize what they get: a difference in the last bit may become a
        # whole step, for XNNPACK as for a device.
        limits = [max(FP32_LIMIT if precision == "fp32" else FP16_LIMIT, each) for each in others]
        check_close(expected, got, limits, f"{model.name} at {precision}")


def report_on(name: str) -> DelegationReport:
    """Return what is said of a model when all that can be is delegated."""
    delegate = GpuDelegate(max_delegated_partitions=99, min_nodes_per_partition=0)
    runtime.interpreter(find(name).read_bytes(), delegate)
    assert delegate.report is not None
    return delegate.report


@pytest.mark.real_model
def test_floats_beside_quantized_weights_stay_on_the_device() -> None:
    assert report_on("style_transfer_quantized_dynamic").whole_graph
