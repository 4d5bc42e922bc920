"""QUANTIZED_SOFTMAX: normalizes rows of quantized values, with the CPU's rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.codegen import INT, literal
from litegpu.graph import Node
from litegpu.ops.base import InternalOp, KernelRequest, LowerContext, register
from litegpu.ops.common.facts import Array
from litegpu.ops.common.units import Unit
from litegpu.ops.common.work_groups import shared_items
from litegpu.ops.exact import logarithms

QUANTIZED_SOFTMAX = "QUANTIZED_SOFTMAX"


@dataclass(frozen=True, slots=True)
class QuantizedSoftmaxAttributes:
    """The function of each row, before the zero point of the result is added.

    For softmax and log softmax, `exponentials` lists e^x for stored differences of 0 to 255 from
    the maximum. `scale` is the result's scale for softmax and the input's scale for log softmax,
    whose result has the scale 1/16. `zero` is the input's zero point; `signed` states whether the
    input's bytes are signed. For 16-bit softmax ("softmax_16"), `exponentials` are integers for
    differences of 0 to 65,535. For 16-bit softmax, `reciprocals` lists 1 / (1 + x) at 513 points of
    x from 0 to 1. The integers of 16-bit softmax are multiplied by 2^15.
    """

    kind: str
    signed: bool
    zero: int
    scale: float = 1.0
    exponentials: tuple[float, ...] = ()
    reciprocals: tuple[int, ...] = ()


@register
class QuantizedSoftmax(InternalOp):
    """Softmax, log softmax or L2 normalization of rows; only exact ops create this op."""

    name = QUANTIZED_SOFTMAX

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        dst = ctx.storage(node.outputs[0])
        attributes: QuantizedSoftmaxAttributes = node.attributes
        channel_blocks = -(-dst.channels // 4)
        items = shared_items(dst.rows, channel_blocks, ctx)
        shared = [("int4", "found", items)]
        # The exponentials are followed by a zero whose value compilers do not know.
        table = (*attributes.exponentials, 0, 0, 0, 0)
        constants: dict[str, Array] = {}
        if attributes.reciprocals:
            constants["table"] = np.array(attributes.exponentials, np.int32)
            constants["reciprocals"] = np.array((*attributes.reciprocals, 0, 0, 0), np.int32)
        elif attributes.exponentials:
            shared.append(("float4", "scratch", items))
            constants["table"] = np.array(table, np.float32)
        if attributes.kind == "log_softmax":
            constants["logs"] = logarithms.table(dst.channels)
        request = KernelRequest(
            template="quantized_softmax",
            grid=(items, dst.rows, 1),
            local=(items, 1, 1) if items > 1 else (1, 32, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            constants=constants,
            variables={
                "kind": attributes.kind,
                "signed": attributes.signed,
                "zero_point": attributes.zero,
                "scale": literal(attributes.scale),
                "logs": logarithms.template_words(),
                "ITEMS": items,
                "real_blocks": channel_blocks,
            },
            shared=tuple(shared) if items > 1 else (),
            work={Unit.FP32: 5 * dst.rows * dst.channels},
            accumulator=INT,
        )
        return (request,)
