"""Random networks, a few of them: `tests/support/fuzz.py --kind networks` runs any number."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from cases.base import Case
from cases.conv_2d import Conv
from cases.elementwise import Binary, Unary
from fuzzing.drawing import draw
from fuzzing.network import Layer, Network
from fuzzing.network_oracle import KINDS, NetworkOracle, save, stored
from litegpu.ops import functions
from litegpu.tools import runtime

OPENCL = {"backend": "opencl"}


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> NetworkOracle:
    """Return an oracle that runs networks here, where a test may have changed litegpu."""
    monkeypatch.setenv("LITEGPU_COMPILE_PROCESSES", "0")
    return NetworkOracle({}, OPENCL, here=True)


@pytest.fixture
def wrong_tanh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let litegpu compute another function than TANH."""
    wrong = dataclasses.replace(
        functions.FUNCTIONS["TANH"], expression="TANH4({a} * SPLAT4(1.01f))"
    )
    monkeypatch.setitem(functions.FUNCTIONS, "TANH", wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_is_drawn_again_from_its_seed(kind: str) -> None:
    first, second, other = (stored(draw(kind, seed)) for seed in (3, 3, 4))
    assert first.content == second.content != other.content
    for one, two in zip(first.inputs, second.inputs, strict=True):
        np.testing.assert_array_equal(one, two)


def chain(*cases: Case) -> Network:
    """Return a network of cases, each of which reads what the last one made."""
    layers = [
        Layer(number, case, ((number - 1, 0),) if number else ())
        for number, case in enumerate(cases)
    ]
    return Network("small-float", 1, tuple(layers))


IMAGE = (2, 6, 5, 8)
CHAIN = chain(
    Conv(image=IMAGE, filters=8, kernel=(3, 3), activation="RELU6"),
    Unary(op="ABS", shape=IMAGE),
    Unary(op="TANH", shape=IMAGE),
    Binary(op="ADD", first=IMAGE, second=IMAGE, constant=1),
    Conv(image=IMAGE, filters=12),
)


def test_a_wrong_kernel_is_found_and_its_layer_remains(
    oracle: NetworkOracle, wrong_tanh: None, tmp_path: Path
) -> None:
    assert oracle.goes_wrong(CHAIN)
    builder = oracle.shrunk(CHAIN, seconds=600)
    (layer,) = builder.network.layers
    assert layer.case == Unary(op="TANH", shape=(1, 1, 1, 1))
    assert builder.lines() == ("2: Unary-op=TANH-shape=1x1x1x1 of input -> 1x1x1x1",)
    content = save(builder, tmp_path / "smallest.tflite").read_bytes()
    details = runtime.interpreter(content, builtin_kernels=True)._get_ops_details()
    assert [each["op_name"] for each in details] == ["TANH"]
