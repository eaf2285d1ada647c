/* rms_norm.cu - y = x rstd w with rstd = 1/sqrt(mean(x^2) + eps), over a row or over each slice of it (qk norm), with
 * or without an addition before it.  rstd[N, slices] is kept.
 *
 * add_rms_norm norms the sum as it is stored, rounded to T, so that it equals add followed by rms_norm in every bit.
 * y may be x; sum may be a or b. */
#include "rms_norm.cuh"

namespace {
template <typename T> struct norm_operands {
    span<T> a, b, sum, y; /* b, sum: only with ADD */
    span<float> rstd;
    const T *w;
    float eps;
    int d;
};

/* One group: one slice, kept in registers between the two uses. Grid: all slices. Shared: 32 floats.
 * Reads 1 (with ADD 2) and writes 1 (2) elements per element; w comes from L2. */
template <typename T, int W, bool ADD, bool REST>
__global__ void __launch_bounds__(MOST_LANES) rms_norm_kernel(norm_operands<T> o, norm_shape s) {
    __shared__ float shared[32];
    await_previous();
    norm_place p = norm_place_of(s);
    int64_t row = p.row;
    int lane = p.lane, col = p.head * o.d, vectors = p.slice < s.n_slices ? s.vectors : 0;
    const T *a = o.a.data + row * o.a.ld + col, *b = ADD ? o.b.data + row * o.b.ld + col : nullptr;
    T *sum_row = ADD ? o.sum.data + row * o.sum.ld + col : nullptr;
    pack<T, W> x[CACHED], other[ADD ? CACHED : 1];
    float squares = 0;
    auto add_up = [&](pack<T, W> &v, const pack<T, W> &more, int at) {
        float f[W];
        unpack<T, W>(f, v);
        if constexpr (ADD) {
            float g[W];
            unpack<T, W>(g, more);
#pragma unroll
            for (int i = 0; i < W; i++) f[i] += g[i];
            v = packed<T, W>(f);
            store<T, W>(sum_row + at, v);
            unpack<T, W>(f, v);
        }
#pragma unroll
        for (int i = 0; i < W; i++) squares += f[i] * f[i];
    };
#pragma unroll
    for (int c = 0; c < CACHED; c++) {
        int v = lane + c * s.lanes;
        if (v >= vectors) continue;
        x[c] = load<T, W>(a + v * W);
        if constexpr (ADD) other[c] = load<T, W>(b + v * W);
    }
#pragma unroll
    for (int c = 0; c < CACHED; c++)
        if (lane + c * s.lanes < vectors) add_up(x[c], other[ADD ? c : 0], (lane + c * s.lanes) * W);
    for (int v = lane + CACHED * s.lanes; REST && v < vectors; v += s.lanes) {
        pack<T, W> rest = load<T, W>(a + v * W), more = ADD ? load<T, W>(b + v * W) : rest;
        add_up(rest, more, v * W);
    }
    float rstd = 1.0f / sqrtf(group_sum(squares, s.lanes, shared) / (float)o.d + o.eps);
    if (!vectors) return;
    if (lane == 0) o.rstd.data[row * o.rstd.ld + p.head] = rstd;
    T *y = o.y.data + row * o.y.ld + col;
    auto write = [&](const pack<T, W> &v, int at) {
        float f[W], w[W];
        unpack<T, W>(f, v);
        unpack<T, W>(w, load<T, W>(o.w + at));
#pragma unroll
        for (int i = 0; i < W; i++) f[i] = f[i] * rstd * w[i];
        store<T, W>(y + at, packed<T, W>(f));
    };
#pragma unroll
    for (int c = 0; c < CACHED; c++)
        if (lane + c * s.lanes < vectors) write(x[c], (lane + c * s.lanes) * W);
    for (int v = lane + CACHED * s.lanes; REST && v < vectors; v += s.lanes)
        write(load<T, W>((ADD ? sum_row : a) + v * W), v * W);
}

template <bool ADD>
void launch(const tensor *sum, const tensor *y, const tensor *rstd, const tensor *a, const tensor *b, const tensor *w,
            int64_t n, float eps) {
    int64_t d = w->rows * w->cols;
    assert(w->type == a->type && y->type == a->type && rstd->type == DTYPE_F32);
    if (!n) return;
    cuda_with_type(a, [&](auto zero) {
        using T = decltype(zero);
        bool is_wide = cuda_is_wide<T>(a) && cuda_is_wide<T>(y) && cuda_is_wide_vector<T>(w);
        if (ADD) is_wide = is_wide && cuda_is_wide<T>(b) && cuda_is_wide<T>(sum);
        norm_operands<T> o = {};
        o.a = span_of<T>(a);
        o.y = span_of<T>(y);
        if (ADD) o.b = span_of<T>(b), o.sum = span_of<T>(sum);
        o.rstd = span_of<float>(rstd);
        o.w = (const T *)w->data;
        o.eps = eps;
        o.d = (int)d;
        cuda_with_width<T>(is_wide, [&](auto W) {
            norm_shape s = norm_shape_of(n, a->cols, d, W());
            auto kernel = norm_has_rest(&s) ? rms_norm_kernel<T, W(), ADD, true> : rms_norm_kernel<T, W(), ADD, false>;
            cuda_launch(kernel, norm_blocks(&s), (unsigned)norm_threads(&s), o, s);
        });
    });
}
} // namespace

extern "C" void cuda_rms_norm(const tensor *y, const tensor *rstd, const tensor *x, const tensor *w, int64_t n,
                              float eps) {
    launch<false>(nullptr, y, rstd, x, nullptr, w, n, eps);
}

extern "C" void cuda_add_rms_norm(const tensor *sum, const tensor *y, const tensor *rstd, const tensor *a,
                                  const tensor *b, const tensor *w, int64_t n, float eps) {
    launch<true>(sum, y, rstd, a, b, w, n, eps);
}

extern "C" void cuda_op_rms_norm(const kernel_call *call) {
    cuda_rms_norm(&call->out[0], &call->out[1], &call->in[0], &call->in[1], kernel_rows(call), call->op->attr.eps);
    cuda_check_launch(call);
}

extern "C" void cuda_op_add_rms_norm(const kernel_call *call) {
    cuda_add_rms_norm(&call->out[0], &call->out[1], &call->out[2], &call->in[0], &call->in[1], &call->in[2],
                      kernel_rows(call), call->op->attr.eps);
    cuda_check_launch(call);
}
