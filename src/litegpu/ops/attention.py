"""ATTENTION: products of queries and keys, softmax, products with the values, in one kernel.

Models express it as BATCH_MATMUL and SOFTMAX; `passes/fuse_attention.py` finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from litegpu.codegen import Storage, literal
from litegpu.codegen.storage import Shape4
from litegpu.graph import SELF, EpilogueOp, Node
from litegpu.ops.base import InternalOp, SpecContext, register
from litegpu.ops.common.traits import Trait

ATTENTION = "ATTENTION"


@dataclass(frozen=True, slots=True)
class AttentionAttributes:
    """The epilogue of the scores of a product [products, rows, keys], and the layout of the values.

    `scores` is the shape of the scores `middle`, which are never stored, as [N, H, W, C]. The
    operands of `epilogue`, which is applied before the factor `beta`, are indices of the node's
    inputs. `across` has a flag for queries, keys, values and the result: whether heads are in the
    channels of tokens, as [batch, tokens, heads, depth], instead of before the tokens.
    """

    scores: Shape4
    middle: int
    epilogue: tuple[EpilogueOp, ...]
    beta: float
    across: tuple[bool, bool, bool, bool]


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """softmax(beta * epilogue(query * key^T)) * value, for each head of each batch entry.

    The values and `across` are those of queries, keys, values and the result.
    """

    values: tuple[Storage, Storage, Storage, Storage]
    across: tuple[bool, bool, bool, bool]
    scores: Shape4
    epilogue: tuple[EpilogueOp, ...]
    """As `KernelRequest.inner_epilogue`."""
    buffers: int
    """Maximum number of buffers that the epilogue reads."""
    beta: float

    @property
    def dst(self) -> Storage:
        return self.values[3]

    @property
    def products(self) -> int:
        return self.scores[0] * self.scores[1]

    @property
    def rows(self) -> int:
        """Number of queries per product."""
        return self.scores[2]

    @property
    def keys(self) -> int:
        return self.scores[3]

    @property
    def depths(self) -> tuple[int, int]:
        """Channels per query or key, and per value."""
        return self.values[0].channels, self.values[2].channels

    def words(self, tiles: int) -> dict[str, Any]:
        """Return the common template variables; `tiles` is the number of tiles per product."""
        return {
            "tiles": tiles,
            "products": self.products,
            "middle": self.scores,
            "across": self.across,
            "beta": literal(self.beta),
            "value_blocks": -(-self.depths[1] // 4),
        }

    @property
    def flops(self) -> int:
        return 2 * self.products * self.rows * self.keys * sum(self.depths)


@register
class Attention(InternalOp):
    """Means of values weighted by a softmax of scores, which are never stored."""

    name = ATTENTION
    traits = Trait.SUMS_PRODUCTS

    def specs(self, node: Node, ctx: SpecContext) -> Sequence[AttentionSpec]:
        attributes: AttentionAttributes = node.attributes
        query, key, value = (ctx.storage(v) for v in node.inputs[:3])
        epilogue = tuple(
            replace(each, operands=tuple(v if v == SELF else node.inputs[v] for v in each.operands))
            for each in attributes.epilogue
        )
        return (
            AttentionSpec(
                (query, key, value, ctx.storage(node.outputs[0])),
                attributes.across,
                attributes.scores,
                epilogue,
                len(node.inputs) - 3,
                attributes.beta,
            ),
        )
