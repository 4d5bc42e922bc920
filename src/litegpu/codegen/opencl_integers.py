"""The integer functions of the dialect in OpenCL C; conditions are int4 masks, even for 64 bits."""

from __future__ import annotations

from litegpu.codegen.c_integers import POWER
from litegpu.codegen.opencl_dot4 import ByteDot

_OF_BOTH = """\
#define SPLAT4_{kind}(a) (({type})(a))
#define MAKE4_{kind}(a, b, c, d) (({type})((a), (b), (c), (d)))
#define LANES4_{kind}(value, left, fill) \\
    WHERE4_{kind}((int4)(left) > (int4)(0, 1, 2, 3), (value), SPLAT4_{kind}(fill))
#define MASK4_{kind}(value, left) LANES4_{kind}((value), (left), 0)
#define LESS4_{kind}(a, b) convert_int4((a) < (b))
#define LESS_EQUAL4_{kind}(a, b) convert_int4((a) <= (b))
#define EQUAL4_{kind}(a, b) convert_int4((a) == (b))
#define WHERE4_{kind}(condition, yes, no) select((no), (yes), convert_{type}(condition))
#define ADD4_{kind}(a, b) as_{type}(as_u{type}(a) + as_u{type}(b))
#define SUB4_{kind}(a, b) as_{type}(as_u{type}(a) - as_u{type}(b))
#define MUL4_{kind}(a, b) as_{type}(as_u{type}(a) * as_u{type}(b))
#define NEG4_{kind}(a) SUB4_{kind}(SPLAT4_{kind}(0), (a))
#define MIN4_{kind}(a, b) min((a), (b))
#define MAX4_{kind}(a, b) max((a), (b))
#define FLOOR_DIV4_{kind}(a, b) floor_quotient_{kind}((a), (b))
#define FLOOR_MOD4_{kind}(a, b) floor_remainder_{kind}((a), (b))
/* Divisors 0 and -1 trap on some processors. Here division by 0 returns the dividend. */
{type} quotient_{kind}({type} a, {type} b) {{
    const {type} by = select(b, ({type})(1), b == 0 || b == -1);
    return select(a / by, NEG4_{kind}(a), b == -1);
}}
{type} remainder_{kind}({type} a, {type} b) {{
    return a % select(b, ({type})(1), b == 0 || b == -1);
}}
{type} floor_quotient_{kind}({type} a, {type} b) {{
    const {type} rest = remainder_{kind}(a, b);
    return quotient_{kind}(a, b) + (rest != 0 && (rest ^ b) < 0);
}}
{type} floor_remainder_{kind}({type} a, {type} b) {{
    const {type} rest = remainder_{kind}(a, b);
    return select(rest, rest + b, rest != 0 && (rest ^ b) < 0);
}}
"""

