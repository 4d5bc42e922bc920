"""The integer macros and functions of the dialect in GLSL.

GLSL has no 64-bit integers: pairs of 32-bit words represent them, the low word first.
"""

from __future__ import annotations

_LANES = "xyzw"


def _of(type_: str, name: str, parameters: str, lane: str) -> str:
    """Return a function that computes each lane by an expression with {0} for the lane's name."""
    values = ", ".join(lane.format(lane_name) for lane_name in _LANES)
    constructor = {"int4": "ivec4", "float4": "vec4"}.get(type_, type_)
    return f"{constructor} {name}({parameters}) {{\n    return {constructor}({values});\n}}\n"


def _packed(kind: str, bits: int, signed: bool) -> str:
    """Return the functions for a type of 8 or 16 bits, packed into 32-bit words."""
    sign = "int" if signed else "uint"
    per_word = 32 // bits
    shift = {4: 2, 2: 1}[per_word]
    bit = f"((i) & {per_word - 1}) * {bits}"
    one = f"int(bitfieldExtract({sign}(buffer[(i) >> {shift}]), {bit}, {bits}))"
    from_words = ", ".join(
        f"bitfieldExtract({sign}(words{'' if bits == 8 else '.' + _LANES[k // 2]}), "
        f"{k % per_word * bits}, {bits})"
        for k in range(4)
    )
    mask = f"{(1 << bits) - 1}u"
    u = f"(uvec4(v) & {mask})"
    words = "uint" if bits == 8 else "uvec2"
    packed = (
        "b.x | (b.y << 8) | (b.z << 16) | (b.w << 24)"
        if bits == 8
        else "uvec2(b.x | (b.y << 16), b.z | (b.w << 16))"
    )
    vector = "buffer[i]"
    low = -(1 << bits - 1) if signed else 0
    # Values beyond the type are clamped.
    stored = f"clamp(value, {low}, {low + (1 << bits) - 1})" if bits == 8 else "value"
    lane = (
        one
        if bits == 8
        else f"int(bitfieldExtract({sign}(buffer[(i) >> 2][((i) >> 1) & 1]), {bit}, {bits}))"
    )
    return f"""\
#define LOAD4_{kind}(buffer, i) from_{kind}({vector})
#define LOAD1_{kind}(buffer, i) {one}
#define LANE4_{kind}(buffer, i) {lane}
#define STORE4_{kind}(buffer, i, value) buffer[i] = to_{kind}({stored})
#define WRAP4_{kind}(a) from_{kind}(to_{kind}(a))
ivec4 from_{kind}({words} words) {{ return ivec4({from_words}); }}
{words} to_{kind}(ivec4 v) {{ uvec4 b = {u}; return {packed}; }}
"""


