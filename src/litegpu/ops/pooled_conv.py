"""POOLED_CONV: computes a convolution and a max pool of its result in one kernel.

`passes/pool_into_convolution.py` fuses a CONV_2D and a MAX_POOL_2D into this op.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from litegpu.codegen import Storage
from litegpu.codegen.storage import Shape4
from litegpu.graph import SELF, DType, EpilogueOp, Node, Value
from litegpu.ops.base import InternalOp, SpecContext, register
from litegpu.ops.common.conv_spec import ConvSpec
from litegpu.ops.common.placement import padded_storage
from litegpu.ops.common.window import PoolAttributes
from litegpu.ops.conv_2d import ConvAttributes, conv_spec

POOLED_CONV = "POOLED_CONV"


@dataclass(frozen=True, slots=True)
class PooledConvAttributes:
    """A convolution, its epilogue, the shape [N, H, W, C] of its output, and the pool after it.

    `middle` is the value id of the convolution's output before the fusion.
    """

    conv: ConvAttributes
    epilogue: tuple[EpilogueOp, ...]
    shape: Shape4
    middle: int
    pool: PoolAttributes

    @property
    def constants(self) -> tuple[int, ...]:
        operands = (v for each in self.epilogue for v in each.operands if v != SELF)
        return (*self.conv.constants, *operands)


@dataclass(frozen=True, slots=True, eq=False)
class PooledConvSpec:
    """Maxima over windows of a convolution's result after its `epilogue`.

    The convolution's `dst` is the storage that its output would have without the fusion.
    """

    conv: ConvSpec
    epilogue: tuple[EpilogueOp, ...]
    pool: PoolAttributes
    dst: Storage


@register
class PooledConv(InternalOp):
    """Computes maxima over windows of a convolution's result, which is never stored."""

    name = POOLED_CONV

    def specs(self, node: Node, ctx: SpecContext) -> Sequence[PooledConvSpec]:
        attributes: PooledConvAttributes = node.attributes
        conv = conv_spec(replace(node, attributes=attributes.conv), ctx, image=True)
        middle = Value(attributes.middle, "", attributes.shape, DType.FLOAT32)
        between = padded_storage(middle, ctx.target.policy)
        alone = replace(conv, dst=between)
        return (PooledConvSpec(alone, attributes.epilogue, attributes.pool, conv.dst),)
