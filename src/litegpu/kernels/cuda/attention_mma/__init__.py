"""Attention on tensor cores: cuda/attention_mma."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.graph import DType, Node
from litegpu.kernels.base import Implementation, Plan, Rejected, implements
from litegpu.kernels.examples import AttentionExample
from litegpu.ops.attention import AttentionSpec
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.units import Unit

_QUERIES, _KEYS = 16, 16
"""Queries of a warp, and the keys that it goes on by."""
_MOST_DEPTH = 128
"""Channels that a warp can keep in registers, of its queries and of its result."""
_FEWEST = 8
"""Fewer queries or keys leave more than half of a tile empty."""
_ROW_WARPS = 4
"""Warps of a block where each has all keys of its queries."""
_MOST_KEY_WARPS = 8
_BUSY_WARPS = 8
"""Warps of a multiprocessor that hide each other's loads; keys are shared out for as many."""


@implements(AttentionSpec)
class AttentionMma(Implementation):
    """Warps make 16 rows each, by tf32, and keep them in registers through an online softmax."""

    name = "cuda/attention_mma"
    example = AttentionExample(197, 197, 64)
    small = AttentionExample(19, 37, 20)

    def plan(self, spec: AttentionSpec, target: Target) -> Plan | Rejected:
        depth, buffers = max(spec.depths), 4 + spec.buffers
        if not target.model.tensor_cores:
            return Rejected("the device has no tensor cores")
        if depth > _MOST_DEPTH:
            return Rejected(f"heads of {depth} channels are more than {_MOST_DEPTH}")
        if min(spec.rows, spec.keys) < _FEWEST:
            return Rejected("its scores would leave most of a tile empty")
        if buffers > target.max_arguments:
            return Rejected(f"{buffers} buffers are more than {target.max_arguments} of the device")
        return _AttentionPlan(spec)


@dataclass(frozen=True, slots=True)
class _AttentionPlan(Plan):
    """How many warps share out the keys."""

    spec: AttentionSpec

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        spec = self.spec
        tiles = -(-spec.rows // _QUERIES)
        key_warps = self._key_warps(tiles * spec.products, ctx.target)
        warps = key_warps if key_warps > 1 else _ROW_WARPS
        groups = tiles * spec.products if key_warps > 1 else -(-tiles * spec.products // warps)
        split = any(value.dtype is DType.FLOAT32 for value in spec.values[:3])
        # Of each lane: what it has of the result, and two sums.
        floats = 32 * (-(-spec.dst.channel_blocks // 8) * 16 + 2)
        shared = (
            ("float", "maxima", key_warps * _QUERIES),
            ("float", "parts_of_sums", (key_warps - 1) * floats),
        )
        return KernelRequest(
            template=AttentionMma.name,
            grid=(32 * warps, groups, 1),
            local=(32 * warps, 1, 1),
            output=node.outputs[0],
            reads=dict(zip(("query", "key", "values"), node.inputs[:3], strict=True)),
            variables={
                "KEY_WARPS": key_warps,
                "ROW_WARPS": _ROW_WARPS,
                "SPLIT": split,
                **spec.words(tiles),
            },
            shared=shared if key_warps > 1 else (),
            inner_epilogue=spec.epilogue,
            work={Unit.TF32_MATRIX: spec.flops},
            products=3 if split else 1,
        )

    def _key_warps(self, warps: int, target: Target) -> int:
        """Return how many warps share out the keys of the same queries, at least a block each."""
        blocks = -(-self.spec.keys // _KEYS)
        found = 1
        while 2 * found <= min(_MOST_KEY_WARPS, blocks):
            if warps * found >= target.compute_units * _BUSY_WARPS:
                break
            found *= 2
        return found
