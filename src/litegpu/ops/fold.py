"""Operations whose results are known before the model runs: shapes, and what is made of them.

No kernel runs for them. All is exact: they move elements or compute with integers and bools. How
an op does so is its own matter (`OpFacts.fold`); here is how much of it there may be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from litegpu.graph import ABSENT, DType, Graph, Node, Value
from litegpu.ops.base import facts_of
from litegpu.ops.dynamic import UNKNOWN
from litegpu.ops.facts import Array
from litegpu.ops.traits import Trait

_MOST_ELEMENTS = 1 << 16
"""Larger operands and results stay with the model: folding would keep them in memory once more."""
_MOST_BYTES = 1 << 24
_TYPES = {np.dtype(dtype.value): dtype for dtype in DType if dtype.size}
"""By the types of NumPy: to ask these for their names takes long."""


@dataclass
class Budget:
    """Bytes that the results of a graph's folded nodes may take, all in all.

    A small file can ask for much: each operation may make a large constant of small ones, and each
    costs the file some bytes. What exceeds this is left to kernels, or to the CPU.
    """

    left: int = _MOST_BYTES

    def take(self, nbytes: int) -> None:
        """Spend some of it. Raises ValueError when it is used up."""
        if nbytes > self.left:
            raise ValueError("the results of folding would take too much memory")
        self.left -= nbytes


def evaluate(graph: Graph, node: Node, budget: Budget) -> Sequence[Array] | None:
    """Return the results of a node that are known already, or None.

    What they take is spent from the budget before they are made.
    """
    inputs = [graph.values.get(v) for v in node.inputs if v != ABSENT]
    outputs = [graph.values.get(v) for v in node.outputs]
    if not inputs or None in inputs or None in outputs:
        return None
    present = [each for each in inputs if each is not None]
    op = facts_of(node.op)
    if Trait.READS_SHAPES not in op.traits and any(each.data is None for each in present):
        return None
    try:
        with np.errstate(divide="raise"):
            found = _evaluate(graph, node, present, budget)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
        return None  # the checks, or the runtime, will say what is wrong
    return found if found is not None and _fits(found, outputs) else None


def constant(value: Value, array: Array) -> Value:
    """Return a value that holds the elements of an array, of its type."""
    return replace(value, shape=array.shape, dtype=_TYPES[array.dtype], data=array)


def is_folded(node: Node, values: Mapping[int, Value]) -> bool:
    """Whether a checked node needs no kernel, for its results are constants."""
    return bool(node.outputs) and all(v in values and values[v].is_constant for v in node.outputs)


def _fits(found: Sequence[Array], outputs: Sequence[Value | None]) -> bool:
    """Whether results are of the types that the file states; float16 weights stay what they are."""
    types = [value.dtype for value in outputs if value is not None]
    computed = [_TYPES.get(array.dtype) for array in found]
    return len(computed) == len(types) and all(
        one is not None and (one is dtype or (one, dtype) == (DType.FLOAT16, DType.FLOAT32))
        for one, dtype in zip(computed, types, strict=True)
    )


def _evaluate(
    graph: Graph, node: Node, inputs: Sequence[Value], budget: Budget
) -> Sequence[Array] | None:
    op = facts_of(node.op)
    if Trait.READS_SHAPES in op.traits and inputs[0].shape != UNKNOWN:
        known = op.fold(graph, node, ())
        return None if known is None else known.make()
    arrays = [value.data for value in inputs if value.data is not None]
    large = any(value.elements > _MOST_ELEMENTS for value in inputs)
    if len(arrays) < len(inputs) or (large and Trait.SAME_DATA not in op.traits):
        return None
    found = op.fold(graph, node, arrays)
    if found is None or found.elements > _MOST_ELEMENTS:
        return None
    budget.take(found.elements * graph.values[node.outputs[0]].dtype.size)
    return [np.ascontiguousarray(each).reshape(each.shape) for each in found.make()]