_INT = """\
#define int4 ivec4
#define uint4 uvec4
#define LOAD4_I32(buffer, i) buffer[i]
#define LOAD1_I32(buffer, i) buffer[i]
#define LANE4_I32(buffer, i) buffer[(i) >> 2][(i) & 3]
#define STORE4_I32(buffer, i, value) buffer[i] = (value)
#define STORE1_I32(buffer, i, value) buffer[i] = (value)
#define SPLAT4_I32(a) ivec4(a)
#define MAKE4_I32(a, b, c, d) ivec4((a), (b), (c), (d))
#define LANES4_I32(value, left, fill) \\
    WHERE4_I32(greaterThan(ivec4(left), ivec4(0, 1, 2, 3)), (value), ivec4(fill))
#define MASK4_I32(value, left) LANES4_I32((value), (left), 0)
#define LESS4_I32(a, b) lessThan((a), (b))
#define LESS_EQUAL4_I32(a, b) lessThanEqual((a), (b))
#define EQUAL4_I32(a, b) equal((a), (b))
#define ADD4_I32(a, b) ((a) + (b))
#define SUB4_I32(a, b) ((a) - (b))
#define MUL4_I32(a, b) ((a) * (b))
#define NEG4_I32(a) (ivec4(0) - (a))
#define AND4_I32(a, b) ((a) & (b))
#define XOR4_I32(a, b) ((a) ^ (b))
#define SHIFT_LEFT4_I32(a, n) ((a) << uvec4(n))
#define SHIFT_RIGHT4_I32(a, n) ((a) >> uvec4(n))
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
#define WORD4_S8(buffer, i) int(buffer[i])
#define WORD4_U8(buffer, i) int(buffer[i])
#define TO_WORD4_S8(a) int(to_S8(a))
#define TO_WORD4_U8(a) int(to_U8(a))
#define MIN4_I32(a, b) min((a), (b))
#define MAX4_I32(a, b) max((a), (b))
#define CAST4_I32_F32(a) vec4(a)
/* Floor of floats of magnitude below 2^22. */
#define FLOOR4_I32(a) ivec4(floor(a))
int quotient(int a, int b) {
    /* Division by 0 returns the dividend; division by -1 wraps around. */
    int by = b == 0 || b == -1 ? 1 : b;
    return b == -1 ? 0 - a : a / by;
}
/* Powers that exceed 32 bits wrap around or become -2^31, as on an x86 CPU. */
int power(int a, int b, bool wraps) {
    int size = a < 0 ? 0 - a : a;
    int most = 2147483647 / max(size, 1);
    int found = 1;
    int square = a;
    bool fits = size >= 0 || b < 1 || wraps;
    int times = size == 0 || size == 1 ? min(b, 1 + ((b - 1) & 1)) : min(b, 32);
    for (int i = 0; i < (wraps ? 31 : times); ++i) {
        fits = fits && (wraps || (found <= most && found >= 0 - most));
        bool more = wraps ? ((b >> i) & 1) == 1 : fits;
        found = more ? found * square : found;
        square = wraps ? square * square : a;
    }
    return fits ? found : -2147483647 - 1;
}
#define FLOAT_BITS(a) floatBitsToInt(a)
#define BITS_FLOAT(a) intBitsToFloat(a)
#define HALF_BITS(a) int(packHalf2x16(vec2((a), 0.0f)))
#define BITS_HALF(a) unpackHalf2x16(uint((a) & 0xffff)).x
/* The language does not define % for negative numbers. */
int rest_of(int a, int b) { return b == 0 ? 0 : a - quotient(a, b) * b; }
bool is_low(int rest, int b) { return rest != 0 && (rest < 0) != (b < 0); }
int floor_quotient(int a, int b) { return quotient(a, b) - (is_low(rest_of(a, b), b) ? 1 : 0); }
int floor_rest(int a, int b) { return rest_of(a, b) + (is_low(rest_of(a, b), b) ? b : 0); }
/* Casts to integers saturate; NaN becomes the largest integer. Compilers may assume that floats
   are finite, so the bits are tested. */
int whole(float v) {
    uint bits = floatBitsToUint(v), size = bits & 0x7fffffffu;
    bool below = bits != size && size <= 0x7f800000u;
    int end = below ? -2147483647 - 1 : 2147483647;
    return size >= 0x4f000000u ? end : int(size >= 0x4f000000u ? 0.0f : v);
}
"""

_INT_LANES = (
    _of("int4", "WHERE4_I32", "bvec4 c, ivec4 a, ivec4 b", "(c.{0} ? a.{0} : b.{0})")
    + _of("int4", "ABS4_I32", "ivec4 a", "(a.{0} < 0 ? 0 - a.{0} : a.{0})")
    + _of("int4", "DIV4_I32", "ivec4 a, ivec4 b", "quotient(a.{0}, b.{0})")
    + _of("int4", "POW4_I32", "ivec4 a, ivec4 b, ivec4 c", "power(a.{0}, b.{0}, c.{0} == 1)")
    + _of("int4", "FLOOR_DIV4_I32", "ivec4 a, ivec4 b", "floor_quotient(a.{0}, b.{0})")
    + _of("int4", "FLOOR_MOD4_I32", "ivec4 a, ivec4 b", "floor_rest(a.{0}, b.{0})")
    + _of("int4", "CAST4_F32_I32", "vec4 a", "whole(a.{0})")
)

