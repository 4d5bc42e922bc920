"""Affine epilogue ops (scale and shift per channel), and functions that fold them into weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from litegpu.codegen import HALF_MAX
from litegpu.graph import ABSENT, SELF, EpilogueOp, Graph, Node
from litegpu.ops.base import as_float32, has
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.window import DepthwiseAttributes, Window

Doubles = npt.NDArray[np.float64]

_SMALLEST = 2.0**-14
"""The smallest normal float16; smaller numbers have reduced precision."""


@dataclass(frozen=True, slots=True)
class Affine:
    """The function x * factor + shift, with a factor and a shift for each channel."""

    factor: Doubles
    shift: Doubles


@dataclass(frozen=True, slots=True)
class Operands:
    """Weights in the original shape of the convolution, and a bias [O]."""

    weights: Doubles
    bias: Doubles


def affine_prefix(
    graph: Graph, epilogue: Sequence[EpilogueOp], channels: int
) -> tuple[Affine, int]:
    """Return the combined effect of the first affine ops, and their number."""
    whole = Affine(np.ones(channels), np.zeros(channels))
    for count, epilogue_op in enumerate(epilogue):
        scaling = _affine(graph, epilogue_op, channels)
        if scaling is None:
            return whole, count
        whole = Affine(whole.factor * scaling.factor, whole.shift * scaling.factor + scaling.shift)
    return whole, len(epilogue)


def _affine(graph: Graph, epilogue_op: EpilogueOp, channels: int) -> Affine | None:
    if len(epilogue_op.operands) != 1 or epilogue_op.operands[0] == SELF or epilogue_op.extend:
        return None
    value = graph.values[epilogue_op.operands[0]]
    if not value.is_constant or value.shape4 not in ((1, 1, 1, 1), (1, 1, 1, channels)):
        return None
    number = np.broadcast_to(as_float32(value).ravel().astype(np.float64), (channels,))
    if not np.all(np.isfinite(number)):
        return None
    one, zero = np.ones(channels), np.zeros(channels)
    known = {
        ("ADD", 0): Affine(one, number),
        ("ADD", 1): Affine(one, number),
        ("MUL", 0): Affine(number, zero),
        ("MUL", 1): Affine(number, zero),
        ("SUB", 0): Affine(one, -number),
        ("SUB", 1): Affine(-one, number),
    }
    if np.all(number != 0):
        known["DIV", 0] = Affine(1 / number, zero)
    return known.get((epilogue_op.function, epilogue_op.position))


def operands_of(graph: Graph, node: Node) -> Operands | None:
    """Return the constant weights and bias of a normalized node; None for computed weights."""
    weights = graph.values[node.attributes.weights]
    if not weights.is_constant:
        return None
    bias = node.attributes.bias
    outputs = weights.shape[_output_axis(node)]
    shift = np.zeros(outputs) if bias == ABSENT else as_float32(graph.values[bias]).ravel()
    return Operands(as_float32(weights).astype(np.float64), shift.astype(np.float64))


def _output_axis(node: Node) -> int:
    return 3 if isinstance(node.attributes, DepthwiseAttributes) else 0


def after(node: Node, operands: Operands, affine: Affine) -> Operands:
    """Return operands that include an affine op on the node's result."""
    axes = [1] * operands.weights.ndim
    axes[_output_axis(node)] = -1
    return Operands(
        operands.weights * affine.factor.reshape(axes), operands.bias * affine.factor + affine.shift
    )


def before(node: Node, operands: Operands, affine: Affine) -> Operands:
    """Return operands that include an affine op on the node's unpadded input."""
    if isinstance(node.attributes, DepthwiseAttributes):
        repeats = operands.weights.shape[3] // affine.factor.size
        factor, shift = (np.repeat(each, repeats) for each in (affine.factor, affine.shift))
        sums = operands.weights.sum(axis=(0, 1, 2))
        return Operands(operands.weights * factor, operands.bias + sums * shift)
    groups = node.attributes.groups
    grouped = operands.weights.reshape(groups, -1, *operands.weights.shape[1:])
    axes = (groups, *[1] * (operands.weights.ndim - 1), -1)
    factor, shift = (each.reshape(axes) for each in (affine.factor, affine.shift))
    sums = (grouped * shift).sum(axis=tuple(range(2, grouped.ndim)))
    return Operands(
        (grouped * factor).reshape(operands.weights.shape), operands.bias + sums.ravel()
    )


def obstacle(node: Node, old: Operands, new: Operands) -> str:
    """Return why new operands cannot replace the old operands, or an empty text if they can."""
    if not all(
        np.all(np.abs(each) <= np.finfo(np.float32).max) for each in (new.weights, new.bias)
    ):
        return "float32 cannot hold the new weights"
    axes = tuple(axis for axis in range(old.weights.ndim) if axis != _output_axis(node))
    largest = [np.abs(each.weights).max(axis=axes) for each in (old, new)]
    fits = [(each <= HALF_MAX) & ((each >= _SMALLEST) | (each == 0)) for each in largest]
    if np.any(fits[0] & ~fits[1]):
        return "half storage could not hold the new weights"
    return ""


def leaves_image(graph: Graph, node: Node) -> bool:
    """Whether a node's window may read zeros outside the image."""
    if has(node, Trait.TRANSPOSED):
        return True
    window: Window = node.attributes.window
    image, result = (graph.values[v].shape4 for v in (node.inputs[0], node.outputs[0]))
    return window.leaves((image[1], image[2]), (result[1], result[2]))
