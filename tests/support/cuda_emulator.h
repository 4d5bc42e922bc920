// A GPU for the tests: threads of a cluster are fibers that run one after the other, and the
// instructions that CUDA C++ has as inline assembly are functions. Copies that are asynchronous on
// the device happen at the latest moment that the program allows, so that a missing wait shows.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>
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

// Fibers

struct Copy { void *to; uint4 value; };
struct Product {
    unsigned long long a, b;
    float *sums;
    int *whole;  // sums of bytes
    int columns;
    const unsigned int *words;  // of floats, where the first matrix lies in registers
    bool add;
    bool is_signed;
};
struct Fiber {
    Index3 thread, block;
    int rank, lane, warp;
    Visitor *visitor;
    void *stack_pointer;
    char *stack;
    bool done;
    // What the lanes of a warp show each other
    const void *row;
    unsigned int *matrix;
    const unsigned int *a;
    unsigned int b0, b1;
    float *d;
    int *whole;
    unsigned int word;
    int from;
    const Product *shown;
    std::vector<std::vector<Copy>> copies;
    std::vector<std::vector<Product>> products;
};
// The most barriers that those who have come had passed, of each scope: whoever goes on has passed one more.
struct Meeting { int arrived = 0; unsigned int round = 0; Passed come, gone; };
struct Gate { int wanted, missing; unsigned int round; Passed come, gone; };
struct Inbox { int missing = 0; bool told = false; Passed come; };  // bytes
struct Block {
    char *memory;
    Meeting all, some[16];           // barriers by their numbers
    int votes[16] = {}, voted[16] = {};  // see __syncthreads_or
    int ended = 0;                   // threads
    std::map<const void *, Gate> gates;
    std::map<const void *, Inbox> inboxes;
    std::vector<Meeting> warps, groups;
};
SHARED std::vector<Fiber> fibers;
SHARED std::vector<Block> blocks;
SHARED std::vector<char> memory;
SHARED std::vector<Visitor> visitors;
static const unsigned long long BARRIER_HERE = 0xba441e4ba441e4ull;
SHARED Meeting cluster_meeting;
SHARED Fiber *me;
SHARED int threads_per_block;
SHARED unsigned long moves;  // arrivals at meetings, and ends

// Wait for `count` fibers; the last one does the work of all, and is looked at for all.
template <class Work> static void meet(Meeting &meeting, int count, Work work) {
    const unsigned int round = meeting.round;
    ++moves;
    if (++meeting.arrived == count) {
        work();
        meeting.arrived = 0;
        ++meeting.round;
        return;
    }
    while (meeting.round == round) yield();
}

// What was done before by those who have come is before all that this thread does from now on.
static void go_on(Scope scope, const Passed &gone) {
    for (int s = scope; s > THREAD; --s) me->visitor->passed[s] = std::max(me->visitor->passed[s], gone.of[s]) + 1;
}
static void come(Scope scope, Passed &all) {
    for (int s = scope; s > THREAD; --s) all.of[s] = std::max(all.of[s], me->visitor->passed[s]);
}
// A meeting that orders accesses to memory, too.
template <class Work> static void barrier(Scope scope, Meeting &meeting, int count, Work work) {
    come(scope, meeting.come);
    meet(meeting, count, [&] { work(), meeting.gone = meeting.come, meeting.come = Passed(); });
    go_on(scope, meeting.gone);
}

