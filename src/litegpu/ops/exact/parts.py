"""CONCATENATION of quantized tensors, which converts inputs of other scales by lookup tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from litegpu.graph import DType, EpilogueOp, Graph, Node, Value
from litegpu.ops.base import COPY, NewValue
from litegpu.ops.common.facts import Array
from litegpu.ops.common.types import QUANTIZED_TYPES, is_quantized
from litegpu.ops.exact import numbers
from litegpu.ops.exact.functions import lookup_name


def check_parts(graph: Graph, node: Node) -> str:
    """Require no fused activation, and equal scales except for uint8, which the CPU rescales."""
    if not is_quantized(graph, node):
        return ""
    result = graph.values[node.outputs[0]]
    others = [v for v in node.inputs if not _alike(graph.values[v], result)]
    if found := numbers.check_activation(node, ("none",)):
        return found
    if others and result.dtype is not DType.UINT8:
        return (
            f"tensor {others[0]} has another scale or zero point than the result; only UINT8 "
            "parts are rescaled."
        )
    return numbers.check_tensors(graph, (*others, *node.outputs)) if others else ""


def same_scales(graph: Graph, node: Node) -> bool:
    """Whether all inputs have the scale and zero point of the result."""
    result = graph.values[node.outputs[0]]
    return all(_alike(graph.values[v], result) for v in node.inputs)


def rescaled_parts(
    graph: Graph, node: Node, new_value: NewValue
) -> tuple[Graph, Node, Sequence[Node]]:
    """Return a checked node whose inputs all have the result's quantization.

    The returned graph contains the converted inputs; the returned nodes compute the converted
    inputs.
    """
    result = graph.values[node.outputs[0]]
    values, inputs, nodes = dict(graph.values), list(node.inputs), []
    for position, v in enumerate(node.inputs):
        part = graph.values[v]
        if _alike(part, result):
            continue
        table = _table(part, result)
        data = None if part.data is None else table[part.data]
        requantized = new_value(part.shape, data, dtype=part.dtype)
        values[requantized] = replace(
            part, id=requantized, data=data, quantization=result.quantization
        )
        inputs[position] = requantized
        if data is None:
            epilogue_op = EpilogueOp(lookup_name(DType.UINT8), (new_value((256,), table),))
            nodes.append(Node(node.index, COPY, 1, (v,), (requantized,), epilogue=(epilogue_op,)))
    return replace(graph, values=values), replace(node, inputs=tuple(inputs)), nodes


def _alike(part: Value, result: Value) -> bool:
    ours, theirs = part.quantization, result.quantization
    if part.dtype not in QUANTIZED_TYPES or ours is None or theirs is None:
        return part.dtype not in QUANTIZED_TYPES or ours is theirs
    return (ours.scale, ours.zero_point) == (theirs.scale, theirs.zero_point)


def _table(part: Value, result: Value) -> Array:
    """Return the converted value of each byte, computed in float32 as on the CPU."""
    factor = np.float32(numbers.scale(part)) * (np.float32(1) / np.float32(numbers.scale(result)))
    bias = np.float32(-numbers.zero_point(part)) * factor
    real = np.arange(256, dtype=np.float32) * factor + bias
    away = np.copysign(np.floor(np.abs(real.astype(np.float64)) + 0.5), real)
    low, high = numbers.LIMITS[DType.UINT8]
    table: Array = np.clip(away + numbers.zero_point(result), low, high).astype(np.uint8)
    return table
