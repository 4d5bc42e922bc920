"""Translates kernels to GLSL compute shaders for OpenGL 4.3.

Each kernel is a separate shader, and each buffer of a kernel is a separate block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from litegpu.codegen.dialect import Argument, Dialect, KernelText
from litegpu.codegen.glsl_integers import INTEGERS

_BARRIER = "#define BARRIER() memoryBarrierShared(); barrier()\n"

WORDS = """\
#define INFINITY uintBitsToFloat(0x7f800000u)
#define NAN uintBitsToFloat(0x7fc00000u)
#define float4 vec4
#define GLOBAL_X int(gl_GlobalInvocationID.x)
#define GLOBAL_Y int(gl_GlobalInvocationID.y)
#define GLOBAL_Z int(gl_GlobalInvocationID.z)
#define GROUP int(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x)
#define GROUP_X int(gl_WorkGroupID.x)
#define GROUP_Y int(gl_WorkGroupID.y)
#define LOCAL_X int(gl_LocalInvocationID.x)
#define TO_FLOAT(a) float(a)
#define TO_INT(a) int(a)
#define MAKE4(a, b, c, d) vec4((a), (b), (c), (d))
#define SPLAT4(a) vec4(a)
#define LOAD4_F32(buffer, i) buffer[i]
#define LOAD1_F32(buffer, i) buffer[i]
#define LANE4_F32(buffer, i) buffer[(i) >> 2][(i) & 3]
#define LOAD4_BOOL8(buffer, i) from_bytes(buffer[i])
#define LANE4_BOOL8(buffer, i) LOAD1_BOOL8(buffer, i)
#define LOAD1_BOOL8(buffer, i) (((buffer[(i) >> 2] >> (((i) & 3) * 8)) & 255u) == 0u ? 0.0f : 1.0f)
#define STORE4_F32(buffer, i, value) buffer[i] = (value)
#define STORE1_F32(buffer, i, value) buffer[i] = (value)
#define STORE4_BOOL8(buffer, i, value) buffer[i] = to_bytes(value)
/* The first `left` lanes of a value; the others are `fill`. */
#define LANES4(value, left, fill) \\
    mix(vec4(fill), (value), greaterThan(ivec4(left), ivec4(0, 1, 2, 3)))
#define MASK4(value, left) LANES4((value), (left), 0.0f)
#define LESS4(a, b) lessThan((a), (b))
#define CLAMP_MIN4(low, value) WHERE4(LESS4((value), (low)), (low), (value))
#define MAX_NAN4(low, value) CLAMP_MIN4(low, value)
#define LESS_EQUAL4(a, b) lessThanEqual((a), (b))
#define EQUAL4(a, b) equal((a), (b))
#define WHERE4(condition, yes, no) mix((no), (yes), (condition))
#define FMA4(a, b, c) fma((a), (b), (c))
#define MAX4(a, b) max((a), (b))
#define MIN4(a, b) min((a), (b))
#define EXP4(a) exp(a)
#define RECIPROCAL4(a) (SPLAT4(1.0f) / (a))
#define EXPM14(a) expm1_4(a)
#define LOG4(a) log(a)
#define SIN4(a) sine4((a), 0)
#define COS4(a) sine4((a), 1)
#define TANH4(a) tanh4(a)
#define SQRT4(a) sqrt(a)
#define FLOOR4(a) floor(a)
#define CEIL4(a) ceil(a)
#define TRUNC4(a) trunc(a)
#define RINT4(a) roundEven(a)
#define ERFC4(a) erfc4(a)
#define POW4(a, b) pow4((a), (b))
#define ATAN24(a, b) atan2_4((a), (b))
#define FMOD4(a, b) fmod4((a), (b))
#define ABS4(a) abs(a)
/* Prevents contraction: the result is rounded before its next use, because compilers do not know
   that `zero`, which is read from a buffer, is 0. */
#define APART4(a, zero) uintBitsToFloat(floatBitsToUint(a) ^ uint(zero))
/* Prevents compilers from joining operations on constants before and after it: it changes one NaN
   to another, and nothing else. */