static Block &my_block() { return blocks[me->rank]; }
static Fiber *warp_of(const Fiber *f) { return &fibers[f->rank * threads_per_block + f->warp * 32]; }
static char *shared_memory(size_t offset) { return my_block().memory + offset; }
static void __syncthreads() { barrier(BLOCK, my_block().all, threads_per_block, [] {}); }
static int vote(int number, Meeting &meeting, int threads, int vote) {
    Block &b = my_block();
    b.votes[number] |= vote != 0;
    barrier(BLOCK, meeting, threads, [&] { b.voted[number] = b.votes[number], b.votes[number] = 0; });
    return b.voted[number];
}
static int __syncthreads_or(int own) { return vote(0, my_block().all, threads_per_block, own); }
template <int NUMBER, int THREADS> static int some_sync_or(int own) {
    return vote(NUMBER, my_block().some[NUMBER], THREADS, own);
}
template <int NUMBER, int THREADS> static void some_sync() { some_sync_or<NUMBER, THREADS>(0); }
template <class Join> static unsigned int of_warp(unsigned int v, Join join) {
    me->word = v;
    Fiber *const lanes = warp_of(me);
    meet(my_block().warps[me->warp], 32, [=] {
        unsigned int all = 0;
        for (int lane = 0; lane < 32; ++lane) all = join(all, lanes[lane].word);
        for (int lane = 0; lane < 32; ++lane) lanes[lane].word = all;
    });
    return me->word;
}
static unsigned int __reduce_max_sync(unsigned int, unsigned int v) {
    return of_warp(v, [](unsigned int a, unsigned int b) { return a > b ? a : b; });
}
static unsigned int __reduce_or_sync(unsigned int, unsigned int v) {
    return of_warp(v, [](unsigned int a, unsigned int b) { return a | b; });
}
static unsigned int exchanged(unsigned int word, int from) {
    me->word = word;
    me->from = from;
    Fiber *const lanes = warp_of(me);
    meet(my_block().warps[me->warp], 32, [=] {
        unsigned int words[32];
        for (int lane = 0; lane < 32; ++lane) words[lane] = lanes[lane].word;
        for (int lane = 0; lane < 32; ++lane) lanes[lane].word = words[lanes[lane].from];
    });
    return me->word;
}
static float __shfl_xor_sync(unsigned int, float value, int mask) {
    return __uint_as_float(exchanged(__float_as_uint(value), me->lane ^ mask));
}
static int __shfl_sync(unsigned int, int value, int lane) { return (int)exchanged((unsigned int)value, lane); }
static float __shfl_sync(unsigned int, float value, int lane) {
    return __uint_as_float(exchanged(__float_as_uint(value), lane));
}
static void __syncwarp() { barrier(WARP, my_block().warps[me->warp], 32, [] {}); }
// Gates count what was passed as barriers do; that a thread waits for another is told by which has passed
// more, so that of those who never met some races are not seen.
// A gate or an inbox takes up the memory where it lies: nothing else may be written there.
UNCHECKED static void barrier_begin(unsigned long long *place) {
    touch_shared(place, sizeof *place, true);
    *place = BARRIER_HERE;
}
UNCHECKED static void barrier_used(const unsigned long long *place) {
    if (*place != BARRIER_HERE) fault("a barrier is overwritten", "shared memory", (const char *)place - my_block().memory);
}
static void gate_begin(unsigned long long *gate, int arrivals) {
    barrier_begin(gate);
    my_block().gates[gate] = {arrivals, arrivals, 0};
}
static void gate_arrive(unsigned long long *gate) {
    barrier_used(gate);
    __syncwarp();
    ++moves;
    Gate &g = my_block().gates.at(gate);
    if (me->lane == 0) {
        come(BLOCK, g.come);
        if (--g.missing == 0) g.gone = g.come, g.come = Passed(), g.missing = g.wanted, ++g.round;
    }
    go_on(BLOCK, Passed());  // what it does from now on is not before what others do
}
static void gate_wait(unsigned long long *gate, int odd) {
    barrier_used(gate);
    const Gate &g = my_block().gates.at(gate);
    while ((int)(g.round & 1) == odd) yield();
    ++moves;
    go_on(BLOCK, g.gone);
}
#define threadIdx (me->thread)
#define blockIdx (me->block)
SHARED Index3 blockDim, gridDim;

// The instructions

