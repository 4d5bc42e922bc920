"""OpenCL C 1.2: loads and stores halves with vload_half and vstore_half, without an extension."""

from __future__ import annotations

from litegpu.codegen.dialect import Argument, Dialect, KernelText
from litegpu.codegen.opencl_dot4 import PLAIN, ByteDot
from litegpu.codegen.opencl_integers import integers

_PRELUDE = """\
#pragma OPENCL FP_CONTRACT OFF
#define GLOBAL_X ((int)get_global_id(0))
#define GLOBAL_Y ((int)get_global_id(1))
#define GLOBAL_Z ((int)get_global_id(2))
#define GROUP_X ((int)get_group_id(0))
#define GROUP_Y ((int)get_group_id(1))
#define LOCAL_X ((int)get_local_id(0))
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define MAKE4(a, b, c, d) ((float4)((a), (b), (c), (d)))
#define SPLAT4(a) ((float4)(a))
#define LOAD4_F32(buffer, i) ((buffer)[i])
#define LOAD4_F16(buffer, i) vloada_half4((i), (buffer))
#define LOAD1_F32(buffer, i) ((buffer)[i])
#define LOAD1_F16(buffer, i) vload_half((i), (buffer))
#define LOAD4_BOOL8(buffer, i) \\
    select(SPLAT4(0.0f), SPLAT4(1.0f), convert_int4((buffer)[i] != (uchar4)(0)))
#define LOAD1_BOOL8(buffer, i) ((buffer)[i] != 0 ? 1.0f : 0.0f)
#define LANE4_BOOL8(buffer, i) (((__global const uchar *)(buffer))[i] != 0 ? 1.0f : 0.0f)
#define LANE4_F32(buffer, i) (((__global const float *)(buffer))[i])
#define LANE4_F16(buffer, i) vload_half((i), (buffer))
#define STORE4_F32(buffer, i, value) (buffer)[i] = (value)
#define STORE4_F16(buffer, i, value) vstorea_half4_rte(to_half_range4(value), (i), (buffer))
#define STORE4_F16_BOUNDED(buffer, i, value) vstorea_half4_rte((value), (i), (buffer))
#define STORE1_F32(buffer, i, value) (buffer)[i] = (value)
#define STORE1_F16(buffer, i, value) vstore_half_rte(to_half_range(value), (i), (buffer))
#define STORE4_BOOL8(buffer, i, value) (buffer)[i] = convert_uchar4_sat(value)
#define MASK4(value, left) \\
    select(SPLAT4(0.0f), (value), (int4)(left) > (int4)(0, 1, 2, 3))
/* The first `left` lanes of a value; the others are `fill`. */
#define LANES4(value, left, fill) \\
    select(SPLAT4(fill), (value), (int4)(left) > (int4)(0, 1, 2, 3))
#define LESS4(a, b) ((a) < (b))
#define CLAMP_MIN4(low, value) WHERE4(LESS4((value), (low)), (low), (value))
#define MAX_NAN4(low, value) CLAMP_MIN4(low, value)
#define LESS_EQUAL4(a, b) ((a) <= (b))
#define EQUAL4(a, b) ((a) == (b))
#define WHERE4(condition, yes, no) select((no), (yes), (condition))
#define FMA4(a, b, c) fma((a), (b), (c))
#define MAX4(a, b) fmax((a), (b))
#define MIN4(a, b) fmin((a), (b))
#define EXP4(a) exp(a)
#define RECIPROCAL4(a) (SPLAT4(1.0f) / (a))
#define EXPM14(a) expm1(a)
#define LOG4(a) log(a)
#define SIN4(a) sin(a)
#define COS4(a) cos(a)
#define TANH4(a) tanh(a)
#define SQRT4(a) sqrt(a)
#define FLOOR4(a) floor(a)
#define CEIL4(a) ceil(a)
#define TRUNC4(a) trunc(a)
#define RINT4(a) rint(a)
#define ERFC4(a) erfc(a)
#define POW4(a, b) pow((a), (b))
#define ATAN24(a, b) atan2((a), (b))
#define FMOD4(a, b) fmod((a), (b))
#define TO_FLOAT(a) ((float)(a))
#define TO_INT(a) ((int)(a))
#define ABS4(a) fabs(a)
#define APART4(a, zero) (a)
#define ROUNDED4(a) (a)
#define LANE_SUM(a) ((a).x + (a).y + (a).z + (a).w)
#define LANE_MAX(a) fmax(fmax((a).x, (a).y), fmax((a).z, (a).w))
#define LARGER(a, b) fmax((a), (b))
#define FINITE_SIZE4(value) finite_size4(value)
/* Finite values beyond the half range saturate and never become infinity. */
float to_half_range(float v) { return isfinite(v) ? clamp(v, -65504.0f, 65504.0f) : v; }
float4 to_half_range4(float4 v) {
    return select(v, clamp(v, -65504.0f, 65504.0f), isfinite(v));
}
float finite_size4(float4 v) {
    const float4 sizes = select((float4)(0.0f), fabs(v), isfinite(v));
    return LANE_MAX(sizes);
}
"""