_LONG = """\
struct Long4 { ivec2 x; ivec2 y; ivec2 z; ivec2 w; };
#define LONG(high, low) ivec2((low), (high))
#define LOAD4_I64(buffer, i) \\
    Long4(buffer[(i) * 4], buffer[(i) * 4 + 1], buffer[(i) * 4 + 2], buffer[(i) * 4 + 3])
#define LOAD1_I64(buffer, i) buffer[i]
#define LANE4_I64(buffer, i) buffer[i]
#define STORE4_I64(buffer, i, value) \\
    buffer[(i) * 4] = (value).x; buffer[(i) * 4 + 1] = (value).y; \\
    buffer[(i) * 4 + 2] = (value).z; buffer[(i) * 4 + 3] = (value).w
#define STORE1_I64(buffer, i, value) buffer[i] = (value)
#define MAKE4_I64(a, b, c, d) Long4((a), (b), (c), (d))
#define MASK4_I64(value, left) LANES4_I64((value), (left), ivec2(0))
#define NEG4_I64(a) SUB4_I64(SPLAT4_I64(ivec2(0)), (a))
#define NEAREST_INT(a) to_int(a)
#define LOW_WORD(a) (a).x
#define HIGH_WORD(a) (a).y
Long4 SPLAT4_I64(ivec2 a) { return Long4(a, a, a, a); }
ivec2 add(ivec2 a, ivec2 b) {
    uint low = uint(a.x) + uint(b.x);
    return ivec2(int(low), a.y + b.y + (low < uint(a.x) ? 1 : 0));
}
ivec2 sub(ivec2 a, ivec2 b) {
    return ivec2(a.x - b.x, a.y - b.y - (uint(a.x) < uint(b.x) ? 1 : 0));
}
ivec2 mul(ivec2 a, ivec2 b) {
    uint al = uint(a.x) & 0xffffu, ah = uint(a.x) >> 16;
    uint bl = uint(b.x) & 0xffffu, bh = uint(b.x) >> 16;
    uint middle = ah * bl + ((al * bl) >> 16);
    uint other = al * bh + (middle & 0xffffu);
    uint high = ah * bh + (middle >> 16) + (other >> 16);
    high += uint(a.x) * uint(b.y) + uint(a.y) * uint(b.x);
    return ivec2(int(uint(a.x) * uint(b.x)), int(high));
}
bool less(ivec2 a, ivec2 b) { return a.y == b.y ? uint(a.x) < uint(b.x) : a.y < b.y; }
bool same(ivec2 a, ivec2 b) { return a.x == b.x && a.y == b.y; }
ivec2 pick(bool c, ivec2 a, ivec2 b) { return ivec2(c ? a.x : b.x, c ? a.y : b.y); }
ivec2 magnitude(ivec2 a) { return pick(a.y < 0, sub(ivec2(0), a), a); }
/* The remainder and the quotient of the magnitudes; the remainder of a division by 0 is 0. */
ivec4 divide_long(ivec2 a, ivec2 b) {
    ivec2 by = magnitude(b), all = magnitude(a), rest = ivec2(0), quotient = ivec2(0);
    /* Long division: one bit of the dividend per iteration. */
    for (int k = 63; k >= 0; k -= 1) {
        uint bit = (uint(k > 31 ? all.y : all.x) >> uint(k & 31)) & 1u;
        bool full = rest.y < 0;
        uint high = (uint(rest.y) << 1) | (uint(rest.x) >> 31);
        rest = ivec2(int((uint(rest.x) << 1) | bit), int(high));
        /* An unsigned comparison. */
        bool reached = !less(ivec2(rest.x, rest.y ^ (-2147483647 - 1)),
                             ivec2(by.x, by.y ^ (-2147483647 - 1)));
        rest = pick(full || reached, sub(rest, by), rest);
        int one = full || reached ? 1 << uint(k & 31) : 0;
        quotient = quotient | (k > 31 ? ivec2(0, one) : ivec2(one, 0));
    }
    return ivec4(pick(same(b, ivec2(0)), ivec2(0), rest), quotient);
}
ivec2 floor_quotient_of_long(ivec2 a, ivec2 b) {
    ivec4 found = divide_long(a, b);
    ivec2 down = add(found.zw, ivec2(same(found.xy, ivec2(0)) ? 0 : 1, 0));
    return pick((a.y < 0) != (b.y < 0), sub(ivec2(0), down), found.zw);
}
ivec2 floor_rest_of_long(ivec2 a, ivec2 b) {
    ivec2 rest = divide_long(a, b).xy;
    rest = pick(a.y < 0, sub(ivec2(0), rest), rest);
    bool low = !same(rest, ivec2(0)) && (rest.y < 0) != (b.y < 0);
    return pick(low, add(rest, b), rest);
}
ivec2 whole_long(float v) {
    uint bits = floatBitsToUint(v), size = bits & 0x7fffffffu;
    bool below = bits != size && size <= 0x7f800000u;
    bool beyond = size >= 0x5f000000u;
    /* The significand is an integer of 24 bits, shifted by the exponent. */
    uint digits = (size & 0x7fffffu) | 0x800000u;
    int up = beyond ? 0 : int(size >> 23) - 150;
    uint low = up < 0 ? (up > -24 ? digits >> uint(-up) : 0u) : up < 32 ? digits << uint(up) : 0u;
    uint high = up < 9 ? 0u : up < 32 ? digits >> uint(32 - up) : digits << uint(up - 32);
    ivec2 found = ivec2(int(low), int(high));
    found = pick(below, sub(ivec2(0), found), found);
    return pick(beyond, below ? ivec2(0, -2147483647 - 1) : ivec2(-1, 2147483647), found);
}
float nearest_float(ivec2 a) {
    ivec2 size = magnitude(a);
    uint high = uint(size.y), low = uint(size.x);
    /* Only the highest 32 bits remain; the last one is set if any lower bit was (a sticky bit). */
    int up = high == 0u ? 0 : findMSB(high) + 1;
    uint lost = up == 0 ? 0u : up == 32 ? low : low & ((1u << uint(up & 31)) - 1u);
    uint digits = up == 0 ? low : up == 32 ? high : (high << uint(32 - up)) | (low >> uint(up));
    float found = float(digits | (lost == 0u ? 0u : 1u)) * uintBitsToFloat(uint(127 + up) << 23);
    return a.y < 0 ? -found : found;
}
/* a * b / 2^n, rounded to nearest, halves up; n is not 0. */
int requantize_long(ivec2 a, int b, int n) {
    ivec2 half_step = n > 32 ? ivec2(0, 1 << uint(n - 33)) : ivec2(1 << uint(n - 1), 0);
    ivec2 sum = add(mul(a, ivec2(b, b >> 31)), half_step);
    uint low = (uint(sum.y) << uint(32 - n)) | (uint(sum.x) >> uint(n));
    return n > 31 ? sum.y >> uint(n - 32) : int(low);
}
/* Integers of 128 bits, the lowest word first. */
bool is_below(ivec2 a, ivec2 b) {
    return a.y == b.y ? uint(a.x) < uint(b.x) : uint(a.y) < uint(b.y);
}
ivec4 add_wide(ivec4 a, ivec4 b) {
    ivec2 low = add(a.xy, b.xy), high = add(a.zw, b.zw);
    return ivec4(low, add(high, ivec2(is_below(low, a.xy) ? 1 : 0, 0)));
}
ivec4 power_of_two(int n) {
    int word = 1 << uint(n & 31), place = n >> 5;
    return ivec4(place == 0 ? word : 0, place == 1 ? word : 0,
                 place == 2 ? word : 0, place == 3 ? word : 0);
}
ivec4 shift_down(ivec4 a, int n) {
    a = (n & 64) != 0 ? ivec4(a.zw, 0, 0) : a;
    a = (n & 32) != 0 ? ivec4(a.yzw, 0) : a;
    uint by = uint(n & 31);
    uvec4 words = uvec4(a), above = uvec4(words.yzw, 0u);
    return ivec4(by == 0u ? words : (words >> by) | (above << (32u - by)));
}
/* a times the float64 with these bits, rounded to nearest, halves away from zero; -2^31 if the
   result exceeds 32 bits. The product has 128 bits, and is rounded to the 53 of a float64 first. */
int round_product(ivec2 a, ivec2 bits) {
    ivec2 size = magnitude(a);
    int digits = (bits.y & 0xfffff) | 0x100000, point = 1075 - (bits.y >> 20);
    ivec2 low = mul(ivec2(size.x, 0), ivec2(bits.x, 0));
    ivec2 one = add(mul(ivec2(size.x, 0), ivec2(digits, 0)), ivec2(low.y, 0));
    ivec2 other = add(mul(ivec2(size.y, 0), ivec2(bits.x, 0)), ivec2(one.x, 0));
    ivec2 high = mul(ivec2(size.y, 0), ivec2(digits, 0));
    high = add(add(high, ivec2(one.y, 0)), ivec2(other.y, 0));
    ivec4 product = ivec4(low.x, other.x, high);
    /* The significand has 53 bits, so the product has 52 or 53 bits more than `a`. */
    int lost = size.y != 0 ? findMSB(uint(size.y)) + 32 : findMSB(uint(size.x));
    lost += shift_down(product, max(lost, 0) + 53).x != 0 ? 1 : 0;
    if (lost > 0) {
        bool even = (shift_down(product, lost).x & 1) == 0;
        product = add_wide(product, power_of_two(lost - 1));
        product = even ? add_wide(product, ivec4(-1)) : product;
    }
    ivec4 found = shift_down(add_wide(product, power_of_two(point - 1)), point);
    bool beyond = found.x < 0 || (found.y | found.z | found.w) != 0;
    return beyond ? -2147483647 - 1 : a.y < 0 ? -found.x : found.x;
}
int to_int(ivec2 a) { return a.y == (a.x >> 31) ? a.x : a.y < 0 ? -2147483647 - 1 : 2147483647; }
"""