// What the cache holds is not emulated.
static void read_ahead(const char *, unsigned long long) {}
// Lane l of a warp gets two halves of each of four matrices of 8 x 8, from the rows that the lanes
// name: place(l, e) are the row and the byte in it of half e.
template <typename Place> static void load_halves(unsigned int (&a)[4], const void *row, Place place) {
    touch_shared(row, 16, false);
    me->row = row;
    me->matrix = a;
    Fiber *const lanes = warp_of(me);
    meet(my_block().warps[me->warp], 32, [=] {
        for (int lane = 0; lane < 32; ++lane)
            for (int q = 0; q < 4; ++q)
                for (int e = 0; e < 2; ++e) {
                    const auto [from, byte] = place(lane, e);
                    memcpy((char *)&lanes[lane].matrix[q] + e * 2,
                           (const char *)lanes[8 * q + from].row + byte, 2);
                }
    });
}
static void load_matrix(unsigned int (&a)[4], const void *row) {
    load_halves(a, row, [](int lane, int e) { return std::pair(lane / 4, lane % 4 * 4 + e * 2); });
}
static void load_matrix_turned(unsigned int (&a)[4], const void *row) {
    load_halves(a, row, [](int lane, int e) { return std::pair(lane % 4 * 2 + e, lane / 4 * 2); });
}
template <int K> static void add_products(Fiber *lanes, const float (&left)[16][K], const float (&right)[K][8]) {
    for (int lane = 0; lane < 32; ++lane) {
        float *const d = lanes[lane].d;
        for (int q = 0; q < 4; ++q) {
            float sum = d[q];
            for (int k = 0; k < K; ++k) sum += left[lane / 4 + q / 2 * 8][k] * right[k][lane % 4 * 2 + q % 2];
            d[q] = sum;
        }
    }
}
static float half_at(unsigned int pair, int which) { return from_half(pair >> (16 * which) & 0xffff); }
static void multiply(float (&d)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1) {
    me->d = d, me->a = a, me->b0 = b0, me->b1 = b1;
    Fiber *const lanes = warp_of(me);
    meet(my_block().warps[me->warp], 32, [=] {
        float left[16][16], right[16][8];
        for (int lane = 0; lane < 32; ++lane)
            for (int q = 0; q < 4; ++q)
                for (int e = 0; e < 2; ++e) {
                    left[lane / 4 + q % 2 * 8][lane % 4 * 2 + q / 2 * 8 + e] = half_at(lanes[lane].a[q], e);
                    if (q < 2)
                        right[lane % 4 * 2 + q * 8 + e][lane / 4] = half_at(q ? lanes[lane].b1 : lanes[lane].b0, e);
                }
        add_products<16>(lanes, left, right);
    });
}
// Of bytes: 32 inputs, of which a lane holds 4 neighbours and those 16 further.
static int byte_at(unsigned int word, int which, bool is_signed) {
    const int byte = word >> (8 * which) & 255;
    return is_signed ? (signed char)byte : byte;
}
static void multiply_bytes(int (&d)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1, bool a_signed, bool b_signed) {
    me->whole = d, me->a = a, me->b0 = b0, me->b1 = b1;
    Fiber *const lanes = warp_of(me);
    meet(my_block().warps[me->warp], 32, [=] {
        int left[16][32], right[32][8];
        for (int lane = 0; lane < 32; ++lane)
            for (int q = 0; q < 4; ++q)
                for (int e = 0; e < 4; ++e) {
                    left[lane / 4 + q % 2 * 8][lane % 4 * 4 + q / 2 * 16 + e] = byte_at(lanes[lane].a[q], e, a_signed);
                    if (q < 2)
                        right[lane % 4 * 4 + q * 16 + e][lane / 4] = byte_at(q ? lanes[lane].b1 : lanes[lane].b0, e, b_signed);
                }
        for (int lane = 0; lane < 32; ++lane)
            for (int q = 0; q < 4; ++q)
                for (int k = 0; k < 32; ++k)
                    lanes[lane].whole[q] += left[lane / 4 + q / 2 * 8][k] * right[k][lane % 4 * 2 + q % 2];
    });
}
static void multiply(int (&d)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1) {
    multiply_bytes(d, a, b0, b1, true, true);
}
static void multiply_unsigned(int (&d)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1) {
    multiply_bytes(d, a, b0, b1, false, true);
}
static void multiply_by_unsigned(int (&d)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1) {
    multiply_bytes(d, a, b0, b1, true, false);
}
static void round_tf32(unsigned int &word) {
    const float f = __uint_as_float(word);
    if (f == f) word = (word + 0x1000u) & 0xffffe000u;
}
static float tf32(unsigned int word) { return __uint_as_float(word & 0xffffe000u); }
static void multiply_tf32(float (&d)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1) {
    me->d = d, me->a = a, me->b0 = b0, me->b1 = b1;
    Fiber *const lanes = warp_of(me);
    meet(my_block().warps[me->warp], 32, [=] {
        float left[16][8], right[8][8];
        for (int lane = 0; lane < 32; ++lane) {
            for (int q = 0; q < 4; ++q)
                left[lane / 4 + q % 2 * 8][lane % 4 + q / 2 * 4] = tf32(lanes[lane].a[q]);
            right[lane % 4][lane / 4] = tf32(lanes[lane].b0);
            right[lane % 4 + 4][lane / 4] = tf32(lanes[lane].b1);
        }
        add_products<8>(lanes, left, right);
    });
}

