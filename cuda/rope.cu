/* rope.cu - rotary positions in Hugging Face's layout: element j of a head turns with element j + d/2 by the angle
 * (float)pos * freq[j].  The inverse rotation is its own backward.  y may be x.
 *
 * The angle is rounded to float first, as Hugging Face computes it; sincosf reduces it exactly.  Reads 1 and writes 1
 * element per element of y. */
#include "cuda.cuh"

namespace {
enum { PAIRS = 2, MOST_THREADS = 512 };

/* One block: one row, all its heads; a thread turns PAIRS pairs of vectors at a time, which it loads before the block
 * fills the table, so that the sines hide behind the loads. Grid: n rows. Shared: float table[d] (cosines, sines). */
template <typename T, int W>
__global__ void __launch_bounds__(MOST_THREADS)
    rope_kernel(span<T> y, span<T> x, const int32_t *pos, const float *freq, int half, int pairs, float sign) {
    extern __shared__ __align__(32) float table[];
    const T *in = x.data + (int64_t)blockIdx.x * x.ld;
    T *out = y.data + (int64_t)blockIdx.x * y.ld;
    int per_head = half / W;
    float position = (float)pos[blockIdx.x];
    for (int first = 0; first < pairs; first += blockDim.x * PAIRS) {
        pack<T, W> low[PAIRS], high[PAIRS];
        int at[PAIRS], j[PAIRS];
#pragma unroll
        for (int u = 0; u < PAIRS; u++) {
            int pair = first + u * blockDim.x + threadIdx.x, head = pair / per_head;
            j[u] = (pair - head * per_head) * W;
            at[u] = pair < pairs ? head * 2 * half + j[u] : -1;
            if (at[u] < 0) continue;
            low[u] = load<T, W>(in + at[u]);
            high[u] = load<T, W>(in + at[u] + half);
        }
        if (first == 0) {
            for (int i = threadIdx.x; i < half; i += blockDim.x) {
                float sine, cosine;
                sincosf(position * freq[i], &sine, &cosine);
                table[i] = cosine;
                table[half + i] = sign * sine;
            }
            __syncthreads();
        }
#pragma unroll
        for (int u = 0; u < PAIRS; u++) {
            if (at[u] < 0) continue;
            float a[W], b[W];
            unpack<T, W>(a, low[u]);
            unpack<T, W>(b, high[u]);
            pack<float, W> cosine = load<float, W>(table + j[u]), sine = load<float, W>(table + half + j[u]);
#pragma unroll
            for (int i = 0; i < W; i++) {
                float c = cosine.x[i], s = sine.x[i], turned = a[i] * c - b[i] * s;
                b[i] = b[i] * c + a[i] * s;
                a[i] = turned;
            }
            store<T, W>(out + at[u], packed<T, W>(a));
            store<T, W>(out + at[u] + half, packed<T, W>(b));
        }
    }
}
} // namespace

extern "C" void cuda_rope(const tensor *y, const tensor *x, const int32_t *pos, const tensor *freq, int64_t n,
                          bool inverse) {
    int64_t half = freq->rows * freq->cols;
    assert(freq->type == DTYPE_F32 && x->type == y->type && x->cols % (2 * half) == 0);
    if (!n) return;
    cuda_with_type(x, [&](auto zero) {
        using T = decltype(zero);
        bool is_wide = cuda_is_wide<T>(x) && cuda_is_wide<T>(y) && half % wide<T>() == 0;
        cuda_with_width<T>(is_wide, [&](auto W) {
            int64_t pairs = x->cols / 2 / W(), threads = cuda_ceil(cuda_ceil(pairs, PAIRS), 32) * 32;
            if (threads > MOST_THREADS) threads = MOST_THREADS;
            rope_kernel<T, W()><<<(unsigned)n, (unsigned)threads, (size_t)half * 2 * sizeof(float), cuda_stream()>>>(
                span_of<T>(y), span_of<T>(x), pos, (const float *)freq->data, (int)half, (int)pairs,
                inverse ? -1.0f : 1.0f);
        });
    });
}

extern "C" void cuda_op_rope(const kernel_call *call) {
    cuda_rope(&call->out[0], &call->in[0], (const int32_t *)call->in[1].data, &call->in[2], kernel_rows(call),
              call->op->attr.inverse);
    cuda_check_launch(call);
}
