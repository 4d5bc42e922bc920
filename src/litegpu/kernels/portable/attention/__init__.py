"""Attention in the portable dialect."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.graph import Node
from litegpu.kernels.attention import beyond_limits
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.examples import AttentionExample
from litegpu.ops.attention import AttentionSpec
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.units import Unit
from litegpu.ops.common.work_groups import by_load, shared_items

_MOST_BLOCKS = 16
"""Channel blocks of all rows of a work item; more rows share the loads of keys and values."""
_MOST_BLOCKS_OF_CORES = 32
"""The same on devices with few cores, on which spilling registers costs little."""
_FEW_ITEMS = 64
_FLOAT4 = 16


class AttentionPortable(Implementation):
    """Work items read the keys of a query once, with a running maximum: online softmax."""

    name = "attention"
    general = True
    example = AttentionExample(7, 9, 5)

    def plan(self, spec: AttentionSpec, target: Target) -> Plan | Rejected:
        if rejected := beyond_limits(spec, target):
            return rejected
        return _AttentionPlan(spec)


@dataclass(frozen=True, slots=True)
class _AttentionPlan(Plan):
    """What determines the tiles."""

    spec: AttentionSpec

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        spec = self.spec
        key_blocks, blocks = -(-spec.keys // 4), -(-max(spec.depths) // 4)
        items = shared_items(spec.products * spec.rows, key_blocks, ctx)
        # The sum and the maximum of each item need as much as another block.
        while items > 1 and items * (blocks + 1) * _FLOAT4 > ctx.target.local_memory_bytes:
            items //= 2
        rows = 1 if items > 1 else self._rows(blocks, ctx.target)
        tiles = -(-spec.rows // rows)
        value_blocks = -(-spec.depths[1] // 4)
        shared = (("float", "sums", items), ("float", "maxima", items))
        parts = (("float4", "parts_of_sums", items * value_blocks), *shared)
        return KernelRequest(
            template="attention",
            grid=(items, tiles * spec.products, 1),
            local=(items, 1, 1) if items > 1 else (1, 32, 1),
            output=node.outputs[0],
            reads=dict(zip(("query", "key", "values"), node.inputs[:3], strict=True)),
            variables={
                "ITEMS": items,
                "ROWS": rows,
                **spec.words(tiles),
            },
            shared=parts if items > 1 else (),
            inner_epilogue=spec.epilogue,
            work={Unit.FP32: spec.flops},
        )

    def _rows(self, blocks: int, target: Target) -> int:
        """Return the number of queries per work item that keeps the device busy."""
        spec, few = self.spec, target.parallel_items <= _FEW_ITEMS
        most = _MOST_BLOCKS_OF_CORES if few else _MOST_BLOCKS
        ways = [rows for rows in (4, 2, 1) if rows == 1 or rows * blocks <= most]
        return by_load(ways, lambda rows: spec.products * -(-spec.rows // rows), target)[0]
