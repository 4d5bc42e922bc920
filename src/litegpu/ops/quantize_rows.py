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
_CHUNK = 1 << 10
"""Number of channel blocks that a work group quantizes, if the ranges of rows are found before."""


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
    """How rows of `pixels` pixels are quantized.

    If `symmetric`, the greatest magnitude of a row is mapped to 127; otherwise the row's range is
    mapped to -128 to 127. The first `body` elements of a row are rounded as the CPU's vector loops
    do. `centred` rows are int32 less their zero points. If `parts` is above 1, the second input has
    the ranges of that many parts: see ROW_RANGES. If `factor_of_sums` is set, a result has that
    number times the sum of the row's bytes, times the row's scale.
    """

    symmetric: bool
    body: int
    pixels: int = 1
    centred: bool = False
    parts: int = 1
    factor_of_sums: int = 0
    normalization: RowNormalization | None = None


@register
class QuantizeRows(InternalOp):
    """Quantizes rows by their minimum and maximum.

    The results are the rows, their scales [..., 1], for asymmetric rows their zero points [..., 1]
    and, with `factor_of_sums`, the scaled sums [..., 1].
    """

    name = QUANTIZE_ROWS

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: QuantizeRowsAttributes = node.attributes
        source, pixels = ctx.storage(node.inputs[0]), attributes.pixels
        pixel_blocks = -(-source.channels // 4)
        rows, blocks = source.rows // pixels, pixels * pixel_blocks
        chunks = -(-blocks // _CHUNK) if attributes.parts > 1 else 1
        length = -(-blocks // chunks)
        items = shared_items(rows * chunks, length, ctx)
        names = ["scales"]
        shared = [("float4", "lows"), ("float4", "highs")]
        if not attributes.symmetric:
            names.append("zeros")
        if attributes.factor_of_sums:
            names.append("scaled_sums")
            shared.append(("int4", "partial"))
        tail = attributes.body < pixels * source.channels
        rounded = rounded_rows(attributes.body, tail=tail)
        normalization = attributes.normalization
        inner = normalization.epilogue if normalization else ()
        reads = ("src", "ranges") if attributes.parts > 1 else ("src",)
        request = KernelRequest(
            template="quantize_rows",
            grid=(items * chunks, rows, 1),
            local=(items, 1, 1) if items > 1 else None,
            output=node.outputs[0],
            reads=dict(zip(reads, node.inputs, strict=False)),
            writes=dict(zip(names, node.outputs[1:], strict=True)),
            variables={
                "symmetric": attributes.symmetric,
                "centred": attributes.centred and not attributes.symmetric,
                "factor_of_sums": attributes.factor_of_sums,
                "tail": tail,
                "rounded": rounded.format(a="v", b="factors", i="element"),
                "pixels": pixels,
                "rows": rows,
                "parts": attributes.parts,
                "chunks": chunks,
                "pixel_blocks": pixel_blocks,
                "blocks": blocks,
                "length": length,
                "ITEMS": items,
                **_words(normalization, source),
            },
            inner_epilogue=tuple(each.with_operands(node.inputs.__getitem__) for each in inner),
            shared=tuple((*each, items) for each in shared) if items > 1 else (),
            work={Unit.INT32: 200 * rows * chunks + 12 * source.rows * source.channels},
            accumulator=INT,
        )
        return (request,)


def _words(normalization: RowNormalization | None, source: Storage) -> dict[str, Any]:
    """Return the template variables of the normalization."""
    if normalization is None:
        return {"normalized": False}
    return {
        "normalized": True,
        "from_mean": normalization.centred,
        "epsilon": literal(normalization.epsilon),
        "count": literal(source.channels),
        "middle": source.shape,
    }
