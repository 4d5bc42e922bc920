// Loads, conversions and arithmetic, mostly of 4 channels at a time.
// Predicated load that the compiler may not move towards its use; returns zeros unless `wanted`.
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
__device__ __forceinline__ uint2 load_if(bool wanted, const uint2 *p, uint2 otherwise) {
    uint2 v;
    asm volatile("{ .reg .pred q; setp.ne.b32 q, %2, 0; mov.b32 %0, %4; mov.b32 %1, %5; "
                 "@q ld.global.v2.u32 {%0, %1}, [%3]; }"
                 : "=&r"(v.x), "=&r"(v.y)
                 : "r"((int)wanted), "l"(p), "r"(otherwise.x), "r"(otherwise.y));
    return v;
}
// Predicated load of four bytes; returns `otherwise` unless `wanted`.
__device__ __forceinline__ unsigned int load_if(bool wanted, const unsigned int *p,
                                                unsigned int otherwise) {
    unsigned int v;
    asm volatile("{ .reg .pred q; setp.ne.b32 q, %1, 0; mov.b32 %0, %3; "
                 "@q ld.global.u32 %0, [%2]; }"
                 : "=&r"(v) : "r"((int)wanted), "l"(p), "r"(otherwise));
    return v;
}
// Predicated store to shared memory, without a branch: see `either`.
__device__ __forceinline__ void store_if(bool wanted, uint4 *p, uint4 v) {
    asm volatile("{ .reg .pred q; setp.ne.b32 q, %0, 0; @q st.shared.v4.u32 [%1], {%2, %3, %4, %5}; }"
                 :: "r"((int)wanted), "r"((unsigned int)__cvta_generic_to_shared(p)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void store_if(bool wanted, uint2 *p, uint2 v) {
    asm volatile("{ .reg .pred q; setp.ne.b32 q, %0, 0; @q st.shared.v2.u32 [%1], {%2, %3}; }"
                 :: "r"((int)wanted), "r"((unsigned int)__cvta_generic_to_shared(p)), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void store_if(bool wanted, unsigned int *p, unsigned int v) {
    asm volatile("{ .reg .pred q; setp.ne.b32 q, %0, 0; @q st.shared.u32 [%1], %2; }"
                 :: "r"((int)wanted), "r"((unsigned int)__cvta_generic_to_shared(p)), "r"(v) : "memory");
}
// Selects one of two values without a branch. Compilers move loads that only one side of a branch needs into that side,
// where they no longer overlap with other loads.
__device__ __forceinline__ float4 either(bool first, float4 a, float4 b) {
    return make_float4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}
__device__ __forceinline__ uint4 either(bool first, uint4 a, uint4 b) {
    return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}
__device__ __forceinline__ unsigned int either(bool first, unsigned int a, unsigned int b) {
    return first ? a : b;
}
// Packs four integers into the bytes of a word, with saturation.
__device__ __forceinline__ unsigned int pack_s8(int4 v) {
#if __CUDA_ARCH__ >= 720
    unsigned int word;
    asm("{ .reg .b32 high; cvt.pack.sat.s8.s32.b32 high, %4, %3, 0; "
        "cvt.pack.sat.s8.s32.b32 %0, %2, %1, high; }"
        : "=r"(word) : "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
    return word;
#else
    const int x = min(max(v.x, -128), 127), y = min(max(v.y, -128), 127);
    const int z = min(max(v.z, -128), 127), w = min(max(v.w, -128), 127);
    return (x & 255) | ((y & 255) << 8) | ((z & 255) << 16) | ((unsigned int)w << 24);
#endif
}
__device__ __forceinline__ unsigned int pack_u8(int4 v) {
#if __CUDA_ARCH__ >= 720
    unsigned int word;
    asm("{ .reg .b32 high; cvt.pack.sat.u8.s32.b32 high, %4, %3, 0; "
        "cvt.pack.sat.u8.s32.b32 %0, %2, %1, high; }"
        : "=r"(word) : "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
    return word;
#else
    const int x = min(max(v.x, 0), 255), y = min(max(v.y, 0), 255);
    const int z = min(max(v.z, 0), 255), w = min(max(v.w, 0), 255);
    return (x & 255) | ((y & 255) << 8) | ((z & 255) << 16) | ((unsigned int)w << 24);
#endif
}
// Unconditional load through the read-only cache that the compiler may not move, for data that never changes.
__device__ __forceinline__ uint4 load_ahead(const uint4 *p) {
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
__device__ __forceinline__ int4 load_ahead(const int4 *p) {
    const uint4 v = load_ahead((const uint4 *)p);
    return {(int)v.x, (int)v.y, (int)v.z, (int)v.w};
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
__device__ __forceinline__ void store_if(bool wanted, float4 *p, float4 v) {
    store_if(wanted, (uint4 *)p, as_words(v));
}
__device__ __forceinline__ void store_if(bool wanted, int4 *p, int4 v) {
    store_if(wanted, (uint4 *)p, make_uint4(v.x, v.y, v.z, v.w));
}
// Forces one instruction; the compiler would replace a product with a constant by several.
__device__ __forceinline__ long long multiply_add(int a, int b, long long c) {
    long long sum;
    asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(sum) : "r"(a), "r"(b), "l"(c));
    return sum;
}
// Converts unsigned bytes to floats and subtracts `offset`, which includes 2^23: a byte in the last bits of the float
// 2^23 gives 2^23 + byte.
__device__ __forceinline__ float4 bytes_to_floats(unsigned int word, float offset) {
    return make_float4(__uint_as_float(__byte_perm(word, 0x4b000000u, 0x7650)) - offset,
                       __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7651)) - offset,
                       __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7652)) - offset,
                       __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7653)) - offset);
}
// Converts integral floats of magnitude below 2^22 to integers: adding 1.5 * 2^23 puts the integer into the last bits
// of the mantissa.
__device__ __forceinline__ int to_whole(float v) {
    return (int)(__float_as_uint(v + 12582912.0f) - 0x4b400000u);
}
__device__ __forceinline__ int4 to_whole(float4 v) {
    return {to_whole(v.x), to_whole(v.y), to_whole(v.z), to_whole(v.w)};
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
__device__ __forceinline__ float4 from_bytes(uchar4 v) {
    return make_float4(v.x != 0, v.y != 0, v.z != 0, v.w != 0);
}
__device__ __forceinline__ uchar4 to_bytes(float4 v) {
    return make_uchar4(v.x != 0.0f, v.y != 0.0f, v.z != 0.0f, v.w != 0.0f);
}
__device__ __forceinline__ float from_half(unsigned short h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
// Returns the maximum, or NaN if either value is NaN; -0 and 0 count as equal.
__device__ __forceinline__ float raised(float low, float v) {
#if __CUDA_ARCH__ >= 800
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(low), "f"(v));
    return larger;
#else
    return v < low ? low : v;
#endif
}
// Converts to half; finite values beyond the half range saturate and never become infinity.
__device__ __forceinline__ unsigned short to_half(float v) {
    if (fabsf(v) < INFINITY) v = fminf(fmaxf(v, -65504.0f), 65504.0f);
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
}
#if __CUDA_ARCH__ >= 800
// Converts two floats with one instruction, which saturates infinity too.
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
#if __CUDA_ARCH__ >= 800
// Maxima of two pairs of halves; NaN is ignored.
__device__ __forceinline__ unsigned int larger_halves(unsigned int a, unsigned int b) {
    unsigned int h;
    asm("max.f16x2 %0, %1, %2;" : "=r"(h) : "r"(a), "r"(b));
    return h;
}
__device__ __forceinline__ uint2 larger_halves(uint2 a, uint2 b) {
    return make_uint2(larger_halves(a.x, b.x), larger_halves(a.y, b.y));
}
#endif
// Converts values that contain no infinity.
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
__device__ __forceinline__ float4 operator+(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
// Sum or maximum over `lanes` neighbouring lanes (a power of two); all of them receive the result.
__device__ __forceinline__ float sum_of_lanes(float value, int lanes) {
    for (int apart = lanes / 2; apart > 0; apart /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, apart);
    return value;
}
__device__ __forceinline__ float most_of_lanes(float value, int lanes) {
    for (int apart = lanes / 2; apart > 0; apart /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, apart));
    return value;
}
__device__ __forceinline__ float4 sum_of_lanes(float4 value, int lanes) {
    return make_float4(sum_of_lanes(value.x, lanes), sum_of_lanes(value.y, lanes),
                       sum_of_lanes(value.z, lanes), sum_of_lanes(value.w, lanes));
}
__device__ __forceinline__ float4 operator-(float4 a, float4 b) {
    return make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w);
}
__device__ __forceinline__ float4 operator*(float4 a, float4 b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
__device__ __forceinline__ float4 operator/(float4 a, float4 b) {
    return make_float4(a.x / b.x, a.y / b.y, a.z / b.z, a.w / b.w);
}
__device__ __forceinline__ float4 ABS4(float4 a) {
    return make_float4(fabsf(a.x), fabsf(a.y), fabsf(a.z), fabsf(a.w));
}
__device__ __forceinline__ float4 CEIL4(float4 a) {
    return make_float4(ceilf(a.x), ceilf(a.y), ceilf(a.z), ceilf(a.w));
}
__device__ __forceinline__ float4 COS4(float4 a) {
    return make_float4(cosf(a.x), cosf(a.y), cosf(a.z), cosf(a.w));
}
__device__ __forceinline__ float4 ERFC4(float4 a) {
    return make_float4(erfcf(a.x), erfcf(a.y), erfcf(a.z), erfcf(a.w));
}
__device__ __forceinline__ float4 EXP4(float4 a) {
    return make_float4(expf(a.x), expf(a.y), expf(a.z), expf(a.w));
}
// Approximates 1 / a with an error of at most 1 ulp; an exact division would branch for rare operands.
// Returns 0 where the result would be subnormal.
__device__ __forceinline__ float reciprocal(float a) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(a));
    return result;
}
// Approximates 2^a with an error of at most 2 ulp; returns 0 where the result would be subnormal.
__device__ __forceinline__ float power_of_2(float a) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(a));
    return result;
}
__device__ __forceinline__ float4 RECIPROCAL4(float4 a) {
    return make_float4(reciprocal(a.x), reciprocal(a.y), reciprocal(a.z), reciprocal(a.w));
}
__device__ __forceinline__ float4 EXPM14(float4 a) {
    return make_float4(expm1f(a.x), expm1f(a.y), expm1f(a.z), expm1f(a.w));
}
// The compiler never contracts products and sums to FMA: --fmad=false.
#define APART4(a, zero) (a)
#define ROUNDED4(a) (a)
__device__ __forceinline__ float4 FLOOR4(float4 a) {
    return make_float4(floorf(a.x), floorf(a.y), floorf(a.z), floorf(a.w));
}
__device__ __forceinline__ float4 LOG4(float4 a) {
    return make_float4(logf(a.x), logf(a.y), logf(a.z), logf(a.w));
}
__device__ __forceinline__ float4 RINT4(float4 a) {
    return make_float4(rintf(a.x), rintf(a.y), rintf(a.z), rintf(a.w));
}
__device__ __forceinline__ float4 SIN4(float4 a) {
    return make_float4(sinf(a.x), sinf(a.y), sinf(a.z), sinf(a.w));
}
__device__ __forceinline__ float4 SQRT4(float4 a) {
    return make_float4(sqrtf(a.x), sqrtf(a.y), sqrtf(a.z), sqrtf(a.w));
}
__device__ __forceinline__ float4 TANH4(float4 a) {
    return make_float4(tanhf(a.x), tanhf(a.y), tanhf(a.z), tanhf(a.w));
}
__device__ __forceinline__ float4 TRUNC4(float4 a) {
    return make_float4(truncf(a.x), truncf(a.y), truncf(a.z), truncf(a.w));
}
__device__ __forceinline__ float4 FMOD4(float4 a, float4 b) {
    return make_float4(fmodf(a.x, b.x), fmodf(a.y, b.y), fmodf(a.z, b.z), fmodf(a.w, b.w));
}
__device__ __forceinline__ float4 MAX4(float4 a, float4 b) {
    return make_float4(fmaxf(a.x, b.x), fmaxf(a.y, b.y), fmaxf(a.z, b.z), fmaxf(a.w, b.w));
}
__device__ __forceinline__ float4 MIN4(float4 a, float4 b) {
    return make_float4(fminf(a.x, b.x), fminf(a.y, b.y), fminf(a.z, b.z), fminf(a.w, b.w));
}
__device__ __forceinline__ float4 ATAN24(float4 a, float4 b) {
    return make_float4(atan2f(a.x, b.x), atan2f(a.y, b.y), atan2f(a.z, b.z), atan2f(a.w, b.w));
}
__device__ __forceinline__ float4 POW4(float4 a, float4 b) {
    return make_float4(powf(a.x, b.x), powf(a.y, b.y), powf(a.z, b.z), powf(a.w, b.w));
}
__device__ __forceinline__ float4 MAX_NAN4(float4 a, float4 b) {
    return make_float4(raised(a.x, b.x), raised(a.y, b.y), raised(a.z, b.z), raised(a.w, b.w));
}
__device__ __forceinline__ Bool4 EQUAL4(float4 a, float4 b) {
    return {a.x == b.x, a.y == b.y, a.z == b.z, a.w == b.w};
}
__device__ __forceinline__ Bool4 LESS4(float4 a, float4 b) {
    return {a.x < b.x, a.y < b.y, a.z < b.z, a.w < b.w};
}
__device__ __forceinline__ Bool4 LESS_EQUAL4(float4 a, float4 b) {
    return {a.x <= b.x, a.y <= b.y, a.z <= b.z, a.w <= b.w};
}
