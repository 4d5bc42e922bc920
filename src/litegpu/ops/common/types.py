"""The element types of an op's inputs and outputs: docs/decisions/0004-element-types.md."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from litegpu.graph import ABSENT, PACKED_TYPES, DType, Graph, Node, Value

TYPE_CODES = {2: DType.INT32, 4: DType.INT64}
"""Integer types by their type numbers in the runtime's parameters."""
INTEGER_TYPES = frozenset({DType.INT32, DType.INT64})
SMALL_TYPES = frozenset(
    {DType.BOOL, DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.FLOAT16}
)
"""Types of fewer than 32 bits, which are stored in this size only at a partition's boundary."""


@dataclass(frozen=True, slots=True)
class Types:
    """The element types that a tensor may have.

    All inputs with a `common` rule have the same type. Outputs without a rule have the common type
    of the inputs.
    """

    dtypes: frozenset[DType]
    common: bool = False


FLOATS = Types(frozenset({DType.FLOAT32}))
BOOLS = Types(frozenset({DType.BOOL}))
INTEGERS = Types(INTEGER_TYPES)
INDICES = Types(INTEGER_TYPES | {DType.INT16})
"""The index types that the CPU accepts, including int16."""
STORABLE = Types(frozenset({DType.FLOAT32, DType.BOOL, *INTEGER_TYPES}), common=True)
"""Types of operands of comparisons and selections."""
VIEWED_AS = {
    DType.UINT32: DType.INT32,
    DType.UINT64: DType.INT64,
    DType.FLOAT64: DType.INT64,
}
"""Types that kernels only move, and the integer types of the same size that represent them."""
CAST_TYPES = "types"
"""The parameter of a CAST with the types of its input and result before they are represented."""
MOVED = Types(
    STORABLE.dtypes
    | {DType.FLOAT16, DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, *VIEWED_AS}
    | {DType.COMPLEX64},
    common=True,
)
"""Types that kernels can move: quantized values as stored integers, complex numbers as 64-bit
integers.
"""
NUMBERS = Types(frozenset({DType.FLOAT32, *INTEGER_TYPES}), common=True)
SHORT_NUMBERS = Types(frozenset({DType.FLOAT32, DType.INT32}), common=True)
CASTABLE = Types(STORABLE.dtypes | SMALL_TYPES | {DType.UINT32, DType.COMPLEX64})
SCALED = Types(frozenset({DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16}), common=True)
"""Float types, and the integer types that may represent floats."""

BYTES = frozenset({DType.INT8, DType.UINT8})
QUANTIZED_TYPES = BYTES | {DType.INT16}
"""Integer types that may represent real numbers with a scale and a zero point."""
WEIGHT_TYPES = QUANTIZED_TYPES | PACKED_TYPES
"""Types of quantized weights, including the packed types with fewer than 8 bits."""


def is_quantized(graph: Graph, node: Node) -> bool:
    """Whether a node has quantized inputs or outputs, including weights."""
    values = (graph.values.get(v) for v in (*node.inputs, *node.outputs))
    return any(value is not None and has_scale(value) for value in values)


def has_scale(value: Value) -> bool:
    """Whether a value is quantized: its elements are integers that represent real numbers."""
    scaled = value.quantization is not None or value.blockwise is not None
    return scaled and value.dtype in WEIGHT_TYPES


def stored_zero(value: Value) -> int:
    """Return the stored integer for 0.0: the zero point of per-tensor quantization, else 0."""
    parameters = value.quantization if value.dtype in QUANTIZED_TYPES else None
    return parameters.zero_point[0] if parameters is not None and len(parameters.scale) == 1 else 0


def check(
    graph: Graph,
    node: Node,
    takes: tuple[Types, ...],
    gives: Types | None,
    states: Collection[int] = (),
) -> str:
    """Return why a node cannot run on tensors of these types, or an empty text.

    `takes` has a type rule for each input; the last rule applies to all further inputs. Without
    `gives`, the outputs have the common type of the inputs. Only the inputs in `states` may be
    variable tensors.
    """
    common: list[Value] = []
    for position, v in enumerate(node.inputs):
        rule = takes[min(position, len(takes) - 1)]
        if v == ABSENT:
            continue
        value = graph.values[v]
        if rule.common and value.dtype in (*rule.dtypes, DType.FLOAT16):
            common.append(value)
        reason = "" if value.is_constant else _check_value(value, rule, v in states)
        if reason:
            return reason
    halves = any(value.dtype is DType.FLOAT16 and not value.is_constant for value in common)
    found = {value.dtype if halves else computed_as(value) for value in common}
    if len(found) > 1:
        names = sorted({value.dtype.name for value in common})
        return f"The operands have different types: {', '.join(names)}."
    rule = gives or Types(frozenset(found or FLOATS.dtypes))
    wrong = (_check_type(graph.values[v], rule) for v in node.outputs if v != ABSENT)
    return next(filter(None, wrong), "")


def computed_as(value: Value) -> DType:
    """Return the type in which a value is computed: float32 for float16 constants."""
    halves = value.is_constant and value.dtype is DType.FLOAT16
    return DType.FLOAT32 if halves else value.dtype


def _check_value(value: Value, rule: Types, state: bool) -> str:
    reason = _check_type(value, rule)
    return reason if reason or state else check_variable(value)


def check_variable(value: Value) -> str:
    """Require a tensor that is not a variable tensor."""
    if value.is_variable:
        return f"tensor {value.id} is a variable tensor, whose state is on the CPU."
    return ""


def _check_type(value: Value, rule: Types) -> str:
    if value.dtype in rule.dtypes:
        return ""
    return (
        f"OP is supported, but tensor type/shape isn't compatible: tensor {value.id} is "
        f"{value.dtype.name} instead of {joined(rule.dtypes)}."
    )


def joined(dtypes: Iterable[DType]) -> str:
    """Return types as text: ``BOOL, FLOAT32 or INT32``."""
    *names, last = sorted({dtype.name for dtype in dtypes})
    return f"{', '.join(names)} or {last}" if names else last
