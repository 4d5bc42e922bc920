"""Packs constant weights of dense convolutions on the host, and computed weights by a kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from litegpu.codegen import TensorRef
from litegpu.codegen.storage import Shape4
from litegpu.graph import ABSENT, EpilogueOp, Graph, Node
from litegpu.ops.base import LowerContext, NewValue, SpecContext, as_float32
from litegpu.ops.common import checks
from litegpu.ops.common.functions import activation_epilogue
from litegpu.ops.common.halves import as_halves, fits_half
from litegpu.ops.common.lazy_array import LazyArray
from litegpu.ops.pack_weights import (
    PACK_WEIGHTS,
    PackAttributes,
    dense_shape,
    packed_blocks,
    packed_shape,
    whole_groups,
)

Floats = npt.NDArray[np.float32]


class ConvOperands(Protocol):
    """The attributes of a convolution that describe its weights (a value id) and bias."""

    @property
    def weights(self) -> int: ...

    @property
    def bias(self) -> int: ...

    @property
    def shape(self) -> Shape4: ...

    @property
    def groups(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of `shape` [O, H, W, I / groups].

    `array` has constant weights; `packed` is the value of computed weights. `bias` [O] is None if
    the node has no bias, or if an epilogue op adds a computed bias. `siblings` is described at
    Value.
    """

    shape: Shape4
    groups: int = 1
    array: Floats | None = None
    bias: Floats | None = None
    packed: int = ABSENT
    siblings: int = 1

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Binding:
    """The constants, reads and template variables for packed weights and a bias."""

    constants: Mapping[str, npt.NDArray[Any] | LazyArray]
    reads: Mapping[str, int]
    variables: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Normalized:
    """The operands of a normalized convolution, without its image."""

    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    weights: int
    bias: int
    shape: Shape4
    groups: int
    epilogue: tuple[EpilogueOp, ...]


def normalize(
    graph: Graph,
    node: Node,
    new_value: NewValue,
    shape: Shape4,
    groups: int = 1,
    bias_position: int = 2,
) -> Normalized:
    """Return the operands of a checked node whose input 1 holds weights of `shape`."""
    weights = node.inputs[1]
    bias, epilogue = normalize_bias(graph, node, bias_position)
    if graph.values[weights].is_constant:
        return Normalized((), (), weights, bias, shape, groups, epilogue)
    packed, pack = pack_node(node, weights, shape, groups, new_value)
    return Normalized((pack,), (packed,), packed, bias, shape, groups, epilogue)


def pack_node(
    node: Node, weights: int, shape: Shape4, groups: int, new_value: NewValue
) -> tuple[int, Node]:
    """Return the value id of packed computed weights, and the node that packs them."""
    attributes = PackAttributes(shape, groups)
    packed = new_value(packed_shape(attributes))
    return packed, Node(node.index, PACK_WEIGHTS, 1, (weights,), (packed,), attributes=attributes)


def normalize_bias(
    graph: Graph, node: Node, position: int = 2
) -> tuple[int, tuple[EpilogueOp, ...]]:
    """Return a node's constant bias (or ABSENT) and its epilogue with any computed bias."""
    bias = bias_of(node, position)
    epilogue = activation_epilogue(node.params)
    if bias == ABSENT or graph.values[bias].is_constant:
        return bias, epilogue
    return ABSENT, (EpilogueOp("ADD", (bias,)), *epilogue)


def read(ctx: SpecContext, operands: ConvOperands) -> Weights:
    """Return the weights and the bias of a normalized node."""
    value, shape, groups = ctx.value(operands.weights), operands.shape, operands.groups
    bias = read_bias(ctx, operands.bias)
    if value.is_constant:
        return Weights(shape, groups, as_float32(value).reshape(shape), bias)
    spread = dense_shape(PackAttributes(shape, groups))
    return Weights(spread, groups if spread == shape else 1, None, bias, value.id)


def read_bias(ctx: SpecContext, bias: int) -> Floats | None:
    """Return a constant bias [O], or None if the node has no bias."""
    return None if bias == ABSENT else as_float32(ctx.value(bias)).ravel()


