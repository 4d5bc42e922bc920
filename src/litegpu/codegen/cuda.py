"""CUDA C++ for NVRTC, without any header: half values are converted by PTX instructions."""

from __future__ import annotations

import math

from litegpu.codegen.cuda_matrix import MATRIX
from litegpu.codegen.cuda_range import RANGE
from litegpu.codegen.dialect import Argument, Dialect, KernelText

_VECTOR_OPERATORS = "".join(
    f"""\
__device__ __forceinline__ float4 operator{op}(float4 a, float4 b) {{
    return make_float4(a.x {op} b.x, a.y {op} b.y, a.z {op} b.z, a.w {op} b.w);
}}
"""
    for op in "+-*/"
)

_LANE_FUNCTIONS = "".join(
    f"""\
__device__ __forceinline__ float4 {word}(float4 a) {{
    return make_float4({call}(a.x), {call}(a.y), {call}(a.z), {call}(a.w));
}}
"""
    for word, call in {
        "ABS4": "fabsf",
        "CEIL4": "ceilf",
        "COS4": "cosf",
        "ERFC4": "erfcf",
        "EXP4": "expf",
        "EXPM14": "expm1f",
        "FLOOR4": "floorf",
        "LOG4": "logf",
        "SIN4": "sinf",
        "SQRT4": "sqrtf",
        "TANH4": "tanhf",
        "TRUNC4": "truncf",
    }.items()
)

_PAIR_FUNCTIONS = "".join(
    f"""\
__device__ __forceinline__ float4 {word}(float4 a, float4 b) {{
    return make_float4({call}(a.x, b.x), {call}(a.y, b.y), {call}(a.z, b.z), {call}(a.w, b.w));
}}
"""
    for word, call in {
        "FMOD4": "fmodf",
        "MAX4": "fmaxf",
        "MIN4": "fminf",
        "POW4": "powf",
        "RAISE4": "raised",
    }.items()
)

_COMPARISONS = "".join(
    f"""\
__device__ __forceinline__ Bool4 {word}(float4 a, float4 b) {{
    return {{a.x {op} b.x, a.y {op} b.y, a.z {op} b.z, a.w {op} b.w}};
}}
"""
    for word, op in {"EQUAL4": "==", "LESS4": "<", "LESS_EQUAL4": "<="}.items()
)


GRID_LIMITS = (65535, 2**31 - 1, 65535)
"""Most blocks of a launch on each axis (x, y, z), in any version of CUDA."""
# The y axis holds rows, of which there are most: it takes the grid's x.
_GRID = {"X": "((int)blockIdx.y)", "Y": "((int)blockIdx.x)", "Z": "((int)blockIdx.z)"}
_GRID_WORDS = "".join(f"#define GROUP_{axis} {place}\n" for axis, place in _GRID.items())

