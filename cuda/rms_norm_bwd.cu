/* rms_norm_bwd.cu - gradients of rms_norm.  With h = x rstd and g = dy w:  dx = rstd (g - h mean(g h)) + dres, and
 * dw[j] = sum over rows and slices of dy h.
 *
 * dx and dw are launches of their own: adapters train without dw, which only full fine-tuning asks for.  dw is summed
 * in two stages: PIECES partial sums of every column into the scratch, then these in double and in order.
 * dx may be dy, x or dres. */
#include "rms_norm.cuh"

namespace {
template <typename T> struct dx_operands {
    span<T> dy, x, dres, dx; /* dres.data NULL: none */
    span<float> rstd;
    const T *w;
    int d;
};

/* One group: one slice, dy and x kept in registers between the two uses. Grid: all slices. Shared: 32 floats.
 * Reads 2 (with dres 3) and writes 1 element per element; w comes from L2. */
template <typename T, int W, bool DRES, bool REST>
__global__ void __launch_bounds__(MOST_LANES, 2) dx_kernel(dx_operands<T> o, norm_shape s) {
    __shared__ float shared[32];
    await_previous();
    norm_place p = norm_place_of(s);
    int64_t row = p.row;
    int lane = p.lane, col = p.head * o.d, vectors = p.slice < s.n_slices ? s.vectors : 0;
    const T *dy_row = o.dy.data + row * o.dy.ld + col, *x_row = o.x.data + row * o.x.ld + col;
    const T *dres_row = DRES ? o.dres.data + row * o.dres.ld + col : nullptr;
    float rstd = vectors ? o.rstd.data[row * o.rstd.ld + p.head] : 0, product = 0;
    pack<T, W> dy[CACHED], x[CACHED], dres[DRES ? CACHED : 1];
    auto add_up = [&](const pack<T, W> &dy_v, const pack<T, W> &x_v, int at) {
        float g[W], f[W], w[W];
        unpack<T, W>(g, dy_v);
        unpack<T, W>(f, x_v);
        unpack<T, W>(w, load<T, W>(o.w + at));
#pragma unroll
        for (int i = 0; i < W; i++) product += g[i] * w[i] * f[i];
    };
#pragma unroll
    for (int c = 0; c < CACHED; c++) {
        int v = lane + c * s.lanes;
        if (v >= vectors) continue;
        dy[c] = load<T, W>(dy_row + v * W);
        x[c] = load<T, W>(x_row + v * W);
        if constexpr (DRES) dres[c] = load<T, W>(dres_row + v * W);
    }
#pragma unroll
    for (int c = 0; c < CACHED; c++)
        if (lane + c * s.lanes < vectors) add_up(dy[c], x[c], (lane + c * s.lanes) * W);
    for (int v = lane + CACHED * s.lanes; REST && v < vectors; v += s.lanes)
        add_up(load<T, W>(dy_row + v * W), load<T, W>(x_row + v * W), v * W);
    float mean = group_sum(product, s.lanes, shared) * rstd / (float)o.d;
    if (!vectors) return;
    T *dx = o.dx.data + row * o.dx.ld + col;
    auto write = [&](const pack<T, W> &dy_v, const pack<T, W> &x_v, const pack<T, W> &dres_v, int at) {
        float g[W], f[W], w[W];
        unpack<T, W>(g, dy_v);
        unpack<T, W>(f, x_v);
        unpack<T, W>(w, load<T, W>(o.w + at));
#pragma unroll
        for (int i = 0; i < W; i++) g[i] = rstd * (g[i] * w[i] - f[i] * rstd * mean);
        if constexpr (DRES) {
            unpack<T, W>(f, dres_v);
#pragma unroll
            for (int i = 0; i < W; i++) g[i] += f[i];
        }
        store<T, W>(dx + at, packed<T, W>(g));
    };
#pragma unroll
    for (int c = 0; c < CACHED; c++)
        if (lane + c * s.lanes < vectors) write(dy[c], x[c], dres[DRES ? c : 0], (lane + c * s.lanes) * W);
    for (int v = lane + CACHED * s.lanes; REST && v < vectors; v += s.lanes) {
        pack<T, W> dy_v = load<T, W>(dy_row + v * W), x_v = load<T, W>(x_row + v * W);
        write(dy_v, x_v, DRES ? load<T, W>(dres_row + v * W) : dy_v, v * W);
    }
}

template <typename T, int W> void launch_dx(const dx_operands<T> &o, const norm_shape &s) {
    auto kernel = dx_kernel<T, W, false, false>;
    if (norm_has_rest(&s)) kernel = o.dres.data ? dx_kernel<T, W, true, true> : dx_kernel<T, W, false, true>;
    else if (o.dres.data) kernel = dx_kernel<T, W, true, false>;
    cuda_launch(kernel, norm_blocks(&s), (unsigned)norm_threads(&s), o, s);
}

enum { PIECES = 128, LANES = 32, ROWS = 8 };

/* One block: LANES vectors of the columns over slices piece * ROWS + r, + PIECES * ROWS, ...; its ROWS rows of threads
 * are added up in shared memory. Grid: column tiles x PIECES. Writes partial[PIECES, d]. Reads 2 elements. */
template <typename T, int W>
__global__ void __launch_bounds__(LANES *ROWS) dw_pieces_kernel(float *partial, span<T> dy, span<T> x, span<float> rstd,
                                                                uint32_t slices, uint32_t n_slices, int d) {
    __shared__ float shared[ROWS][LANES * W];
    int lane = threadIdx.x % LANES, r = threadIdx.x / LANES, j = (blockIdx.x * LANES + lane) * W;
    float sum[W] = {};
    if (j < d) {
#pragma unroll 2
        for (uint32_t i = blockIdx.y * ROWS + r; i < n_slices; i += PIECES * ROWS) {
            uint32_t at = slices == 1 ? i : i / slices, slice = i - at * slices;
            int64_t row = at, col = (int64_t)slice * d + j;
            float g[W], f[W], k = rstd.data[row * rstd.ld + slice];
            unpack<T, W>(g, load<T, W>(dy.data + row * dy.ld + col));
            unpack<T, W>(f, load<T, W>(x.data + row * x.ld + col));
#pragma unroll
            for (int e = 0; e < W; e++) sum[e] += g[e] * f[e] * k;
        }
    }
#pragma unroll
    for (int e = 0; e < W; e++) shared[r][e * LANES + lane] = sum[e];
    __syncthreads();
    for (int at = threadIdx.x; at < LANES * W; at += LANES * ROWS) {
        float total = 0;
#pragma unroll
        for (int k = 0; k < ROWS; k++) total += shared[k][at];
        int col = (blockIdx.x * LANES + at % LANES) * W + at / LANES;
        if (col < d) partial[(int64_t)blockIdx.y * d + col] = total;
    }
}

/* One block: LANES columns, ROWS shares of the pieces each, in double. Grid: column tiles. */
__global__ void __launch_bounds__(LANES *ROWS) dw_sum_kernel(float *dw, const float *partial, int d, bool add) {
    __shared__ double shared[ROWS][LANES];
    int lane = threadIdx.x % LANES, r = threadIdx.x / LANES, col = blockIdx.x * LANES + lane;
    double sum = 0;
    if (col < d)
#pragma unroll 8
        for (int p = r * (PIECES / ROWS); p < (r + 1) * (PIECES / ROWS); p++)
            sum += (double)partial[(int64_t)p * d + col];
    shared[r][lane] = sum;
    __syncthreads();
    if (r || col >= d) return;
    double total = add ? (double)dw[col] : 0;
    for (int k = 0; k < ROWS; k++) total += shared[k][lane];
    dw[col] = (float)total;
}

template <typename T, int W> void launch_dw(const kernel_call *call, int d, uint32_t n_slices) {
    const tensor *dy = &call->in[0], *x = &call->in[1], *rstd = &call->in[3], *dw = &call->out[1];
    float *partial = (float *)call->scratch;
    dim3 grid((unsigned)cuda_ceil(d, LANES * W), PIECES);
    dw_pieces_kernel<T, W><<<grid, LANES * ROWS, 0, cuda_stream()>>>(
        partial, span_of<T>(dy), span_of<T>(x), span_of<float>(rstd), (uint32_t)(x->cols / d), n_slices, d);
    dw_sum_kernel<<<(unsigned)cuda_ceil(d, LANES), LANES * ROWS, 0, cuda_stream()>>>((float *)dw->data, partial, d,
                                                                                     dw->add);
}
} // namespace