#define ROUNDED4(a) rounded4(a)
#define LANE_SUM(a) ((a).x + (a).y + (a).z + (a).w)
#define LANE_MAX(a) max(max((a).x, (a).y), max((a).z, (a).w))
#define LARGER(a, b) max((a), (b))
#define FINITE_SIZE4(value) finite_size4(value)
vec4 rounded4(vec4 v) {
    uvec4 bits = floatBitsToUint(v);
    return uintBitsToFloat(bits ^ uvec4(equal(bits, uvec4(0x7fc12344u))));
}
vec4 from_bytes(uint word) {
    uvec4 b = (uvec4(word) >> uvec4(0u, 8u, 16u, 24u)) & uvec4(255u);
    return mix(vec4(0.0f), vec4(1.0f), notEqual(b, uvec4(0u)));
}
uint to_bytes(vec4 v) {
    uvec4 b = uvec4(notEqual(v, vec4(0.0f)));
    return b.x | (b.y << 8) | (b.z << 16) | (b.w << 24);
}
/* Finite values beyond the half range saturate and never become infinity. Compilers may assume
   that floats are finite, so the bits are tested. */
vec4 to_half_range4(vec4 v) {
    uvec4 exponents = floatBitsToUint(v) & uvec4(0x7f800000u);
    vec4 inside = clamp(v, vec4(-65504.0f), vec4(65504.0f));
    return mix(v, inside, notEqual(exponents, uvec4(0x7f800000u)));
}
float finite_size4(vec4 v) {
    uvec4 exponents = floatBitsToUint(v) & uvec4(0x7f800000u);
    vec4 sizes = mix(abs(v), vec4(0.0f), equal(exponents, uvec4(0x7f800000u)));
    return LANE_MAX(sizes);
}
/* The built-in functions may have an error of 2^-11, or return 0 instead of small results. */
vec4 sine4(vec4 v, int quarter) {
    vec4 turns = roundEven(v * 0.636619772f);
    vec4 r = fma(turns, vec4(-1.5703125f), v);
    r = fma(turns, vec4(-4.83751297e-4f), r);
    r = fma(turns, vec4(-7.54978942e-8f), r);
    vec4 q = r * r;
    vec4 s = fma(q, vec4(-1.95152959e-4f), vec4(8.33216087e-3f));
    s = fma(fma(q, s, vec4(-1.66666546e-1f)) * q, r, r);
    vec4 c = fma(q, vec4(2.44331571e-5f), vec4(-1.38873163e-3f));
    c = fma(fma(q, c, vec4(4.16666457e-2f)) * q, q, fma(q, vec4(-0.5f), vec4(1.0f)));
    ivec4 number = ivec4(turns) + ivec4(quarter);
    vec4 result = mix(s, c, equal(number & ivec4(1), ivec4(1)));
    result = mix(result, -result, equal(number & ivec4(2), ivec4(2)));
    /* Range reduction is inexact for huge arguments; their results are only clamped to [-1, 1]. */
    return mix(result, clamp(result, -1.0f, 1.0f), lessThan(abs(v), vec4(INFINITY)));
}
vec4 expm1_4(vec4 v) {
    vec4 s = fma(v, vec4(2.48015873e-5f), vec4(1.98412698e-4f));
    s = fma(v, s, vec4(1.38888889e-3f));
    s = fma(v, s, vec4(8.33333333e-3f));
    s = fma(v, s, vec4(4.16666667e-2f));
    s = fma(v, s, vec4(1.66666667e-1f));
    s = fma(v, s, vec4(0.5f));
    return mix(exp(v) - vec4(1.0f), fma(v * v, s, v), lessThan(abs(v), vec4(0.5f)));
}
vec4 tanh4(vec4 v) {
    vec4 q = v * v;
    vec4 s = fma(q, vec4(-5.70498872e-3f), vec4(2.06390887e-2f));
    s = fma(q, s, vec4(-5.37397156e-2f));
    s = fma(q, s, vec4(1.33314422e-1f));
    s = fma(q, s, vec4(-3.33332819e-1f));
    vec4 big = vec4(1.0f) - vec4(2.0f) / (exp(abs(v) * 2.0f) + vec4(1.0f));
    big = mix(big, -big, lessThan(v, vec4(0.0f)));
    return mix(big, fma(s * q, v, v), lessThan(abs(v), vec4(0.625f)));
}
/* The angle of the point (b, a): a polynomial for tangents up to tan(pi / 8), and symmetries. */
vec4 atan2_4(vec4 a, vec4 b) {
    vec4 least = min(abs(a), abs(b));
    vec4 most = max(abs(a), abs(b));
    vec4 t = mix(least / most, vec4(1.0f), equal(least, most));
    t = mix(t, vec4(0.0f), equal(most, vec4(0.0f)));
    bvec4 steep = greaterThan(t, vec4(0.414213562f));
    vec4 r = mix(t, (t - vec4(1.0f)) / (t + vec4(1.0f)), steep);
    vec4 q = r * r;
    vec4 s = fma(q, vec4(-0.0609764365f), vec4(0.106022186f));
    s = fma(q, s, vec4(-0.142448019f));
    s = fma(q, s, vec4(0.199985484f));
    s = fma(q, s, vec4(-0.333333167f));
    vec4 angle = fma(s * q, r, r) + mix(vec4(0.0f), vec4(0.785398163f), steep);
    angle = mix(angle, vec4(1.57079633f) - angle, greaterThan(abs(a), abs(b)));
    angle = mix(angle, vec4(3.14159265f) - angle, lessThan(floatBitsToInt(b), ivec4(0)));
    angle = mix(angle, -angle, lessThan(floatBitsToInt(a), ivec4(0)));
    return mix(vec4(NAN), mix(vec4(NAN), angle, equal(a, a)), equal(b, b));
}
vec4 fmod4(vec4 a, vec4 b) {
    return mix(a - b * trunc(a / b), a, lessThan(abs(a), abs(b)));
}
/* The built-in function supports no negative base, no infinite exponent, no base 0 and no NaN. */
vec4 pow4(vec4 a, vec4 b) {
    vec4 size = pow(abs(a), b);
    vec4 ends = mix(vec4(0.0f), vec4(INFINITY), lessThan((vec4(1.0f) - abs(a)) * b, vec4(0.0f)));
    size = mix(size, ends, equal(abs(b), vec4(INFINITY)));
    size = mix(size, ends, equal(a, vec4(0.0f)));
    vec4 odd = mix(vec4(1.0f), vec4(-1.0f), equal(abs(b - 2.0f * trunc(b * 0.5f)), vec4(1.0f)));
    vec4 below = mix(vec4(NAN), size * odd, equal(b, trunc(b)));
    below = mix(below, size * odd, equal(a, vec4(0.0f)));
    below = mix(below, size * odd, equal(a, vec4(-INFINITY)));
    vec4 result = mix(size, below, lessThan(floatBitsToInt(a), ivec4(0)));
    result = mix(vec4(NAN), result, equal(a, a));
    result = mix(vec4(NAN), result, equal(b, b));
    bvec4 one = equal(mix(a, abs(a), equal(abs(b), vec4(INFINITY))), vec4(1.0f));
    return mix(mix(result, vec4(1.0f), equal(b, vec4(0.0f))), vec4(1.0f), one);
}
/* A polynomial in 1 / (1 + |v| / 2), with a relative error of 1.2e-7. */
vec4 erfc4(vec4 v) {
    vec4 z = abs(v);
    vec4 t = vec4(1.0f) / fma(z, vec4(0.5f), vec4(1.0f));
    vec4 s = fma(t, vec4(0.17087277f), vec4(-0.82215223f));
    s = fma(t, s, vec4(1.48851587f));
    s = fma(t, s, vec4(-1.13520398f));
    s = fma(t, s, vec4(0.27886807f));
    s = fma(t, s, vec4(-0.18628806f));
    s = fma(t, s, vec4(0.09678418f));
    s = fma(t, s, vec4(0.37409196f));
    s = fma(t, s, vec4(1.00002368f));
    s = fma(t, s, vec4(-1.26551223f) - z * z);
    vec4 tail = t * exp(s);
    return mix(tail, vec4(2.0f) - tail, lessThan(v, vec4(0.0f)));
}
"""

PACKED_HALF = """\
#define LOAD4_F16(buffer, i) vec4(unpackHalf2x16(buffer[i].x), unpackHalf2x16(buffer[i].y))
#define LOAD1_F16(buffer, i) unpackHalf2x16(buffer[(i) >> 1])[(i) & 1]
#define LANE4_F16(buffer, i) unpackHalf2x16(buffer[(i) >> 2][((i) >> 1) & 1])[(i) & 1]
#define STORE4_F16(buffer, i, value) buffer[i] = pack_half4(to_half_range4(value))
#define STORE4_F16_BOUNDED(buffer, i, value) buffer[i] = pack_half4(value)
uvec2 pack_half4(vec4 v) { return uvec2(packHalf2x16(v.xy), packHalf2x16(v.zw)); }
"""

_ATOMIC_HALF = """\
/* Two halves share a word, and another work item may store the other half at the same time. */
#define STORE1_F16(buffer, i, value) \\
    (atomicAnd(buffer[(i) >> 1], ((i) & 1) == 0 ? 0xffff0000u : 0xffffu), \\
     atomicOr(buffer[(i) >> 1], half_bits(value) << (((i) & 1) * 16)))
