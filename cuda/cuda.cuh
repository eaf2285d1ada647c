/* cuda.cuh - what the CUDA kernels share: 16-byte accesses, reductions and launch helpers.
 *
 * T is float or __nv_bfloat16 (the compute type: activations and the params that ops read); arithmetic is float32.
 * Statistics (rstd, lse, nll), rope frequencies and gradients of params are float32 everywhere.
 * A kernel is built for vectors of W elements: 16 bytes where every base, row stride and width allows it, else W = 1,
 * which takes any shape.  Operands of one kernel are not __restrict__: an output may be an input where its op says so,
 * and each thread reads all that it needs of a place before it writes there.
 * Sums have a fixed order that depends on shapes alone: equal runs give equal bits. */
#ifndef CUDA_CUDA_CUH
#define CUDA_CUDA_CUH
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "launch.h"

typedef __nv_bfloat16 bf16;

/* ---- 16-byte accesses ---- */

template <typename T> constexpr int wide() { return 16 / (int)sizeof(T); }

/* W elements as they lie in memory. */
template <typename T, int W> struct alignas(sizeof(T) * W) pack { T x[W]; };
template <typename T, int W> __device__ __forceinline__ pack<T, W> load(const T *p) {
    return *reinterpret_cast<const pack<T, W> *>(p);
}
template <typename T, int W> __device__ __forceinline__ void store(T *p, const pack<T, W> &v) {
    *reinterpret_cast<pack<T, W> *>(p) = v;
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }

/* Two at a time, so that the elements lie two in a register until they are used. */
template <typename T, int W> __device__ __forceinline__ void unpack(float (&out)[W], const pack<T, W> &in) {
    if constexpr (sizeof(T) == 2 && W % 2 == 0) {
        uint32_t two[W / 2];
        memcpy(two, &in, sizeof in);
#pragma unroll
        for (int i = 0; i < W; i += 2) {
            out[i] = __uint_as_float(two[i / 2] << 16);
            out[i + 1] = __uint_as_float(two[i / 2] & 0xFFFF0000u);
        }
    } else {
#pragma unroll
        for (int i = 0; i < W; i++) out[i] = to_float(in.x[i]);
    }
}
/* Pairs, because one instruction rounds two. */
template <typename T, int W> __device__ __forceinline__ pack<T, W> packed(const float (&in)[W]) {
    pack<T, W> out;
    if constexpr (sizeof(T) == 2 && W % 2 == 0) {
#pragma unroll
        for (int i = 0; i < W; i += 2) {
            __nv_bfloat162 two = __floats2bfloat162_rn(in[i], in[i + 1]);
            out.x[i] = two.x;
            out.x[i + 1] = two.y;
        }
    } else {
#pragma unroll
        for (int i = 0; i < W; i++) out.x[i] = from_float<T>(in[i]);
    }
    return out;
}

/* ---- reductions ---- */

/* Sum over groups of `lanes` neighbouring threads, in all of them. lanes: a power of two up to 32, or blockDim.x (a
 * multiple of 32), when `shared` is 32 floats; it may be used again at once. */
__device__ __forceinline__ float group_sum(float x, int lanes, float *shared) {
    int within = lanes < 32 ? lanes : 32;
    for (int offset = within / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
    if (lanes <= 32) return x;
    __syncthreads(); /* an earlier sum has been read */
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0;
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
    return x;
}

/* Sum over the block in double, in all threads; shared: 32 doubles. */
__device__ __forceinline__ double block_sum(double x, double *shared) {
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0;
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
    return x;
}

/* ---- launching ---- */

/* A kernel's first statement where cuda_launch launches it: the kernel before it in the stream has ended, and all that
 * it wrote is seen.  The next one may then be placed as this one's last blocks leave room. */
__device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Launches a kernel that begins with await_previous: its blocks are placed while the kernel before it ends, which hides
 * a launch (sm_90 and newer; else as always). */
template <typename... P, typename... A>
static void cuda_launch(void (*kernel)(P...), dim3 grid, unsigned threads, const A &...args) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = threads;
    config.stream = cuda_stream();
    config.attrs = &early;
    config.numAttrs = cuda_code() >= 90;             /* else await_previous does not wait */
    cudaLaunchKernelEx(&config, kernel, P(args)...); /* an error stays for cuda_check_launch */
}

static inline int64_t cuda_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* t can be read in vectors of W elements of T: base, row stride and width are multiples. Absent: true. */
template <typename T> static inline bool cuda_is_wide(const tensor *t) {
    int64_t W = wide<T>();
    bool one_row = t->rows == 1;
    return !t->data || ((uintptr_t)t->data % 16 == 0 && t->cols % W == 0 && (one_row || t->ld % W == 0));
}
/* Of a vector of rows x 1 elements, as weights are. */
template <typename T> static inline bool cuda_is_wide_vector(const tensor *t) {
    return !t->data || ((uintptr_t)t->data % 16 == 0 && t->rows * t->cols % wide<T>() == 0);
}