extern "C" size_t cuda_scratch_rms_norm_bwd(const graph *g, const graph_op *op) {
    const graph_value *w = &g->values[op->in[2]];
    return op->out[1] ? (size_t)(PIECES * w->rows * w->cols) * sizeof(float) : 0;
}

extern "C" void cuda_op_rms_norm_bwd(const kernel_call *call) {
    const tensor *dy = &call->in[0], *x = &call->in[1], *w = &call->in[2], *rstd = &call->in[3], *dres = &call->in[4];
    const tensor *dx = &call->out[0], *dw = &call->out[1];
    int64_t n = kernel_rows(call), d = w->rows * w->cols;
    assert(dy->type == x->type && w->type == x->type && rstd->type == DTYPE_F32);
    assert(!dw->data || (dw->type == DTYPE_F32 && dw->rows * dw->cols == d));
    cuda_with_type(x, [&](auto zero) {
        using T = decltype(zero);
        bool is_wide = cuda_is_wide<T>(dy) && cuda_is_wide<T>(x) && cuda_is_wide<T>(dres) && cuda_is_wide<T>(dx) &&
                       cuda_is_wide_vector<T>(w);
        cuda_with_width<T>(is_wide, [&](auto W) {
            norm_shape s = norm_shape_of(n, x->cols, d, W());
            dx_operands<T> o = {span_of<T>(dy), span_of<T>(x),        span_of<T>(dres),
                                span_of<T>(dx), span_of<float>(rstd), (const T *)w->data,
                                (int)d};
            if (dx->data && n) launch_dx<T, W()>(o, s);
            if (dw->data) launch_dw<T, W()>(call, (int)d, s.n_slices);
        });
    });
    cuda_check_launch(call);
}
