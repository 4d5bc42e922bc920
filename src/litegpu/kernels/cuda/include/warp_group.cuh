// Matrix instructions of four warps (wgmma), for compute capability 9.0 only.
#if __CUDA_ARCH__ == 900
// Four warps multiply 64 rows of one matrix by the rows of another. Both are in shared memory, in rows of 64
// bytes whose 16-byte chunks have the hardware's 64-byte swizzle. For floats, the first matrix is in
// registers instead: each warp holds 16 rows x 8 columns, as for multiply_tf32. Returns the descriptor of a
// matrix in shared memory.
__device__ __forceinline__ unsigned long long matrix_at(const void *first) {
    const unsigned long long at = __cvta_generic_to_shared(first);
    return (at & 0x3ffff) >> 4 | 1ull << 16 | (512ull >> 4) << 32 | 2ull << 62;
}
// Returns the descriptor of the matrix that starts `chunks` chunks of 16 bytes later.
__device__ __forceinline__ unsigned long long matrix_after(unsigned long long matrix, int chunks) {
    return matrix & 0xffffffff00000000ull | (unsigned int)matrix + chunks;
}
// Makes the threads' writes to shared memory visible to these instructions.
__device__ __forceinline__ void shared_for_group() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void group_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void group_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ __forceinline__ void group_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}
// Waits for all groups; the compiler may not read the accumulators earlier.
template <class T, int N> __device__ __forceinline__ void group_done(T (&d)[N][4]) {
    group_wait<0>();
    sums_done(d);
}
// A gate is an mbarrier in shared memory: warps wait at it without blocking the warps that arrive. Each phase
// of a gate ends when `arrivals` warps have arrived. One thread initializes the gate, before a barrier of the
// whole block. All lanes of a warp arrive, although one arrival would suffice: compute-sanitizer's racecheck
// would not see that the other lanes are ordered too.
__device__ __forceinline__ void gate_begin(unsigned long long *gate, int arrivals) {
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(gate);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at), "r"(32 * arrivals) : "memory");
}
// A warp arrives: warps that have waited for this phase see all writes that its threads made before.
__device__ __forceinline__ void gate_arrive(unsigned long long *gate) {
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(gate);
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory");
}
// Waits for the end of a phase by its parity: `odd` is 0 for the first phase and every second one after it, 1
// for the others. Before the first phase ends, a wait with `odd` = 1 returns at once.
__device__ __forceinline__ void gate_wait(unsigned long long *gate, int odd) {
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(gate);
    asm volatile("{ .reg .pred p;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra ended;\n bra again;\n ended: }"
                 :: "r"(at), "r"(odd) : "memory");
}
// A named barrier of some warps of a block, THREADS threads in all; NUMBER 0 is the barrier of the whole
// block.
template <int NUMBER, int THREADS> __device__ __forceinline__ void some_sync() {
    asm volatile("barrier.cta.sync.aligned %0, %1;" :: "n"(NUMBER), "n"(THREADS) : "memory");
}
template <int NUMBER, int THREADS> __device__ __forceinline__ int some_sync_or(int vote) {
    int any;
    asm volatile("{ .reg .pred p, q; setp.ne.b32 p, %1, 0; "
                 "barrier.cta.red.or.pred.aligned q, %2, %3, p; selp.b32 %0, 1, 0, q; }"
                 : "=r"(any) : "r"(vote), "n"(NUMBER), "n"(THREADS) : "memory");
    return any;
}
// Operands of inline assembly: the accumulators of 64 rows x 8, 32, 64 or 128 columns, and their operand
// numbers.
#define SUMS_8(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define SUMS_32(j) SUMS_8(j), SUMS_8(j + 1), SUMS_8(j + 2), SUMS_8(j + 3)
#define SUMS_64 SUMS_32(0), SUMS_32(4)
#define SUMS_128 SUMS_64, SUMS_32(8), SUMS_32(12)
#define WHOLE_SUMS_8(j) "+r"(d[j][0]), "+r"(d[j][1]), "+r"(d[j][2]), "+r"(d[j][3])
#define WHOLE_SUMS_32(j) \
    WHOLE_SUMS_8(j), WHOLE_SUMS_8(j + 1), WHOLE_SUMS_8(j + 2), WHOLE_SUMS_8(j + 3)
#define WHOLE_SUMS_64 WHOLE_SUMS_32(0), WHOLE_SUMS_32(4)
#define WHOLE_SUMS_128 WHOLE_SUMS_64, WHOLE_SUMS_32(8), WHOLE_SUMS_32(12)
#define NUMBERS_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NUMBERS_64 \
    NUMBERS_32 ", " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NUMBERS_128 \
    NUMBERS_64 ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" ", " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