_LONG_LANES = (
    _of("Long4", "WHERE4_I64", "bvec4 c, Long4 a, Long4 b", "pick(c.{0}, a.{0}, b.{0})")
    + """\
Long4 LANES4_I64(Long4 a, int left, ivec2 fill) {
    return Long4(pick(left > 0, a.x, fill), pick(left > 1, a.y, fill),
                 pick(left > 2, a.z, fill), pick(left > 3, a.w, fill));
}
"""
    + _of("bvec4", "LESS4_I64", "Long4 a, Long4 b", "less(a.{0}, b.{0})")
    + _of("bvec4", "LESS_EQUAL4_I64", "Long4 a, Long4 b", "!less(b.{0}, a.{0})")
    + _of("bvec4", "EQUAL4_I64", "Long4 a, Long4 b", "same(a.{0}, b.{0})")
    + _of("Long4", "ADD4_I64", "Long4 a, Long4 b", "add(a.{0}, b.{0})")
    + _of("Long4", "SUB4_I64", "Long4 a, Long4 b", "sub(a.{0}, b.{0})")
    + _of("Long4", "MUL4_I64", "Long4 a, Long4 b", "mul(a.{0}, b.{0})")
    + _of("Long4", "AND4_I64", "Long4 a, Long4 b", "a.{0} & b.{0}")
    + _of("Long4", "MIN4_I64", "Long4 a, Long4 b", "pick(less(b.{0}, a.{0}), b.{0}, a.{0})")
    + _of("Long4", "MAX4_I64", "Long4 a, Long4 b", "pick(less(a.{0}, b.{0}), b.{0}, a.{0})")
    + _of("Long4", "FLOOR_DIV4_I64", "Long4 a, Long4 b", "floor_quotient_of_long(a.{0}, b.{0})")
    + _of("Long4", "FLOOR_MOD4_I64", "Long4 a, Long4 b", "floor_rest_of_long(a.{0}, b.{0})")
    + _of("Long4", "CAST4_F32_I64", "vec4 a", "whole_long(a.{0})")
    + _of("float4", "CAST4_I64_F32", "Long4 a", "nearest_float(a.{0})")
    + _of("Long4", "CAST4_I32_I64", "ivec4 a", "ivec2(a.{0}, a.{0} >> 31)")
    + _of("int4", "CAST4_I64_I32", "Long4 a", "a.{0}.x")
    + _of(
        "int4",
        "REQUANTIZE4_I64",
        "Long4 a, ivec4 b, ivec4 n",
        "requantize_long(a.{0}, b.{0}, n.{0})",
    )
    + _of("int4", "ROUND_PRODUCT4_I64", "Long4 a, Long4 bits", "round_product(a.{0}, bits.{0})")
)

