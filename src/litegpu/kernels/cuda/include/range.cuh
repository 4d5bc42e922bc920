// Conversions to half that keep the range of floats.
#if __CUDA_ARCH__ >= 800
// Remainders that the conversion to half loses, times 2048 (REST_SCALE), as halves. `with_rests` adds the
// sums of products of remainders to the sums of products.
__device__ __forceinline__ unsigned int rest_of(float2 v, unsigned int halves) {
    return saturated_halves((v.x - from_half(halves & 0xffff)) * 2048.0f,
                            (v.y - from_half(halves >> 16)) * 2048.0f);
}
__device__ __forceinline__ uint2 rest_of(float4 v, uint2 halves) {
    return make_uint2(rest_of(make_float2(v.x, v.y), halves.x),
                      rest_of(make_float2(v.z, v.w), halves.y));
}
__device__ __forceinline__ float with_rests(float sum, float rests) {
    return fmaf(rests, 1.0f / 2048.0f, sum);
}
__device__ __forceinline__ float4 with_rests(float4 sum, float4 rests) {
    return FMA4(rests, splat4(1.0f / 2048.0f), sum);
}
__device__ __forceinline__ unsigned int to_halves(float2 v) { return to_half2(v.x, v.y); }
__device__ __forceinline__ uint2 to_halves(float4 v) { return to_half4(v); }
__device__ __forceinline__ unsigned int to_bounded_halves(float2 v) {
    return saturated_halves(v.x, v.y);
}
__device__ __forceinline__ uint2 to_bounded_halves(float4 v) { return to_bounded_half4(v); }
__device__ __forceinline__ float2 scaled(float2 v, float scale) {
    return make_float2(v.x * scale, v.y * scale);
}
__device__ __forceinline__ float4 scaled(float4 v, float scale) { return v * splat4(scale); }
// Converts two floats to halves, with negative ones set to 0 and large ones to the halves in `most`; NaN
// stays NaN.
__device__ __forceinline__ unsigned int clamped_halves(float low, float high, unsigned int most) {
    unsigned int h;
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(high), "f"(low));
    asm("min.NaN.f16x2 %0, %0, %1;" : "+r"(h) : "r"(most));
    return h;
}
// Clamps a float to [0, high], updates the maximum `most`, and scales the float.
__device__ __forceinline__ float clamped_scaled(float v, float high, float scale, float &most) {
    v = v < 0.0f ? 0.0f : v > high ? high : v;
    most = fmaxf(most, v);
    return v * scale;
}
// Returns the largest magnitude so far; NaN is ignored.
__device__ __forceinline__ float largest(float most, float2 v) {
    return fmaxf(fmaxf(most, fabsf(v.x)), fabsf(v.y));
}
__device__ __forceinline__ float largest(float most, float4 v) {
    return fmaxf(largest(most, make_float2(v.x, v.y)), largest(0.0f, make_float2(v.z, v.w)));
}
__device__ __forceinline__ float finite(float v) { return fabsf(v) < INFINITY ? v : 0.0f; }
__device__ __forceinline__ float largest_finite(float most, float2 v) {
    return largest(most, make_float2(finite(v.x), finite(v.y)));
}
__device__ __forceinline__ float largest_finite(float most, float4 v) {
    return largest_finite(largest_finite(most, make_float2(v.x, v.y)), make_float2(v.z, v.w));
}
// Whether half may be unsuitable for the values of a warp, whose largest magnitude is `most`: some are too
// large, or all are so small that half loses precision. Floats that are not negative are ordered like their
// bit patterns.
__device__ __forceinline__ bool is_unheld(float most) {
    const float all = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(most)));
    return all > 65504.0f || (all > 0.0f && all < 1.0f / 2048.0f);
}
// The same for values that cannot be too large; `bits` combines all halves converted from them. Floats that
// became zero count as zeros.
__device__ __forceinline__ bool is_dust(unsigned int bits) {
    return !(__reduce_or_sync(0xffffffffu, bits) & 0x70007000u);
}
// Finds the exponent field of the largest float of all threads that vote by `any`, one bit per vote.
template <class Any> __device__ __forceinline__ int exponent_by(Any any, float most) {
    int found = 0;
#pragma unroll 1
    for (int bit = 128; bit > 0; bit >>= 1)
        if (any((int)(__float_as_uint(most) >> 23) >= found + bit)) found += bit;
    return found;
}
__device__ __forceinline__ int block_exponent(float most) {
    return exponent_by([](int vote) { return __syncthreads_or(vote); }, most);
}
// Returns the power of two that scales the largest float to less than 32768, or 1 if half suits the range
// anyway. The scale and its inverse are normal floats.
__device__ __forceinline__ float scale_for(int exponent) {
    if (exponent >= 116 && exponent < 142) return 1.0f;
    return __uint_as_float((unsigned int)(268 - max(exponent, 15)) << 23);
}
template <int S, int M, int N>
__device__ __forceinline__ void scale_sums(float (&sums)[S][M][N][4], float scale) {
#pragma unroll
    for (int u = 0; u < S; ++u)
#pragma unroll
        for (int i = 0; i < M; ++i)
#pragma unroll
            for (int j = 0; j < N; ++j)
#pragma unroll
                for (int q = 0; q < 4; ++q) sums[u][i][j][q] *= scale;
}
// Inverts a power of two.
__device__ __forceinline__ float inverse(float scale) {
    return __uint_as_float(0x7f000000u - __float_as_uint(scale));
}
#endif
