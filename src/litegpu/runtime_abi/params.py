"""The parameter structs of the runtime's builtin ops, as a table, and their reader.

Runtimes of the tflite-runtime 2.14 generation do not allocate `quantized_bias_type`. litegpu
therefore reads this field only for node versions that these runtimes do not support. The table
intentionally omits the padding that pools store for their CPU kernels.
"""

from __future__ import annotations

import ctypes
import enum
import functools
from collections.abc import Mapping
from typing import Any, TypeAlias

from litegpu.runtime_abi.enums import FusedActivation, MirrorPadding, Padding

ParamValue: TypeAlias = int | float | bool | str | tuple[int, ...] | tuple[float, ...]
Field: TypeAlias = tuple[str, str]

_MAX_DIMENSIONS = 8
_MAX_BRANCHES = 20

_KINDS: Mapping[str, Any] = {
    "int32": ctypes.c_int32,
    "float": ctypes.c_float,
    "bool": ctypes.c_bool,
    "address": ctypes.c_size_t,
    "text": ctypes.c_char_p,
    "int64": ctypes.c_int64,
    "dims": ctypes.c_int32 * _MAX_DIMENSIONS,
    "longs": ctypes.c_int64 * _MAX_DIMENSIONS,
    "pairs": ctypes.c_int64 * (2 * _MAX_DIMENSIONS),
    "branches": ctypes.c_uint32 * _MAX_BRANCHES,
    "floats": ctypes.POINTER(ctypes.c_float),
    "padding": ctypes.c_int32,
    "mirror": ctypes.c_int32,
    "activation": ctypes.c_int32,
}
_ENUMS: Mapping[str, type[enum.IntEnum]] = {
    "padding": Padding,
    "mirror": MirrorPadding,
    "activation": FusedActivation,
}
_ARRAYS = frozenset({"branches", "dims", "longs", "pairs"})
_COUNTS: Mapping[str, str] = {
    "boundaries": "num_boundaries",
    "branch_subgraph_indices": "num_branches",
    "collapsed_slice_dims": "num_collapsed_slice_dims",
    "inserted_window_dims": "num_inserted_window_dims",
    "offset_dims": "num_offset_dims",
    "scatter_dims_to_operand_dims": "num_scatter_dims_to_operand_dims",
    "shape": "num_dimensions",
    "slice_sizes": "num_slice_sizes",
    "squeeze_dims": "num_squeeze_dims",
    "start_index_map": "num_start_index_map",
    "update_window_dims": "num_update_window_dims",
}
"""Maps each array field with a counter to the field with the number of used elements."""


def _fields(kind: str, *names: str) -> tuple[Field, ...]:
    return tuple((name, kind) for name in names)


def _counted(kind: str, *names: str) -> tuple[Field, ...]:
    """Return array fields, each followed by the field with the number of its used elements."""
    return tuple(each for name in names for each in ((name, kind), (_COUNTS[name], "int32")))


_PADDING = _fields("padding", "padding")
_ACTIVATION = _fields("activation", "activation")
_ASYMMETRIC = _fields("bool", "asymmetric_quantize_inputs")
_AXIS = _fields("int32", "axis")
_BLOCK = _fields("int32", "block_size")
_CLIPS = _fields("float", "cell_clip", "proj_clip")
_DILATIONS = _fields("int32", "dilation_width_factor", "dilation_height_factor")
_STRIDES = _fields("int32", "stride_width", "stride_height")
BIAS_TYPE = "quantized_bias_type"
"""The parameter that older runtimes do not allocate."""
_BIAS_TYPE = _fields("int32", BIAS_TYPE)
_ADD = (*_ACTIVATION, *_fields("bool", "pot_scale_int16"))
_ARG = _fields("int32", "output_type")
_CONV_3D = (
    *_PADDING,
    *_STRIDES,
    *_fields("int32", "stride_depth"),
    *_DILATIONS,
    *_fields("int32", "dilation_depth_factor"),
    *_ACTIVATION,
)
_POOL = (*_PADDING, *_STRIDES, *_fields("int32", "filter_width", "filter_height"), *_ACTIVATION)
_REDUCE = _fields("bool", "keep_dims")
_RESIZE = _fields("bool", "align_corners", "half_pixel_centers")
_SPLIT = _fields("int32", "num_splits")

