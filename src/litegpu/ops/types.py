"""Which element types an operation takes and gives: docs/decisions/0004-element-types.md."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from litegpu.graph import ABSENT, DType, Graph, Node, Value

TYPE_CODES = {2: DType.INT32, 4: DType.INT64}
"""Integer types by the numbers that they have in the runtime's parameters."""
INTEGER_TYPES = frozenset({DType.INT32, DType.INT64})


@dataclass(frozen=True, slots=True)
class Types:
    """Element types that a computed tensor may have.

    On a device every element is a float. With `exact`, integers are taken only where it is known
    that float32 holds them.
    """

    dtypes: frozenset[DType]
    exact: bool = True


FLOATS = Types(frozenset({DType.FLOAT32}))
BOOLS = Types(frozenset({DType.BOOL}))
INDICES = Types(INTEGER_TYPES, exact=False)
"""Integers that mean nothing beyond the size of a dimension."""
INTEGERS = Types(INTEGER_TYPES)
HELD = Types(frozenset({DType.FLOAT32, DType.BOOL, *INTEGER_TYPES}))
ROUNDED = Types(HELD.dtypes, exact=False)
"""Numbers that are about to become floats anyway."""


def check(
    graph: Graph,
    node: Node,
    takes: tuple[Types, ...],
    gives: Types | None,
    states: Collection[int] = (),
) -> str:
    """Return why a node cannot run on tensors of these types, or an empty text.

    `takes` has an entry per input; the last one stands for all further inputs. Without `gives` the
    outputs have the type of what goes in as `HELD`. Only `states` may be variable tensors.
    """
    moved = set()
    for position, v in enumerate(node.inputs):
        rule = takes[min(position, len(takes) - 1)]
        if v == ABSENT or graph.values[v].is_constant:
            continue
        reason = _check_value(graph.values[v], rule, v in states)
        if reason:
            return reason
        if rule is HELD:
            moved.add(graph.values[v].dtype)
    rule = gives or Types(frozenset(moved or FLOATS.dtypes))
    wrong = (_check_type(graph.values[v], rule) for v in node.outputs if v != ABSENT)
    return next(filter(None, wrong), "")


def is_exact(value: Value) -> bool:
    """Whether float32 holds every element of a value."""
    if value.dtype not in INTEGER_TYPES:
        return True
    if value.data is None:
        return value.exact
    return bool(np.all(value.data == value.data.astype(np.float32).astype(np.float64)))


def _check_value(value: Value, rule: Types, state: bool) -> str:
    reason = _check_type(value, rule)
    if not reason and value.is_variable and not state:
        reason = f"tensor {value.id} is a variable tensor, whose state lives on the CPU."
    if not reason and rule.exact and not is_exact(value):
        reason = (
            f"tensor {value.id} is {value.dtype.name} and may hold numbers beyond 2^24, which a "
            "device would round."
        )
    return reason


def _check_type(value: Value, rule: Types) -> str:
    if value.dtype in rule.dtypes:
        return ""
    handled = " or ".join(sorted(dtype.name for dtype in rule.dtypes))
    return (
        f"OP is supported, but tensor type/shape isn't compatible: tensor {value.id} is "
        f"{value.dtype.name}, {handled} is handled."
    )