/* Calls f with a value of the type that t has: `[&](auto zero) { using T = decltype(zero); ... }`. */
template <typename F> static inline void cuda_with_type(const tensor *t, F f) {
    assert(t->type == DTYPE_F32 || t->type == DTYPE_BF16);
    if (t->type == DTYPE_BF16) f(bf16());
    else f(float());
}
/* The same with the vector width as a constant: `[&](auto W) { kernel<T, W()>... }`. */
template <int value> struct constant {
    __host__ __device__ constexpr int operator()() const { return value; }
};
template <typename T, typename F> static inline void cuda_with_width(bool is_wide, F f) {
    if (is_wide) f(constant<wide<T>()>());
    else f(constant<1>());
}

/* ---- maps: outputs[row, col] = f(inputs[row, col]) ---- */

/* Rows of one operand. */
template <typename T> struct span {
    T *data;
    int64_t ld;
};
template <typename T> static inline span<T> span_of(const tensor *t) { return {(T *)t->data, t->ld}; }

template <typename T, int IN, int OUT> struct map_operands {
    span<T> in[IN], out[OUT];
    uint32_t vectors;     /* of a row */
    uint32_t all_vectors; /* of all rows; below 2^31 */
    uint32_t by, shift;   /* i / vectors = i by >> shift */
};

enum { MAP_THREADS = 256 };

/* One block: MAP_THREADS x U vectors of W elements, U loads of every input in flight before the first use.
 * Grid: all vectors, rows one after the other.  f(y, x, i) turns IN arrays of W floats,
 * the i-th vector of all, into OUT arrays. */
template <typename T, int W, int U, int IN, int OUT, typename F>
__global__ void __launch_bounds__(MAP_THREADS) map_kernel(map_operands<T, IN, OUT> o, F f) {
    await_previous();
    uint32_t first = blockIdx.x * (MAP_THREADS * U) + threadIdx.x;
    pack<T, W> in[U][IN];
    uint32_t row[U], col[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
        uint32_t i = first + u * MAP_THREADS;
        row[u] = (uint32_t)((uint64_t)i * o.by >> o.shift);
        col[u] = (i - row[u] * o.vectors) * W;
        if (i < o.all_vectors) {
#pragma unroll
            for (int k = 0; k < IN; k++) in[u][k] = load<T, W>(o.in[k].data + row[u] * o.in[k].ld + col[u]);
        }
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        if (first + u * MAP_THREADS >= o.all_vectors) break;
        float x[IN][W], y[OUT][W];
#pragma unroll
        for (int k = 0; k < IN; k++) unpack<T, W>(x[k], in[u][k]);
        f(y, x, first + u * MAP_THREADS);
#pragma unroll
        for (int k = 0; k < OUT; k++) store<T, W>(o.out[k].data + row[u] * o.out[k].ld + col[u], packed<T, W>(y[k]));
    }
}

/* Launches f over n rows of the tensors, which have one type and one width. */
template <int U, int IN, int OUT, typename F>
static void cuda_map(const tensor *const (&in)[IN], const tensor *const (&out)[OUT], int64_t n, F f) {
    int64_t cols = in[0]->cols;
    if (!n || !cols) return;
    cuda_with_type(in[0], [&](auto zero) {
        using T = decltype(zero);
        map_operands<T, IN, OUT> o;
        bool is_wide = true;
        for (int k = 0; k < IN; k++) o.in[k] = span_of<T>(in[k]), is_wide = is_wide && cuda_is_wide<T>(in[k]);
        for (int k = 0; k < OUT; k++) o.out[k] = span_of<T>(out[k]), is_wide = is_wide && cuda_is_wide<T>(out[k]);
        cuda_with_width<T>(is_wide, [&](auto W) {
            int64_t all = n * (cols / W());
            assert(all < INT32_MAX);
            o.vectors = (uint32_t)(cols / W());
            o.all_vectors = (uint32_t)all;
            /* 2^shift / vectors, rounded up: 32 bits that give every quotient below 2^31 (Granlund, Montgomery 1994) */
            for (o.shift = 31; (int64_t)1 << (o.shift - 31) < o.vectors;) o.shift++;
            o.by = (uint32_t)(((uint64_t)1 << o.shift) / o.vectors + 1);
            unsigned blocks = (unsigned)cuda_ceil(all, MAP_THREADS * U);
            cuda_launch(map_kernel<T, W(), U, IN, OUT, F>, blocks, MAP_THREADS, o, f);
        });
    });
}
#endif