uint half_bits(float v) { return packHalf2x16(vec2(to_half_range4(vec4(v)).x, 0.0f)); }
"""

_ELEMENTS = {
    ("F32", False): "float",
    ("F32", True): "vec4",
    ("F16", False): "uint",
    ("F16", True): "uvec2",
    ("U32", False): "uint",
    **{(kind, vector): "uint" for kind in ("BOOL8", "S8", "U8") for vector in (False, True)},
    **{(kind, False): "uint" for kind in ("S16", "U16")},
    **{(kind, True): "uvec2" for kind in ("S16", "U16")},
    ("I32", False): "int",
    ("I32", True): "ivec4",
    ("I64", False): "ivec2",
    ("I64", True): "ivec2",
}


class GLSLDialect(Dialect):
    """Translates kernels to GLSL 4.30."""

    name = "glsl"
    prelude = f"#version 430 core\n{_BARRIER}{WORDS}{PACKED_HALF}{_ATOMIC_HALF}"
    integers = INTEGERS

    def kernel(self, text: KernelText) -> str:
        """Return the entry point as a compute shader."""
        lines = [f"// {text.name}", *_folded_words(text)]
        sizes = zip("xyz", text.local_size, strict=True)
        lines.append(f"layout({', '.join(f'local_size_{a} = {size}' for a, size in sizes)}) in;")
        lines += [_declare(binding, argument) for binding, argument in enumerate(text.arguments)]
        lines += [f"shared {kind} {name}[{length}];" for kind, name, length in text.shared]
        lines.append("void main() {")
        if text.attributes.folded is not None:
            lines.append(f"    if (GROUP >= {math.prod(text.attributes.folded)}) return;")
        return "\n".join(lines) + f"\n{text.body}}}\n"


def _declare(binding: int, argument: Argument) -> str:
    element = _ELEMENTS[argument.kind, argument.vector]
    access = "" if argument.written else "readonly "
    block = f"buffer block_{argument.name} {{ {element} {argument.name}[]; }};"
    return f"layout(std430, binding = {binding}) {access}{block}"


def _folded_words(text: KernelText) -> Iterator[str]:
    for axis, index, size in text.grid_indices():
        item = f"int(gl_LocalInvocationID.{axis.lower()})"
        yield f"#undef GROUP_{axis}\n#define GROUP_{axis} {index}"
        yield f"#undef GLOBAL_{axis}\n#define GLOBAL_{axis} ({index} * {size} + {item})"
