"""Where a value lies unless others say where: dense at the boundary, padded inside."""

from __future__ import annotations

from litegpu.codegen import Storage
from litegpu.graph import DType, Graph, Value
from litegpu.ops.base import as_float32
from litegpu.ops.halves import fits_half
from litegpu.ops.types import INTEGER_TYPES


def dense_storage(value: Value) -> Storage:
    """Place a value as the runtime holds it."""
    return Storage.create(value.id, value.dtype, value.shape4, 1)


def padded_storage(value: Value, half_from: int | None) -> Storage:
    """Place a value with padded channels, as half from `half_from` bytes (as float32) on."""
    large = half_from is not None and 4 * value.elements >= half_from
    # Half holds integers up to 2048 only.
    half = large and value.dtype not in INTEGER_TYPES and not value.precise
    half = half and not (value.is_constant and not fits_half(as_float32(value)))
    dtype, alignment = (DType.FLOAT16, 8) if half else (DType.FLOAT32, 4)
    return Storage.create(value.id, dtype, value.shape4, alignment)


def usual_storage(graph: Graph, value_id: int, half_from: int | None) -> Storage:
    """Return where a value of a graph lies if nothing else asks for another place."""
    value = graph.values[value_id]
    if value_id in graph.inputs or value_id in graph.outputs:
        return dense_storage(value)
    return padded_storage(value, half_from)
