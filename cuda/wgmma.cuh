/* wgmma.cuh - the Hopper instructions that our products and our attention are made of, one wrapper each.
 *
 * Names follow PTX.  Shared memory is addressed by its 32-bit shared address (shared_address()).  All of them need
 * sm_90a; they are inlined, so a translation unit that never calls them builds for any architecture.
 * Words used: a *warpgroup* is four warps that issue wgmma together; the *async proxy* is the path by which wgmma and
 * TMA see shared memory, and ordinary stores must be fenced before it reads them. */
#ifndef CUDA_WGMMA_CUH
#define CUDA_WGMMA_CUH
#include <cuda.h>
#include <stdint.h>

namespace wgmma {
#define WGMMA_INLINE __device__ __forceinline__

WGMMA_INLINE uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* ---- mbarrier: a count of arrivals and of bytes that TMA still owes; a phase ends when both are met ---- */

WGMMA_INLINE void barrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
/* Makes initialised barriers visible to the cluster and to TMA. */
WGMMA_INLINE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
/* One arrival, and `bytes` more are owed in this phase. */
WGMMA_INLINE void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
WGMMA_INLINE void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* One arrival at the same barrier of CTA `rank` of the cluster.  It orders only what this CTA did: with
 * .release.cluster a fence of the whole card would stand in front of every arrival (a third of the speed of a product).
 */
WGMMA_INLINE void barrier_arrive_at(uint32_t barrier, uint32_t rank) {
    asm volatile("{\n.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}
/* Until the phase of parity `parity` has ended; a fresh barrier counts as having ended parity 1. */
WGMMA_INLINE void barrier_wait(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!done);
}
/* The stages of a ring of shared memory, and the parity of the phase that each of its two sides waits for. */
struct ring {
    int stage = 0;
    uint32_t phase = 0;
    template <int STAGES> WGMMA_INLINE void next() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    template <int STAGES> WGMMA_INLINE void skip(int blocks) {
        stage += blocks;
        phase ^= stage / STAGES & 1;
        stage %= STAGES;
    }
};

/* Threads of one named barrier (1 to 15; 0 is __syncthreads). */
WGMMA_INLINE void named_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Counts towards a named barrier without waiting for it. */
WGMMA_INLINE void named_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- clusters ---- */

WGMMA_INLINE uint32_t cluster_rank() {
    uint32_t x;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(x));
    return x;
}
WGMMA_INLINE uint32_t cluster_size() {
    uint32_t x;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(x));
    return x;
}
/* All threads of all CTAs of the cluster. */
WGMMA_INLINE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/* ---- TMA: boxes between global memory (through a tensor map) and shared memory; x is the contiguous direction ---- */

WGMMA_INLINE void tma_prefetch_map(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
WGMMA_INLINE void tma_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y)
                 : "memory");
}
/* With a policy for L2. */
WGMMA_INLINE void tma_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int x, int y, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "l"(policy)
                 : "memory");
}
WGMMA_INLINE uint64_t evict_first() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
/* Into the same place of every CTA in `mask`, each told by its own barrier. */
WGMMA_INLINE void tma_load_multicast(uint32_t to, const CUtensorMap *map, uint32_t barrier, int x, int y,
                                     uint16_t mask) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(mask)
                 : "memory");
}
/* What lies outside of the matrix is not written. */
WGMMA_INLINE void tma_store(const CUtensorMap *map, uint32_t from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from),
                 "r"(x), "r"(y)
                 : "memory");
}
WGMMA_INLINE void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/* Until at most PENDING of this thread's committed stores still read shared memory. */
template <int PENDING> WGMMA_INLINE void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
/* Ordinary stores to shared memory become visible to TMA and wgmma. */
WGMMA_INLINE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* ---- registers and warps ---- */

template <int N> WGMMA_INLINE void registers_give() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> WGMMA_INLINE void registers_take() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

/* Four 8x8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l / 8. */
WGMMA_INLINE void stmatrix_x4(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}

/* The same way back. */
WGMMA_INLINE void ldmatrix_x4(uint32_t (&to)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

/* ---- wgmma ---- */

/* Descriptor of an operand whose rows are 128 bytes with the 128-byte swizzle, at a multiple of 1024 bytes.
 * K-major (rows are m or n, 64 values of k each): `leading` is not used.
 * MN-major (rows are k, 64 values of n each): `leading` is the distance in bytes from one 64 values of n to the next.
 * Both: 8 rows are 1024 bytes apart. */
WGMMA_INLINE uint64_t operand(uint32_t address, uint32_t leading) {
    return (uint64_t)((address & 0x3FFFF) >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}
/* Before the first wgmma of a batch: orders register and earlier shared accesses. */
WGMMA_INLINE void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
WGMMA_INLINE void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> WGMMA_INLINE void wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
/* Keeps the compiler from moving reads of sums above a wait(). */
template <int N> WGMMA_INLINE void settle(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
/* The same for operands in registers: they must not be given away before it. */
template <int N> WGMMA_INLINE void settle(uint32_t (&a)[N][4]) {
#pragma unroll
    for (int i = 0; i < 4 * N; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

/* d[64, N] = a[64, 16] b[N, 16]' (+ d unless `add` is 0), bf16 to float32. Thread t of the warpgroup holds, for each 8
 * columns g, in d[4g] and d[4g + 1] row 16 (t / 32) + t % 32 / 4 at columns 8g + 2 (t % 4) and the next, in d[4g + 2]
 * and d[4g + 3] the row 8 below.  B_MN, A_MN: 1 when b, a is MN-major.  a in registers: d of columns 16 k ..
 * 16 k + 15 of an earlier product, rounded two by two: a[i] of d[8k + 2i] and the next. */
// clang-format off
#define WGMMA_F8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
                       "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define WGMMA_F32(d, i) WGMMA_F8(d, i), WGMMA_F8(d, i + 8), WGMMA_F8(d, i + 16), WGMMA_F8(d, i + 24)

template <int B_MN, int A_MN = 0> WGMMA_INLINE void multiply(float (&d)[32], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, %35, %36;\n}"
        : WGMMA_F32(d, 0)
        : "l"(a), "l"(b), "r"(add), "n"(A_MN), "n"(B_MN));
}

template <int B_MN> WGMMA_INLINE void multiply(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
        : WGMMA_F32(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(B_MN));
}

template <int B_MN> WGMMA_INLINE void multiply(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
        : WGMMA_F32(d, 0), WGMMA_F32(d, 32)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(B_MN));
}

template <int B_MN, int A_MN = 0> WGMMA_INLINE void multiply(float (&d)[64], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, %68, %67;\n}"
        : WGMMA_F32(d, 0), WGMMA_F32(d, 32)
        : "l"(a), "l"(b), "r"(add), "n"(B_MN), "n"(A_MN));
}

template <int B_MN> WGMMA_INLINE void multiply(float (&d)[96], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "%96, %97, p, 1, 1, 0, %99;\n}"
        : WGMMA_F32(d, 0), WGMMA_F32(d, 32), WGMMA_F32(d, 64)
        : "l"(a), "l"(b), "r"(add), "n"(B_MN));
}

template <int B_MN> WGMMA_INLINE void multiply(float (&d)[128], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, p, 1, 1, 0, %131;\n}"
        : WGMMA_F32(d, 0), WGMMA_F32(d, 32), WGMMA_F32(d, 64), WGMMA_F32(d, 96)
        : "l"(a), "l"(b), "r"(add), "n"(B_MN));
}
// clang-format on
} // namespace wgmma
#endif
