"""SVDF: a dense layer of low rank in time, whose state contains the features of previous steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from litegpu.codegen import INT, Register, register_of, round_up
from litegpu.graph import ABSENT, DType, EpilogueOp, Graph, Node
from litegpu.ops.base import (
    Exact,
    InternalOp,
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    Values,
    as_float32,
    register,
)
from litegpu.ops.common import checks, facts
from litegpu.ops.common.functions import activation_epilogue
from litegpu.ops.common.units import Unit
from litegpu.ops.common.window import POINT
from litegpu.ops.conv_2d import ConvAttributes
from litegpu.ops.exact import numbers
from litegpu.ops.exact.hybrid import HybridFullyConnected, OrHybrid
from litegpu.ops.exact.numbers import Multiplier
from litegpu.ops.quantized_conv import QUANTIZED_CONV, QuantizedConvAttributes

_STEP = "SVDF_STEP"
_DATA, _FEATURES, _TIME, _BIAS, _STATE = range(5)
_DENSE = HybridFullyConnected(lambda graph, node: "")
"""The op that computes features from floats and int8 weights; `_check_shapes` checks the shapes."""


@dataclass(frozen=True, slots=True)
class SvdfAttributes:
    """The value id of time weights [filters, memory], and the filters per unit (`rank`)."""

    weights: int
    rank: int

    @property
    def constants(self) -> tuple[int, ...]:
        return (self.weights,)


class ExactSvdf(Exact):
    """SVDF of int8 with an int16 state; rescaled sums round half away from zero."""

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 5, 5),
            lambda: numbers.check_tensors(
                graph, (node.inputs[_DATA], node.outputs[0]), frozenset({DType.INT8})
            ),
            lambda: _check_operands(graph, node, DType.INT8, DType.INT16, DType.INT32, DType.INT16),
            lambda: numbers.check_one_scale(
                graph, (node.inputs[p] for p in (_FEATURES, _TIME, _STATE))
            ),
            lambda: numbers.check_activation(node, ("relu",)),
            lambda: _check_shapes(graph, node),
            lambda: checks.first_of(*map(numbers.check_multiplier, _multipliers(graph, node))),
        )

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        source, weights = graph.values[node.inputs[_DATA]], node.inputs[_FEATURES]
        filters, inputs = graph.values[weights].shape
        to_state, to_result = _multipliers(graph, node)
        features = new_value((source.shape[0], filters), dtype=DType.INT16)
        attributes = QuantizedConvAttributes(
            *(POINT, weights, ABSENT, (filters, 1, 1, inputs), 1, numbers.zero_point(source), 0)
        )
        stored = numbers.requantize(new_value, [to_state], [True], 0, numbers.LIMITS[DType.INT16])
        dense = Node(
            *(node.index, QUANTIZED_CONV, 1, (source.id,), (features,)),
            attributes=attributes,
            epilogue=stored,
        )
        bias: tuple[EpilogueOp, ...] = ()
        if node.inputs[_BIAS] != ABSENT:
            terms = np.asarray(graph.values[node.inputs[_BIAS]].data).ravel()
            bias = (EpilogueOp("INTEGER_ADD", (numbers.vector(new_value, terms.tolist()),)),)
        result = graph.values[node.outputs[0]]
        zero, limits = numbers.zero_point(result), numbers.LIMITS[result.dtype]
        requantize = numbers.requantize(new_value, [to_result], [True], zero, limits)
        return dense, _step(node, features, node.inputs[_TIME], (*bias, *requantize))


class HybridSvdf(Exact):
    """SVDF of floats with int8 weights; a FULLY_CONNECTED of these types computes the features."""

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 5, 5),
            lambda: _check_operands(
                graph, node, DType.INT8, DType.INT8, DType.FLOAT32, DType.FLOAT32
            ),
            lambda: numbers.check_one_scale(graph, (node.inputs[p] for p in (_FEATURES, _TIME))),
            lambda: _DENSE.check(graph, _features(node, node.outputs[0])),
            checks.activation(node),
            lambda: _check_shapes(graph, node),
        )

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        time = graph.values[node.inputs[_TIME]]
        factors = as_float32(time) * np.float32(numbers.scale(time))
        shape = (graph.values[node.inputs[_DATA]].shape[0], time.shape[0])
        features = new_value(shape, dtype=DType.FLOAT32)
        result = replace(graph.values[node.outputs[0]], id=features, shape=shape)
        seen = replace(graph, values={**graph.values, features: result})
        return (
            *_DENSE.normalize(seen, _features(node, features), new_value),
            _step(node, features, new_value(time.shape, factors), _ended(graph, node, new_value)),
        )


@register
class Svdf(Op):
    """A dense layer with two weight factors: one over inputs, and one over recent time steps."""

    name = "SVDF"
    max_version = 4
    accepts: ClassVar = {"rank": Values(least=1, wrong=(0, -1))}
    exact = OrHybrid(ExactSvdf(), HybridSvdf())

    def flops(self, graph: Graph, node: Node) -> int:
        return facts.product_by_input(graph, node, _DATA, (_FEATURES, _TIME))

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 5, 5),
            lambda: _check_operands(graph, node, *(DType.FLOAT32,) * 4),
            checks.computed(graph, node, _DATA, "The input"),
            checks.activation(node),
            lambda: _check_shapes(graph, node),
        )

    def states(self, node: Node) -> tuple[int, ...]:
        return (node.inputs[_STATE],)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        batch, _ = graph.values[node.inputs[_DATA]].shape
        return ((batch, graph.values[node.inputs[_FEATURES]].shape[0] // node.params["rank"]),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        weights = node.inputs[_FEATURES]
        filters, inputs = graph.values[weights].shape
        features = new_value((graph.values[node.inputs[_DATA]].shape[0], filters))
        dense = replace(
            _features(node, features),
            inputs=node.inputs[:1],
            attributes=ConvAttributes(POINT, weights, ABSENT, (filters, 1, 1, inputs)),
        )
        return dense, _step(node, features, node.inputs[_TIME], _ended(graph, node, new_value))


@register
class SvdfStep(InternalOp):
    """Computes output and new state from the features of a step and the previous state."""

    name = _STEP

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: SvdfAttributes = node.attributes
        weights = ctx.value(attributes.weights)
        summed = register_of(ctx.storage(node.inputs[0]).dtype)
        dst, new_state = (ctx.storage(v) for v in node.outputs)
        packed = _packed(weights.data, weights.shape, attributes.rank, summed)
        request = KernelRequest(
            template="svdf",
            grid=(max(dst.channel_blocks, new_state.channel_blocks), dst.rows, 1),
            output=node.outputs[0],
            reads=dict(zip(("features", "state"), node.inputs, strict=True)),
            writes={"new_state": node.outputs[1]},
            constants={"weights": packed},
            variables={
                "acc": summed,
                "rank": attributes.rank,
                "memory": weights.shape[1],
                "weight_blocks": -(-dst.channels // 4),
            },
            work={Unit.INT32 if summed is INT else Unit.FP32: 2 * dst.rows * weights.elements},
            accumulator=summed,
        )
        return (request,)


def _packed(data: Any, shape: Shape, rank: int, summed: Register) -> npt.NDArray[Any]:
    """Return weights [filters, memory] as [blocks of 4 units, rank, memory, 4]."""
    dtype = np.int32 if summed is INT else np.float32
    units, memory = shape[0] // rank, shape[1]
    padded = np.zeros((round_up(units, 4), rank, memory), dtype)
    padded[:units] = np.asarray(data).reshape(units, rank, memory)
    return np.ascontiguousarray(padded.reshape(-1, 4, rank, memory).transpose(0, 2, 3, 1)).ravel()


def _features(node: Node, result: int) -> Node:
    """Return the dense layer of a node, whose output is `result`."""
    return replace(
        node,
        op="FULLY_CONNECTED",
        inputs=node.inputs[:_TIME],
        outputs=(result,),
        params={**node.params, "activation": "none"},
    )


def _step(node: Node, features: int, weights: int, epilogue: tuple[EpilogueOp, ...]) -> Node:
    return replace(
        node,
        op=_STEP,
        inputs=(features, node.inputs[_STATE]),
        attributes=SvdfAttributes(weights, node.params["rank"]),
        epilogue=epilogue,
    )


def _ended(graph: Graph, node: Node, new_value: NewValue) -> tuple[EpilogueOp, ...]:
    activation = activation_epilogue(node.params)
    if node.inputs[_BIAS] == ABSENT:
        return activation
    terms = as_float32(graph.values[node.inputs[_BIAS]])
    return (EpilogueOp("ADD", (new_value(terms.shape, terms),)), *activation)


def _multipliers(graph: Graph, node: Node) -> tuple[Multiplier, Multiplier]:
    """Return the multipliers from sums of products to the state, and from state to output."""
    ends = (*node.inputs, node.outputs[0])
    data, features, time, state, result = (
        numbers.scale(graph.values[ends[p]]) for p in (_DATA, _FEATURES, _TIME, _STATE, -1)
    )
    return (
        Multiplier.of(numbers.float32(numbers.float32(data * features) / state)),
        Multiplier.of(numbers.float32(numbers.float32(state * time) / result)),
    )


def _check_operands(
    graph: Graph, node: Node, weights: DType, time: DType, bias: DType, state: DType
) -> str:
    """Require constants and a state of the listed types; float16 may replace float32 constants."""
    constants = [(_FEATURES, "The weights", weights), (_TIME, "The weights in time", time)]
    if node.inputs[_BIAS] != ABSENT:
        constants.append((_BIAS, "The bias", bias))
    reasons = [
        checks.constant(graph, node, position, what)
        if dtype is DType.FLOAT32
        else checks.integers(graph, node, position, what, kinds=(dtype,))
        for position, what, dtype in constants
    ]
    reasons.append(checks.operand(graph, node, _STATE, "The state"))
    if not any(reasons) and graph.values[node.inputs[_STATE]].dtype is not state:
        found = graph.values[node.inputs[_STATE]].dtype.name
        reasons.append(f"The state (input {_STATE}) is {found} instead of {state.name}.")
    return checks.first_of(*reasons)


def _check_shapes(graph: Graph, node: Node) -> str:
    rank = node.params["rank"]
    shapes = [graph.values[node.inputs[p]].shape for p in (_DATA, _FEATURES, _TIME)]
    data, features, time = shapes
    if rank < 1:
        return f"The rank must be positive, but it is {rank}."
    if (
        any(len(shape) != 2 for shape in shapes)
        or data[1:] != features[1:]
        or features[0] != time[0]
        or features[0] % rank
    ):
        return (
            f"An input of {list(data)} with weights of {list(features)} and {list(time)} does not "
            f"form an SVDF of rank {rank}."
        )
    if node.inputs[_BIAS] != ABSENT:
        bias = graph.values[node.inputs[_BIAS]].shape
        if bias != (features[0] // rank,):
            return f"The bias has the shape {list(bias)} instead of {[features[0] // rank]}."
    return checks.states(graph, node, (_STATE,), (data[0], features[0] * time[1]))