def spread_shape(weights: Weights) -> tuple[Shape4, int]:
    """Return the shape and the group count of the result of `spread_groups`."""
    outputs, height, width, depth = weights.shape
    if weights.array is None or whole_groups(weights.shape, weights.groups):
        return weights.shape, weights.groups
    return (outputs, height, width, depth * weights.groups), 1


def spread_groups(weights: Weights) -> Weights:
    """Expand constant groups that do not consist of whole channel blocks to dense weights."""
    shape, groups = spread_shape(weights)
    if weights.array is None or groups == weights.groups:
        return weights
    each, depth = shape[0] // weights.groups, weights.shape[3]
    dense = np.zeros(shape, np.float32)
    for g in range(weights.groups):
        part = slice(g * each, (g + 1) * each)
        dense[part, :, :, g * depth : (g + 1) * depth] = weights.array[part]
    return replace(weights, shape=shape, groups=groups, array=dense)


def bind(weights: Weights, channel_blocks: int, ctx: LowerContext) -> Binding:
    """Return the binding of the weights for a kernel that writes `channel_blocks` output blocks."""
    constants: dict[str, npt.NDArray[Any] | LazyArray] = {}
    if weights.bias is not None:
        constants["bias"] = pad_channels(weights.bias, channel_blocks * 4)
    variables: dict[str, Any] = {
        "has_bias": weights.bias is not None,
        "weight_blocks": channel_blocks,
    }
    if weights.array is not None:
        constants["weights"] = _packed(weights, weights.array, channel_blocks, ctx)
        return Binding(constants, {}, variables)
    kind = TensorRef("weights", ctx.storage(weights.packed)).kind
    variables |= {"weights_kind": kind, "weight_blocks": packed_blocks(weights.shape[0])}
    return Binding(constants, {"weights": weights.packed}, variables)


def bias_of(node: Node, position: int = 2) -> int:
    """Return the id of an optional bias input."""
    return node.inputs[position] if len(node.inputs) > position else ABSENT


def check_bias(graph: Graph, node: Node, outputs: int, position: int = 2) -> str:
    """Require that the bias is absent or has `outputs` floats."""
    bias = bias_of(node, position)
    if bias == ABSENT:
        return ""
    reason = checks.operand(graph, node, position, "The bias")
    shape = graph.values[bias].shape
    if not reason and (math.prod(shape) != outputs or shape[-1:] != (outputs,)):
        reason = f"bias.size != output.c: a bias of {list(shape)} for {outputs} output channels."
    return reason


def _packed(weights: Weights, array: Floats, channel_blocks: int, ctx: LowerContext) -> LazyArray:
    """Return weights as `pack_weights` arranges them, in the precision of `in_precision`."""
    _, height, width, depth = weights.shape
    size = height * width * -(-depth // 4) * channel_blocks * 16
    wide = ctx.target.policy.keeps_fp32_weights(4 * size // weights.siblings)
    halves = not wide and fits_half(array)

    def fill(out: npt.NDArray[Any]) -> None:
        packed = pack_weights(array, channel_blocks).reshape(-1)
        out[...] = as_halves(packed) if halves else packed

    return LazyArray(np.dtype(np.float16 if halves else np.float32), size, fill)


def in_precision(array: npt.NDArray[Any], ctx: LowerContext, siblings: int = 1) -> npt.NDArray[Any]:
    """Return weights as float16 if that is faster and their range permits, else as float32."""
    nbytes = array.nbytes // siblings
    if ctx.target.policy.keeps_fp32_weights(nbytes) or not fits_half(array):
        return array
    return as_halves(array)


def pack_weights(weights: Floats, channel_blocks: int) -> Floats:
    """Arrange [O, H, W, I] as [H, W, input block, output block, 4 inputs, 4 outputs]."""
    outputs, height, width, depth = weights.shape
    inputs = -(-depth // 4)
    padded = np.zeros((channel_blocks * 4, height, width, inputs * 4), np.float32)
    padded[:outputs, :, :, :depth] = weights
    blocks = padded.reshape(channel_blocks, 4, height, width, inputs, 4)
    return np.ascontiguousarray(blocks.transpose(2, 3, 4, 0, 5, 1))


def pad_channels(vector: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    """Return a vector of channels padded with zeros."""
    padded = np.zeros(length, vector.dtype)
    padded[: vector.size] = vector
    return padded
