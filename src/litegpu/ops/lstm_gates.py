"""The basic LSTM kernel, with one matrix for all gates; its temporaries are outputs, too."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.graph import Graph, Node
from litegpu.ops.base import InternalOp, KernelRequest, LowerContext, Shape, register
from litegpu.ops.common import checks
from litegpu.ops.common.functions import UNARY
from litegpu.ops.common.units import Unit
from litegpu.ops.common.window import POINT
from litegpu.ops.concatenation import ConcatAttributes
from litegpu.ops.conv_2d import ConvAttributes

_GATES = "LSTM_GATES"
_DATA, _ACTIVATION, _WEIGHTS, _BIAS, _STATE = range(5)


def check(graph: Graph, node: Node) -> str:
    """Return why a basic LSTM cannot run, or an empty text if it can."""
    return checks.first_of(
        checks.input_count(node, 5, 5),
        checks.operands(graph, node, (3,), outputs=4),
        checks.computed(graph, node, _DATA, "The input"),
        checks.constant(graph, node, _WEIGHTS, "The weights"),
        checks.constant(graph, node, _BIAS, "The bias"),
        lambda: _check_attributes(node),
        lambda: _check_shapes(graph, node),
    )


def states(node: Node) -> tuple[int, ...]:
    """Return the previous activation and state (value ids), which the node updates."""
    return node.inputs[_ACTIVATION], node.inputs[_STATE]


def infer(graph: Graph, node: Node) -> tuple[Shape, ...]:
    """Return the shapes of activation, state, concatenated inputs and gates."""
    batch, inputs = graph.values[node.inputs[_DATA]].shape
    cells = graph.values[node.inputs[_STATE]].shape[1]
    return (batch, cells), (batch, cells), (batch, inputs + cells), (batch, 4 * cells)


def normalize(graph: Graph, node: Node) -> Sequence[Node]:
    """Return the nodes: a concatenation, a matrix product, and the LSTM gates."""
    data, before, weights, bias, state = node.inputs
    activation, new_state, joined, gates, *copies = node.outputs
    outputs, inputs = graph.values[weights].shape
    dense = ConvAttributes(POINT, weights, bias, (outputs, 1, 1, inputs))
    return (
        Node(node.index, "CONCATENATION", 1, (data, before), (joined,), attributes=_LAST),
        Node(node.index, "FULLY_CONNECTED", 1, (joined,), (gates,), attributes=dense),
        Node(node.index, _GATES, 1, (gates, state), (activation, new_state, *copies)),
    )


_LAST = ConcatAttributes(3)


@register
class LstmGates(InternalOp):
    """Computes activation and state from gates [N, 4 * cells] (input, cell, forget, output)."""

    name = _GATES

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        outputs = [ctx.storage(v) for v in node.outputs]
        dst = outputs[0]
        request = KernelRequest(
            template="lstm_gates",
            grid=(max(each.channel_blocks for each in outputs), dst.rows, 1),
            output=node.outputs[0],
            reads={"gates": node.inputs[0], "before": node.inputs[1]},
            writes=dict(
                zip(("state", "activation_copy", "state_copy"), node.outputs[1:], strict=True)
            ),
            variables={
                "sigmoid": UNARY["LOGISTIC"].expression.format,
                "whole": dst.channels % 4 == 0,
                "cell_blocks": -(-dst.channels // 4),
            },
            work={Unit.FP32: 20 * dst.rows * dst.channels},
        )
        return (request,)


def _check_attributes(node: Node) -> str:
    if node.params["activation"] != "tanh":
        return f"Only TANH activation is supported. but node has {node.params['activation']}"
    for name in ("cell_clip", "proj_clip"):
        if node.params[name] != 0:
            return f"{name} is not supported: it is {node.params[name]}."
    return ""


def _check_shapes(graph: Graph, node: Node) -> str:
    data, before, weights, bias, _ = (graph.values[v].shape for v in node.inputs)
    if len(data) != 2 or len(before) != 2:
        return f"Input {list(data)} and activation {list(before)} must have 2 dimensions."
    cells = before[1]
    if weights != (4 * cells, data[1] + cells) or bias != (4 * cells,):
        return (
            f"Weights of {list(weights)} and a bias of {list(bias)} do not form 4 gates of "
            f"{cells} cells."
        )
    return checks.states(graph, node, (_ACTIVATION, _STATE), (data[0], cells))
