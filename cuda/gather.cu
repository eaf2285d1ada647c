/* gather.cu - y[i] = x[index[i]]: rows by number, for the label rows of the micro-batch and for the embedding.
 *
 * Reads 1 and writes 1 element per element of y. */
#include "cuda.cuh"

namespace {
enum { THREADS = 128, VECTORS = 4 };

/* One block: one row, VECTORS vectors of each thread in flight. Grid: n rows. */
template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    gather_kernel(span<T> y, span<T> x, const int32_t *index, int64_t x_rows, int vectors) {
    await_previous();
    int64_t row = blockIdx.x, from = index[row];
    if (from < 0 || from >= x_rows) __trap(); /* our own mistake: the host checks ids */
    const T *in = x.data + from * x.ld;
    T *out = y.data + row * y.ld;
    for (int first = threadIdx.x; first < vectors; first += THREADS * VECTORS) {
        pack<T, W> v[VECTORS];
#pragma unroll
        for (int u = 0; u < VECTORS; u++)
            if (first + u * THREADS < vectors) v[u] = load<T, W>(in + (first + u * THREADS) * W);
#pragma unroll
        for (int u = 0; u < VECTORS; u++)
            if (first + u * THREADS < vectors) store<T, W>(out + (first + u * THREADS) * W, v[u]);
    }
}
} // namespace

extern "C" void cuda_gather_rows(const tensor *y, const tensor *x, const int32_t *index, int64_t n) {
    if (!n) return;
    assert(x->type == y->type);
    cuda_with_type(x, [&](auto zero) {
        using T = decltype(zero);
        cuda_with_width<T>(cuda_is_wide<T>(x) && cuda_is_wide<T>(y), [&](auto W) {
            cuda_launch(gather_kernel<T, W()>, (unsigned)n, THREADS, span_of<T>(y), span_of<T>(x), index, x->rows,
                        (int)(x->cols / W()));
        });
    });
}

extern "C" void cuda_op_gather(const kernel_call *call) {
    const tensor *y = &call->out[0];
    int64_t labels = call->batch->labels;
    cuda_gather_rows(y, &call->in[0], (const int32_t *)call->in[1].data, labels < y->rows ? labels : y->rows);
    cuda_check_launch(call);
}