static void copy_async(uint4 *to, const uint4 *from, int bytes) {
    touch_shared(to, sizeof *to, true);
    touch(to, sizeof *to, true);  // it may arrive at once, too
    if (me->copies.empty()) me->copies.emplace_back();
    me->copies.back().push_back({to, bytes ? *from : uint4{}});
}
static void copy_commit() { me->copies.emplace_back(); }
template <int N> static void copy_wait() {
    // The last list is that of copies which are not committed yet.
    while ((int)me->copies.size() > N + 1) {
        for (const Copy &copy : me->copies.front()) {
            *(uint4 *)copy.to = copy.value;
            landed(copy.to, sizeof copy.value);
        }
        me->copies.erase(me->copies.begin());
    }
}

// Matrices that 4 warps multiply from shared memory: rows of 64 bytes, chunks of 16 bytes shuffled.
UNCHECKED static const unsigned short *operand(unsigned long long described, int row, int k) {
    if (described >> 62 != 2 || (described >> 32 & 0x3fff) != 512 >> 4) abort();
    uintptr_t at = (described & 0x3fff) << 4;
    at += row / 8 * 512 + row % 8 * 64 + k * 2;
    at ^= at >> 7 & 3 ? (at >> 7 & 3) << 4 : 0;
    return (const unsigned short *)(my_block().memory + at);
}
static void touch_operand(const void *place) {
    touch_shared(place, 16, false);
    touch_fenced(place, 16);
}
static unsigned long long matrix_at(const void *place) {
    const size_t at = (const char *)place - my_block().memory;
    return at >> 4 | 1ull << 16 | (512ull >> 4) << 32 | 2ull << 62;
}
// Other threads' writes must be ordered with all reads of a product, from its issue to the wait.
static void touch_operands(const Product &p) {
    const int thread = me->warp % 4 * 32 + me->lane;
    for (int k = 0; k < 16; k += 8) {
        if (!p.words && thread < 64) touch_operand(operand(p.a, thread, k));
        for (int column = thread; column < p.columns; column += 128) touch_operand(operand(p.b, column, k));
    }
}
template <int N>
static void group_multiply(float (&sums)[N][4], unsigned long long a, unsigned long long b) {
    if (me->products.empty()) me->products.emplace_back();
    me->products.back().push_back({a, b, sums[0], nullptr, N * 8, nullptr, true, true});
    touch_operands(me->products.back().back());
}
template <int N>
static void group_multiply_tf32(float (&sums)[N][4], const unsigned int (&a)[4], unsigned long long b, bool add) {
    if (me->products.empty()) me->products.emplace_back();
    me->products.back().push_back({0, b, sums[0], nullptr, N * 8, a, add, true});
    touch_operands(me->products.back().back());
}
template <int N>
static void group_multiply_bytes(int (&sums)[N][4], unsigned long long a, unsigned long long b, bool is_signed) {
    if (me->products.empty()) me->products.emplace_back();
    me->products.back().push_back({a, b, nullptr, sums[0], N * 8, nullptr, true, is_signed});
    touch_operands(me->products.back().back());
}
template <int N>
static void group_multiply(int (&sums)[N][4], unsigned long long a, unsigned long long b) {
    group_multiply_bytes(sums, a, b, true);
}
template <int N>
static void group_multiply_unsigned(int (&sums)[N][4], unsigned long long a, unsigned long long b) {
    group_multiply_bytes(sums, a, b, false);
}
UNCHECKED static int product_of_bytes(const Product &p, int row, int column) {
    int sum = 0;
    for (int k = 0; k < 16; ++k)
        for (int e = 0; e < 2; ++e)
            sum += byte_at(*operand(p.a, row, k), e, p.is_signed) * byte_at(*operand(p.b, column, k), e, true);
    return sum;
}
// Of 8 floats that the lanes of a warp hold of each of 16 rows.
UNCHECKED static float product_of_floats(const Product &p, int row, int column) {
    float sum = 0.0f;
    for (int k = 0; k < 8; ++k) {
        unsigned int right;
        memcpy(&right, operand(p.b, column, k * 2), 4);
        const Fiber &other = warp_of(me)[row % 8 * 4 + k % 4];
        sum += tf32(other.shown->words[row / 8 + k / 4 * 2]) * tf32(right);
    }
    return sum;
}
UNCHECKED static float product_of_halves(const Product &p, int row, int column) {
    float sum = 0.0f;
    for (int k = 0; k < 16; ++k) sum += from_half(*operand(p.a, row, k)) * from_half(*operand(p.b, column, k));
    return sum;
}
static void group_begin() {}
static void group_commit() { me->products.emplace_back(); }
static void shared_for_group() { ++me->visitor->fences; }
template <int N> static void group_wait() {
    // Each thread makes its own sums, of what lies in memory and registers now.
    while ((int)me->products.size() > N + 1) {
        for (const Product &p : me->products.front()) {
            me->shown = &p;
            touch_operands(p);
            meet(my_block().warps[me->warp], 32, [] {});
            for (int j = 0; j < p.columns / 8; ++j)
                for (int q = 0; q < 4; ++q) {
                    const int row = me->lane / 4 + q / 2 * 8, column = j * 8 + me->lane % 4 * 2 + q % 2;
                    if (p.whole) {
                        p.whole[j * 4 + q] += product_of_bytes(p, me->warp % 4 * 16 + row, column);
                        continue;
                    }
                    float &sum = p.sums[j * 4 + q];
                    sum = (p.add ? sum : 0.0f)
                        + (p.words ? product_of_floats(p, row, column)
                                   : product_of_halves(p, me->warp % 4 * 16 + row, column));
                }
            meet(my_block().warps[me->warp], 32, [] {});
        }
        me->products.erase(me->products.begin());
    }
    meet(my_block().groups[me->warp / 4], 128, [] {});
}