class OpenCLDialect(Dialect):
    """Translates kernels to OpenCL C for any OpenCL 1.2 device."""

    name = "opencl"
    prelude = _PRELUDE

    def __init__(self, dot: ByteDot = PLAIN) -> None:
        """Use one form of byte dot products, which the device must support."""
        self.integers = integers(dot)
        self.options = f"-cl-std={dot.standard}"
        """The options for the OpenCL compiler."""

    def kernel(self, text: KernelText) -> str:
        """Return the entry point as an OpenCL kernel function."""
        x, y, z = text.local_size
        arguments = ", ".join(_declare(argument) for argument in text.arguments)
        parameters = "".join(_parameter(argument) for argument in text.arguments)
        shared = "".join(f"    __local {kind} {name}[{n}];\n" for kind, name, n in text.shared)
        return (
            f"__kernel __attribute__((reqd_work_group_size({x}, {y}, {z})))\n"
            f"void {text.name}({arguments}) {{\n{parameters}{shared}{text.body}}}\n"
        )


_ELEMENTS = {
    ("F32", False): "float",
    ("F32", True): "float4",
    # vload_half and vstore_half access single halves; vload4 does so for longs.
    ("F16", False): "half",
    ("F16", True): "half",
    ("U32", False): "uint",
    ("BOOL8", False): "uchar",
    ("BOOL8", True): "uchar4",
    ("S8", False): "char",
    ("S8", True): "char4",
    ("U8", False): "uchar",
    ("U8", True): "uchar4",
    ("S16", False): "short",
    ("S16", True): "short4",
    ("U16", False): "ushort",
    ("U16", True): "ushort4",
    ("I32", False): "int",
    ("I32", True): "int4",
    ("I64", False): "long",
    ("I64", True): "long",
}


OFFSET_UNIT = 16
"""Unit in bytes of a buffer's offset argument."""
_SIZES = {
    **{"float": 4, "float4": 16, "half": 2, "uint": 4},
    **{"char": 1, "char4": 4, "uchar": 1, "uchar4": 4, "short": 2, "short4": 8},
    **{"ushort": 2, "ushort4": 8, "int": 4, "int4": 16, "long": 8},
}


def _declare(argument: Argument) -> str:
    """Return two parameters for a buffer: the whole buffer, and the offset of the value in it."""
    return f"{_pointer(argument)}{argument.name}_buffer, const uint {argument.name}_begin"


def _parameter(argument: Argument) -> str:
    step = OFFSET_UNIT // _SIZES[_ELEMENTS[argument.kind, argument.vector]]
    pointer = f"{argument.name}_buffer + (size_t){argument.name}_begin * {step}"
    return f"    {_pointer(argument)}{argument.name} = {pointer};\n"


def _pointer(argument: Argument) -> str:
    element = _ELEMENTS[argument.kind, argument.vector]
    constness = "" if argument.written else "const "
    restrict = "" if argument.written else "restrict "
    return f"__global {constness}{element} *{restrict}"
