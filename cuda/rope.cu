/* rope.cu - rotary positions in Hugging Face's layout: element j of a head turns with element j + d/2 by the angle
 * (float)pos * freq[j].  The inverse rotation is its own backward.  y may be x.
 *
 * The angle is rounded to float first, as Hugging Face computes it; sincosf reduces it exactly.  Reads 1 and writes 1
 * element per element of y. */
#include "cuda.cuh"

namespace {
enum { WARPS = 4, AHEAD = 4 };

/* One warp: one row.  A lane keeps the sines of W places of a head and turns them in head after head, AHEAD heads'
 * loads in flight; narrow heads share the warp, and what a head has beyond 32 lanes takes another walk over the row.
 * Grid: ceil(n / WARPS). */
template <typename T, int W>
__global__ void __launch_bounds__(32 * WARPS) rope_kernel(span<T> y, span<T> x, const int32_t *pos, const float *freq,
                                                          int half, int heads, int64_t n, float sign) {
    await_previous();
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= n) return;
    const int lane = threadIdx.x % 32, of_head = half / W, lanes = of_head < 32 ? of_head : 32, at_once = 32 / lanes;
    if (lane >= lanes * at_once) return;
    const float position = (float)pos[row];
    for (int place = lane % lanes; place < of_head; place += 32) {
        const T *in = x.data + row * x.ld + place * W;
        T *out = y.data + row * y.ld + place * W;
        float cosine[W], sine[W];
        bool has_angle = false;
        for (int first = lane / lanes; first < heads; first += at_once * AHEAD) {
            pack<T, W> low[AHEAD], high[AHEAD];
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                int head = first + u * at_once;
                if (head >= heads) continue;
                low[u] = load<T, W>(in + head * 2 * half);
                high[u] = load<T, W>(in + head * 2 * half + half);
            }
            if (!has_angle) { /* behind the first loads, which hide it */
                has_angle = true;
#pragma unroll
                for (int i = 0; i < W; i++) {
                    sincosf(position * freq[place * W + i], &sine[i], &cosine[i]);
                    sine[i] *= sign;
                }
            }
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                int head = first + u * at_once;
                if (head >= heads) continue;
                float a[W], b[W];
                unpack<T, W>(a, low[u]);
                unpack<T, W>(b, high[u]);
#pragma unroll
                for (int i = 0; i < W; i++) {
                    float turned = a[i] * cosine[i] - b[i] * sine[i];
                    b[i] = b[i] * cosine[i] + a[i] * sine[i];
                    a[i] = turned;
                }
                store<T, W>(out + head * 2 * half, packed<T, W>(a));
                store<T, W>(out + head * 2 * half + half, packed<T, W>(b));
            }
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
            cuda_launch(rope_kernel<T, W()>, (unsigned)cuda_ceil(n, WARPS), 32 * WARPS, span_of<T>(y), span_of<T>(x),
                        pos, (const float *)freq->data, (int)half, (int)(x->cols / 2 / half), n,
                        inverse ? -1.0f : 1.0f);
        });
    });
}

extern "C" void cuda_op_rope(const kernel_call *call) {
    cuda_rope(&call->out[0], &call->in[0], (const int32_t *)call->in[1].data, &call->in[2], kernel_rows(call),
              call->op->attr.inverse);
    cuda_check_launch(call);
}