PARAMS: Mapping[str, tuple[Field, ...]] = {
    "ADD": _ADD,
    "ARG_MAX": _ARG,
    "ARG_MIN": _ARG,
    "AVERAGE_POOL_2D": _POOL,
    "BATCH_MATMUL": (*_fields("bool", "adj_x", "adj_y"), *_ASYMMETRIC),
    "BIDIRECTIONAL_SEQUENCE_LSTM": (
        *_ACTIVATION,
        *_CLIPS,
        *_fields("bool", "merge_outputs", "time_major"),
        *_ASYMMETRIC,
    ),
    "BIDIRECTIONAL_SEQUENCE_RNN": (
        *_fields("bool", "time_major"),
        *_ACTIVATION,
        *_fields("bool", "merge_outputs"),
        *_ASYMMETRIC,
    ),
    "BUCKETIZE": (*_fields("int32", "num_boundaries"), *_fields("floats", "boundaries")),
    "CALL_ONCE": _fields("int32", "init_subgraph_index"),
    "CAST": _fields("int32", "in_data_type", "out_data_type"),
    "CONCATENATION": (*_AXIS, *_ACTIVATION),
    "CONV_2D": (*_PADDING, *_STRIDES, *_ACTIVATION, *_DILATIONS, *_BIAS_TYPE),
    "CONV_3D": _CONV_3D,
    "CONV_3D_TRANSPOSE": _CONV_3D,
    "CUMSUM": _fields("bool", "exclusive", "reverse"),
    "DEPTHWISE_CONV_2D": (
        *_PADDING,
        *_STRIDES,
        *_fields("int32", "depth_multiplier"),
        *_ACTIVATION,
        *_DILATIONS,
    ),
    "DEPTH_TO_SPACE": _BLOCK,
    "DIV": _ACTIVATION,
    "EMBEDDING_LOOKUP_SPARSE": _fields("int32", "combiner"),
    "FAKE_QUANT": (
        *_fields("float", "min", "max"),
        *_fields("int32", "num_bits"),
        *_fields("bool", "narrow_range"),
    ),
    "FULLY_CONNECTED": (
        *_ACTIVATION,
        *_fields("int32", "weights_format"),
        *_fields("bool", "keep_num_dims"),
        *_ASYMMETRIC,
        *_BIAS_TYPE,
    ),
    "GATHER": (*_AXIS, *_fields("int32", "batch_dims")),
    "GELU": _fields("bool", "approximate"),
    "IF": _fields("int32", "then_subgraph_index", "else_subgraph_index"),
    "L2_NORMALIZATION": _ACTIVATION,
    "L2_POOL_2D": _POOL,
    "LEAKY_RELU": _fields("float", "alpha"),
    "LOCAL_RESPONSE_NORMALIZATION": (
        *_fields("int32", "radius"),
        *_fields("float", "bias", "alpha", "beta"),
    ),
    "LSTM": (*_ACTIVATION, *_CLIPS, *_fields("int32", "kernel_type"), *_ASYMMETRIC),
    "MAX_POOL_2D": _POOL,
    "MEAN": _REDUCE,
    "MIRROR_PAD": _fields("mirror", "mode"),
    "MUL": _ACTIVATION,
    "ONE_HOT": _AXIS,
    "PACK": (*_fields("int32", "values_count"), *_AXIS),
    "REDUCE_ALL": _REDUCE,
    "REDUCE_ANY": _REDUCE,
    "REDUCE_MAX": _REDUCE,
    "REDUCE_MIN": _REDUCE,
    "REDUCE_PROD": _REDUCE,
    "REDUCE_WINDOW": _fields("int32", "reduce_function"),
    "RESHAPE": (*_fields("dims", "shape"), *_fields("int32", "num_dimensions")),
    "RESIZE_BILINEAR": _RESIZE,
    "RESIZE_NEAREST_NEIGHBOR": _RESIZE,
    "REVERSE_SEQUENCE": _fields("int32", "seq_dim", "batch_dim"),
    "RNN": (*_ACTIVATION, *_ASYMMETRIC),
    "SHAPE": _fields("int32", "out_type"),
    "SOFTMAX": _fields("float", "beta"),
    "SPACE_TO_DEPTH": _BLOCK,
    "SPLIT": _SPLIT,
    "SPLIT_V": _SPLIT,
    "SQUEEZE": (*_fields("dims", "squeeze_dims"), *_fields("int32", "num_squeeze_dims")),
    "STRIDED_SLICE": (
        *_fields("int32", "begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask"),
        *_fields("int32", "shrink_axis_mask"),
        *_fields("bool", "offset"),
    ),
    "SUB": _ADD,
    "SUM": _REDUCE,
    "SVDF": (*_fields("int32", "rank"), *_ACTIVATION, *_ASYMMETRIC),
    "TRANSPOSE_CONV": (*_PADDING, *_STRIDES, *_ACTIVATION, *_BIAS_TYPE),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": (
        *_ACTIVATION,
        *_CLIPS,
        *_fields("bool", "time_major"),
        *_ASYMMETRIC,
        *_fields("bool", "diagonal_recurrent_tensors"),
    ),
    "UNIDIRECTIONAL_SEQUENCE_RNN": (*_fields("bool", "time_major"), *_ACTIVATION, *_ASYMMETRIC),
    "UNPACK": (*_fields("int32", "num"), *_AXIS),
    "STABLEHLO_CASE": _counted("branches", "branch_subgraph_indices"),
    "STABLEHLO_COMPOSITE": (*_fields("text", "name"), *_fields("int32", "subgraph_index")),
    "STABLEHLO_GATHER": (
        *_counted("longs", "offset_dims", "collapsed_slice_dims", "start_index_map"),
        *_fields("int64", "index_vector_dim"),
        *_counted("longs", "slice_sizes"),
        *_fields("bool", "indices_are_sorted"),
    ),
    "STABLEHLO_PAD": _fields("longs", "edge_padding_low", "edge_padding_high", "interior_padding"),
    "STABLEHLO_REDUCE_WINDOW": (
        *_fields("longs", "window_dimensions", "window_strides"),
        *_fields("longs", "base_dilations", "window_dilations"),
        *_fields("pairs", "padding"),
        *_fields("int32", "body_subgraph_index"),
    ),
    "STABLEHLO_SCATTER": (
        *_fields("bool", "indices_are_sorted"),
        *_counted("longs", "update_window_dims", "inserted_window_dims"),
        *_counted("longs", "scatter_dims_to_operand_dims"),
        *_fields("int64", "index_vector_dim"),
        *_fields("bool", "unique_indices"),
        *_fields("int32", "update_computation_subgraph_index"),
    ),
    "VAR_HANDLE": _fields("text", "container", "shared_name"),
    "WHILE": _fields("int32", "cond_subgraph_index", "body_subgraph_index"),
}
"""The fields of each op's struct, in C order, as (name, kind); omits ops without parameters."""