__device__ __forceinline__ void group_multiply(float (&d)[4][4], unsigned long long a,
                                               unsigned long long b) {
    asm volatile("{ .reg .pred p; setp.eq.b32 p, 0, 0; "
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
                 "{" NUMBERS_32 "}, %16, %17, p, 1, 1, 0, 0; }"
                 : SUMS_32(0) : "l"(a), "l"(b));
}
__device__ __forceinline__ void group_multiply_tf32(float (&d)[4][4],
                                                    const unsigned int (&a)[4],
                                                    unsigned long long b, bool add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %21, 0; "
                 "wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 "
                 "{" NUMBERS_32 "}, {%16, %17, %18, %19}, %20, p, 1, 1; }"
                 : SUMS_32(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}
__device__ __forceinline__ void group_multiply(float (&d)[8][4], unsigned long long a,
                                               unsigned long long b) {
    asm volatile("{ .reg .pred p; setp.eq.b32 p, 0, 0; "
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{" NUMBERS_64 "}, %32, %33, p, 1, 1, 0, 0; }"
                 : SUMS_64 : "l"(a), "l"(b));
}
__device__ __forceinline__ void group_multiply_tf32(float (&d)[8][4],
                                                    const unsigned int (&a)[4],
                                                    unsigned long long b, bool add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; "
                 "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "
                 "{" NUMBERS_64 "}, {%32, %33, %34, %35}, %36, p, 1, 1; }"
                 : SUMS_64
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}
__device__ __forceinline__ void group_multiply(float (&d)[16][4], unsigned long long a,
                                               unsigned long long b) {
    asm volatile("{ .reg .pred p; setp.eq.b32 p, 0, 0; "
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{" NUMBERS_128 "}, %64, %65, p, 1, 1, 0, 0; }"
                 : SUMS_128 : "l"(a), "l"(b));
}
__device__ __forceinline__ void group_multiply_tf32(float (&d)[16][4],
                                                    const unsigned int (&a)[4],
                                                    unsigned long long b, bool add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0; "
                 "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 "
                 "{" NUMBERS_128 "}, {%64, %65, %66, %67}, %68, p, 1, 1; }"
                 : SUMS_128
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}
// Products of bytes, 32 per row: the first matrix is signed in `group_multiply`, unsigned in
// `group_multiply_unsigned`.
#define MULTIPLY_BYTES(columns, type, numbers, a_number, b_number) \
    "{ .reg .pred p; setp.eq.b32 p, 0, 0; " \
    "wgmma.mma_async.sync.aligned.m64n" columns "k32.s32." type ".s8 " \
    "{" numbers "}, " a_number ", " b_number ", p; }"
__device__ __forceinline__ void group_multiply(int (&d)[4][4], unsigned long long a,
                                               unsigned long long b) {
    asm volatile(MULTIPLY_BYTES("32", "s8", NUMBERS_32, "%16", "%17")
                 : WHOLE_SUMS_32(0) : "l"(a), "l"(b));
}
__device__ __forceinline__ void group_multiply_unsigned(int (&d)[4][4], unsigned long long a,
                                                        unsigned long long b) {
    asm volatile(MULTIPLY_BYTES("32", "u8", NUMBERS_32, "%16", "%17")
                 : WHOLE_SUMS_32(0) : "l"(a), "l"(b));
}
__device__ __forceinline__ void group_multiply(int (&d)[8][4], unsigned long long a,
                                               unsigned long long b) {
    asm volatile(MULTIPLY_BYTES("64", "s8", NUMBERS_64, "%32", "%33")
                 : WHOLE_SUMS_64 : "l"(a), "l"(b));
}
__device__ __forceinline__ void group_multiply_unsigned(int (&d)[8][4], unsigned long long a,
                                                        unsigned long long b) {
    asm volatile(MULTIPLY_BYTES("64", "u8", NUMBERS_64, "%32", "%33")
                 : WHOLE_SUMS_64 : "l"(a), "l"(b));
}
__device__ __forceinline__ void group_multiply(int (&d)[16][4], unsigned long long a,
                                               unsigned long long b) {
    asm volatile(MULTIPLY_BYTES("128", "s8", NUMBERS_128, "%64", "%65")
                 : WHOLE_SUMS_128 : "l"(a), "l"(b));
}
__device__ __forceinline__ void group_multiply_unsigned(int (&d)[16][4], unsigned long long a,
                                                        unsigned long long b) {
    asm volatile(MULTIPLY_BYTES("128", "u8", NUMBERS_128, "%64", "%65")
                 : WHOLE_SUMS_128 : "l"(a), "l"(b));
}
#undef MULTIPLY_BYTES
#undef WHOLE_SUMS_8
#undef WHOLE_SUMS_32
#undef WHOLE_SUMS_64
#undef WHOLE_SUMS_128
#undef SUMS_8
#undef SUMS_32
#undef SUMS_64
#undef SUMS_128
#undef NUMBERS_32
#undef NUMBERS_64
#undef NUMBERS_128
#endif
