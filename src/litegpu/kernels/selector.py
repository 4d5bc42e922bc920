"""The implementations of each kind of spec, and the selection among them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from litegpu.codegen import Storage
from litegpu.graph import Graph, Node, Value
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.cuda.attention_flash import AttentionFlash
from litegpu.kernels.cuda.attention_mma import AttentionMma
from litegpu.kernels.cuda.conv_mma import ConvMma
from litegpu.kernels.cuda.conv_mma.quantized import QuantizedConvMma
from litegpu.kernels.cuda.conv_narrow import ConvNarrow
from litegpu.kernels.cuda.conv_narrow.pooled import PooledConvNarrow
from litegpu.kernels.cuda.conv_narrow.quantized import QuantizedConvNarrow
from litegpu.kernels.cuda.conv_patch import ConvPatch
from litegpu.kernels.cuda.conv_stationary import QuantizedConvStationary
from litegpu.kernels.cuda.conv_tile import ConvTile
from litegpu.kernels.cuda.conv_tile.quantized import QuantizedConvTile
from litegpu.kernels.cuda.depthwise import DepthwiseCuda
from litegpu.kernels.cuda.depthwise_mma import DepthwiseMma
from litegpu.kernels.cuda.inverted import Inverted
from litegpu.kernels.cuda.inverted_split import InvertedSplit
from litegpu.kernels.cuda.matmul import Matmul
from litegpu.kernels.cuda.separable import Separable
from litegpu.kernels.portable.attention import (
    AttentionPortable,
    AttentionSplit,
    AttentionTiles,
)
from litegpu.kernels.portable.conv import ConvPortable, ConvSplit, ConvTiles
from litegpu.kernels.portable.depthwise import DepthwisePortable
from litegpu.kernels.portable.matmul import MatmulPortable, MatmulSplit, QuantizedMatmulPortable
from litegpu.kernels.portable.quantized_conv import QuantizedConvPortable, QuantizedConvSplit
from litegpu.kernels.portable.quantized_transpose_conv import QuantizedTransposePortable
from litegpu.ops.attention import AttentionSpec
from litegpu.ops.base import Target, get
from litegpu.ops.common.conv_spec import ConvSpec
from litegpu.ops.common.depthwise_spec import DepthwiseSpec
from litegpu.ops.common.matmul_spec import MatmulSpec
from litegpu.ops.common.placement import usual_storage
from litegpu.ops.pooled_conv import PooledConvSpec
from litegpu.ops.quantized_conv import QuantizedConvSpec
from litegpu.ops.quantized_matmul import QuantizedMatmulSpec
from litegpu.ops.quantized_transpose_conv import QuantizedTransposeSpec

IMPLEMENTATIONS: dict[type, tuple[Implementation, ...]] = {
    AttentionSpec: (
        AttentionSplit(),
        AttentionFlash(),
        AttentionMma(),
        AttentionTiles(),
        AttentionPortable(),
    ),
    ConvSpec: (
        # The widest fusion comes first: blocks that other kernels would compute in parts.
        Inverted(),
        InvertedSplit(),
        Separable(),
        # Few channels, large products, then all others on tensor cores.
        ConvNarrow(),
        ConvTile(),
        ConvPatch(),
        ConvMma(),
        ConvTiles(),
        ConvSplit(),
        ConvPortable(),
    ),
    PooledConvSpec: (PooledConvNarrow(),),
    QuantizedConvSpec: (
        QuantizedConvNarrow(),
        QuantizedConvStationary(),
        QuantizedConvTile(),
        QuantizedConvMma(),
        QuantizedConvSplit(),
        QuantizedConvPortable(),
    ),
    DepthwiseSpec: (DepthwiseMma(), DepthwiseCuda(), DepthwisePortable()),
    MatmulSpec: (Matmul(), MatmulSplit(), MatmulPortable()),
    QuantizedMatmulSpec: (QuantizedMatmulPortable(),),
    QuantizedTransposeSpec: (QuantizedTransposePortable(),),
}
"""The implementations of each kind of spec, in the order in which they are tried.

Special implementations come first; `general` implementations accept all remaining specs.
"""


@dataclass(frozen=True, slots=True)
class Selection:
    """The implementation selected for a spec, and why each preferred one was rejected.

    `name` is the implementation's name; `plan` is None if no implementation was found. `failed` has
    the implementations that would be selected if they had not failed on the device before.
    """

    name: str
    plan: Plan | None
    rejected: Mapping[str, str]
    failed: Mapping[str, str] = field(default_factory=dict)


def select(spec: Any, target: Target) -> Selection:
    """Return the first implementation that accepts a spec and is fast enough."""
    ranked = sorted(IMPLEMENTATIONS[type(spec)], key=lambda each: (each.general, each.rank(spec)))
    plans: dict[str, Plan | Rejected] = {}

    def plan_of(each: Implementation) -> Plan | Rejected:
        if each.name not in plans:
            plans[each.name] = _plan(each, spec, target)
        return plans[each.name]

    rejected: dict[str, str] = {}
    failed: dict[str, str] = {}
    for each in ranked:
        found = plan_of(each)
        if isinstance(found, Plan) and found.max_clock_ratio < math.inf:
            usable = [
                g for g in ranked if g.general and not target.failure(g.name, spec, general=True)
            ]
            found = _if_faster(found, [(g.name, plan_of(g)) for g in usable])
        reason = target.failure(each.name, spec, general=each.general)
        if isinstance(found, Plan) and reason:
            failed[each.name] = reason
            found = Rejected(reason)
        if isinstance(found, Plan):
            return Selection(each.name, found, rejected, failed)
        rejected[each.name] = found.reason
    return Selection("", None, rejected, failed)


def _plan(each: Implementation, spec: Any, target: Target) -> Plan | Rejected:
    if each.backend not in ("", target.backend):
        return Rejected(f"the kernel is for {each.backend} devices")
    return each.plan(spec, target)


def _if_faster(plan: Plan, general: Sequence[tuple[str, Plan | Rejected]]) -> Plan | Rejected:
    for name, other in general:
        if isinstance(other, Plan) and plan.clocks > plan.max_clock_ratio * other.clocks:
            return Rejected(
                f"the estimate is {plan.clocks:.0f} clocks, that of {name} {other.clocks:.0f}: "
                f"not less than {plan.max_clock_ratio:.0%} of them"
            )
    return plan


@dataclass
class Fusions:
    """Decides whether nodes that a pass would merge can be computed by one kernel."""

    target: Target
    apart: set[int] = field(default_factory=set)
    """Values that must stay unfused: no implementation accepted them with their final storage."""
    failed: list[tuple[Node, Selection]] = field(default_factory=list)
    """Nodes that are not merged because the required implementation has failed."""

    def obstacle(self, graph: Graph, merged: Node, between: int) -> str:
        """Return why `merged`, which also computes `between`, is not fused; "" if it is."""
        if between in self.apart:
            return "no kernel can read the input from its storage"
        (spec,) = get(merged.op).specs(merged, _Unplaced(graph, self.target))
        found = select(spec, self.target)
        if found.plan is not None:
            return ""
        if found.failed:
            self.failed.append((merged, found))
        return "; ".join(dict.fromkeys(filter(None, found.rejected.values())))


@dataclass(frozen=True, slots=True)
class _Unplaced:
    """The values of a graph with their default storage, before the layout is known."""

    graph: Graph
    target: Target

    def value(self, value_id: int) -> Value:
        return self.graph.values[value_id]

    def storage(self, value_id: int) -> Storage:
        return usual_storage(self.graph, value_id, self.target.policy)