_PRELUDE = (
    _GRID_WORDS
    + """\
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define GLOBAL_X ((int)(GROUP_X * blockDim.x + threadIdx.x))
#define GLOBAL_Y ((int)(GROUP_Y * blockDim.y + threadIdx.y))
#define GLOBAL_Z ((int)(GROUP_Z * blockDim.z + threadIdx.z))
#define GROUP ((int)(blockIdx.x * gridDim.y + blockIdx.y))
#define LOCAL_X ((int)threadIdx.x)
#define BARRIER() __syncthreads()
#define MAKE4(a, b, c, d) make_float4((a), (b), (c), (d))
#define SPLAT4(a) splat4(a)
#define LOAD4_F32(buffer, i) ((buffer)[i])
#define LOAD4_F16(buffer, i) from_half4((buffer)[i])
#define LOAD1_F32(buffer, i) ((buffer)[i])
#define LOAD1_F16(buffer, i) from_half((buffer)[i])
#define LOAD1_I32(buffer, i) ((float)(buffer)[i])
#define LOAD1_I64(buffer, i) ((float)(buffer)[i])
#define LOAD1_U8(buffer, i) ((buffer)[i] != 0 ? 1.0f : 0.0f)
#define LANE4_F32(buffer, i) (((const float *)(buffer))[i])
#define LANE4_F16(buffer, i) from_half(((const unsigned short *)(buffer))[i])
#define STORE4_F32(buffer, i, value) (buffer)[i] = (value)
#define STORE4_F16(buffer, i, value) (buffer)[i] = to_half4(value)
#define STORE4_F16_BOUNDED(buffer, i, value) (buffer)[i] = to_bounded_half4(value)
#define STORE1_F32(buffer, i, value) (buffer)[i] = (value)
#define STORE1_F16(buffer, i, value) (buffer)[i] = to_half(value)
// Conversions of floats to integers keep to their range.
#define STORE1_I32(buffer, i, value) (buffer)[i] = __float2int_rz(value)
#define STORE1_I64(buffer, i, value) (buffer)[i] = __float2ll_rz(value)
#define STORE4_U8(buffer, i, value) (buffer)[i] = to_bytes(value)
#define LANES4(value, left, fill) lanes4((value), (left), (fill))
#define MASK4(value, left) lanes4((value), (left), 0.0f)
#define WHERE4(condition, yes, no) where4((condition), (yes), (no))
#define AT_LEAST4(low, value) WHERE4(LESS4((value), (low)), (low), (value))
#define TO_FLOAT(a) ((float)(a))
#define TO_INT(a) ((int)(a))
#define LANE_SUM(a) ((a).x + (a).y + (a).z + (a).w)
#define LANE_MAX(a) fmaxf(fmaxf((a).x, (a).y), fmaxf((a).z, (a).w))
#define LARGER(a, b) fmaxf((a), (b))
#define FINITE_SIZE4(value) finite_size4(value)
// The next kernel's blocks may be launched while this one runs; each waits before it touches
// what the kernels before it wrote. Only the very next: waiting blocks take up room.
#if defined(OVERLAPPED) && __CUDA_ARCH__ >= 900
#define BEGIN_KERNEL() \\
    asm volatile("griddepcontrol.wait;\\n\\tgriddepcontrol.launch_dependents;" ::: "memory")
#else
#define BEGIN_KERNEL()
#endif
"""
    + MATRIX
    + """\
// A load that the compiler may not move towards its use; zeros, unless `wanted`.
__device__ __forceinline__ uint2 load_if(bool wanted, const uint2 *p) {
    uint2 v;
    asm volatile("{ .reg .pred q; setp.ne.b32 q, %2, 0; mov.b32 %0, 0; mov.b32 %1, 0; "
                 "@q ld.global.v2.u32 {%0, %1}, [%3]; }"
                 : "=&r"(v.x), "=&r"(v.y) : "r"((int)wanted), "l"(p));
    return v;
}
__device__ __forceinline__ float4 load_if(bool wanted, const float4 *p) {
    float4 v;
    asm volatile("{ .reg .pred q; setp.ne.b32 q, %4, 0; mov.b32 %0, 0; mov.b32 %1, 0; "
                 "mov.b32 %2, 0; mov.b32 %3, 0; @q ld.global.v4.f32 {%0, %1, %2, %3}, [%5]; }"
                 : "=&f"(v.x), "=&f"(v.y), "=&f"(v.z), "=&f"(v.w) : "r"((int)wanted), "l"(p));
    return v;
}
// The same without a condition, for what never changes.
__device__ __forceinline__ uint4 load_ahead(const uint4 *p) {
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
__device__ __forceinline__ float4 load_ahead(const float4 *p) {
    const uint4 v = load_ahead((const uint4 *)p);
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                       __uint_as_float(v.w));
}
__device__ __forceinline__ uint4 as_words(float4 v) {
    return make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z),
                      __float_as_uint(v.w));
}
struct Bool4 { bool x, y, z, w; };
__device__ __forceinline__ int clamp(int i, int low, int high) { return min(max(i, low), high); }
__device__ __forceinline__ bool inside(int i, int size) { return i >= 0 && i < size; }
__device__ __forceinline__ float4 splat4(float a) { return make_float4(a, a, a, a); }
__device__ __forceinline__ float4 operator-(float4 a) {
    return make_float4(-a.x, -a.y, -a.z, -a.w);
}
__device__ __forceinline__ float4 where4(Bool4 c, float4 a, float4 b) {
    return make_float4(c.x ? a.x : b.x, c.y ? a.y : b.y, c.z ? a.z : b.z, c.w ? a.w : b.w);
}
__device__ __forceinline__ float4 lanes4(float4 v, int left, float fill) {
    return make_float4(left > 0 ? v.x : fill, left > 1 ? v.y : fill, left > 2 ? v.z : fill,
                       left > 3 ? v.w : fill);
}
__device__ __forceinline__ float4 FMA4(float4 a, float4 b, float4 c) {
    return make_float4(fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y), fmaf(a.z, b.z, c.z),
                       fmaf(a.w, b.w, c.w));
}
__device__ __forceinline__ uchar4 to_bytes(float4 v) {
    return make_uchar4(v.x != 0.0f, v.y != 0.0f, v.z != 0.0f, v.w != 0.0f);
}
__device__ __forceinline__ float from_half(unsigned short h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
// The larger one, or NaN if either is: -0 and 0 are alike.
__device__ __forceinline__ float raised(float low, float v) {
#if __CUDA_ARCH__ >= 800
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(low), "f"(v));
    return larger;
#else
    return v < low ? low : v;
#endif
}
// Finite values beyond the half range become its largest value, never infinity.
__device__ __forceinline__ unsigned short to_half(float v) {
    if (fabsf(v) < INFINITY) v = fminf(fmaxf(v, -65504.0f), 65504.0f);
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
}
#if __CUDA_ARCH__ >= 800
// Both in one instruction, which makes infinity the largest value too.
__device__ __forceinline__ unsigned int saturated_halves(float low, float high) {
    unsigned int h;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(high), "f"(low));
    return h;
}
#endif
__device__ __forceinline__ unsigned int to_half2(float low, float high) {
    return (unsigned int)to_half(low) | ((unsigned int)to_half(high) << 16);
}
__device__ __forceinline__ float4 from_half4(uint2 v) {
    return make_float4(from_half(v.x & 0xffff), from_half(v.x >> 16), from_half(v.y & 0xffff),
                       from_half(v.y >> 16));
}
// No infinity is among the values.
__device__ __forceinline__ uint2 to_bounded_half4(float4 v) {
#if __CUDA_ARCH__ >= 800
    return make_uint2(saturated_halves(v.x, v.y), saturated_halves(v.z, v.w));
#else
    return make_uint2(to_half2(v.x, v.y), to_half2(v.z, v.w));
#endif
}
__device__ __forceinline__ float size4(float4 v) {
    return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}
__device__ __forceinline__ uint2 to_half4(float4 v) {
#if __CUDA_ARCH__ >= 800
    if (size4(v) < INFINITY) return to_bounded_half4(v);
#endif
    return make_uint2(to_half2(v.x, v.y), to_half2(v.z, v.w));
}
__device__ __forceinline__ float finite_size(float v) {
    return fabsf(v) < INFINITY ? fabsf(v) : 0.0f;
}
__device__ __forceinline__ float finite_size4(float4 v) {
    const float size = size4(v);
    if (size < INFINITY) return size;
    return fmaxf(fmaxf(finite_size(v.x), finite_size(v.y)),
                 fmaxf(finite_size(v.z), finite_size(v.w)));
}
"""
    + _VECTOR_OPERATORS
    + _LANE_FUNCTIONS
    + _PAIR_FUNCTIONS
    + _COMPARISONS
    + RANGE
)


