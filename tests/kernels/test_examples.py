"""The examples of implementations: selected, and with the results of the portable kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

import turns
from comparing import mismatch
from cuda_emulator import INFO, EmulatedDevice, needs_emulator
from litegpu.backends.buffers import Bindings
from litegpu.engine.layout import assign
from litegpu.engine.program import build_program
from litegpu.engine.selected import Selected
from litegpu.engine.target import DeviceTarget
from litegpu.graph import DType, Graph
from litegpu.kernels import selector
from litegpu.kernels.base import Implementation
from litegpu.numeric_policy import FP16, FP32, NumericPolicy
from op_runner import forced
from places import TESTS

RUNS = [(n, p) for n in range(4) for p in (FP32, FP16)] if turns.ALL else [(0, FP32), (1, FP16)]
"""Which of the candidates computes with which precision."""
ALONE = replace(INFO, compute_units=1)
"""One multiprocessor is busy with anything."""


def has_tests(each: Implementation) -> bool:
    """Return whether there is a file of tests for its kernel alone."""
    return (TESTS / "kernels" / f"test_{each.name.rpartition('/')[2]}.py").exists()


def is_emulated(each: Implementation) -> bool:
    """Return whether it is CUDA's, and its example small enough, or all the test that it has."""
    return each.backend == "cuda" and not (each.small is None and has_tests(each))


FOUND = [
    pytest.param(spec, each, id=f"{each.name}-{spec.__name__}")
    for spec, ways in selector.IMPLEMENTATIONS.items()
    for each in ways
    if is_emulated(each)
]
"""All of CUDA's, but those that only large specs select: they have tests of their own."""


@needs_emulator
@pytest.mark.parametrize(("kind", "each"), FOUND)
def test_kernels_of_cuda_give_what_portable_ones_give(kind: type, each: Implementation) -> None:
    graph = (each.small or each.example).graph()
    (portable, *_) = (way for way in selector.IMPLEMENTATIONS[kind][::-1] if not way.backend)
    expected, compared = result(graph, kind, portable, FP32), 0
    for number, policy in RUNS:
        with forced(number):
            values = result(graph, kind, each, policy)
        if values is not None:
            compared += 1
            assert not mismatch(expected, values, 1e-3), (number, policy)
    assert compared, "it does not compute what it says"


def thin(each: Implementation) -> list[Graph]:
    """Return examples whose images have one row or one column, and windows that leave them."""
    given: Any = each.small or each.example
    n, height, width, channels = given.image
    wide = {} if getattr(given, "depthwise", False) else {"kernel": 3}
    return [
        replace(given, image=image, **wide).graph()
        for image in ((n, 1, height * width, channels), (n, height * width, 1, channels))
    ]


FOR_NO_THIN_IMAGES = {"cuda/depthwise", "cuda/conv_stationary"}
"""One needs two rows and four columns, the other has windows of one pixel."""
THIN = [
    pytest.param(spec, each, id=f"{each.name}-{spec.__name__}")
    for spec, ways in selector.IMPLEMENTATIONS.items()
    for each in ways
    if is_emulated(each)
    and hasattr(each.small or each.example, "image")
    and each.name not in FOR_NO_THIN_IMAGES
]


@needs_emulator
@pytest.mark.parametrize(("kind", "each"), THIN)
def test_windows_leave_images_of_one_row_or_column(kind: type, each: Implementation) -> None:
    """The origin of a window lies outside of such an image, in an axis of one element."""
    (portable, *_) = (way for way in selector.IMPLEMENTATIONS[kind][::-1] if not way.backend)
    graphs, compared = thin(each), 0
    number = turns.turn(each.name, len(graphs))
    for graph in graphs if turns.ALL else graphs[number : number + 1]:
        tried = (result(graph, kind, each, policy) for policy in (FP16, FP32))
        values = next((values for values in tried if values is not None), None)
        if values is not None:
            compared += 1
            assert not mismatch(result(graph, kind, portable, FP32), values, 1e-3)
    assert compared, "it takes no such image"


def result(graph: Graph, kind: type, way: Implementation, policy: NumericPolicy) -> Any:
    """Return what an implementation computes on a checked device; None if it does not."""
    layout = assign(graph, policy)
    with mock.patch.dict(selector.IMPLEMENTATIONS, {kind: (way,)}):
        selected = Selected(layout, DeviceTarget(ALONE, policy))
        if selected.not_accepted():
            return None
        built = build_program(layout, ALONE, graph.inputs, graph.outputs, selected=selected)
    assert built.launches[-1].template == way.name
    (output,) = (graph.values[v] for v in graph.outputs)
    values = np.empty(output.shape, output.dtype.value)
    inputs = [_drawn(graph, v, seed) for seed, v in enumerate(graph.inputs)]
    context = EmulatedDevice(ALONE, checked=True).compile(built.program).context()
    context.run(Bindings.of(inputs, [values]))
    return values


def _drawn(graph: Graph, value: int, seed: int) -> Any:
    shape, dtype = graph.values[value].shape, graph.values[value].dtype
    random = np.random.default_rng(seed)
    if dtype is DType.INT8:
        return random.integers(-128, 128, shape).astype(np.int8)
    return random.uniform(-1, 1, shape).astype(np.float32)
