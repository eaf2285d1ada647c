/* cross_entropy.cu - nll[t] = log(sum(exp(logits[t]))) - logits[t, target[t]], 0 where the target is negative, and its
 * gradient.
 *
 * Rows are read once by an online maximum and sum: every thread keeps the largest value m that it saw and the sum of
 * exp(x - m); these pairs are merged over the block in a fixed order.  Where a gradient follows in place, a block is
 * a whole multiprocessor's, so that the rows in work (132 x 250 KB on a H200) still lie in L2 when they are read again.
 */
#include "cuda.cuh"
#include "exp2.cuh"

namespace {
enum { VECTORS = 4, LOSS_THREADS = 256, GRADIENT_THREADS = 1024, BWD_THREADS = 512 };

struct softmax_sum {
    float max, sum; /* sum of exp(x - max); max -inf: of nothing */
};

__device__ __forceinline__ softmax_sum merge(softmax_sum a, softmax_sum b) {
    float max = fmaxf(a.max, b.max);
    if (max == -INFINITY) return {max, 0};
    /* no fused multiply-add: merge(a, b) and merge(b, a) are the same bits, so all lanes of a shuffle agree */
    return {max, __fadd_rn(__fmul_rn(a.sum, __expf(a.max - max)), __fmul_rn(b.sum, __expf(b.max - max)))};
}

/* Over the block, in all threads. */
__device__ softmax_sum block_merge(softmax_sum x) {
    __shared__ softmax_sum shared[32];
    for (int step = 0; step < 2; step++) {
        for (int offset = 16; offset > 0; offset /= 2) {
            softmax_sum other = {__shfl_xor_sync(0xFFFFFFFFu, x.max, offset),
                                 __shfl_xor_sync(0xFFFFFFFFu, x.sum, offset)};
            x = merge(x, other);
        }
        if (step) break;
        if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
        __syncthreads();
        x = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : softmax_sum{-INFINITY, 0};
    }
    return x;
}

/* Calls f(x, col) for each vector of the row that is this thread's, VECTORS of them in flight; with AHEAD these are the
 * next ones, behind those in work. f may write there. */
template <typename T, int W, bool AHEAD, typename F>
__device__ __forceinline__ void for_row(const T *row, int vectors, F f) {
    pack<T, W> v[VECTORS], next[VECTORS];
    auto fetch = [&](pack<T, W>(&to)[VECTORS], int first) {
#pragma unroll
        for (int u = 0; u < VECTORS; u++)
            if (first + u * (int)blockDim.x < vectors) to[u] = load<T, W>(row + (int64_t)(first + u * blockDim.x) * W);
    };
    const int step = blockDim.x * VECTORS;
    if (AHEAD) fetch(next, threadIdx.x);
    for (int first = threadIdx.x; first < vectors; first += step) {
        if (AHEAD) {
#pragma unroll
            for (int u = 0; u < VECTORS; u++) v[u] = next[u];
            fetch(next, first + step);
        } else {
            fetch(v, first);
        }
#pragma unroll
        for (int u = 0; u < VECTORS; u++)
            if (first + u * (int)blockDim.x < vectors) {
                float x[W];
                unpack<T, W>(x, v[u]);
                f(x, (first + u * (int)blockDim.x) * W);
            }
    }
}

/* Overwrites out with by (exp(logits - lse) - onehot). */
template <typename T, int W>
__device__ __forceinline__ void write_gradient(T *out, const T *logits, int vectors, float lse, float by, int target) {
    for_row<T, W, false>(logits, vectors, [&](float(&x)[W], int col) {
#pragma unroll
        for (int i = 0; i < W; i++) x[i] = by * (__expf(x[i] - lse) - (col + i == target ? 1.0f : 0.0f));
        store<T, W>(out + col, packed<T, W>(x));
    });
}

template <typename T, int W> __device__ __forceinline__ void write_zeros(T *out, int vectors) {
    float zero[W] = {};
    for (int v = threadIdx.x; v < vectors; v += blockDim.x) store<T, W>(out + (int64_t)v * W, packed<T, W>(zero));
}

typedef struct {
    const int32_t *target;
    float *nll, *lse;
    const float *weight; /* GRADIENT only */
    bool add;            /* nll += */
} ce_rows;

/* One block: one row. Grid: n rows. Shared: 256 bytes. For the loss alone several small blocks share a multiprocessor.
 * Reads 1 element per logit; with GRADIENT 2 (the second from L2) and writes 1. */
template <typename T, int W, bool GRADIENT>
__global__ void __launch_bounds__(GRADIENT ? GRADIENT_THREADS : LOSS_THREADS, GRADIENT ? 1 : 4)
    ce_kernel(span<T> logits, ce_rows r, int V) {
    await_previous();
    int t = blockIdx.x, target = r.target[t], vectors = V / W;
    T *row = logits.data + (int64_t)t * logits.ld;
    if (target < 0) {
        if (threadIdx.x == 0) r.lse[t] = 0, r.nll[t] = r.add ? r.nll[t] : 0;
        if (GRADIENT) write_zeros<T, W>(row, vectors);
        return;
    }
    if (target >= V) __trap(); /* our own mistake: the host checks targets */
    float chosen = to_float(row[target]);
    softmax_sum s = {-INFINITY, 0};
    for_row<T, W, !GRADIENT>(row, vectors, [&](float(&x)[W], int) {
        float max = s.max;
#pragma unroll
        for (int i = 0; i < W; i++) max = fmaxf(max, x[i]);
        if (max == -INFINITY) return;
        float origin = max * LOG2E;
        s.sum *= exp2_fast(s.max * LOG2E - origin);
        s.max = max;
#pragma unroll
        for (int i = 0; i < W; i++) s.sum += exp2_fast(x[i] * LOG2E - origin);
    });
    s = block_merge(s); /* its barrier is behind every thread's read of `chosen` */
    float lse = s.max + logf(s.sum);
    if (threadIdx.x == 0) {
        float loss = lse - chosen;
        r.lse[t] = lse;
        r.nll[t] = r.add ? r.nll[t] + loss : loss;
    }
    if (GRADIENT) write_gradient<T, W>(row, row, vectors, lse, r.weight[t], target);
}

/* One block: one row. Grid: n rows. Reads 1 and writes 1 element per logit. */
template <typename T, int W>
__global__ void __launch_bounds__(BWD_THREADS)
    ce_bwd_kernel(span<T> out, span<T> logits, const int32_t *target, const float *lse, const float *dnll, int V) {
    await_previous();
    int t = blockIdx.x;
    T *to = out.data + (int64_t)t * out.ld;
    if (target[t] < 0) write_zeros<T, W>(to, V / W);
    else write_gradient<T, W>(to, logits.data + (int64_t)t * logits.ld, V / W, lse[t], dnll[t], target[t]);
}

unsigned threads_for(int64_t vectors, int most) {
    int64_t threads = cuda_ceil(cuda_ceil(vectors, VECTORS), 32) * 32;
    return (unsigned)(threads > most ? most : threads);
}
} // namespace

