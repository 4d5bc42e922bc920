"""MEAN over H and W is a global pool already: the same launches, kernels and fusions.

So no pass turns one into the other.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from cases.base import SUMS
from comparing import mismatch
from litegpu import GpuDelegate
from litegpu.engine.layout import assign
from litegpu.engine.lowering import KernelLaunch
from litegpu.numeric_policy import FP32
from litegpu.ops.common.window import PoolAttributes, Window
from litegpu.runtime_abi import interpreter as runtime
from model_runner import invoke
from paper_device import build
from passes.graphs import RELU, GraphBuilder, Shape
from passes.models import Model

SHAPES: list[Shape] = [
    (1, 7, 7, 1024),
    (1, 1, 1, 5),
    (2, 5, 3, 7),
    (8, 14, 14, 32),
    (1, 112, 112, 16),
]


def pooled(shape: Shape, mean: bool) -> tuple[KernelLaunch, ...]:
    """Return the launches of a global pool, and of a product with a matrix after it."""
    builder = GraphBuilder()
    n, h, w, c = shape
    source = builder.elementwise(builder.input(*shape), RELU)
    if mean:
        output = builder.normalized("MEAN", source, (n, 1, 1, c), (1, 2), keep_dims=True)
    else:
        attributes = PoolAttributes(Window((h, w), (1, 1)))
        output = builder.node("AVERAGE_POOL_2D", [source], (n, 1, 1, c), attributes=attributes)
    return build(assign(builder.graph(builder.conv(output, 3)), FP32)).launches


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_work_is_shared_out_alike(shape: Shape) -> None:
    sums, pool = pooled(shape, mean=True), pooled(shape, mean=False)
    assert [launch.template for launch in sums[:2]] == ["copy", "reduce"]
    assert len(sums) == len(pool) == 3
    mean, average = sums[1], pool[1]
    assert mean.global_size == average.global_size
    assert mean.kernel.local_size == average.kernel.local_size
    assert mean.nbytes == average.nbytes


def test_a_large_map_is_reduced_in_two_kernels_that_fill_a_device() -> None:
    """The pool has no more than one work group for each slice of channels."""
    sums, pool = (pooled((1, 256, 300, 8), mean) for mean in (True, False))
    assert [launch.template for launch in sums[:3]] == ["copy", "reduce", "reduce"]
    assert math.prod(sums[1].global_size) >= 8 * math.prod(pool[1].global_size)


def _classifier(mean: bool) -> bytes:
    """Write a classifier's end: a global pool without its dimensions, scaled, into a matrix."""
    model = Model()
    output = model.conv(model.input(2, 5, 3, 7), (16, 1, 1, 7))
    if mean:
        flat = model.op("MEAN", output, model.integers(1, 2), keep_dims=False)
    else:
        sizes = {"filter_height": 5, "filter_width": 3, "stride_h": 1, "stride_w": 1}
        flat = model.reshape(model.op("AVERAGE_POOL_2D", output, padding="VALID", **sizes), 2, 16)
    scaled = model.op("RELU", model.op("MUL", flat, model.constant(16)))
    scores = model.op("FULLY_CONNECTED", scaled, model.constant(4, 16), model.constant(4))
    return model.build(model.op("SOFTMAX", scores, beta=0.1))


@pytest.mark.parametrize("mean", [True, False])
def test_dimensions_that_are_dropped_cost_no_kernel_and_steps_fuse(mean: bool) -> None:
    content = _classifier(mean)
    delegate = GpuDelegate(precision="fp32")
    target = runtime.interpreter(content, delegate, builtin_kernels=True)
    assert delegate.report is not None and delegate.report.partitions[0].kernels == 4
    image = np.random.default_rng(0).uniform(-1, 1, (2, 5, 3, 7)).astype(np.float32)
    (expected,) = invoke(runtime.interpreter(content, builtin_kernels=True), [image])
    (got,) = invoke(target, [image])
    assert not mismatch(expected, got, SUMS)
