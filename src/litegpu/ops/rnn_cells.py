"""The time steps of an RNN; a separate dense layer computes the product with the input weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.graph import Graph, Node
from litegpu.ops.base import InternalOp, KernelRequest, LowerContext, NewValue, register
from litegpu.ops.common.units import Unit
from litegpu.ops.common.weights import in_precision
from litegpu.ops.common.window import POINT
from litegpu.ops.conv_2d import ConvAttributes
from litegpu.ops.lstm_cells import activation_text, group_memory, require_memory, shares, transposed

_CELLS = "RNN_CELLS"


@dataclass(frozen=True, slots=True)
class RnnAttributes:
    """The value id of recurrent weights [units, units], and the direction of the steps."""

    recurrent: int
    activation: str
    time_major: bool
    reverse: bool

    @property
    def constants(self) -> tuple[int, ...]:
        return (self.recurrent,)


def rnn_nodes(graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
    """Return the nodes of an RNN: a dense layer of the input, and the time steps.

    The inputs are data, input weights, recurrent weights, bias and state; the outputs are the
    result and the new state.
    """
    data, weights, recurrent, bias, state = node.inputs
    units, inputs = graph.values[weights].shape
    projected = new_value((*graph.values[data].shape[:-1], units))
    attributes = RnnAttributes(
        recurrent,
        node.params["activation"],
        bool(node.params.get("time_major", True)),
        bool(node.params.get("reverse")),
    )
    dense = ConvAttributes(POINT, weights, bias, (units, 1, 1, inputs))
    return (
        Node(node.index, "FULLY_CONNECTED", 1, (data,), (projected,), attributes=dense),
        Node(node.index, _CELLS, 1, (projected, state), node.outputs, attributes=attributes),
    )


@register
class RnnCells(InternalOp):
    """Computes output and new state from the projected input and the previous state."""

    name = _CELLS

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: RnnAttributes = node.attributes
        source, state = (ctx.storage(v) for v in node.inputs)
        batch, units = state.shape[2:]
        channel_blocks = -(-units // 4)
        written = [ctx.storage(v).channel_blocks for v in node.outputs]
        what = f"An RNN of {units} units"
        owned, items = shares(max(channel_blocks, *written), what, ctx)
        require_memory(group_memory(units, units, False), what, ctx)
        weights = transposed(ctx, attributes.recurrent, channel_blocks, channel_blocks)
        request = KernelRequest(
            template="rnn_cells",
            grid=(items, batch, 1),
            local=(items, 1, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0], "last": node.inputs[1]},
            writes={"state": node.outputs[1]},
            constants={"weights": in_precision(weights, ctx)},
            variables={
                "ITEMS": items,
                "owned": range(owned),
                "slots": items * owned,
                "batch": batch,
                "steps": source.rows // batch,
                "time_major": attributes.time_major,
                "reverse": attributes.reverse,
                "channel_blocks": channel_blocks,
                "activation": activation_text(attributes.activation),
            },
            shared=(("float4", "hidden", 2 * items * owned),),
            work={Unit.FP32: 2 * source.rows * weights.size},
        )
        return (request,)
