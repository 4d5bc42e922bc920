// Matrix instructions of a warp, their loads, and communication between the blocks of a cluster.
#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ void load_matrix(unsigned int (&a)[4], const void *row) {
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(at) : "memory");
}
// Loads each 8x8 matrix transposed.
__device__ __forceinline__ void load_matrix_turned(unsigned int (&a)[4], const void *row) {
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void multiply(float (&d)[4], const unsigned int (&a)[4],
                                         unsigned int b0, unsigned int b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Products of bytes, 32 per row: the first matrix is signed in `multiply`, unsigned in `multiply_unsigned`.
__device__ __forceinline__ void multiply(int (&d)[4], const unsigned int (&a)[4],
                                         unsigned int b0, unsigned int b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_unsigned(int (&d)[4], const unsigned int (&a)[4],
                                                  unsigned int b0, unsigned int b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The first matrix has signed bytes, the second one unsigned bytes.
__device__ __forceinline__ void multiply_by_unsigned(int (&d)[4], const unsigned int (&a)[4],
                                                     unsigned int b0, unsigned int b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Initializes the accumulators.
__device__ __forceinline__ void set_sums(float (&d)[4], float4 first) {
    d[0] = first.x, d[1] = first.y, d[2] = first.z, d[3] = first.w;
}
// Compiler barrier: all lanes finish the accumulators here. The compiler may not move the additions into a branch that
// only some lanes execute.
template <int N> __device__ __forceinline__ void sums_done(float (&d)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; ++j)
        asm volatile("" : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3]) :: "memory");
}
template <int N> __device__ __forceinline__ void sums_done(int (&d)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; ++j)
        asm volatile("" : "+r"(d[j][0]), "+r"(d[j][1]), "+r"(d[j][2]), "+r"(d[j][3]) :: "memory");
}
template <int M, int N> __device__ __forceinline__ void sums_done(int4 (&d)[M][N]) {
#pragma unroll
    for (int i = 0; i < M; ++i)
#pragma unroll
        for (int j = 0; j < N; ++j)
            asm volatile("" : "+r"(d[i][j].x), "+r"(d[i][j].y), "+r"(d[i][j].z), "+r"(d[i][j].w) :: "memory");
}
template <int M, int N> __device__ __forceinline__ void sums_done(float4 (&d)[M][N]) {
#pragma unroll
    for (int i = 0; i < M; ++i)
#pragma unroll
        for (int j = 0; j < N; ++j)
            asm volatile("" : "+f"(d[i][j].x), "+f"(d[i][j].y), "+f"(d[i][j].z), "+f"(d[i][j].w) :: "memory");
}
// Keeps a value in a register; otherwise the compiler computes it again in each iteration of a loop.
__device__ __forceinline__ int in_register(int v) {
    asm volatile("" : "+r"(v));
    return v;
}
// Copy 16 bytes (or zeros) from global to shared memory, without passing through registers.
__device__ __forceinline__ void copy_async(uint4 *to, const uint4 *from, int bytes) {
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(at), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// Wait until at most N of the committed groups are still pending.
template <int N> __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}
__device__ __forceinline__ void multiply_tf32(float (&d)[4], const unsigned int (&a)[4],
                                              unsigned int b0, unsigned int b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Round a float to the 11 significant bits of tf32 and return the remainder, which the instruction truncates
// to 11 bits. Truncating the float instead would leave remainders of one sign; products of two remainders are
// dropped, so their errors would accumulate. The remainder of NaN is NaN, whatever its bits are rounded to.
__device__ __forceinline__ unsigned int split_tf32(unsigned int &word) {
    const float whole = __uint_as_float(word);
    word = (word + 0x1000u) & 0xffffe000u;
    return __float_as_uint(whole - __uint_as_float(word));
}
// Returns the value of the lane whose index differs in the bits of `mask` (butterfly shuffle).
__device__ __forceinline__ float of_other_lane(float value, int mask) {
    return __shfl_xor_sync(0xffffffffu, value, mask);
}
// Returns the value of the lane with index `lane`.
__device__ __forceinline__ int of_lane(int value, int lane) {
    return __shfl_sync(0xffffffffu, value, lane);
}
__device__ __forceinline__ float of_lane(float value, int lane) {
    return __shfl_sync(0xffffffffu, value, lane);
}
// Round a float to the nearest tf32 value.
__device__ __forceinline__ void round_tf32(unsigned int &word) {
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(__uint_as_float(word)));
}
#endif
#if __CUDA_ARCH__ >= 900
// Prefetch the data of a later kernel into L2; each block prefetches `part` bytes.
__device__ __forceinline__ void read_ahead(const char *from, unsigned long long part) {
    if (part == 0 || (threadIdx.x | threadIdx.y | threadIdx.z)) return;
    const unsigned int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;"
                 :: "l"(from + block * part), "r"((unsigned int)part) : "memory");
}
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Maps an address in this block's shared memory to the same location in another block of the cluster.
__device__ __forceinline__ unsigned int remote_address(const void *local, int block) {
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(local);
    unsigned int remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at), "r"(block));
    return remote;
}
// Predicated stores to another block's shared memory, without a branch: see `either`.
__device__ __forceinline__ void store_remote(const void *local, int block, uint2 v, bool wanted = true) {
    asm volatile("{ .reg .pred q; setp.ne.b32 q, %0, 0; @q st.shared::cluster.v2.b32 [%1], {%2, %3}; }"
                 :: "r"((int)wanted), "r"(remote_address(local, block)), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void store_remote(const void *local, int block, uint4 v, bool wanted = true) {
    asm volatile("{ .reg .pred q; setp.ne.b32 q, %0, 0; @q st.shared::cluster.v4.b32 [%1], {%2, %3, %4, %5}; }"
                 :: "r"((int)wanted), "r"(remote_address(local, block)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void store_remote(const void *local, int block, unsigned int v, bool wanted = true) {
    asm volatile("{ .reg .pred q; setp.ne.b32 q, %0, 0; @q st.shared::cluster.b32 [%1], %2; }"
                 :: "r"((int)wanted), "r"(remote_address(local, block)), "r"(v) : "memory");
}
// An inbox is an mbarrier that completes when the expected number of bytes has arrived from other blocks. A block calls
// `inbox_expect` and sends only after `cluster_wait`. No block may exit before all bytes have arrived.
__device__ __forceinline__ void inbox_begin(unsigned long long *inbox) {
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(inbox);
    if (threadIdx.x == 0)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n"
                     "fence.mbarrier_init.release.cluster;" :: "r"(at) : "memory");
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void inbox_expect(unsigned long long *inbox, int bytes) {
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(inbox);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(at), "r"(bytes) : "memory");
}
__device__ __forceinline__ void inbox_wait(unsigned long long *inbox) {
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(inbox);
    asm volatile("{ .reg .pred p;\n"
                 "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0;\n"
                 "@p bra ended;\n bra again;\n ended: }" :: "r"(at) : "memory");
}
// Store to the shared memory of any block of the cluster and signal that block's inbox.
#define SEND "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes."
__device__ __forceinline__ void send(const void *local, int block, uint4 v, unsigned long long *inbox, bool wanted = true) {
    asm volatile("{ .reg .pred q; setp.ne.b32 q, %0, 0; @q " SEND "v4.b32 [%1], {%3, %4, %5, %6}, [%2]; }"
                 :: "r"((int)wanted), "r"(remote_address(local, block)), "r"(remote_address(inbox, block)),
                    "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void send(const void *local, int block, float4 v, unsigned long long *inbox, bool wanted = true) {
    send(local, block, make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)),
         inbox, wanted);
}
__device__ __forceinline__ void send(const void *local, int block, int4 v, unsigned long long *inbox, bool wanted = true) {
    send(local, block, make_uint4(v.x, v.y, v.z, v.w), inbox, wanted);
}
__device__ __forceinline__ void send(const void *local, int block, uint2 v, unsigned long long *inbox, bool wanted = true) {
    asm volatile("{ .reg .pred q; setp.ne.b32 q, %0, 0; @q " SEND "v2.b32 [%1], {%3, %4}, [%2]; }"
                 :: "r"((int)wanted), "r"(remote_address(local, block)), "r"(remote_address(inbox, block)),
                    "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void send(const void *local, int block, unsigned int v, unsigned long long *inbox, bool wanted = true) {
    asm volatile("{ .reg .pred q; setp.ne.b32 q, %0, 0; @q " SEND "b32 [%1], %3, [%2]; }"
                 :: "r"((int)wanted), "r"(remote_address(local, block)), "r"(remote_address(inbox, block)),
                    "r"(v) : "memory");
}
#undef SEND
#endif
