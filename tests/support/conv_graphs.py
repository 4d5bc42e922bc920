"""Convolutions as graphs without a model, for kernels that need a certain storage or device."""

from __future__ import annotations

from typing import Any

import numpy as np

from litegpu.backends.base import DeviceInfo
from litegpu.codegen import Storage
from litegpu.engine.layout import assign
from litegpu.engine.program import BuiltProgram, build_program
from litegpu.graph import ABSENT, DType, Graph
from litegpu.numeric_policy import NumericPolicy
from litegpu.ops.common.window import Window
from litegpu.ops.conv_2d import ConvAttributes
from passes.graphs import GraphBuilder


def convolution(
    image: tuple[int, ...], filters: int, window: Window, seed: int = 0, scale: float = 1.0
) -> Graph:
    """Return the graph of a convolution alone, whose pads are those of its window on both sides.

    Its weights lie between `scale` and its negative.
    """
    builder, random = GraphBuilder(), np.random.default_rng(seed)
    source = builder.input(*image)
    shape = filters, *window.kernel, image[3]
    weights = builder.value(shape, random.uniform(-scale, scale, shape).astype(np.float32))
    height, width = (
        (size + 2 * pad - (kernel - 1) * dilation - 1) // stride + 1
        for size, pad, kernel, dilation, stride in zip(
            *(image[1:3], window.pads, window.kernel, window.dilation, window.stride), strict=True
        )
    )
    attributes = ConvAttributes(window, weights, ABSENT, shape)
    output = builder.node("CONV_2D", [source], (image[0], height, width, filters), (), attributes)
    return builder.graph(output)


def built(
    graph: Graph,
    policy: NumericPolicy,
    device: DeviceInfo,
    dtype: DType = DType.FLOAT32,
    alignment: int = 1,
) -> BuiltProgram:
    """Return the program for a graph whose input is of a type and padded to `alignment` lanes."""
    layout = assign(graph, policy)
    (source,) = graph.inputs
    shape = graph.values[source].shape4
    layout.storages[source] = Storage.create(source, dtype, shape, alignment)
    return build_program(layout, device, graph.inputs, graph.outputs)


def product(graph: Graph, image: Any) -> Any:
    """Return what the convolution gives, tap by tap at double precision."""
    attached = graph.nodes[0].attributes
    weights, window = np.asarray(graph.values[attached.weights].data), attached.window
    n, height, width, filters = graph.values[graph.outputs[0]].shape
    (top, left), (down, across) = window.pads, window.stride
    around = np.pad(image.astype(float), ((0, 0), (top, top), (left, left), (0, 0)))
    output = np.zeros((n, height, width, filters))
    for y in range(window.kernel[0]):
        for x in range(window.kernel[1]):
            at = y * window.dilation[0], x * window.dilation[1]
            seen = around[:, at[0] :: down, at[1] :: across][:, :height, :width]
            output += seen @ weights[:, y, x].T
    return output.astype(np.float32)