BIAS_TYPE_SINCE = {"CONV_2D": 8, "FULLY_CONNECTED": 11, "TRANSPOSE_CONV": 5}
"""The node versions that only runtimes with `BIAS_TYPE` have."""
"""Maps each op to the first version whose struct has the dtype of the bias."""


def _structure(op_name: str, fields: tuple[Field, ...]) -> type[ctypes.Structure]:
    members = [(name, _KINDS[kind]) for name, kind in fields]
    return type(op_name, (ctypes.Structure,), {"_fields_": members})


STRUCTURES: Mapping[str, type[ctypes.Structure]] = {
    op_name: _structure(op_name, fields) for op_name, fields in PARAMS.items()
}
"""The ctypes structure of each op in `PARAMS`."""


def read_params(op_name: str, address: int | None, version: int) -> dict[str, ParamValue]:
    """Return the parameters of a node of builtin op `op_name` from its struct at `address`.

    Paddings, activations and mirror modes are lower-case names ("same", "relu6", "reflect"); an
    unknown number remains an int. Arrays are tuples of their used elements. The result omits
    addresses.

    The result is empty if `address` is null, or if the op has no parameters.
    """
    if not address or op_name not in PARAMS:
        return {}
    struct = STRUCTURES[op_name].from_address(address)
    fields = PARAMS[op_name]
    if version < BIAS_TYPE_SINCE.get(op_name, 0):
        fields = fields[: -len(_BIAS_TYPE)]
    values = {
        name: _convert(kind, getattr(struct, name)) for name, kind in fields if kind != "address"
    }
    for name in _COUNTS.keys() & values.keys():
        count: Any = values.pop(_COUNTS[name])
        used: Any = values[name]
        values[name] = tuple(used[: max(count, 0)])
    return values


def _convert(kind: str, raw: Any) -> ParamValue:
    if kind in _ARRAYS:
        return tuple(raw)
    if kind == "text":
        return bytes(raw or b"").decode("utf-8", "replace")
    if kind in _ENUMS:
        return _enum_name(_ENUMS[kind], raw)
    value: int | float | bool = raw  # or a pointer, until its elements are counted
    return value


def _enum_name(names: type[enum.IntEnum], number: int) -> str | int:
    return _names(names).get(number, number)


@functools.cache
def _names(names: type[enum.IntEnum]) -> dict[int, str]:
    return {member.value: member.name.lower() for member in names}
