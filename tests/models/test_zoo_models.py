"""Small models of the zoo, on every device, compared with the runtime's CPU kernels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import pytest

import turns
from every_backend import present
from litegpu import zoo
from litegpu.backends.base import DeviceInfo
from litegpu.options import InferencePriority
from litegpu.pictures import images
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools.picture_flag import default_picture
from litegpu.zoo.registry import PREFIX
from model_runner import (
    Arrays,
    check_close,
    check_delegation,
    check_repeats,
    cpu_answers,
    device_answers,
)
from turns import NOT_ITS_TURN


@dataclass(frozen=True)
class Small:
    """A model of the zoo.

    `slack` multiplies the limits: many layers of random weights enlarge rounding errors more than
    trained ones do. Outputs that are `ranked` jump when two scores change places.
    """

    name: str
    slack: float = 1.0
    ranked: bool = False
    optimized: bool = False
    """Whether PoCL optimizes its kernels, as users have it, for twice the time."""


@dataclass(frozen=True)
class Precision:
    """Options of the delegate, and the greatest relative L2 error that they may cause."""

    name: str
    limit: float
    smallest: bool = False

    @property
    def text(self) -> str:
        """Precision and priority, in one word."""
        return f"{self.name}{'-smallest' * self.smallest}"

    def options(self) -> dict[str, Any]:
        """Return the delegate's options."""
        priority = {"inference_priority1": InferencePriority.MIN_MEMORY_USAGE}
        return {"precision": self.name, **(priority if self.smallest else {})}


PRECISION_TABLE = (
    Precision("fp32", 1e-5),
    Precision("fp16", 5e-3),
    Precision("fp16", 2e-2, smallest=True),
)

MODELS = (
    Small("mobilenet_v1_0.25_128?size=64&batch=3", optimized=True),
    Small("mobilenet_v1_1.0_224?size=64&width=0.5&weights=float16"),
    Small("mobilenet_v2_1.0_224?size=64&width=0.35&batch=2"),
    Small("ssd_mobilenet_v1_300?size=96&width=0.25", ranked=True),
    Small("deeplab_v3_257?size=65&width=0.25"),
    Small("posenet_mobilenet_v1_257?size=65&width=0.25&stride=16"),
    Small("resnet50?size=32", slack=3.0),
    Small("vit_tiny?size=48&layers=1&batch=3", optimized=True),
    Small("mobilevit_xxs?size=64&layers=1", slack=3.0),
    Small("whisper_tiny_encoder?frames=30&layers=1&batch=3"),
)


@dataclass(frozen=True)
class Reference:
    """A model with a picture and noise to show it, and what the CPU says to each."""

    content: bytes
    pictures: list[list[npt.NDArray[Any]]]
    outputs: tuple[Arrays, ...]


@functools.lru_cache(maxsize=1)
def reference(name: str) -> Reference:
    content = zoo.load(PREFIX + name)
    (detail,) = runtime.interpreter(content, builtin_kernels=True).get_input_details()
    shown = [[images.random_tensor(detail)], [images.random_tensor(detail, seed=1)]]
    if len(detail["shape"]) == 4:
        picture = images.open_picture(default_picture())
        shown[0] = [images.to_tensor(picture, detail)]
    return Reference(content, shown, cpu_answers(content, shown))


def precisions(model: Small, device: DeviceInfo) -> Sequence[Precision]:
    """Return what a device runs a model with.

    Three devices that a CPU plays, which take long to compile, have one each; it changes with the
    model.
    """
    count = len(PRECISION_TABLE)
    if turns.ALL or not device.software or len(present()) < count:
        return PRECISION_TABLE
    place = present().index(device.backend)
    return PRECISION_TABLE[(place + turns.turn(model.name, count)) % count :][:1]


@pytest.mark.parametrize("precision", PRECISION_TABLE, ids=lambda each: each.text)
@pytest.mark.parametrize(
    "model",
    [pytest.param(each, marks=[pytest.mark.long_kernels] * each.optimized) for each in MODELS],
    ids=lambda model: model.name,
)
def test_answers_of_the_cpu(model: Small, device: DeviceInfo, precision: Precision) -> None:
    if precision not in precisions(model, device):
        pytest.skip(NOT_ITS_TURN)
    wanted = reference(model.name)
    answers = device_answers(wanted.content, wanted.pictures, device, **precision.options())
    check_delegation(answers.report)
    check_repeats(answers)
    limit = precision.limit * model.slack
    if model.ranked and precision.smallest:
        limit = float("inf")  # only finite, then
    for number, (expected, got) in enumerate(zip(wanted.outputs, answers.outputs, strict=True)):
        about = f"{model.name} on {device.title}, {precision}, picture {number}"
        check_close(expected, got, [limit] * len(expected), about)


def test_every_model_of_the_zoo_is_here() -> None:
    """Language models are in tests/language_model/test_devices.py."""
    found = {PREFIX + model.name.partition("?")[0] for model in MODELS}
    assert found | {"zoo:tiny_lm"} == set(zoo.names())
