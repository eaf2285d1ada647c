/* attention_tile.cuh - what the attention kernels are made of: tiles in shared memory and products of warp fragments.
 *
 * A tile is ROWS x D bf16 values in shared memory.  Its 16-byte chunks are permuted inside each row by
 * chunk ^ (row % 8), so that the eight rows which one ldmatrix phase reads lie in different banks.
 * Products are mma.sync m16n8k16 (sm_80 and newer): a warp's fragment of C, 16 x 8, has in lane l the elements
 * (l / 4, 2 (l % 4) + {0, 1}) and (l / 4 + 8, the same columns); two neighbouring ones, packed to bf16, are the A
 * fragment (16 x 16) of a following product, so scores never travel through shared memory. */
#ifndef CUDA_ATTENTION_TILE_CUH
#define CUDA_ATTENTION_TILE_CUH
#include <cuda_bf16.h>
#include <stdint.h>

#include "exp2.cuh"

namespace tile {

typedef __nv_bfloat16 bf16;
constexpr int THREADS = 128, WARPS = 4; /* of every attention kernel with tiles */

__device__ inline uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* BYTES (4, 8 or 16) from global to shared memory in the background; zeros when !valid (p is not read then). */
template <int BYTES> __device__ inline void copy_async(void *to, const void *p, bool valid) {
    int bytes = valid ? BYTES : 0;
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(p), "r"(bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(p), "n"(BYTES),
                     "r"(bytes)
                     : "memory");
    }
}
__device__ inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ inline void copy_wait() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

/* Element offset of chunk c (8 elements) of a row. */
template <int D> __device__ inline int at(int row, int chunk) { return row * D + ((chunk ^ (row & 7)) << 3); }

/* Rows first .. first + ROWS of x[., D] (row stride ld) into a tile; rows at or beyond `limit` become zeros. */
template <int ROWS, int D> __device__ inline void load(bf16 *to, const bf16 *x, int64_t ld, int first, int limit) {
    constexpr int CHUNKS = D / 8, STEP = THREADS / CHUNKS; /* rows that the block copies at a time */
    const int row = (int)threadIdx.x / CHUNKS, c = (int)threadIdx.x % CHUNKS;
    const bf16 *from = x + (int64_t)(first + row) * ld + c * 8;
#pragma unroll
    for (int i = 0; i < ROWS / STEP; i++) {
        copy_async<16>(to + at<D>(row + i * STEP, c), from, first + row + i * STEP < limit);
        from += STEP * ld;
    }
}

__device__ inline void ldmatrix(uint32_t (&r)[4], const bf16 *p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p)));
}
__device__ inline void ldmatrix_transposed(uint32_t (&r)[4], const bf16 *p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p)));
}

/* A fragment: rows row .. row + 15, columns 16 kk .. 16 kk + 15. */
template <int D> __device__ inline void load_a(uint32_t (&a)[4], const bf16 *t, int row, int kk) {
    int lane = threadIdx.x & 31;
    ldmatrix(a, t + at<D>(row + (lane & 15), 2 * kk + (lane >> 4)));
}
/* B fragments of two n-tiles where the tile's rows are n and its columns k: b[0..1] rows row .. + 7, b[2..3] + 8 .. */
template <int D> __device__ inline void load_b(uint32_t (&b)[4], const bf16 *t, int row, int kk) {
    int lane = threadIdx.x & 31;
    ldmatrix(b, t + at<D>(row + (lane & 7) + ((lane >> 4) << 3), 2 * kk + ((lane >> 3) & 1)));
}
/* B fragments of two n-tiles where the tile's rows are k and its columns n: columns 16 nn .. 16 nn + 15. */
template <int D> __device__ inline void load_b_rows_k(uint32_t (&b)[4], const bf16 *t, int row, int nn) {
    int lane = threadIdx.x & 31;
    ldmatrix_transposed(b, t + at<D>(row + (lane & 15), 2 * nn + (lane >> 4)));
}

__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* C[MT * 16, NT * 8] = A rows (tile a, from row a0) . B rows' (tile b, from row 0), over all D columns. */
template <int D, int MT, int NT>
__device__ inline void product_rows(float (&c)[MT][NT][4], const bf16 *a, int a0, const bf16 *b) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++) c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0;
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++) {
        uint32_t fa[MT][4], fb[4];
#pragma unroll
        for (int m = 0; m < MT; m++) load_a<D>(fa[m], a, a0 + 16 * m, kk);
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            load_b<D>(fb, b, 8 * n, kk);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma(c[m][n], fa[m], fb[0], fb[1]);
                mma(c[m][n + 1], fa[m], fb[2], fb[3]);
            }
        }
    }
}

/* C[MT * 16, D] += A (fragments, MT * 16 x KT * 16) . B (tile of KT * 16 rows) */
template <int D, int MT, int KT>
__device__ inline void product_add(float (&c)[MT][D / 8][4], const uint32_t (&a)[MT][KT][4], const bf16 *b) {
#pragma unroll
    for (int kk = 0; kk < KT; kk++)
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t fb[4];
            load_b_rows_k<D>(fb, b, 16 * kk, n);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma(c[m][2 * n], a[m][kk], fb[0], fb[1]);
                mma(c[m][2 * n + 1], a[m][kk], fb[2], fb[3]);
            }
        }
}

__device__ inline uint32_t pack(float low, float high) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
/* Fragments of C as A fragments of the next product. */
template <int MT, int NT> __device__ inline void pack_a(uint32_t (&a)[MT][NT / 2][4], const float (&c)[MT][NT][4]) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++) {
            a[m][n / 2][(n & 1) * 2] = pack(c[m][n][0], c[m][n][1]);
            a[m][n / 2][(n & 1) * 2 + 1] = pack(c[m][n][2], c[m][n][3]);
        }
}

/* A warp's C[MT * 16, D], times `factor` per row, to rows first .. of x (row stride ld), by way of its own rows
 * (a0 ..) of a tile; rows at or beyond `limit` are left alone. */
template <int D, int MT>
__device__ inline void store(bf16 *x, int64_t ld, int first, int limit, bf16 *t, int a0, float (&c)[MT][D / 8][4],
                             const float (&factor)[MT][2]) {
    int lane = threadIdx.x & 31;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int row = a0 + 16 * m + (lane >> 2) + 8 * r;
                *(uint32_t *)(t + at<D>(row, n) + 2 * (lane & 3)) =
                    pack(c[m][n][2 * r] * factor[m][r], c[m][n][2 * r + 1] * factor[m][r]);
            }
    __syncwarp();
    constexpr int CHUNKS = D / 8;
#pragma unroll
    for (int i = 0; i < MT * 16 * CHUNKS / 32; i++) {
        int row = (i * 32 + lane) / CHUNKS, chunk = (i * 32 + lane) % CHUNKS;
        if (first + row < limit)
            *(uint4 *)(x + (int64_t)(first + row) * ld + chunk * 8) = *(const uint4 *)(t + at<D>(a0 + row, chunk));
    }
}

/* tanh to about 1e-6: the hardware's tanh.approx would move a capped score by 0.02. */
__device__ inline float tanh_exact(float x) { return 1 - __fdividef(2, exp2_fast(2 * LOG2E * x) + 1); }
__device__ inline float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}
/* The first row that `row`, of a document that begins at `start`, sees. */
__device__ inline int first_seen(int start, int row, int window) {
    return window && row - window + 1 > start ? row - window + 1 : start;
}

} // namespace tile
#endif
