"""Matrix instructions of NVIDIA's GPUs, and what feeds them, as functions for CUDA's templates."""

from __future__ import annotations


def _group_multiply(columns: int) -> str:
    """Return the functions that multiply 64 rows of one matrix by `columns` rows of another.

    They add what 16 halves of the rows make, or 8 floats: these may start a sum, too.
    """
    places = [(j, q) for j in range(columns // 8) for q in range(4)]
    sums = ", ".join(f"%{i}" for i in range(len(places)))
    a, b, *_, last = range(len(places), len(places) + 6)
    four = ", ".join(f"%{a + i}" for i in range(4))
    operands = ", ".join(f'"+f"(d[{j}][{q}])' for j, q in places)
    return f"""\
__device__ __forceinline__ void group_multiply(float (&d)[{columns // 8}][4],
                                               unsigned long long a, unsigned long long b) {{
    asm volatile("{{ .reg .pred p; setp.eq.b32 p, 0, 0; "
                 "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16 "
                 "{{{sums}}}, %{a}, %{b}, p, 1, 1, 0, 0; }}"
                 : {operands} : "l"(a), "l"(b));
}}
__device__ __forceinline__ void group_multiply_tf32(float (&d)[{columns // 8}][4],
                                                    const unsigned int (&a)[4],
                                                    unsigned long long b, bool add) {{
    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{last}, 0; "
                 "wgmma.mma_async.sync.aligned.m64n{columns}k8.f32.tf32.tf32 "
                 "{{{sums}}}, {{{four}}}, %{last - 1}, p, 1, 1; }}"
                 : {operands}
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}}
"""


MATRIX = (
    """\
#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ void load_matrix(unsigned int (&a)[4], const void *row) {
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void multiply(float (&d)[4], const unsigned int (&a)[4],
                                         unsigned int b0, unsigned int b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Whatever adds to sums is done here, by all lanes: it may not move to where only some need them.
template <int N> __device__ __forceinline__ void sums_made(float (&d)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; ++j)
        asm volatile("" : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3]) :: "memory");
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
// Wait until at most N of the committed groups are still on their way.
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
// Round a float to the 11 leading bits that tf32 holds, and return the rest, which the instruction
// cuts to as many. Cutting the float instead would leave rests of one sign, whose products are
// dropped: an error that adds up. Rests have both signs. That of NaN is NaN, whatever its bits are
// rounded to.
__device__ __forceinline__ unsigned int split_tf32(unsigned int &word) {
    const float whole = __uint_as_float(word);
    word = (word + 0x1000u) & 0xffffe000u;
    return __float_as_uint(whole - __uint_as_float(word));
}
// Round a float to what tf32 holds.
__device__ __forceinline__ void round_tf32(unsigned int &word) {
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(__uint_as_float(word)));
}
#endif
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The address that a place in this block's shared memory has in another block of the cluster.
__device__ __forceinline__ unsigned int remote_address(const void *local, int block) {
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(local);
    unsigned int remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at), "r"(block));
    return remote;
}
__device__ __forceinline__ void store_remote(const void *local, int block, uint2 v) {
    asm volatile("st.shared::cluster.v2.b32 [%0], {%1, %2};"
                 :: "r"(remote_address(local, block)), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void store_remote(const void *local, int block, uint4 v) {
    asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};"
                 :: "r"(remote_address(local, block)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
__device__ __forceinline__ void store_remote(const void *local, int block, unsigned int v) {
    asm volatile("st.shared::cluster.b32 [%0], %1;"
                 :: "r"(remote_address(local, block)), "r"(v) : "memory");
}
__device__ __forceinline__ float4 load_remote(const void *local, int block) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(remote_address(local, block)) : "memory");
    return v;
}
#endif
#if __CUDA_ARCH__ == 900
// 4 warps multiply 64 rows of one matrix by the rows of another, in shared memory in rows of 64
// bytes, whose 16-byte chunks are shuffled as the hardware has it. Of floats the first matrix is in
// registers: each warp holds 16 rows x 8 as for multiply_tf32.
__device__ __forceinline__ unsigned long long matrix_at(const void *first) {
    const unsigned long long at = __cvta_generic_to_shared(first);
    return (at & 0x3ffff) >> 4 | 1ull << 16 | (512ull >> 4) << 32 | 2ull << 62;
}
// What threads have written to shared memory becomes visible to these instructions.
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
// Wait for all, and keep the compiler from reading sums before.
template <int N> __device__ __forceinline__ void group_done(float (&d)[N][4]) {
    group_wait<0>();
    sums_made(d);
}
"""
    + "".join(map(_group_multiply, (32, 64, 128)))
    + """\
#endif
"""
)
