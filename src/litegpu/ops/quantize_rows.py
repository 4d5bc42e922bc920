"""QUANTIZE_ROWS: quantizes float rows to int8, with a scale and a zero point per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from litegpu.codegen import INT, Storage, literal
from litegpu.graph import EpilogueOp, Node
from litegpu.ops.base import InternalOp, KernelRequest, LowerContext, register
from litegpu.ops.common.units import Unit
from litegpu.ops.common.work_groups import shared_items
from litegpu.ops.exact.functions import rounded_rows

QUANTIZE_ROWS = "QUANTIZE_ROWS"


@dataclass(frozen=True, slots=True)
class RowNormalization:
    """The normalization of each row before it is quantized: see NormalizeAttributes.

    Operands of the epilogue are positions in the node's inputs.
    """

    epsilon: float
    centred: bool
    epilogue: tuple[EpilogueOp, ...]


@dataclass(frozen=True, slots=True)
class QuantizeRowsAttributes:
    """How rows are quantized.

    If `symmetric`, the greatest magnitude of a row is mapped to 127; otherwise the row's range is
    mapped to -128 to 127. The first `body` elements of a row are rounded as the CPU's vector loops
    do. If `factor_of_sums` is set, a result has that number times the sum of the row's bytes, times
    the row's scale.
    """

    symmetric: bool
    body: int
    factor_of_sums: int = 0
    normalization: RowNormalization | None = None


@register
class QuantizeRows(InternalOp):
    """Quantizes rows along the channels by their minimum and maximum.

    The results are the int8 rows, their scales [..., 1], for asymmetric rows their zero points
    [..., 1] and, with `factor_of_sums`, the scaled sums [..., 1].
    """

    name = QUANTIZE_ROWS

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: QuantizeRowsAttributes = node.attributes
        source, dst = ctx.storage(node.inputs[0]), ctx.storage(node.outputs[0])
        items = shared_items(dst.rows, source.channel_blocks, ctx)
        names = ["scales"]
        shared = [("float4", "lows"), ("float4", "highs")]
        if not attributes.symmetric:
            names.append("zeros")
        if attributes.factor_of_sums:
            names.append("scaled_sums")
            shared.append(("int4", "partial"))
        tail = attributes.body < dst.channels
        rounded = rounded_rows(attributes.body, tail=tail)
        normalization = attributes.normalization
        inner = normalization.epilogue if normalization else ()
        request = KernelRequest(
            template="quantize_rows",
            grid=(items, dst.rows, 1),
            local=(items, 1, 1) if items > 1 else (1, 64, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            writes=dict(zip(names, node.outputs[1:], strict=True)),
            variables={
                "symmetric": attributes.symmetric,
                "factor_of_sums": attributes.factor_of_sums,
                "tail": tail,
                "rounded": rounded.format(a="v", b="factors", i="element"),
                "ITEMS": items,
                **_words(normalization, source),
            },
            inner_epilogue=tuple(each.with_operands(node.inputs.__getitem__) for each in inner),
            shared=tuple((*each, items) for each in shared) if items > 1 else (),
            work={Unit.INT32: dst.rows * (200 + 12 * dst.channels)},
            accumulator=INT,
        )
        return (request,)


def _words(normalization: RowNormalization | None, source: Storage) -> dict[str, Any]:
    """Return the template variables of the normalization."""
    if normalization is None:
        return {"normalized": False}
    return {
        "normalized": True,
        "centred": normalization.centred,
        "epsilon": literal(normalization.epsilon),
        "count": literal(source.channels),
        "middle": source.shape,
    }