_WORDS = (
    """\
#define Long4 long4
#define LONG(high, low) ((long)(((ulong)(uint)(high) << 32) | (ulong)(uint)(low)))
#define LOAD4_I32(buffer, i) ((buffer)[i])
#define LOAD1_I32(buffer, i) ((buffer)[i])
#define LANE4_I32(buffer, i) (((__global const int *)(buffer))[i])
#define STORE4_I32(buffer, i, value) (buffer)[i] = (value)
#define STORE1_I32(buffer, i, value) (buffer)[i] = (value)
#define LOAD4_I64(buffer, i) vload4((i), (buffer))
#define LOAD1_I64(buffer, i) ((buffer)[i])
#define LANE4_I64(buffer, i) ((buffer)[i])
#define STORE4_I64(buffer, i, value) vstore4((value), (i), (buffer))
#define STORE1_I64(buffer, i, value) (buffer)[i] = (value)
#define LOAD4_S8(buffer, i) convert_int4((buffer)[i])
#define LOAD1_S8(buffer, i) ((int)(buffer)[i])
#define LANE4_S8(buffer, i) ((int)((__global const char *)(buffer))[i])
/* Stores of bytes saturate. */
#define STORE4_S8(buffer, i, value) (buffer)[i] = convert_char4_sat(value)
#define LOAD4_U8(buffer, i) convert_int4((buffer)[i])
#define LOAD1_U8(buffer, i) ((int)(buffer)[i])
#define LANE4_U8(buffer, i) ((int)((__global const uchar *)(buffer))[i])
#define STORE4_U8(buffer, i, value) (buffer)[i] = convert_uchar4_sat(value)
#define LOAD4_S16(buffer, i) convert_int4((buffer)[i])
#define LOAD1_S16(buffer, i) ((int)(buffer)[i])
#define LANE4_S16(buffer, i) ((int)((__global const short *)(buffer))[i])
#define STORE4_S16(buffer, i, value) (buffer)[i] = convert_short4(value)
#define LOAD4_U16(buffer, i) convert_int4((buffer)[i])
#define LOAD1_U16(buffer, i) ((int)(buffer)[i])
#define LANE4_U16(buffer, i) ((int)((__global const ushort *)(buffer))[i])
#define STORE4_U16(buffer, i, value) (buffer)[i] = convert_ushort4(value)
"""
    + _OF_BOTH.format(kind="I32", type="int4")
    + _OF_BOTH.format(kind="I64", type="long4")
    + """\
#define ABS4_I32(a) as_int4(abs(a))
#define DIV4_I32(a, b) quotient_I32((a), (b))
"""
    + POWER
    + """\
int4 POW4_I32(int4 a, int4 b, int4 c) {
    return (int4)(power(a.x, b.x, c.x == 1), power(a.y, b.y, c.y == 1),
                  power(a.z, b.z, c.z == 1), power(a.w, b.w, c.w == 1));
}
/* Casts to integers saturate; NaN becomes the largest integer. */
#define CAST4_F32_I32(a) select(convert_int4_sat(a), (int4)(0x7fffffff), isnan(a))
#define CAST4_F32_I64(a) \\
    select(convert_long4_sat(a), (long4)(0x7fffffffffffffff), convert_long4(isnan(a)))
#define CAST4_I32_F32(a) convert_float4(a)
/* Floor of floats of magnitude below 2^22. */
#define FLOOR4_I32(a) convert_int4_rtn(a)
#define CAST4_I64_F32(a) convert_float4(a)
#define CAST4_I32_I64(a) convert_long4(a)
#define CAST4_I64_I32(a) convert_int4(a)
#define WRAP4_S8(a) convert_int4(convert_char4(a))
#define WRAP4_U8(a) convert_int4(convert_uchar4(a))
#define WRAP4_S16(a) convert_int4(convert_short4(a))
#define WRAP4_U16(a) convert_int4(convert_ushort4(a))
#define NEAREST_INT(a) convert_int_sat(a)
#define LOW_WORD(a) ((int)(a))
#define HIGH_WORD(a) ((int)((a) >> 32))
#define FLOAT_BITS(a) as_int(a)
#define BITS_FLOAT(a) as_float(a)
#define HALF_BITS(a) half_bits(a)
#define BITS_HALF(a) bits_half(a)
int half_bits(float a) {
    ushort bits;
    vstore_half_rte(a, 0, (half *)&bits);
    return bits;
}
float bits_half(int a) {
    const ushort bits = (ushort)a;
    return vload_half(0, (const half *)&bits);
}
/* 1 / a, rounded to nearest, if positive and not tiny: the built-in division may be inexact. */
float RECIPROCAL(float a) {
    const uint bits = as_uint(a), by = (bits & 0x7fffffu) | 0x800000u;
    uint rest = 0x800000u, found = 0;
    for (int k = 0; k < 24; ++k) {
        const uint twice = rest * 2u;
        found = found * 2u + (twice >= by);
        rest = twice >= by ? twice - by : twice;
    }
    found += rest * 2u > by;
    return as_float(((253u - (bits >> 23)) << 23) + found - 0x800000u);
}
#define AND4_I32(a, b) ((a) & (b))
#define AND4_I64(a, b) ((a) & (b))
#define XOR4_I32(a, b) ((a) ^ (b))
#define SHIFT_LEFT4_I32(a, n) as_int4(as_uint4(a) << as_uint4(n))
#define SHIFT_RIGHT4_I32(a, n) ((a) >> (n))
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
#define WORD4_S8(buffer, i) as_int((buffer)[i])
#define WORD4_U8(buffer, i) as_int((buffer)[i])
#define TO_WORD4_S8(a) as_int(convert_char4(a))
#define TO_WORD4_U8(a) as_int(convert_uchar4(a))
/* Transposes 4 rows of 4 bytes. */
#define TRANSPOSE4_S8(a) \\
    as_int4(shuffle(as_uchar16(a), (uchar16)(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)))
"""
)

