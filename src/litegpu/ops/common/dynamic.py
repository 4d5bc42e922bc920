"""Finds results of CPU nodes whose shapes are known only at run time."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from litegpu.graph import ABSENT, Node, Value
from litegpu.ops.base import facts_of
from litegpu.ops.common.facts import operand
from litegpu.ops.common.traits import Trait

UNKNOWN = (-1,)
"""The placeholder shape of values whose shape is not known before the model runs."""


def follows_from_shapes(node: Node, values: Mapping[int, Value], known: Collection[int]) -> bool:
    """Whether the results of a node depend only on shapes, not on computed data.

    `known` lists the earlier values that depend only on shapes; constants are not listed.
    """
    if Trait.READS_SHAPES in facts_of(node.op).traits:
        return all(v != ABSENT and values[v].shape != UNKNOWN for v in node.inputs)
    return bool(node.inputs) and all(
        v == ABSENT or v in known or values[v].is_constant for v in node.inputs
    )


def has_unknown_result(node: Node, values: Mapping[int, Value], known: Collection[int]) -> bool:
    """Whether the result shapes of a node are known only at run time.

    `known` lists the values that depend only on shapes.
    """
    op = facts_of(node.op)
    if op.shape_stated:
        return any(-1 in values[v].signature for v in node.outputs if v != ABSENT)
    if op.shape_unknown or any(values[v].shape == UNKNOWN for v in node.inputs if v != ABSENT):
        return True
    deciding = (operand(node.inputs, i) for i in op.shape_operands)
    return any(v != ABSENT and v not in known and not values[v].is_constant for v in deciding)
