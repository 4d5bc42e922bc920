"""The integer macros and functions of the dialect in CUDA C++."""

from __future__ import annotations

from litegpu.codegen.c_integers import POWER

_LANES = "xyzw"


def _of(type_: str, name: str, parameters: str, lane: str) -> str:
    """Return a function that computes each lane by an expression with {0} for the lane's name."""
    lanes = ", ".join(lane.format(lane_name) for lane_name in _LANES)
    return (
        f"__device__ __forceinline__ {type_} {name}({parameters}) {{\n    return {{{lanes}}};\n}}\n"
    )


def _of_both(kind: str, vector: str, scalar: str) -> str:
    """Return the macros and functions common to 32-bit and 64-bit integers."""
    both = f"{vector} a, {vector} b"
    wrapping = {"ADD4": "+", "SUB4": "-", "MUL4": "*"}
    compared = {"LESS4": "<", "LESS_EQUAL4": "<=", "EQUAL4": "=="}
    called = {
        "MIN4": "(a.{0} < b.{0} ? a.{0} : b.{0})",
        "MAX4": "(a.{0} > b.{0} ? a.{0} : b.{0})",
        "FLOOR_DIV4": "floor_quotient(a.{0}, b.{0})",
        "FLOOR_MOD4": "floor_remainder(a.{0}, b.{0})",
    }
    left = "(left > {place} ? value.{lane} : fill)"
    lanes = ", ".join(left.format(place=i, lane=lane) for i, lane in enumerate(_LANES))
    parts = [
        _of(vector, f"SPLAT4_{kind}", f"{scalar} a", "a"),
        _of(vector, f"WHERE4_{kind}", f"Bool4 c, {both}", "(c.{0} ? a.{0} : b.{0})"),
        *(
            _of(
                vector,
                f"{word}_{kind}",
                both,
                f"({scalar})((unsigned {scalar})a.{{0}} {sign} (unsigned {scalar})b.{{0}})",
            )
            for word, sign in wrapping.items()
        ),
        *(
            _of("Bool4", f"{word}_{kind}", both, f"a.{{0}} {sign} b.{{0}}")
            for word, sign in compared.items()
        ),
        *(_of(vector, f"{word}_{kind}", both, lane) for word, lane in called.items()),
        f"""\
__device__ __forceinline__ {vector} MAKE4_{kind}({scalar} a, {scalar} b, {scalar} c, {scalar} d) {{
    return {{a, b, c, d}};
}}
__device__ __forceinline__ {vector} LANES4_{kind}({vector} value, int left, {scalar} fill) {{
    return {{{lanes}}};
}}
#define MASK4_{kind}(value, left) LANES4_{kind}((value), (left), 0)
#define NEG4_{kind}(a) SUB4_{kind}(SPLAT4_{kind}(0), (a))
""",
    ]
    return "".join(parts)


def _packed(kind: str, element: str, vector: str) -> str:
    """Return the functions that load and store an integer type of fewer than 32 bits."""
    return f"""\
#define LOAD4_{kind}(buffer, i) to_int4((buffer)[i])
#define LOAD1_{kind}(buffer, i) ((int)(buffer)[i])
#define LANE4_{kind}(buffer, i) ((int)((const {element} *)(buffer))[i])
__device__ __forceinline__ int4 to_int4({vector} v) {{ return {{v.x, v.y, v.z, v.w}}; }}
__device__ __forceinline__ {vector} as_{vector}(int4 v) {{
    return {{({element})v.x, ({element})v.y, ({element})v.z, ({element})v.w}};
}}
#define WRAP4_{kind}(a) to_int4(as_{vector}(a))
"""


