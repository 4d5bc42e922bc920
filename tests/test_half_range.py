"""What kernels of CUDA's own multiply as halves keeps the range of floats."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from comparing import relative_error
from conv_graphs import built, convolution, product
from cuda_emulator import INFO, EmulatedDevice, needs_emulator
from litegpu.engine.layout import HALF_FROM_BYTES
from litegpu.graph import Graph
from litegpu.ops.window import Window

pytestmark = needs_emulator


def computed(graph: Graph, image: Any, template: str, units: int = 132) -> Any:
    """Return what the kernel of that template makes of an image."""
    device = dataclasses.replace(INFO, compute_units=units)
    program = built(graph, HALF_FROM_BYTES, device)
    (launch,) = program.launches
    assert launch.template == template
    made = np.empty(graph.values[graph.outputs[0]].shape, np.float32)
    EmulatedDevice().record(program.program).run([image.ctypes.data], [made.ctypes.data])
    return made


def test_a_pointwise_convolution_of_large_values() -> None:
    """What a palm detector gave: 91 % of its result was wrong."""
    graph = convolution((1, 12, 12, 128), 256, Window((1, 1), (1, 1)))
    image = np.random.default_rng(0).normal(0, 5e4, (1, 12, 12, 128)).astype(np.float32)
    image *= 238_778 / np.abs(image).max()
    made = computed(graph, image, "cuda/conv_mma")
    assert relative_error(product(graph, image), made) < 1e-6
