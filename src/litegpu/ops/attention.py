"""ATTENTION: one kernel for the product of queries and keys, softmax, and the product with values.

Models express attention as BATCH_MATMUL and SOFTMAX; `passes/fuse_attention.py` fuses these nodes.
If work groups divide the keys, a node JOIN_ATTENTION combines their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from litegpu.codegen import Storage, literal
from litegpu.codegen.storage import Shape4
from litegpu.graph import EpilogueOp, Node
from litegpu.ops.base import InternalOp, SpecContext, register
from litegpu.ops.common.traits import Trait

ATTENTION = "ATTENTION"
MAX_FEW_QUERIES = 8
"""Maximum number of queries per head that a kernel for few queries computes."""
STATE = 4
"""Number of channels after the sums of a part: its maximum, its sum of weights, and padding."""


@dataclass(frozen=True, slots=True)
class AttentionAttributes:
    """The epilogue of the attention scores, and the layouts of queries, keys, values and result.

    `scores` is the shape [N, H, W, C] of the scores, which are never stored; `middle` is their
    value id. The kernel applies `epilogue` before it multiplies the scores by `beta`. The operands
    of `epilogue` are indices of the node's inputs. `across` has one flag each for queries, keys,
    values and the result. A flag is true for the layout [batch, tokens, heads, depth], and false if
    the heads precede the tokens. `turned`: whether the matrices of the values are [depth, tokens].

    With `parts` > 1, as many work groups divide the keys of a product, and the result is the state
    of each part: [products, parts, queries, channels], float32. The channels are sums of values
    that are weighted by exp(score - maximum), then a block of 4 with the maximum of the scores and
    the sum of the weights.
    """

    scores: Shape4
    middle: int
    epilogue: tuple[EpilogueOp, ...]
    beta: float
    across: tuple[bool, bool, bool, bool]
    turned: bool = False
    parts: int = 1


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """softmax(beta * epilogue(query * key^T)) * value, for each head of each batch entry.

    `values` and `across` have one entry each for queries, keys, values and the result. `turned` and
    `parts` have the same meaning as in AttentionAttributes.
    """

    values: tuple[Storage, Storage, Storage, Storage]
    across: tuple[bool, bool, bool, bool]
    scores: Shape4
    epilogue: tuple[EpilogueOp, ...]
    """Epilogue ops of the scores: see `KernelRequest.inner_epilogue`."""
    buffers: int
    """Maximum number of buffers that the epilogue reads."""
    beta: float
    turned: bool = False
    parts: int = 1

    @property
    def dst(self) -> Storage:
        return self.values[3]

    @property
    def products(self) -> int:
        return self.scores[0] * self.scores[1]

    @property
    def rows(self) -> int:
        """Number of queries per matrix product."""
        return self.scores[2]

    @property
    def keys(self) -> int:
        return self.scores[3]

    @property
    def depths(self) -> tuple[int, int]:
        """Number of channels per query or key, and per value."""
        values = self.values[2]
        if self.turned:
            return self.values[0].channels, values.shape[1 if self.across[2] else 2]
        return self.values[0].channels, values.channels

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
    """Computes means of values, weighted by a softmax of scores that are never stored."""

    name = ATTENTION
    traits = Trait.SUMS_PRODUCTS

    def specs(self, node: Node, ctx: SpecContext) -> Sequence[AttentionSpec]:
        attributes: AttentionAttributes = node.attributes
        query, key, value = (ctx.storage(v) for v in node.inputs[:3])
        epilogue = tuple(
            each.with_operands(node.inputs.__getitem__) for each in attributes.epilogue
        )
        return (
            AttentionSpec(
                (query, key, value, ctx.storage(node.outputs[0])),
                attributes.across,
                attributes.scores,
                epilogue,
                len(node.inputs) - 3,
                attributes.beta,
                attributes.turned,
                attributes.parts,
            ),
        )