_DIVISIONS = """\
// Division by 0 returns the dividend; division by -1 wraps around.
template <class T> __device__ __forceinline__ T quotient(T a, T b) {
    return b == -1 ? (T)(0 - (unsigned long long)a) : b == 0 ? a : a / b;
}
template <class T> __device__ __forceinline__ T remainder_of(T a, T b) {
    return b == -1 || b == 0 ? 0 : a % b;
}
template <class T> __device__ __forceinline__ T floor_quotient(T a, T b) {
    const T rest = remainder_of(a, b);
    return quotient(a, b) - (rest != 0 && (rest < 0) != (b < 0));
}
template <class T> __device__ __forceinline__ T floor_remainder(T a, T b) {
    const T rest = remainder_of(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
"""

INTEGERS = (
    """\
struct Long4 { long long x, y, z, w; };
// No barrier for 64-bit results, which are rare: the compiler may move their computation.
template <int M, int N> __device__ __forceinline__ void sums_done(Long4 (&)[M][N]) {}
#define LONG(high, low) \\
    ((long long)(((unsigned long long)(unsigned int)(high) << 32) | (unsigned int)(low)))
#define LOAD4_I32(buffer, i) ((buffer)[i])
#define LOAD1_I32(buffer, i) ((buffer)[i])
#define LANE4_I32(buffer, i) (((const int *)(buffer))[i])
#define STORE4_I32(buffer, i, value) (buffer)[i] = (value)
#define STORE1_I32(buffer, i, value) (buffer)[i] = (value)
#define LOAD4_I64(buffer, i) load_longs((buffer) + 2 * (i))
#define LOAD1_I64(buffer, i) ((buffer)[i])
#define LANE4_I64(buffer, i) (((const long long *)(buffer))[i])
#define STORE4_I64(buffer, i, value) store_longs((buffer) + 2 * (i), (value))
#define STORE1_I64(buffer, i, value) (buffer)[i] = (value)
__device__ __forceinline__ Long4 load_longs(const longlong2 *p) {
    const longlong2 low = p[0], high = p[1];
    return {low.x, low.y, high.x, high.y};
}
__device__ __forceinline__ void store_longs(longlong2 *p, Long4 v) {
    p[0] = {v.x, v.y};
    p[1] = {v.z, v.w};
}
"""
    + _packed("S8", "signed char", "char4")
    + _packed("U8", "unsigned char", "uchar4")
    + """\
#define STORE4_S8(buffer, i, value) ((unsigned int *)(buffer))[i] = pack_s8(value)
#define STORE4_U8(buffer, i, value) ((unsigned int *)(buffer))[i] = pack_u8(value)
#define STORE4_S16(buffer, i, value) (buffer)[i] = as_short4(value)
#define STORE4_U16(buffer, i, value) (buffer)[i] = as_ushort4(value)
"""
    + _packed("S16", "short", "short4")
    + _packed("U16", "unsigned short", "ushort4")
    + _DIVISIONS
    + _of_both("I32", "int4", "int")
    + _of_both("I64", "Long4", "long long")
    + _of("int4", "ABS4_I32", "int4 a", "(int)(a.{0} < 0 ? 0u - (unsigned)a.{0} : a.{0})")
    + _of("int4", "DIV4_I32", "int4 a, int4 b", "quotient(a.{0}, b.{0})")
    + f"__device__ __forceinline__ {POWER}"
    + _of("int4", "POW4_I32", "int4 a, int4 b, int4 c", "power(a.{0}, b.{0}, c.{0} == 1)")
    + "// Casts to integers saturate; NaN becomes the largest integer.\n"
    + _of(
        "int4", "CAST4_F32_I32", "float4 a", "(a.{0} != a.{0} ? 0x7fffffff : __float2int_rz(a.{0}))"
    )
    + _of(
        "Long4",
        "CAST4_F32_I64",
        "float4 a",
        "(a.{0} != a.{0} ? 0x7fffffffffffffffll : __float2ll_rz(a.{0}))",
    )
    + """\
// Floor of floats of magnitude below 2^22: adding 1.5 * 2^23, rounded down, leaves no fraction.
__device__ __forceinline__ int floor_int(float v) {
    return __float_as_int(__fadd_rd(v, 12582912.0f)) - 0x4b400000;
}
"""
    + _of("int4", "FLOOR4_I32", "float4 a", "floor_int(a.{0})")
    + _of("float4", "CAST4_I32_F32", "int4 a", "(float)a.{0}")
    + _of("float4", "CAST4_I64_F32", "Long4 a", "(float)a.{0}")
    + _of("Long4", "CAST4_I32_I64", "int4 a", "(long long)a.{0}")
    + _of("int4", "CAST4_I64_I32", "Long4 a", "(int)a.{0}")
    + """\
#define RECIPROCAL(a) (1.0f / (a))
#define NEAREST_INT(a) ((int)min(max((a), -2147483648ll), 2147483647ll))
#define LOW_WORD(a) ((int)(a))
#define HIGH_WORD(a) ((int)((a) >> 32))
#define FLOAT_BITS(a) __float_as_int(a)
#define BITS_FLOAT(a) __int_as_float(a)
#define HALF_BITS(a) ((int)to_half(a))
#define BITS_HALF(a) from_half((unsigned short)(a))
#define LOOKUP4_S8(table, i) LOOKUP4_AS(MAKE4_I32, LANE4_S8, table, (i))
#define LOOKUP4_U8(table, i) LOOKUP4_AS(MAKE4_I32, LANE4_U8, table, (i))
#define LOOKUP4_I32(table, i) LOOKUP4_AS(MAKE4_I32, LANE4_I32, table, (i))
#define LOOKUP4_F32(table, i) LOOKUP4_AS(MAKE4, LANE4_F32, table, (i))
#define LOOKUP4_SHORT_I32(table, i) \\
    MAKE4_I32(LANE4_I32(table, (i).x & 65535), LANE4_I32(table, (i).y & 65535), \\
              LANE4_I32(table, (i).z & 65535), LANE4_I32(table, (i).w & 65535))
#define LOOKUP4_AS(make, lane, table, i) \\
    make(lane(table, (i).x & 255), lane(table, (i).y & 255), \\
         lane(table, (i).z & 255), lane(table, (i).w & 255))
#define WORD4_S8(buffer, i) (((const int *)(buffer))[i])
#define WORD4_U8(buffer, i) (((const int *)(buffer))[i])
#define TO_WORD4_S8(a) to_word(a)
#define TO_WORD4_U8(a) to_word(a)
#define FROM_WORD4_S8(word) LOAD4_S8((const char4 *)&(word), 0)
#define FROM_WORD4_U8(word) LOAD4_U8((const uchar4 *)&(word), 0)
__device__ __forceinline__ int to_word(int4 v) {
    return (v.x & 255) | ((v.y & 255) << 8) | ((v.z & 255) << 16) | (int)((unsigned)v.w << 24);
}
// Transposes 4 rows of 4 bytes.
__device__ __forceinline__ int4 TRANSPOSE4_S8(int4 a) {
    const unsigned half = 0x00ff00ffu, x = a.x, y = a.y, z = a.z, w = a.w;
    const unsigned even = (x & half) | ((y & half) << 8), odd = ((x >> 8) & half) | (y & ~half);
    const unsigned even2 = (z & half) | ((w & half) << 8), odd2 = ((z >> 8) & half) | (w & ~half);
    return MAKE4_I32((even & 0xffffu) | (even2 << 16), (odd & 0xffffu) | (odd2 << 16),
                     (even >> 16) | (even2 & 0xffff0000u), (odd >> 16) | (odd2 & 0xffff0000u));
}
// Dot product of four signed bytes, plus c.
__device__ __forceinline__ int DOT4_S8(int a, int b, int c) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 610
    return __dp4a(a, b, c);
#else
    for (int k = 0; k < 32; k += 8) c += (int)(signed char)(a >> k) * (signed char)(b >> k);
    return c;
#endif
}
__device__ __forceinline__ int multiply_high(int a, int b) {
    return (int)(((long long)a * b + 0x40000000ll) >> 31);
}
__device__ __forceinline__ int round_shift(int a, int n, int away) {
    const int mask = (int)((1u << n) - 1u);
    return (a >> n) + ((a & mask) > (mask >> 1) + (away & (a >> 31)));
}
// Both roundings in one shift: a floor of a floor is one floor, so both rounding terms are added
// before any bit is lost.
__device__ __forceinline__ int requantize_up(int a, int b, int left, int right) {
    const long long half = right > 0 ? 1ll << (30 + right) : 0;
    const int shifted = (int)((unsigned)a << left);
    return (int)(((long long)shifted * b + (half + 0x40000000ll)) >> (31 + right));
}
__device__ __forceinline__ int requantize(int a, int b, int left, int right, int away) {
    const long long half = right > 0 ? 1ll << (30 + right) : 0;
    const long long product = multiply_add((int)((unsigned)a << left), b, 0x40000000ll);
    const long long back = right > 0 && away ? (product >> 63) << 31 : 0;
    return (int)((product + half + back) >> (31 + right));
}
// a * b / 2^n, rounded to nearest, halves up.
__device__ __forceinline__ int requantize_long(long long a, int b, int n) {
    const unsigned long long product = (unsigned long long)a * (unsigned long long)(long long)b;
    return (int)((long long)(product + (1ull << (n - 1))) >> n);
}
// a times the float64 with these bits, rounded to nearest, halves away from zero; -2^31 if the
// result exceeds 32 bits.
__device__ __forceinline__ int round_product(long long a, long long bits) {
    double factor;
    memcpy(&factor, &bits, sizeof(factor));
    const double found = round((double)a * factor);
    return fabs(found) < 2147483648.0 ? (int)found : -2147483647 - 1;
}
// Rounds to the nearest half, ties to even; magnitudes from 65520 on become infinite.
__device__ __forceinline__ float round_f16(float v) {
    if (!(fabsf(v) < 65520.0f)) return v != v ? v : copysignf(INFINITY, v);
    return from_half(to_half(v));
}
"""
    + _of("float4", "ROUND4_F16", "float4 a", "round_f16(a.{0})")
    + _of("int4", "AND4_I32", "int4 a, int4 b", "a.{0} & b.{0}")
    + _of("Long4", "AND4_I64", "Long4 a, Long4 b", "a.{0} & b.{0}")
    + _of("int4", "XOR4_I32", "int4 a, int4 b", "a.{0} ^ b.{0}")
    + _of("int4", "SHIFT_LEFT4_I32", "int4 a, int4 n", "(int)((unsigned)a.{0} << n.{0})")
    + _of("int4", "SHIFT_RIGHT4_I32", "int4 a, int4 n", "a.{0} >> n.{0}")
    + "// a * b / 2^31, rounded to nearest, halves up; b is not negative.\n"
    + _of("int4", "MULTIPLY_HIGH4_I32", "int4 a, int4 b", "multiply_high(a.{0}, b.{0})")
    + "// a / 2^n, rounded to nearest: halves up, or away from zero if `away` is 1.\n"
    + _of(
        "int4",
        "ROUND_SHIFT4_I32",
        "int4 a, int4 n, int4 away",
        "round_shift(a.{0}, n.{0}, away.{0})",
    )
    + "// a * 2^left * b / 2^31, then / 2^right, both rounded: halves up, or as in ROUND_SHIFT4.\n"
    + _of(
        "int4",
        "REQUANTIZE_UP4_I32",
        "int4 a, int4 b, int4 left, int4 right",
        "requantize_up(a.{0}, b.{0}, left.{0}, right.{0})",
    )
    + _of(
        "int4",
        "REQUANTIZE4_I32",
        "int4 a, int4 b, int4 left, int4 right, int4 away",
        "requantize(a.{0}, b.{0}, left.{0}, right.{0}, away.{0})",
    )
    + _of(
        "int4",
        "REQUANTIZE4_I64",
        "Long4 a, int4 b, int4 n",
        "requantize_long(a.{0}, b.{0}, n.{0})",
    )
    + _of("int4", "ROUND_PRODUCT4_I64", "Long4 a, Long4 bits", "round_product(a.{0}, bits.{0})")
)
