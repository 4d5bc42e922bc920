// A GPU for the tests: threads of a cluster are fibers that run one after the other, and the
// instructions that CUDA C++ has as inline assembly are functions. Copies that are asynchronous on
// the device happen at the latest moment that the program allows, so that a missing wait shows.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include "cuda_checks.h"

#define __device__ static
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __restrict__
#define __CUDA_ARCH__ 900

struct uchar4 { unsigned char x, y, z, w; };
struct char4 { signed char x, y, z, w; };
struct short4 { short x, y, z, w; };
struct ushort4 { unsigned short x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) longlong2 { long long x, y; };
struct uint2 { unsigned int x, y; };
struct alignas(16) uint4 { unsigned int x, y, z, w; };
struct int2 { int x, y; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct Index3 { unsigned int x, y, z; };
static inline uchar4 make_uchar4(int x, int y, int z, int w) {
    return {(unsigned char)x, (unsigned char)y, (unsigned char)z, (unsigned char)w};
}
static inline uint2 make_uint2(unsigned int x, unsigned int y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) {
    return {x, y, z, w};
}
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline long long min(long long a, long long b) { return a < b ? a : b; }
static inline long long max(long long a, long long b) { return a > b ? a : b; }
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline float __uint_as_float(unsigned int i) { float f; memcpy(&f, &i, 4); return f; }
static inline unsigned int __float_as_uint(float f) { unsigned int i; memcpy(&i, &f, 4); return i; }
static inline int __float_as_int(float f) { return (int)__float_as_uint(f); }
static inline float __int_as_float(int i) { return __uint_as_float(i); }
static inline unsigned int __byte_perm(unsigned int a, unsigned int b, unsigned int selected) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned int result = 0;
    for (int k = 0; k < 4; ++k) result |= (unsigned int)(bytes >> (selected >> 4 * k & 7) * 8 & 255) << 8 * k;
    return result;
}
static inline long long multiply_add(int a, int b, long long c) { return (long long)a * b + c; }
static inline int __dp4a(int a, int b, int c) {
    for (int k = 0; k < 32; k += 8) c += (int)(signed char)(a >> k) * (signed char)(b >> k);
    return c;
}
static inline float reciprocal(float a) { return 1.0f / a; }
static inline float power_of_2(float a) { return exp2f(a); }
static inline int __float2int_rz(float f) {
    return f != f ? 0 : f >= 2147483648.0f ? INT32_MAX : f < -2147483648.0f ? INT32_MIN : (int)f;
}
static inline float __fadd_rd(float a, float b) {
    const double sum = (double)a + b;
    const float near = (float)sum;
    return near > sum ? std::nextafter(near, -INFINITY) : near;
}
static inline long long __float2ll_rz(float f) {
    const float end = 9223372036854775808.0f;
    return f != f ? INT64_MIN : f >= end ? INT64_MAX : f < -end ? INT64_MIN : (long long)f;
}
static inline float from_half(unsigned short h) {
    _Float16 f;
    memcpy(&f, &h, 2);
    return (float)f;
}
static inline unsigned short half_of(float v) {
    const _Float16 f = (_Float16)v;
    unsigned short h;
    memcpy(&h, &f, 2);
    return h;
}

// What kernels call. All that is not short is compiled once, with LAUNCHES (cuda_machine.h).

struct Product {
    unsigned long long a, b;
    float *sums;
    int *whole;  // sums of bytes
    int columns;
    const unsigned int *words;  // of floats, where the first matrix lies in registers
    bool add;
    bool is_signed;
};
struct Self { Index3 thread, block; int lane; };
SHARED Self *self;
SHARED Index3 blockDim, gridDim;
#define threadIdx (self->thread)
#define blockIdx (self->block)

char *shared_memory(size_t offset);
void __syncthreads();
int __syncthreads_or(int own);
int some_threads_or(int number, int threads, int own);
template <int NUMBER, int THREADS> static int some_sync_or(int own) { return some_threads_or(NUMBER, THREADS, own); }
template <int NUMBER, int THREADS> static void some_sync() { some_sync_or<NUMBER, THREADS>(0); }
void __syncwarp();
unsigned int __reduce_max_sync(unsigned int, unsigned int v);
unsigned int __reduce_or_sync(unsigned int, unsigned int v);
unsigned int exchanged(unsigned int word, int from);
static inline float __shfl_xor_sync(unsigned int, float value, int mask) {
    return __uint_as_float(exchanged(__float_as_uint(value), self->lane ^ mask));
}
static inline int __shfl_sync(unsigned int, int value, int lane) { return (int)exchanged((unsigned int)value, lane); }
static inline float __shfl_sync(unsigned int, float value, int lane) {
    return __uint_as_float(exchanged(__float_as_uint(value), lane));
}
void gate_begin(unsigned long long *gate, int arrivals);
void gate_arrive(unsigned long long *gate);
void gate_wait(unsigned long long *gate, int odd);

// The instructions