class CUDADialect(Dialect):
    """CUDA C++ as NVRTC takes it."""

    name = "cuda"
    prelude = _PRELUDE

    def kernel(self, text: KernelText) -> str:
        """Return the entry point as a CUDA kernel."""
        x, y, z = text.local_size
        arguments = ", ".join(_declare(argument) for argument in text.arguments)
        # Templates written for CUDA begin by themselves, after loading what never changes.
        begin = "" if "BEGIN_KERNEL" in text.body else "    BEGIN_KERNEL();\n"
        # Blocks of a cluster are neighbours on the template's x axis.
        cluster = f"__cluster_dims__(1, {text.cluster}, 1) " if text.cluster > 1 else ""
        limit = f", {text.side_by_side}" if text.side_by_side > 1 else ""
        written = (
            f'extern "C" __global__ void {cluster}__launch_bounds__({x * y * z}{limit})\n'
            f"{text.name}({arguments}) {{\n{_leave(text)}{_declare_shared(text)}{begin}"
            f"{text.body}}}\n"
        )
        return written if text.groups is None else _folded(text, written)


def _leave(text: KernelText) -> str:
    """Return the line by which a group beyond the last one does nothing."""
    return f"    if (GROUP >= {math.prod(text.groups)}) return;\n" if text.groups else ""


def _folded(text: KernelText, written: str) -> str:
    """Return a kernel whose groups are all on two axes; other kernels may follow it."""
    places = "".join(f"#define GROUP_{axis} {place}\n" for axis, place, _ in text.places())
    nothing = "".join(f"#undef GROUP_{axis}\n" for axis in _GRID)
    return f"{nothing}{places}{written}{nothing}{_GRID_WORDS}"


STATIC_SHARED_BYTES = 48 << 10
"""Work-group memory beyond this must be asked for at launch."""
_SHARED_SIZES = {"float": 4, "float4": 16, "uint4": 16}


def dynamic_shared_bytes(text: KernelText) -> int:
    """Return the bytes of work-group memory that a launch must ask for; 0 for small arrays."""
    total = sum(_SHARED_SIZES[kind] * length for kind, _, length in text.shared)
    return total if total > STATIC_SHARED_BYTES else 0


def _declare_shared(text: KernelText) -> str:
    if not dynamic_shared_bytes(text):
        arrays = (
            f"    __shared__ __align__(1024) {kind} {name}[{n}];\n" for kind, name, n in text.shared
        )
        return "".join(arrays)
    lines = ["    extern __shared__ __align__(1024) uint4 dynamic_shared[];\n"]
    start = 0
    for kind, name, length in text.shared:
        lines.append(f"    {kind} *const {name} = ({kind} *)(dynamic_shared + {start});\n")
        start += -(-_SHARED_SIZES[kind] * length // 16)
    return "".join(lines)


_ELEMENTS = {
    ("F32", False): "float",
    ("F32", True): "float4",
    ("F16", False): "unsigned short",
    ("F16", True): "uint2",
    ("U32", False): "unsigned int",
    ("U32", True): "uint4",
    ("I32", False): "int",
    ("I64", False): "long long",
    ("U8", False): "unsigned char",
    ("U8", True): "uchar4",
}


def _declare(argument: Argument) -> str:
    element = _ELEMENTS[argument.kind, argument.vector]
    if argument.written:
        return f"{element} *{argument.name}"
    # Only constants may be read through the incoherent cache: kernels overlap at run time.
    restrict = "__restrict__ " if argument.constant else ""
    return f"const {element} *{restrict}{argument.name}"
