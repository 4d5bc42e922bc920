"""Looks up names in the .tflite schema that is installed with the runtime."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.errors import OptionsError, did_you_mean, missing_dependency

LAST_SMALL_OPCODE = 127
"""PLACEHOLDER_FOR_GREATER_OP_CODES: the value of the one-byte opcode field for larger codes."""

# Operations whose options table is not named after them.
_SHARED_OPTIONS = {
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "L2_POOL_2D": "Pool2DOptions",
    "L2_NORMALIZATION": "L2NormOptions",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "SequenceRNNOptions",
    "MEAN": "ReducerOptions",
    "SUM": "ReducerOptions",
    "REDUCE_PROD": "ReducerOptions",
    "REDUCE_MAX": "ReducerOptions",
    "REDUCE_MIN": "ReducerOptions",
    "REDUCE_ANY": "ReducerOptions",
    "REDUCE_ALL": "ReducerOptions",
    "MAXIMUM": "MaximumMinimumOptions",
    "MINIMUM": "MaximumMinimumOptions",
    "CONV_3D_TRANSPOSE": "Conv3DOptions",
    "MULTINOMIAL": "RandomOptions",
    "RANDOM_UNIFORM": "RandomOptions",
    "RANDOM_STANDARD_NORMAL": "RandomOptions",
}

# Options fields that are members of an enumeration, by snake_case name.
_ENUM_FIELDS = {
    "combiner": "CombinerType",
    "fused_activation_function": "ActivationFunctionType",
    "idx_out_type": "TensorType",
    "in_data_type": "TensorType",
    "kernel_type": "LSTMKernelType",
    "mode": "MirrorPadMode",
    "out_data_type": "TensorType",
    "out_type": "TensorType",
    "output_type": "TensorType",
    "padding": "Padding",
    "quantized_bias_type": "TensorType",
    "reduce_function": "ReduceWindowFunction",
    "type": "LSHProjectionType",
    "weights_format": "FullyConnectedOptionsWeightsFormat",
}


def require(module: str, package: str) -> ModuleType:
    """Import `module`, or raise MissingDependencyError with the name of its `package`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_dependency(package, "zoo", "Writing .tflite files") from error


@functools.cache
def tables() -> ModuleType:
    """Return the generated schema module.

    Raises:
        MissingDependencyError: ai-edge-litert or flatbuffers is not installed.
    """
    require("flatbuffers", "flatbuffers")
    return require("ai_edge_litert.schema_py_generated", "ai-edge-litert>=1.1.2")


@functools.cache
def members(enum: str) -> Mapping[str, int]:
    """Map the member names of the schema's enumeration `enum` to their numbers."""
    found = vars(getattr(tables(), enum))
    return {name: value for name, value in found.items() if not name.startswith("_")}


def member(enum: str, name: str, what: str) -> int:
    """Return the number of `name` in `enum`; `what` names the thing in the OptionsError."""
    known = members(enum)
    if name not in known:
        raise OptionsError(f"Unknown {what} '{name}'.{did_you_mean(name, known)}")
    return known[name]


def tensor_type(dtype: npt.DTypeLike) -> str:
    """Return the lower-case schema name of `dtype`: a NumPy type, or a name such as "int4"."""
    name = dtype.lower() if isinstance(dtype, str) else np.dtype(dtype).name
    member("TensorType", name.upper(), "tensor type")
    return name


@functools.cache
def _options_tables() -> Mapping[str, tuple[str, int, str]]:
    """Map squeezed table names to (union, number in the union, table name)."""
    return {
        table.lower(): (union, number, table)
        for union in ("BuiltinOptions", "BuiltinOptions2")
        for table, number in members(union).items()
        if number
    }


def builtin_options(op: str, fields: Mapping[str, Any]) -> tuple[str, int, Any]:
    """Return (union, number in the union, filled table) for builtin `op`.

    For an operation without options, the number is 0 and the table is None.

    Raises:
        OptionsError: `op` has no field with a requested name, or an enumeration has no such
            member.
    """
    key = _SHARED_OPTIONS.get(op, op.replace("_", "") + "Options").lower()
    union, number, table = _options_tables().get(key, ("BuiltinOptions", 0, ""))
    filled = getattr(tables(), f"{table}T")() if table else None
    attributes = {_snake_case(name): name for name in vars(filled)} if table else {}
    for name, value in fields.items():
        if name not in attributes:
            known = did_you_mean(name, attributes) if attributes else " It has no options."
            raise OptionsError(f"{op} has no option '{name}'.{known}")
        setattr(filled, attributes[name], _field_value(op, name, value))
    return union, number, filled


def option_names(op: str) -> set[str]:
    """Return the names of the options of a builtin operation."""
    _, _, table = builtin_options(op, {})
    return set() if table is None else set(map(_snake_case, vars(table)))


def options_of(table: Any) -> Iterator[tuple[str, Any]]:
    """Yield the options in a table, in the form that `builtin_options` accepts.

    An enumeration member is represented by its name; a number without a name remains a number.
    """
    for attribute, value in vars(table).items() if table is not None else ():
        name = _snake_case(attribute)
        if value is not None and name in _ENUM_FIELDS:
            value = {n: each for each, n in members(_ENUM_FIELDS[name]).items()}.get(value, value)
        if value is not None:
            yield name, value


def _field_value(op: str, name: str, value: Any) -> Any:
    if isinstance(value, str) and name in _ENUM_FIELDS:
        return member(_ENUM_FIELDS[name], value.upper(), f"{op} option {name}:")
    if isinstance(value, (tuple, np.ndarray)):
        return [item if isinstance(item, float) else int(item) for item in value]
    return value


def _snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
