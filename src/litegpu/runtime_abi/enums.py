"""The enums of the runtime's C interface."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from litegpu.graph.ir import DType


class TfLiteStatus(enum.IntEnum):
    """The return value of every callback."""

    OK = 0
    ERROR = 1
    DELEGATE_ERROR = 2
    APPLICATION_ERROR = 3
    DELEGATE_DATA_NOT_FOUND = 4
    DELEGATE_DATA_WRITE_ERROR = 5
    DELEGATE_DATA_READ_ERROR = 6
    UNRESOLVED_OPS = 7
    CANCELLED = 8
    OUTPUT_SHAPE_NOT_KNOWN = 9


class TfLiteType(enum.IntEnum):
    """Element types of tensors by code; the names are the type names that the runtime prints."""

    NOTYPE = 0
    FLOAT32 = 1
    INT32 = 2
    UINT8 = 3
    INT64 = 4
    STRING = 5
    BOOL = 6
    INT16 = 7
    COMPLEX64 = 8
    INT8 = 9
    FLOAT16 = 10
    FLOAT64 = 11
    COMPLEX128 = 12
    UINT64 = 13
    RESOURCE = 14
    VARIANT = 15
    UINT32 = 16
    UINT16 = 17
    INT4 = 18
    BFLOAT16 = 19
    INT2 = 20
    UINT4 = 21
    FLOAT8E4M3FN = 22
    FLOAT8E5M2 = 23


DTYPES: Mapping[int, DType] = {
    code: DType.__members__.get(code.name, DType.OTHER) for code in TfLiteType
}
"""Maps element type codes to DTypes; an unsupported code maps to `DType.OTHER`."""


class AllocationType(enum.IntEnum):
    """The allocation type of a tensor's data; `MMAP_RO` marks constants of the model file."""

    MEM_NONE = 0
    MMAP_RO = 1
    ARENA_RW = 2
    ARENA_RW_PERSISTENT = 3
    DYNAMIC = 4
    PERSISTENT_RO = 5
    CUSTOM = 6
    VARIANT_OBJECT = 7
    NON_CPU = 8


class QuantizationType(enum.IntEnum):
    """The type of `TfLiteQuantization.params`."""

    NONE = 0
    AFFINE = 1
    BLOCKWISE = 2
    MULTI_AXIS = 3


class DimensionType(enum.IntEnum):
    """The storage format of one dimension of a sparse tensor."""

    DENSE = 0
    SPARSE_CSR = 1


class Padding(enum.IntEnum):
    """Padding scheme of convolutions and pools."""

    UNKNOWN = 0
    SAME = 1
    VALID = 2


class MirrorPadding(enum.IntEnum):
    """Mode of MIRROR_PAD."""

    UNKNOWN = 0
    REFLECT = 1
    SYMMETRIC = 2


class FusedActivation(enum.IntEnum):
    """Activation that an op applies to its result."""

    NONE = 0
    RELU = 1
    RELU_N1_TO_1 = 2
    RELU6 = 3
    TANH = 4
    SIGN_BIT = 5
    SIGMOID = 6


class FullyConnectedWeightsFormat(enum.IntEnum):
    """Order of the weights of FULLY_CONNECTED."""

    DEFAULT = 0
    SHUFFLED_4X16_INT8 = 1


class LSTMKernelType(enum.IntEnum):
    """The operand list of an LSTM op: full or basic."""

    FULL = 0
    BASIC = 1


class DelegateFlags(enum.IntFlag):
    """Bits of `TfLiteDelegate.flags`."""

    NONE = 0
    ALLOW_DYNAMIC_TENSORS = 1
    REQUIRE_PROPAGATED_SHAPES = 2
    PER_OPERATOR_PROFILING = 4
    HINT_FULLY_DELEGATED_TO_SINGLE_DELEGATE = 8
