/* attention_cached.cu - the rows of one sequence against its key/value cache: k and v are stored at their positions
 * first, then every row attends over the keys first .. pos of the cache.
 *
 * For generation, whose speed is set by the products.  A warp takes every WARPS-th key, its lanes the elements of the
 * head, with an online softmax; the warps' results are merged in order at the end. */
#include "cuda.cuh"

namespace {
enum { WARPS = 4, MOST_D = 256, PER_LANE = MOST_D / 32 };

/* One block: one row of k and v. Grid: n rows. Reads 2 and writes 2 elements per element. */
template <typename T>
__global__ void cache_kernel(span<T> kcache, span<T> vcache, span<T> k, span<T> v, const int32_t *pos,
                             int64_t n_context, int width) {
    int64_t t = blockIdx.x, to = pos[t];
    if (to < 0 || to >= n_context) __trap(); /* our own mistake: the sampler stops at the end of the cache */
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        kcache.data[to * kcache.ld + i] = k.data[t * k.ld + i];
        vcache.data[to * vcache.ld + i] = v.data[t * v.ld + i];
    }
}

typedef struct {
    int per_group; /* query heads to a key head */
    int d, window;
    float scale;
} cached_shape;

/* One block: one head of one row. Grid: n rows x heads. Shared: the warps' maxima, sums and outputs, 4 KB.
 * Reads the head's part of the keys and values that the row sees. */
template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    attend_kernel(span<T> o, span<T> q, span<T> kcache, span<T> vcache, const int32_t *pos, cached_shape s) {
    __shared__ float max_of[WARPS], sum_of[WARPS], out_of[WARPS][MOST_D];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y, group = head / s.per_group * s.d;
    int last = pos[blockIdx.x], first = s.window && last - s.window + 1 > 0 ? last - s.window + 1 : 0;
    float query[PER_LANE], out[PER_LANE] = {}, max = -INFINITY, sum = 0;
#pragma unroll
    for (int e = 0; e < PER_LANE; e++) {
        int i = lane + 32 * e;
        query[e] = i < s.d ? to_float(q.data[(int64_t)blockIdx.x * q.ld + head * s.d + i]) : 0;
    }
    for (int64_t key = first + warp; key <= last; key += WARPS) {
        float score = 0;
#pragma unroll
        for (int e = 0; e < PER_LANE; e++)
            if (lane + 32 * e < s.d) score += query[e] * to_float(kcache.data[key * kcache.ld + group + lane + 32 * e]);
        for (int offset = 16; offset > 0; offset /= 2) score += __shfl_xor_sync(0xFFFFFFFFu, score, offset);
        score *= s.scale;
        float larger = fmaxf(max, score), keep = expf(max - larger), weight = expf(score - larger);
        max = larger;
        sum = sum * keep + weight;
#pragma unroll
        for (int e = 0; e < PER_LANE; e++)
            if (lane + 32 * e < s.d)
                out[e] = out[e] * keep + weight * to_float(vcache.data[key * vcache.ld + group + lane + 32 * e]);
    }
#pragma unroll
    for (int e = 0; e < PER_LANE; e++) out_of[warp][lane + 32 * e] = out[e];
    if (lane == 0) max_of[warp] = max, sum_of[warp] = sum;
    __syncthreads();
    max = max_of[0]; /* the first warp always has a key */
    for (int w = 1; w < WARPS; w++) max = fmaxf(max, max_of[w]);
    for (int i = threadIdx.x; i < s.d; i += 32 * WARPS) {
        float total = 0, value = 0;
        for (int w = 0; w < WARPS; w++) {
            float keep = expf(max_of[w] - max);
            total += sum_of[w] * keep;
            value += out_of[w][i] * keep;
        }
        o.data[(int64_t)blockIdx.x * o.ld + head * s.d + i] = from_float<T>(value / total);
    }
}
} // namespace

extern "C" void cuda_op_attention_cached(const kernel_call *call) {
    const tensor *q = &call->in[0], *k = &call->in[1], *v = &call->in[2], *kc = &call->out[1], *vc = &call->out[2];
    const op_attr *attr = &call->op->attr;
    const int32_t *pos = (const int32_t *)call->in[3].data;
    int n = kernel_rows(call), d = attr->head_dim, heads = (int)(q->cols / d);
    assert(d > 0 && d <= MOST_D && kc->type == k->type && vc->type == v->type && q->type == k->type);
    if (!n) return;
    cuda_with_type(q, [&](auto zero) {
        using T = decltype(zero);
        cached_shape s = {(int)(q->cols / k->cols), d, attr->window, attr->scale};
        cache_kernel<T><<<(unsigned)n, 128, 0, cuda_stream()>>>(span_of<T>(kc), span_of<T>(vc), span_of<T>(k),
                                                                span_of<T>(v), pos, kc->rows, (int)k->cols);
        attend_kernel<T><<<dim3((unsigned)n, (unsigned)heads), 32 * WARPS, 0, cuda_stream()>>>(
            span_of<T>(&call->out[0]), span_of<T>(q), span_of<T>(kc), span_of<T>(vc), pos, s);
    });
    cuda_check_launch(call);
}
