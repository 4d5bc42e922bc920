"""Quantized ops of one input, which read each result from a lookup table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

import numpy as np

from litegpu.graph import DType, EpilogueOp, Graph, Node, Value
from litegpu.ops.base import COPY, Exact, NewValue
from litegpu.ops.common import checks
from litegpu.ops.common.types import BYTES
from litegpu.ops.exact import c_library, numbers, tables
from litegpu.ops.exact.functions import lookup_name
from litegpu.ops.exact.tables import Table

_INT8 = frozenset({DType.INT8})


class Lookup(Exact):
    """A function of one 8-bit or 16-bit input as a lookup table; the result has the same type.

    `check_scales` returns a reason for scales that the CPU rejects. The runtime's CPU kernel
    computes 16-bit tables, and 8-bit tables of ops without a `table` function.
    """

    def __init__(
        self,
        table: Callable[[Node, Value, Value], Table] | None = None,
        dtypes: frozenset[DType] = BYTES,
        check_scales: Callable[[Node, Value, Value], str] = lambda node, source, result: "",
    ) -> None:
        self._table, self._dtypes, self._check_scales = table, dtypes, check_scales

    def check(self, graph: Graph, node: Node) -> str:
        tensors = (*node.inputs, *node.outputs)
        return checks.first_of(
            checks.input_count(node, 1, 1),
            checks.operands(graph, node, (1,)),
            numbers.check_tensors(graph, tensors, self._dtypes | {DType.INT16}),
            lambda: numbers.check_same_types(graph, tensors),
            lambda: self._check_values(node, *(graph.values[v] for v in tensors)),
        )

    def _check_values(self, node: Node, source: Value, result: Value) -> str:
        if not self._is_by_kernel(source):
            return self._check_scales(node, source, result)
        if tables.by_kernel(node, source, result) is not None:
            return ""
        return f"The CPU's kernel does not support {source.dtype.name} with these scales."

    def _is_by_kernel(self, source: Value) -> bool:
        return self._table is None or source.dtype is DType.INT16

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        source, result = (graph.values[v] for v in (*node.inputs, *node.outputs))
        if self._table is None or self._is_by_kernel(source):
            entries = tables.by_kernel(node, source, result)
            assert entries is not None, "checked"
        else:
            entries = self._table(node, source, result)
        if entries.dtype.itemsize > 1:
            entries = entries.astype(np.int32)
        table = new_value(entries.shape, entries)
        epilogue_op = EpilogueOp(lookup_name(result.dtype), (table,))
        return (Node(node.index, COPY, 1, node.inputs, node.outputs, epilogue=(epilogue_op,)),)


def _check_ratio(node: Node, source: Value, result: Value) -> str:
    factors = (1.0, abs(node.params.get("alpha", 1.0)))
    found = (tables.ratio(source, result, factor) for factor in factors)
    return checks.first_of(*map(numbers.check_multiplier, found))


def _check_logistic(node: Node, source: Value, result: Value) -> str:
    found = numbers.scale(result)
    return "" if found == 1 / 256 else f"The scale of the result is {found:g} instead of 1 / 256."


def _check_root(node: Node, source: Value, result: Value) -> str:
    return "" if tables.root_scale(source, result) > 0 else "The scales are too small for the CPU."


def _rescaled(table: Callable[[Node, Value, Value], Table], dtypes: frozenset[DType]) -> Lookup:
    return Lookup(table, dtypes, _check_ratio)


EXACT_UNARY: Mapping[str, Exact] = {
    "ABS": _rescaled(tables.absolute, _INT8),
    "ELU": Lookup(tables.of_reals(tables.elu), _INT8),
    "EXP": Lookup(tables.of_reals(c_library.expf), _INT8),
    "GELU": Lookup(tables.gelu),
    "HARD_SWISH": Lookup(tables.hard_swish, BYTES, tables.check_hard_swish),
    "LEAKY_RELU": _rescaled(tables.leaky_relu, BYTES),
    "LOG": Lookup(tables.log, _INT8),
    "LOGISTIC": Lookup(tables.of_reals(tables.logistic), BYTES, _check_logistic),
    "NEG": Lookup(dtypes=_INT8),
    "RELU": _rescaled(tables.relu(0.0, inf), BYTES),
    "RELU6": _rescaled(tables.relu(0.0, 6.0), BYTES),
    "RELU_0_TO_1": _rescaled(tables.relu(0.0, 1.0), BYTES),
    "RELU_N1_TO_1": _rescaled(tables.relu(-1.0, 1.0), BYTES),
    "RSQRT": Lookup(tables.rsqrt, _INT8, _check_root),
    "SQRT": Lookup(dtypes=_INT8),
    "TANH": Lookup(tables.of_reals(c_library.tanhf), BYTES),
}
"""The exact implementation of each op with one input, by op name."""
