"""Attention in the portable dialect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from litegpu.codegen.dialect import SHARED_SIZES
from litegpu.graph import Node
from litegpu.kernels.attention import beyond_limits, too_many_buffers
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.examples import AttentionExample
from litegpu.ops.attention import MAX_FEW_QUERIES, AttentionSpec
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.units import Unit
from litegpu.ops.common.work_groups import by_load, power_of_two, shared_items

_MAX_BLOCKS = 16
"""Maximum channel blocks in all rows of a work item; more rows share loads of keys and values."""
_MAX_BLOCKS_OF_CORES = 32
"""Maximum channel blocks for devices with few cores, where register spilling costs little."""
_FEW_ITEMS = 64
_FLOAT4 = 16


_PADDING = 2
"""Padding per row in shared memory, so that stores of adjacent items use different banks."""


class AttentionSplit(Implementation):
    """A kernel for few queries: the work items of a group divide keys, channels and values.

    It reads values in both layouts. Several work groups may divide the keys of a product.
    """

    name = "attention_split"
    example = AttentionExample(4, 100, 64)

    def plan(self, spec: AttentionSpec, target: Target) -> Plan | Rejected:
        if spec.rows > MAX_FEW_QUERIES:
            return Rejected(f"there are more than {MAX_FEW_QUERIES} queries per head")
        if spec.keys < _MIN_SPLIT_KEYS:
            return Rejected("there are too few keys to divide them between work items")
        if max(spec.depths) > _MAX_DEPTH:
            return Rejected(f"heads have more than {_MAX_DEPTH} channels")
        if not target.fast_local_memory:
            return Rejected("local memory of the device is not faster than the cache")
        if rejected := too_many_buffers(spec, target):
            return rejected
        for items in _SPLIT_ITEMS:
            plan = _split_plan(spec, items, target)
            if plan is not None:
                return plan
        return Rejected("the device permits too few work items per group")


_MIN_SPLIT_KEYS = 32
_MAX_DEPTH = 512
_SPLIT_ITEMS = (256, 128, 64, 32)
"""Possible work-group sizes."""
_MAX_QUERY_BLOCKS = 8
"""Maximum channel blocks of queries per work item, which are in registers."""
_MAX_DEPTH_STEPS = 4
"""Maximum channel blocks of a key per work item: 16 loads of 4 keys are in flight."""
_MAX_SUM_BLOCKS = 16
"""Maximum channel blocks of the result per work item, which are in registers."""
_ADJACENT = 8
"""Number of adjacent work items that read 128 adjacent bytes."""


def _split_plan(spec: AttentionSpec, items: int, target: Target) -> _SplitPlan | None:
    """Return the plan with work groups of about `items` items; None if the device permits none."""
    depth_blocks, value_blocks = (-(-each // 4) for each in spec.depths)
    depth_items = power_of_two(
        max(
            spec.rows,
            min(_ADJACENT, depth_blocks),
            -(-spec.rows * depth_blocks // _MAX_QUERY_BLOCKS),
            -(-depth_blocks // _MAX_DEPTH_STEPS),
        )
    )
    key_blocks = -(-spec.keys // 4)
    part_blocks = -(-key_blocks // spec.parts)
    key_items = min(items // depth_items, power_of_two(part_blocks))
    items = key_items * depth_items
    if not 0 < items <= target.max_work_group_size:
        return None
    if spec.turned:
        value_items = min(key_items, max(_ADJACENT, power_of_two(items // value_blocks + 1) // 2))
        while value_items > 1 and (
            spec.rows * -(-value_blocks * value_items // items) > _MAX_SUM_BLOCKS
        ):
            value_items //= 2
        column_items = items // value_items
    else:
        column_items = min(value_blocks, items)
        value_items = min(key_items, items // column_items)
    each = value_blocks * (value_items + 1 if spec.turned else value_items)
    for rows_at_once in (spec.rows, 1):
        scratch = max(spec.rows * key_items * (depth_items + 1), rows_at_once * each)
        sizes = (key_items, depth_items, value_items, column_items)
        plan = _SplitPlan(spec, *sizes, rows_at_once, scratch)
        if _shared_bytes(plan.shared) <= target.local_memory_bytes:
            return plan
    return None


@dataclass(frozen=True, slots=True)
class _SplitPlan(Plan):
    """The plan for few queries: how many work items divide keys, channels and values."""

    spec: AttentionSpec
    key_items: int
    """Blocks of 4 keys per iteration."""
    depth_items: int
    """Work items per block of keys, which divide the channels."""
    value_items: int
    """Work items per channel block of the result, which divide the keys."""
    column_items: int
    """Channel blocks of the result that are computed at once."""
    rows_at_once: int
    """Rows whose sums are combined at once."""
    scratch: int
    """Number of float4 in shared memory for sums of work items."""

    @property
    def shared(self) -> tuple[tuple[str, str, int], ...]:
        """The arrays in shared memory."""
        rows, scores = self.spec.rows, self.spec.rows * self.key_items
        return (
            ("float4", "scratch", self.scratch),
            ("float4", "weights", scores),
            ("float", "maxima", scores),
            ("float", "factors", rows),
            ("float", "peaks", rows),
        )

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        spec, items = self.spec, self.key_items * self.depth_items
        return KernelRequest(
            template="attention_split",
            grid=(items, spec.products * spec.parts, 1),
            local=(items, 1, 1),
            output=node.outputs[0],
            reads=dict(zip(("query", "key", "values"), node.inputs[:3], strict=True)),
            variables={
                "ROWS": spec.rows,
                "PARTS": spec.parts,
                "KEY_ITEMS": self.key_items,
                "DEPTH_ITEMS": self.depth_items,
                "VALUE_ITEMS": self.value_items,
                "COLUMN_ITEMS": self.column_items,
                "ROWS_AT_ONCE": self.rows_at_once,
                "turned": spec.turned,
                "value_depth": spec.depths[1],
                **spec.words(1),
            },
            shared=self.shared,
            inner_epilogue=spec.epilogue,
            work={Unit.FP32: spec.flops},
        )


class AttentionTiles(Implementation):
    """A kernel whose work groups share tiles of queries, keys and values, for many keys."""

    name = "attention_tiles"
    general = True
    example = AttentionExample(64, 64, 32)

    def plan(self, spec: AttentionSpec, target: Target) -> Plan | Rejected:
        if rejected := beyond_limits(spec, target):
            return rejected
        if not target.fast_local_memory:
            return Rejected("local memory of the device is not faster than the cache")
        fitting = [rows for rows in _ROWS if _fits(_TilesPlan(spec, rows), target)]
        if not fitting:
            return Rejected("the device permits too few work items per group")
        if spec.keys < _MIN_KEYS or spec.rows < _MIN_QUERIES:
            return Rejected("most of a tile would be empty")
        plans = [_TilesPlan(spec, rows) for rows in fitting]
        plan = next((each for each in plans if each.groups >= target.compute_units), plans[-1])
        if plan.groups * _MAX_IDLE < target.compute_units:
            return Rejected(f"{plan.groups} tiles are too few to keep the device busy")
        return plan


_ROWS = (4, 2)
"""Possible numbers of queries per work item."""
_ROW_ITEMS, _KEY_ITEMS = 8, 8
_MIN_KEYS = 32
_MIN_QUERIES = 8
_MAX_IDLE = 16
"""Minimum compute units per tile for which the items of a work group should divide the keys."""


@dataclass(frozen=True, slots=True)
class _TilesPlan(Plan):
    """The plan of tiles in shared memory: the number of queries per work item."""

    spec: AttentionSpec
    item_rows: int

    @property
    def rows(self) -> int:
        """The number of queries per work group."""
        return self.item_rows * _ROW_ITEMS

    @property
    def groups(self) -> int:
        """The number of work groups."""
        return self.spec.products * -(-self.spec.rows // self.rows)

    @property
    def values(self) -> int:
        """Number of channel blocks of the result per work item."""
        return -(-self.spec.dst.channel_blocks // _KEY_ITEMS)

    @property
    def shared(self) -> tuple[tuple[str, str, int], ...]:
        """The arrays in shared memory."""
        blocks, keys = -(-self.spec.depths[0] // 4), 4 * _KEY_ITEMS
        other = max(blocks * (keys + _PADDING), keys * self.values * _KEY_ITEMS)
        return (
            ("float4", "query_tile", blocks * (self.rows + _PADDING)),
            ("float4", "other_tile", other),
            ("float4", "weight_tile", _KEY_ITEMS * (self.rows + _PADDING)),
            ("float", "maxima", _KEY_ITEMS * self.rows),
        )

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        items, tiles = _ROW_ITEMS * _KEY_ITEMS, -(-self.spec.rows // self.rows)
        return KernelRequest(
            template="attention_tiles",
            grid=(items, tiles * self.spec.products, 1),
            local=(items, 1, 1),
            output=node.outputs[0],
            reads=dict(zip(("query", "key", "values"), node.inputs[:3], strict=True)),
            variables={
                "ROWS": self.item_rows,
                "ROW_ITEMS": _ROW_ITEMS,
                "KEY_ITEMS": _KEY_ITEMS,
                "VALUES": self.values,
                "PADDING": _PADDING,
                **self.spec.words(tiles),
            },
            shared=self.shared,
            inner_epilogue=self.spec.epilogue,
            work={Unit.FP32: self.spec.flops},
        )


def _fits(plan: _TilesPlan, target: Target) -> bool:
    items, nbytes = _ROW_ITEMS * _KEY_ITEMS, _shared_bytes(plan.shared)
    return items <= target.max_work_group_size and nbytes <= target.local_memory_bytes


def _shared_bytes(arrays: Iterable[tuple[str, str, int]]) -> int:
    return sum(SHARED_SIZES[kind] * length for kind, _, length in arrays)


class AttentionPortable(Implementation):
    """A kernel whose work items read the keys once (online softmax: running maximum)."""

    name = "attention"
    general = True
    example = AttentionExample(7, 9, 5)

    def plan(self, spec: AttentionSpec, target: Target) -> Plan | Rejected:
        if rejected := beyond_limits(spec, target):
            return rejected
        return _AttentionPlan(spec)


@dataclass(frozen=True, slots=True)
class _AttentionPlan(Plan):
    """The plan of the portable kernel: the properties that determine its tiles."""

    spec: AttentionSpec

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        spec = self.spec
        key_blocks, blocks = -(-spec.keys // 4), -(-max(spec.depths) // 4)
        items = shared_items(spec.products * spec.rows, key_blocks, ctx)
        # The sum and the maximum of each item need as many registers as one more block.
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
        most = _MAX_BLOCKS_OF_CORES if few else _MAX_BLOCKS
        ways = [rows for rows in (4, 2, 1) if rows == 1 or rows * blocks <= most]
        return by_load(ways, lambda rows: spec.products * -(-spec.rows // rows), target)[0]