template <class T, int M, int N> static void sums_done(T (&)[M][N]) {}
static int in_register(int v) { return v; }
template <class T> static void store_if(bool wanted, T *p, T v) { if (wanted) *p = v; }

static void cluster_wait() { barrier(CLUSTER, cluster_meeting, (int)fibers.size(), [] {}); }
static void cluster_arrive() {}  // no program does anything between arriving and waiting that counts
static char *remote(const void *local, int block, int size) {
    touch_shared(local, size, true);
    if ((unsigned int)block >= blocks.size()) fault("no block of the cluster", "the memory of block", block);
    return blocks[block].memory + ((const char *)local - my_block().memory);
}
template <class T> static void store_remote(const void *local, int block, T v, bool wanted = true) {
    if (wanted) *(T *)remote(local, block, sizeof v) = v;
}
// What is sent is there at once; whoever waits goes on when all of it is.
static void inbox_begin(unsigned long long *inbox) {
    if (me->thread.x != 0) return;
    barrier_begin(inbox);
    my_block().inboxes[inbox] = Inbox();
}
static void inbox_expect(unsigned long long *inbox, int bytes) {
    barrier_used(inbox);
    Inbox &mine = my_block().inboxes.at(inbox);
    mine.missing += bytes;
    mine.told = true;
    ++moves;
}
template <class Sent> static void send(const void *local, int block, Sent v, unsigned long long *inbox, bool wanted = true) {
    if (!wanted) return;
    *(Sent *)remote(local, block, sizeof v) = v;
    ++moves;
    const auto found = blocks[block].inboxes.find(remote(inbox, block, sizeof *inbox));
    if (found == blocks[block].inboxes.end()) {
        if (!checks.fault[0]) snprintf(checks.fault, sizeof checks.fault, "block %d has no inbox there yet", block);
        return;
    }
    Inbox &to = found->second;
    come(CLUSTER, to.come);
    to.missing -= (int)sizeof v;
    go_on(CLUSTER, Passed());
}
static void inbox_wait(unsigned long long *inbox) {
    const auto &all = my_block().inboxes;
    while (!all.count(inbox) || !all.at(inbox).told || all.at(inbox).missing > 0) yield();
    ++moves;
    barrier_used(inbox);
    go_on(CLUSTER, all.at(inbox).come);
}
static float raised(float low, float v) { return v < low ? low : v; }
static unsigned int pack(int4 v, int low, int high) {
    unsigned int word = 0;
    for (int k = 0; k < 4; ++k) {
        const int element = k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w;
        word |= (unsigned int)(std::min(std::max(element, low), high) & 255) << (8 * k);
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
static const size_t STACK_BYTES = 1 << 16;
static void *scheduler;
static int my_number() { return (int)(me - fibers.data()); }
// In which order fibers take turns: 0 one after the other, 1 backwards, else drawn anew each turn.
extern "C" {
__attribute__((visibility("default"))) unsigned int fiber_order = 0;
}

extern "C" void switch_stack(void **from, void *to);
asm(".text\n.globl switch_stack\nswitch_stack:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");

void yield() {
    if (checks.rewrite_count) finish_rewrites();
    switch_stack(&me->stack_pointer, scheduler);
}

static void (*entry)(void **);
static void **arguments;
static bool looked_at;  // whether what the launch may touch is known

static void run_fiber() {
    entry(arguments);
    if (checks.visitor) end_visit();
    me->done = true;
    ++moves;
    if (++my_block().ended == threads_per_block) checks.gone[me->rank] = true;
    yield();
    abort();
}

static void look_at(const Places &places, int cluster, size_t block_bytes) {
    static std::vector<Cell> cells;
    checks.buffer_count = places.buffer_count;
    checks.array_count = places.array_count;
    if (cluster > MOST_BLOCKS || places.buffer_count > MOST_RANGES || places.array_count > MOST_RANGES) abort();
    for (unsigned int i = 0; i < places.buffer_count; ++i) checks.buffers[i] = places.buffers[i];
    for (unsigned int i = 0; i < places.array_count; ++i) checks.arrays[i] = places.arrays[i];
    for (int r = 0; r < 2; ++r) checks.regions[r] = places.regions[r];
    checks.shared = blocks[0].memory;
    cells.resize(block_bytes * cluster / 2);
    checks.shared_cells = cells.data();
    checks.visitors = visitors.data();
    for (size_t i = 0; i < fibers.size(); ++i) {
        const int rank = i / threads_per_block, t = i % threads_per_block;
        const int warps = (threads_per_block + 31) / 32, warp = rank * warps + t / 32;
        const int group = rank * ((warps + 3) / 4) + t / 128;
        visitors[i] = {{(unsigned short)i, (unsigned short)warp, (unsigned short)group, (unsigned short)rank, 0}, {}, 0};
    }
    checks.arena_cells = places.arena_cells;
    checks.first_run = checks.run + 1;
}

static void arrange(std::vector<int> &order) {
    static unsigned int drawn = 0;
    for (int i = 0; i < (int)order.size(); ++i) order[i] = fiber_order == 1 ? (int)order.size() - 1 - i : i;
    if (fiber_order < 2) return;
    for (int i = (int)order.size() - 1; i > 0; --i) {
        drawn = drawn * 1664525u + 1013904223u + fiber_order;
        std::swap(order[i], order[(drawn >> 8) % (i + 1)]);
    }
}

// Let all fibers run to their end. Where none does anything any more, that is the fault.
static void run_all() {
    std::vector<int> order(fibers.size());
    for (bool left = true; left;) {
        const unsigned long before = moves;
        int waiting = 0;
        arrange(order);
        for (const int number : order) {
            Fiber &f = fibers[number];
            if (f.done) continue;
            me = &f;
            checks.visitor = CHECKED && looked_at ? f.visitor : nullptr;
            switch_stack(&scheduler, f.stack_pointer);
            checks.visitor = nullptr;
            if (checks.fault[0]) return;
            waiting += !f.done;
        }
        left = waiting > 0;
        if (left && moves == before) {
            snprintf(checks.fault, sizeof checks.fault, "%d of %d threads wait for others that do not come", waiting, (int)fibers.size());
            return;
        }
    }
}

// The bytes in the memory of a block, and in the guard after it, that belong to no array.
struct Gap { long begin, end; };
static std::vector<Gap> gaps_of(const Places *places, size_t shared) {
    std::vector<char> used(shared, places == nullptr);
    for (unsigned int i = 0; places && i < places->array_count; ++i)
        for (size_t at = (size_t)places->arrays[i].begin; at < (size_t)places->arrays[i].end; ++at) used[at] = 1;
    std::vector<Gap> gaps;
    for (long at = 0; at < (long)shared; ++at) {
        if (used[at]) continue;
        if (at == 0 || used[at - 1]) gaps.push_back({at, at});
        gaps.back().end = at + 1;
    }
    gaps.push_back({(long)shared, (long)checks.block_bytes});
    return gaps;
}
// Whether threads wrote there, or before the first block, if nothing else was found: they hold what they held.
static void look_at_gaps(const std::vector<Gap> &gaps) {
    static const std::vector<char> untouched(1 << 18, (char)0xff);
    const auto look = [](const Block &block, Gap gap) {
        for (long at = gap.begin; at < gap.end && !checks.fault[0]; at += (long)untouched.size()) {
            long stop = std::min(gap.end, at + (long)untouched.size());
            if (!memcmp(block.memory + at, untouched.data(), stop - at)) continue;
            while (block.memory[at] == (char)0xff) ++at;
            snprintf(checks.fault, sizeof checks.fault, "written, outside of all arrays: byte %ld of shared memory of block %d",
                     at, (int)(&block - blocks.data()));
        }
    };
    look(blocks[0], {-GUARD, 0});
    for (const Block &block : blocks)
        for (const Gap &gap : gaps) look(block, gap);
}

const char *launch(void (*kernel)(void **), void **given, const unsigned int *grid,
                   const unsigned int *local, int cluster, size_t shared, const Places *places) {
    entry = kernel;
    arguments = given;
    blockDim = {local[0], local[1], local[2]};
    gridDim = {grid[0], grid[1], grid[2]};
    threads_per_block = (int)(local[0] * local[1] * local[2]);
    const int warps = (threads_per_block + 31) / 32;
    fibers.assign(cluster * threads_per_block, Fiber());
    blocks.assign(cluster, Block());
    const size_t block_bytes = ((shared + 1023) & ~(size_t)1023) + GUARD;
    memory.resize(block_bytes * cluster + GUARD + 1024);
    char *const start = (char *)(((uintptr_t)memory.data() + 1023) & ~(uintptr_t)1023) + GUARD;
    checks.block_count = cluster;
    checks.block_bytes = block_bytes;
    checks.shared = nullptr;
    for (Block &block : blocks) {
        block.memory = start + block_bytes * (&block - blocks.data());
        block.warps.resize(warps);
        block.groups.resize((warps + 3) / 4);
    }
    visitors.assign(fibers.size(), Visitor());
    // Not initialized, and freed with the launch: a page takes memory once a thread writes to it.
    const std::unique_ptr<char[]> stacks(new char[fibers.size() * STACK_BYTES]);
    for (Fiber &fiber : fibers) {
        fiber.stack = stacks.get() + (&fiber - fibers.data()) * STACK_BYTES;
        fiber.visitor = &visitors[&fiber - fibers.data()];
    }
    checks.fault[0] = 0;
    looked_at = places != nullptr;
    if (places) look_at(*places, cluster, block_bytes);
    const std::vector<Gap> gaps = gaps_of(places, shared);
    for (unsigned int z = 0; z < grid[2]; ++z)
        for (unsigned int y = 0; y < grid[1]; y += cluster)
            for (unsigned int x = 0; x < grid[0]; ++x) {
                cluster_meeting = Meeting();
                ++checks.run;
                memset(start - GUARD, 0xff, block_bytes * cluster + GUARD);  // NaN
                for (Block &block : blocks) {
                    block.ended = 0;
                    block.all = Meeting();
                    for (Meeting &each : block.some) each = Meeting();
                    block.gates.clear();
                    block.inboxes.clear();
                    for (Meeting &each : block.warps) each = Meeting();
                    for (Meeting &each : block.groups) each = Meeting();
                }
                for (bool &gone : checks.gone) gone = false;
                for (unsigned short &wanted : checks.wanted) wanted = 0;
                for (size_t i = 0; i < fibers.size(); ++i) {
                    Fiber &f = fibers[i];
                    const unsigned int t = i % threads_per_block;
                    f.rank = (int)(i / threads_per_block);
                    f.block = {x, y + f.rank, z};
                    f.thread = {t % local[0], t / local[0] % local[1], t / local[0] / local[1]};
                    f.lane = t % 32;
                    f.warp = t / 32;
                    f.done = false;
                    for (unsigned short &passed : visitors[i].passed) passed = 0;
                    visitors[i].fences = 0;
                    f.copies.clear();
                    f.products.clear();
                    uintptr_t top = (uintptr_t)(f.stack + STACK_BYTES) & ~(uintptr_t)15;
                    void **frame = (void **)(top - 16);
                    *frame = (void *)run_fiber;
                    f.stack_pointer = frame - 6;
                }
                run_all();
                look_at_gaps(gaps);
                for (Block &block : blocks)
                    for (const auto &inbox : block.inboxes)
                        if (inbox.second.missing && !checks.fault[0])
                            snprintf(checks.fault, sizeof checks.fault, "%d bytes were not sent, or too many", inbox.second.missing);
                if (checks.fault[0]) return checks.fault;
            }
    return checks.fault;
}
#endif