// What the cache holds is not emulated.
static inline void read_ahead(const char *, unsigned long long) {}
void load_matrix(unsigned int (&a)[4], const void *row);
void load_matrix_turned(unsigned int (&a)[4], const void *row);
void multiply(float (&d)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1);
void multiply(int (&d)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1);
void multiply_unsigned(int (&d)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1);
void multiply_by_unsigned(int (&d)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1);
void multiply_tf32(float (&d)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1);
static void round_tf32(unsigned int &word) {
    const float f = __uint_as_float(word);
    if (f == f) word = (word + 0x1000u) & 0xffffe000u;
}
void copy_async(uint4 *to, const uint4 *from, int bytes);
void copy_commit();
void copies_wait(int pending);
template <int N> static void copy_wait() { copies_wait(N); }

unsigned long long matrix_at(const void *place);
void group_product(const Product &product);
template <int N>
static void group_multiply(float (&sums)[N][4], unsigned long long a, unsigned long long b) {
    group_product({a, b, sums[0], nullptr, N * 8, nullptr, true, true});
}
template <int N>
static void group_multiply_tf32(float (&sums)[N][4], const unsigned int (&a)[4], unsigned long long b, bool add) {
    group_product({0, b, sums[0], nullptr, N * 8, a, add, true});
}
template <int N>
static void group_multiply(int (&sums)[N][4], unsigned long long a, unsigned long long b) {
    group_product({a, b, nullptr, sums[0], N * 8, nullptr, true, true});
}
template <int N>
static void group_multiply_unsigned(int (&sums)[N][4], unsigned long long a, unsigned long long b) {
    group_product({a, b, nullptr, sums[0], N * 8, nullptr, true, false});
}
static inline void group_begin() {}
void group_commit();
void shared_for_group();
void products_wait(int pending);
template <int N> static void group_wait() { products_wait(N); }
template <class T, int M, int N> static void sums_done(T (&)[M][N]) {}
static int in_register(int v) { return v; }
template <class T> static void store_if(bool wanted, T *p, T v) { if (wanted) *p = v; }

void cluster_wait();
static inline void cluster_arrive() {}  // no program does anything between arriving and waiting that counts
char *remote(const void *local, int block, int size);
template <class T> static void store_remote(const void *local, int block, T v, bool wanted = true) {
    if (wanted) *(T *)remote(local, block, sizeof v) = v;
}
// What is sent is there at once; whoever waits goes on when all of it is.
void inbox_begin(unsigned long long *inbox);
void inbox_expect(unsigned long long *inbox, int bytes);
void sent(int block, int bytes, unsigned long long *inbox);
template <class Sent> static void send(const void *local, int block, Sent v, unsigned long long *inbox, bool wanted = true) {
    if (!wanted) return;
    *(Sent *)remote(local, block, sizeof v) = v;
    sent(block, sizeof v, inbox);
}
void inbox_wait(unsigned long long *inbox);
static float raised(float low, float v) { return v < low ? low : v; }
static unsigned int pack(int4 v, int low, int high) {
    unsigned int word = 0;
    for (int k = 0; k < 4; ++k) {
        const int element = k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w;
        word |= (unsigned int)(min(max(element, low), high) & 255) << (8 * k);
    }
    return word;
}
static unsigned int pack_s8(int4 v) { return pack(v, -128, 127); }
static unsigned int pack_u8(int4 v) { return pack(v, 0, 255); }
static uint4 load_ahead(const uint4 *p) { return *p; }
template <class T> static T load_if(bool wanted, const T *p, T otherwise = T{}) { return wanted ? *p : otherwise; }
static unsigned short to_half(float f) {
    return half_of(fabsf(f) < INFINITY ? fminf(fmaxf(f, -65504.0f), 65504.0f) : f);
}

static unsigned int saturated_halves(float low, float high) {
    const auto bounded = [](float f) { return f != f ? half_of(f) : half_of(fminf(fmaxf(f, -65504.0f), 65504.0f)); };
    return (unsigned int)bounded(low) | (unsigned int)bounded(high) << 16;
}
static unsigned int clamped_halves(float low, float high, unsigned int most) {
    const auto clamped = [](float f, unsigned int end) {
        const unsigned short h = half_of(f < 0.0f ? 0.0f : f);
        return from_half(h) > from_half(end & 0xffff) ? (unsigned short)end : h;
    };
    return (unsigned int)clamped(low, most) | (unsigned int)clamped(high, most >> 16) << 16;
}
static unsigned int larger_halves(unsigned int a, unsigned int b) {
    const auto larger = [](unsigned int x, unsigned int y) { return half_of(fmaxf(from_half(x), from_half(y))); };
    return (unsigned int)larger(a & 0xffff, b & 0xffff) | (unsigned int)larger(a >> 16, b >> 16) << 16;
}
// What a launch may touch.
struct Places {
    const Range *buffers, *regions, *arrays;
    Cell *arena_cells;
    unsigned int buffer_count, array_count;
};
// Returns what was wrong, or an empty text.
const char *launch(void (*kernel)(void **), void **given, const unsigned int *grid,
                   const unsigned int *local, int cluster, size_t shared, const Places *places);
#ifdef LAUNCHES
#include "cuda_machine.h"
#endif
