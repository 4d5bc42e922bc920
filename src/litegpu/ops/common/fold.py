"""Constant folding: computes results before the model runs, within limits on memory and work.

No kernel runs for folded nodes. Ops that move elements, or compute with integers and bools, define
a folding rule (`OpFacts.fold`). Nodes of other ops run once in the runtime's CPU kernel. A budget
limits the size and the work of all results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from litegpu.errors import OperationError
from litegpu.graph import ABSENT, DType, Graph, Node, Value
from litegpu.ops.base import facts_of, find
from litegpu.ops.common.dequantized import address_of
from litegpu.ops.common.dynamic import UNKNOWN
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.types import is_quantized
from litegpu.runtime_abi import kernels

_FREE_BYTES = 1 << 24
_FACTOR = 4
"""Maximum ratio of the sizes of dequantized and original constants in legitimate models."""
_MAX_RUNS = 256
_MAX_OPERATIONS = 1 << 30
_TYPES = {np.dtype(dtype.value): dtype for dtype in DType if dtype.size}
"""Element types by NumPy dtype, for fast lookups."""


@dataclass
class Budget:
    """Limits the memory and the work of all folded results of a graph.

    A small file can require much memory, since an op with a few bytes in the file may create a
    large constant from small constants. Nodes beyond the budget are left to kernels or to the CPU.
    """

    left: int = _FREE_BYTES
    """Remaining size of results in bytes."""
    runs: int = _MAX_RUNS
    """Remaining number of nodes that the runtime's CPU kernels may compute."""
    operations: int = _MAX_OPERATIONS
    """Remaining number of operations that the runtime's CPU kernels may compute: see
    `OpFacts.flops`.
    """

    @classmethod
    def of(cls, graph: Graph) -> Budget:
        """Return the budget of a graph."""
        arrays = [value.data for value in graph.values.values() if value.data is not None]
        # A constant may occur twice with the same bytes.
        sizes = {(address_of(array), array.nbytes) for array in arrays}
        return cls(_FREE_BYTES + _FACTOR * sum(nbytes for _, nbytes in sizes))

    def take(self, nbytes: int) -> None:
        """Reserve bytes, or raise ValueError if the budget is exceeded."""
        if nbytes > self.left:
            raise ValueError("the results of folding would take too much memory")
        self.left -= nbytes


def evaluate(graph: Graph, node: Node, budget: Budget) -> Sequence[Array] | None:
    """Return the results of a node if constant folding can compute them, else None.

    The function subtracts the size of the results from the budget before it computes them.
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
    """Return `value` as a constant with the elements of an array, converted to its type."""
    data = np.asarray(array)  # NumPy gives single numbers as scalars
    return replace(value, shape=data.shape, dtype=_TYPES[data.dtype], data=data)


def is_folded(node: Node, values: Mapping[int, Value]) -> bool:
    """Whether a checked node needs no kernel because its results are constants."""
    return bool(node.outputs) and all(v in values and values[v].is_constant for v in node.outputs)


def _fits(found: Sequence[Array], outputs: Sequence[Value | None]) -> bool:
    """Whether results have the dtypes that the file states; float16 weights may stay float16."""
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
        return None if known is None else _results(graph, node, known, budget)
    arrays = [value.data for value in inputs if value.data is not None]
    if len(arrays) < len(inputs):
        return None
    found = op.fold(graph, node, arrays)
    if found is None:
        return _run(graph, node, budget)
    return _results(graph, node, found, budget)


def _results(graph: Graph, node: Node, found: Folded, budget: Budget) -> Sequence[Array]:
    budget.take(found.elements * graph.values[node.outputs[0]].dtype.size)
    return [np.ascontiguousarray(each).reshape(each.shape) for each in found.make()]


def _run(graph: Graph, node: Node, budget: Budget) -> Sequence[Array] | None:
    """Return the results of the runtime's CPU kernel for constants; None if it cannot run."""
    node = _without_absent_operands(node)
    ends = (*node.inputs, *node.outputs)
    if ABSENT in ends or DType.OTHER in [graph.values[v].dtype for v in ends]:
        return None
    work = facts_of(node.op).flops(graph, node)
    if not budget.runs or work > budget.operations or not _makes_sense(graph, node):
        return None
    budget.runs, budget.operations = budget.runs - 1, budget.operations - work
    results = kernels.compute(node, _as_stored(graph, node), budget.left)
    budget.take(sum(each.nbytes for each in results or ()))
    return results


def _as_stored(graph: Graph, node: Node) -> Mapping[int, Value]:
    """Return the node's tensors with dequantized float16 weights as float32.

    Folding leaves such weights in float16. The CPU's kernels read them as float32, and some kernels
    end the process if a float32 node has float16 weights.
    """
    values = {v: graph.values[v] for v in (*node.inputs, *node.outputs)}
    if DType.FLOAT16 in [values[v].dtype for v in node.outputs]:
        return values
    for v in node.inputs:
        data = values[v].data
        if values[v].dtype is DType.FLOAT16 and data is not None:
            values[v] = constant(values[v], data.astype(np.float32))
    return values


def _without_absent_operands(node: Node) -> Node:
    """Return a node without trailing absent operands, such as a missing bias."""
    count = max((i + 1 for i, v in enumerate(node.inputs) if v != ABSENT), default=0)
    return replace(node, inputs=node.inputs[:count])


def _makes_sense(graph: Graph, node: Node) -> bool:
    """Whether a node would pass litegpu's checks if one of its inputs were not a constant.

    The check protects the process from CPU kernels that crash on invalid operands.
    """
    op = find(node.op)
    if op is None:
        return bool(node.outputs)
    own = {v: graph.values[v] for v in (*node.inputs, *node.outputs)}
    exact = op.exact if is_quantized(graph, node) else None
    # The CPU supports more types than litegpu; it rejects unsupported ones before it runs.
    for values in (own, {v: _as_float(value) for v, value in own.items()}):
        for v in dict.fromkeys(node.inputs):
            computed = {v: replace(values[v], data=None)}
            view = Graph({**values, **computed}, (node,), (), ())
            try:
                if not (exact or op).check(view, node):
                    return not op.internal and len(op.infer(view, node)) == len(node.outputs)
            except OperationError:
                continue
    return False


def _as_float(value: Value) -> Value:
    data = None if value.data is None else value.data.astype(np.float32)
    return replace(value, dtype=DType.FLOAT32, data=data)
