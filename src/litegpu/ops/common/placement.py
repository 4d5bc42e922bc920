"""The default storage of values: unpadded at a partition's boundary, padded inside it.

Inside a partition, integers have 8, 32 or 64 bits; all other values are stored as floats
(docs/decisions/0004-element-types.md).
"""

from __future__ import annotations

from collections.abc import Mapping

from litegpu.codegen import Storage
from litegpu.graph import DType, Graph, Node, Value
from litegpu.numeric_policy import NumericPolicy
from litegpu.ops.base import as_float32, get, has
from litegpu.ops.common.halves import fits_half
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.types import SMALL_TYPES

_INTEGERS = {
    DType.INT8: DType.INT8,
    DType.UINT8: DType.UINT8,
    **dict.fromkeys((DType.INT16, DType.UINT16), DType.INT32),
    DType.INT32: DType.INT32,
    DType.INT64: DType.INT64,
}
"""The stored types of integers inside a partition."""


def unpadded_storage(value: Value) -> Storage:
    """Return the storage of a value in the runtime's layout."""
    return Storage.create(value.id, value.dtype, value.shape4, 1)


def whole_words(value: Value) -> Storage:
    """Return the storage of an output of a small type that kernels write as whole 32-bit words."""
    return Storage.create(value.id, value.dtype, (1, 1, 1, value.elements), 4)


def is_small(value: Value) -> bool:
    """Whether a boundary value has elements of fewer than 32 bits."""
    return value.dtype in SMALL_TYPES


def padded_storage(value: Value, policy: NumericPolicy, rounded: bool = False) -> Storage:
    """Return a storage with padded channels, as float16 if the value is large or `rounded`."""
    if value.dtype in _INTEGERS:
        return Storage.create(value.id, _INTEGERS[value.dtype], value.shape4, 4)
    half = rounded or policy.stores_half(4 * value.elements // value.siblings)
    half = half and not value.precise
    half = half and not (value.is_constant and not fits_half(as_float32(value)))
    dtype, alignment = (DType.FLOAT16, 8) if half else (DType.FLOAT32, 4)
    return Storage.create(value.id, dtype, value.shape4, alignment)


def reshaped_views(
    graph: Graph, consumers: Mapping[int, list[Node]], value: int, storage: Storage
) -> dict[int, Storage] | None:
    """Return the storages of a value and its reshaped views, if all nodes that read them permit.

    The result is None if a node requires its input in another storage.
    """
    found, waiting = {value: storage}, [value]
    while waiting:
        source = waiting.pop()
        for node in consumers.get(source, ()):
            if not has(node, Trait.HOLDS_INPUTS):
                continue
            output = node.outputs[0]
            if _always_copies(graph, node):
                continue
            view = get(node.op).result_storage(node, found[source], graph.values[output].shape4)
            if output in graph.outputs or view is None or not view.vector:
                return None
            found[output] = view
            waiting.append(output)
    return found


def _always_copies(graph: Graph, node: Node) -> bool:
    """Whether a node with one input, such as RESHAPE, is a kernel wherever its input is stored."""
    if len(node.inputs) > 1:
        return False
    value, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
    whole = Storage.create(value.id, DType.FLOAT32, value.shape4, 4)
    view = get(node.op).result_storage(node, whole, result.shape4)
    return view is None or not view.vector


def usual_storage(graph: Graph, value_id: int, policy: NumericPolicy) -> Storage:
    """Return the default storage of a value."""
    value = graph.values[value_id]
    if value_id in graph.inputs or value_id in graph.outputs:
        return unpadded_storage(value)
    return padded_storage(value, policy)