_HALF = """\
/* Rounds to the nearest half, ties to even; magnitudes from 65520 on become infinite. */
vec4 ROUND4_F16(vec4 v) {
    uvec4 size = floatBitsToUint(v) & uvec4(0x7fffffffu);
    uvec4 odd = (size >> uvec4(13u)) & uvec4(1u);
    uvec4 rounded = (size + uvec4(0xfffu) + odd) & uvec4(0xffffe000u);
    uvec4 tiny = floatBitsToUint(roundEven(abs(v) * 16777216.0f) * 5.96046448e-8f);
    uvec4 result = uvec4(half_of(size.x, rounded.x, tiny.x), half_of(size.y, rounded.y, tiny.y),
                         half_of(size.z, rounded.z, tiny.z), half_of(size.w, rounded.w, tiny.w));
    return uintBitsToFloat(result | (floatBitsToUint(v) & uvec4(0x80000000u)));
}
"""

_BYTES = (
    """\
/* Transposes 4 rows of 4 bytes. */
ivec4 TRANSPOSE4_S8(ivec4 a) {
    uvec4 rows = uvec4(a), low = rows & uvec4(0x00ff00ffu);
    uvec4 high = (rows >> uvec4(8u)) & uvec4(0x00ff00ffu);
    uvec2 even = low.xz | (low.yw << uvec2(8u)), odd = high.xz | (high.yw << uvec2(8u));
    return ivec4(uvec4((even.x & 0xffffu) | (even.y << 16), (odd.x & 0xffffu) | (odd.y << 16),
                       (even.x >> 16) | (even.y & 0xffff0000u),
                       (odd.x >> 16) | (odd.y & 0xffff0000u)));
}
/* Dot product of four signed bytes, plus c. */
int DOT4_S8(int a, int b, int c) {
    ivec4 p = from_S8(uint(a)) * from_S8(uint(b));
    return c + p.x + p.y + p.z + p.w;
}
/* 1 / a, rounded to nearest, if positive and not tiny: the built-in division may be inexact. */
float RECIPROCAL(float a) {
    uint bits = floatBitsToUint(a), by = (bits & 0x7fffffu) | 0x800000u;
    uint rest = 0x800000u, found = 0u;
    for (int k = 0; k < 24; k += 1) {
        uint twice = rest * 2u;
        found = found * 2u + (twice >= by ? 1u : 0u);
        rest = twice >= by ? twice - by : twice;
    }
    found += rest * 2u > by ? 1u : 0u;
    return uintBitsToFloat(((253u - (bits >> 23)) << 23) + found - 0x800000u);
}
/* Adds up products of 16-bit parts: the language has no products of more than 32 bits. */
int multiply_high(int a, int b) {
    uint al = uint(a) & 0xffffu, bl = uint(b) & 0xffffu;
    int ah = a >> 16, bh = b >> 16;
    uint low = al * bl;
    int middle = ah * int(bl) + int(low >> 16);
    uint other = (uint(middle) & 0xffffu) + al * uint(bh);
    int high = ah * bh + (middle >> 16) + int(other >> 16);
    uint rest = (other << 16) | (low & 0xffffu), up = rest + 0x40000000u;
    return int((uint(high + (up < rest ? 1 : 0)) << 1) | (up >> 31));
}
int round_shift(int a, int n, int away) {
    int mask = int((1u << uint(n)) - 1u);
    return (a >> uint(n)) + ((a & mask) > (mask >> 1) + (away & (a >> 31)) ? 1 : 0);
}
/* a * b / 2^31, rounded to nearest, halves up; b is not negative. */
"""
    + _of("int4", "MULTIPLY_HIGH4_I32", "ivec4 a, ivec4 b", "multiply_high(a.{0}, b.{0})")
    + "/* a / 2^n, rounded to nearest: halves up, or away from zero if `away` is 1. */\n"
    + _of(
        "int4",
        "ROUND_SHIFT4_I32",
        "ivec4 a, ivec4 n, ivec4 away",
        "round_shift(a.{0}, n.{0}, away.{0})",
    )
    + """\
/* a * 2^left * b / 2^31, then / 2^right, both rounded: halves up, or as in ROUND_SHIFT4. */
#define REQUANTIZE_UP4_I32(a, b, left, right) \\
    REQUANTIZE4_I32(a, b, left, right, SPLAT4_I32(0))
#define REQUANTIZE4_I32(a, b, left, right, away) \\
    ROUND_SHIFT4_I32(MULTIPLY_HIGH4_I32(SHIFT_LEFT4_I32(a, left), b), right, away)
"""
)

INTEGERS = (
    _INT
    + _packed("S8", 8, True)
    + _packed("U8", 8, False)
    + _packed("S16", 16, True)
    + _packed("U16", 16, False)
    + _INT_LANES
    + _BYTES
    + _LONG
    + _LONG_LANES
    + """\
uint half_of(uint size, uint rounded, uint tiny) {
    uint normal = rounded > 0x477fe000u ? 0x7f800000u : rounded;
    return size > 0x7f800000u ? size : size < 0x38800000u ? tiny : normal;
}
"""
    + _HALF
)
