"""Trained quantized models on a real picture: every tensor equals the CPU's in every bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import turns
from comparing import relative_error
from every_backend import first_devices
from litegpu import GpuDelegate
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo.cuts import CuttableModel
from real_models import SIGNED, find, picture_paths, shown_to

Array = npt.NDArray[Any]

LSTM = "keras_lstm_mnist_ptq"
DETECTOR = "ssd_mobilenet_v1_coco_quant"
MODELS = (
    "mobilenet_v1_0.25_128_quant",
    "mobilenet_v2_1.0_224_quant",
    "tf2_mobilenet_v2_1.0_224_ptq",
    "posenet_mobilenet_v1_100_257x257_integer_quant",
    "deeplabv3_mnv2_dm05_pascal_quant",
    LSTM,
    DETECTOR,
)


def without_custom(content: bytes, every_tensor: bool = False) -> bytes:
    """Return a model without its custom operations; every tensor may be an output of it."""
    model = CuttableModel(content)
    nodes = [n for n, op in enumerate(model.ops) if not op.startswith("TFLite_")]
    outputs = model.written_by(nodes) if every_tensor else model.read_by_others(nodes)
    return model.cut(nodes, outputs, {}).content


def answers(content: bytes, inputs: list[Array], delegate: GpuDelegate | None) -> list[Array]:
    target = runtime.interpreter(content, delegate, builtin_kernels=True)
    for detail, value in zip(target.get_input_details(), inputs, strict=True):
        target.set_tensor(detail["index"], value)
    target.invoke()
    return [target.get_tensor(detail["index"]) for detail in target.get_output_details()]


def shown(content: bytes) -> list[Array]:
    target = runtime.interpreter(content, builtin_kernels=True)
    return [shown_to(d, picture_paths()[0], SIGNED) for d in target.get_input_details()]


FEW = MODELS if turns.ALL else ("mobilenet_v1_0.25_128_quant", DETECTOR)
"""One of each sort: of integers alone, and with floats at its end."""
SMALL = ("mobilenet_v1_0.25_128_quant", "tf2_mobilenet_v2_1.0_224_ptq", LSTM)
"""One of each type and an LSTM: all that runs on devices that a CPU plays, but for the first."""


@pytest.mark.real_model
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_is_the_cpus(name: str) -> None:
    content = without_custom(find(name).read_bytes(), every_tensor=True)
    inputs = shown(content)
    expected = answers(content, inputs, None)
    for number, device in enumerate(first_devices()):
        if number and device.software and name not in SMALL and not turns.ALL:
            continue
        delegate = GpuDelegate(backend=device.backend, device=device.index)
        got = answers(content, inputs, delegate)
        assert delegate.report is not None
        assert delegate.report.whole_graph, str(delegate.report)
        wrong = [
            (output, int(np.count_nonzero(a != b)))
            for output, (a, b) in enumerate(zip(expected, got, strict=True))
            if a.tobytes() != b.tobytes()
        ]
        assert wrong == [], device.title


@pytest.mark.real_model
@pytest.mark.parametrize("name", FEW)
def test_whole_models_as_users_run_them(name: str) -> None:
    content = find(name).read_bytes()
    inputs = shown(content)
    delegate = GpuDelegate()
    got = answers(content, inputs, delegate)
    assert delegate.report is not None and delegate.report.whole_graph, str(delegate.report)
    for a, b in zip(answers(content, inputs, None), got, strict=True):
        if name == DETECTOR and b.ndim == 3:
            # The CPU decodes boxes in float64.
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-7)
        else:
            np.testing.assert_array_equal(a, b)


@pytest.mark.real_model
@pytest.mark.parametrize("name", FEW)
def test_floats_are_as_close_as_xnnpack(name: str) -> None:
    content = without_custom(find(name).read_bytes())
    inputs = shown(content)
    got = answers(content, inputs, GpuDelegate(quantized="float", min_nodes_per_partition=1))
    expected = answers(content, inputs, None)
    target = runtime.interpreter(content)
    for detail, value in zip(target.get_input_details(), inputs, strict=True):
        target.set_tensor(detail["index"], value)
    target.invoke()
    others = [target.get_tensor(detail["index"]) for detail in target.get_output_details()]
    for a, b, c in zip(expected, got, others, strict=True):
        assert np.all(np.isfinite(b))
        assert relative_error(a, b) <= max(1.2 * relative_error(a, c), 0.01)