extern "C" void cuda_ce_chunk(const tensor *logits, const int32_t *target, float *nll, float *lse, bool add,
                              const float *weight, int64_t n) {
    if (!n) return;
    assert(logits->cols < INT32_MAX);
    cuda_with_type(logits, [&](auto zero) {
        using T = decltype(zero);
        cuda_with_width<T>(cuda_is_wide<T>(logits), [&](auto W) {
            int V = (int)logits->cols;
            ce_rows r = {target, nll, lse, weight, add};
            auto kernel = weight ? ce_kernel<T, W(), true> : ce_kernel<T, W(), false>;
            unsigned threads = threads_for(V / W(), weight ? GRADIENT_THREADS : LOSS_THREADS);
            cuda_launch(kernel, (unsigned)n, threads, span_of<T>(logits), r, V);
        });
    });
}

extern "C" void cuda_ce_bwd(const tensor *dlogits, const tensor *logits, const int32_t *target, const float *lse,
                            const float *dnll, int64_t n) {
    if (!n) return;
    assert(logits->cols < INT32_MAX && logits->type == dlogits->type);
    cuda_with_type(logits, [&](auto zero) {
        using T = decltype(zero);
        cuda_with_width<T>(cuda_is_wide<T>(logits) && cuda_is_wide<T>(dlogits), [&](auto W) {
            int V = (int)logits->cols;
            cuda_launch(ce_bwd_kernel<T, W()>, (unsigned)n, threads_for(V / W(), BWD_THREADS), span_of<T>(dlogits),
                        span_of<T>(logits), target, lse, dnll, V);
        });
    });
}

extern "C" void cuda_op_cross_entropy(const kernel_call *call) {
    cuda_ce_chunk(&call->in[0], (const int32_t *)call->in[1].data, (float *)call->out[0].data,
                  (float *)call->out[1].data, call->out[0].add, nullptr, kernel_rows(call));
    cuda_check_launch(call);
}

extern "C" void cuda_op_cross_entropy_bwd(const kernel_call *call) {
    cuda_ce_bwd(&call->out[0], &call->in[1], (const int32_t *)call->in[2].data, (const float *)call->in[3].data,
                (const float *)call->in[0].data, kernel_rows(call));
    cuda_check_launch(call);
}
