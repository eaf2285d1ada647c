/* attention_launch.cuh - checks of shapes and operands, and checked launches, for attention.cu and attention_bwd.cu. */
#ifndef CUDA_ATTENTION_LAUNCH_CUH
#define CUDA_ATTENTION_LAUNCH_CUH
#include "attention.h"
#include "attention_tile.cuh"

static inline bool attention_launched(const char *what, failure *f) {
    cudaError_t e = cudaGetLastError();
    return e == cudaSuccess || fail(f, FAIL_MACHINE, "%s: %s", what, cudaGetErrorString(e));
}

/* attention_wgmma.cu, _dkv.cu and _dq.cu: the forward, and the two kernels of the backward, where
 * attention_on_wgmma(). */
bool attention_wgmma_forward(const attention_shape *shape, const attention_operands *x, const int32_t *bounds,
                             cudaStream_t stream, failure *f);
bool attention_wgmma_keys(const attention_shape *shape, const attention_operands *x, const int32_t *bounds,
                          const float2 *pairs, cudaStream_t stream, failure *f);
bool attention_wgmma_queries(const attention_shape *shape, const attention_operands *x, const int32_t *bounds,
                             const float2 *pairs, cudaStream_t stream, failure *f);

/* Where the lists of tiles lie in the table of bounds. */
constexpr int ATTENTION_TILE = 128; /* rows */
static __host__ __device__ inline int attention_tiles(int N) { return (N + ATTENTION_TILE - 1) / ATTENTION_TILE; }
static __host__ __device__ inline int attention_order_of_queries(int N) { return 2 * N + 1; }
static __host__ __device__ inline int attention_order_of_keys(int N) { return 2 * N + 1 + attention_tiles(N); }
/* Rows of a head in the backward's work space: pairs[H, attention_pair_rows(N)]. */
static __host__ __device__ inline int attention_pair_rows(int N) { return (N + 63) / 64 * 64; }

/* `kernel` on `grid` with `bytes` of dynamic shared memory per block. */
template <typename... P, typename... A>
static bool attention_launch(const char *what, void (*kernel)(P...), dim3 grid, int bytes, cudaStream_t stream,
                             failure *f, const A &...args) {
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e == cudaSuccess) /* two blocks per multiprocessor where they fit */
        e = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
    if (e != cudaSuccess)
        return fail(f, FAIL_MACHINE, "%s: a block needs %d bytes of shared memory: %s", what, bytes,
                    cudaGetErrorString(e));
    kernel<<<grid, tile::THREADS, (size_t)bytes, stream>>>(args...);
    return attention_launched(what, f);
}

static inline bool attention_check(const attention_shape *s, failure *f) {
    if (s->d != 64 && s->d != 128 && s->d != 256)
        return fail(f, FAIL_MACHINE, "attention on the GPU: head_dim %d, expected 64, 128 or 256", s->d);
    if (s->N < 1 || s->G < 1 || s->H < 1 || s->H > 65535 || s->H % s->G)
        return fail(f, FAIL_MACHINE, "attention on the GPU: %d rows, %d heads, %d key heads", s->N, s->H, s->G);
    if (s->window < 0 || s->soft_cap < 0)
        return fail(f, FAIL_MACHINE, "attention on the GPU: window %d, soft cap %g", s->window, s->soft_cap);
    return true;
}

static inline bool attention_check_rows(const char *name, const attention_rows *x, failure *f) {
    if ((uintptr_t)x->data % 16 == 0 && x->ld % 8 == 0) return true;
    return fail(f, FAIL_MACHINE, "attention on the GPU: %s at %p with row stride %lld, expected multiples of 16 bytes",
                name, x->data, (long long)x->ld);
}
#endif