_AFTER_DOTS = """\
/* a * b / 2^31, rounded to nearest, halves up; b is not negative. */
int4 MULTIPLY_HIGH4_I32(int4 a, int4 b) {
    return convert_int4((convert_long4(a) * convert_long4(b) + 0x40000000L) >> 31);
}
/* a / 2^n, rounded to nearest: halves up, or away from zero if `away` is 1. */
int4 ROUND_SHIFT4_I32(int4 a, int4 n, int4 away) {
    const int4 mask = as_int4(((uint4)(1u) << as_uint4(n)) - 1u);
    return (a >> n) - ((a & mask) > (mask >> 1) + (away & (a >> 31)));
}
/* a * 2^left * b / 2^31, then / 2^right, both rounded: halves up, or as in ROUND_SHIFT4. */
#define REQUANTIZE_UP4_I32(a, b, left, right) \\
    REQUANTIZE4_I32(a, b, left, right, SPLAT4_I32(0))
#define REQUANTIZE4_I32(a, b, left, right, away) \\
    ROUND_SHIFT4_I32(MULTIPLY_HIGH4_I32(SHIFT_LEFT4_I32(a, left), b), right, away)
/* a * b / 2^n, rounded to nearest, halves up. */
int4 REQUANTIZE4_I64(long4 a, int4 b, int4 n) {
    const long4 half_step = (long4)(1) << convert_long4(n - 1);
    return convert_int4((a * convert_long4(b) + half_step) >> convert_long4(n));
}
ulong2 add_power(ulong2 a, int n) {
    const ulong low = a.x + (n < 64 ? 1ul << n : 0ul);
    return (ulong2)(low, a.y + (n < 64 ? 0ul : 1ul << (n - 64)) + (low < a.x));
}
ulong shift_down(ulong2 a, int n) {
    return n == 0 ? a.x : n < 64 ? (a.x >> n) | (a.y << (64 - n)) : a.y >> (n - 64);
}
/* a times the float64 with these bits, rounded to nearest, halves away from zero; -2^31 if the
   result exceeds 32 bits. The product has 128 bits, and is rounded to the 53 of a float64 first. */
int round_product(long a, long bits) {
    const ulong size = abs(a), digits = ((ulong)bits & 0xffffffffffffful) | 0x10000000000000ul;
    const int point = 1075 - (int)(bits >> 52);
    ulong2 product = (ulong2)(size * digits, mul_hi(size, digits));
    const int top = product.y ? 127 - (int)clz(product.y) : 63 - (int)clz(product.x);
    if (top > 52) {
        const ulong even = ~shift_down(product, top - 52) & 1ul;
        product = add_power(product, top - 53);
        product = (ulong2)(product.x - even, product.y - (product.x < even));
    }
    product = add_power(product, point - 1);
    const ulong found = shift_down(product, point);
    if (found > 0x7ffffffful || (point < 64 && product.y >> point != 0)) return -2147483647 - 1;
    return a < 0 ? -(int)found : (int)found;
}
int4 ROUND_PRODUCT4_I64(long4 a, long4 bits) {
    return (int4)(round_product(a.x, bits.x), round_product(a.y, bits.y),
                  round_product(a.z, bits.z), round_product(a.w, bits.w));
}
#define ROUND4_F16(a) round_f16(a)
/* Rounds to the nearest half, ties to even; magnitudes from 65520 on become infinite. */
float4 round_f16(float4 v) {
    const uint4 size = as_uint4(v) & 0x7fffffffu;
    const uint4 rounded = (size + 0xfffu + ((size >> 13) & 1u)) & ~0x1fffu;
    const uint4 normal = select(rounded, (uint4)(0x7f800000u), rounded > 0x477fe000u);
    const uint4 tiny = as_uint4(rint(as_float4(size) * 16777216.0f) * 5.96046448e-8f);
    const uint4 result = select(normal, tiny, size < 0x38800000u);
    const uint4 found = select(result, size, size > 0x7f800000u);
    return as_float4(found | (as_uint4(v) & 0x80000000u));
}
"""


def integers(dot: ByteDot) -> str:
    """Return the integer functions with one form of byte dot products."""
    return _WORDS + dot.words + _AFTER_DOTS
