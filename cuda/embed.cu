/* embed.cu - rows of the embedding table, and their gradient.
 *
 * The gradient is added up without atomics: for each row of dy the block first asks whether an earlier row has the same
 * id; only the first of them goes on, finds the later ones in order and adds all of them in registers.  So every sum
 * runs over the rows in order, as on the CPU, and each row of dW is read and written once. */
#include "cuda.cuh"

extern "C" void cuda_op_embed(const kernel_call *call) {
    cuda_gather_rows(&call->out[0], &call->in[1], (const int32_t *)call->in[0].data, kernel_rows(call));
    cuda_check_launch(call);
}

namespace {
enum { THREADS = 256, VECTORS = 2 };

/* One block: the gradient of ids[row], for THREADS * VECTORS vectors of the columns, when `row` is the id's first.
 * Grid: n rows x column tiles. Shared: which of the next THREADS rows have the id.
 * Reads dy once, dW once and writes it once (rows that occur); the ids come from L2. */
template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    embed_bwd_kernel(float *dW, int64_t V, span<T> dy, const int32_t *ids, int n, int D, bool add) {
    __shared__ uint32_t same[THREADS / 32];
    int row = blockIdx.x, id = ids[row];
    if (id < 0 || id >= V) __trap(); /* our own mistake: the host checks ids */
    for (int t0 = 0; t0 < row; t0 += THREADS) {
        int t = t0 + (int)threadIdx.x;
        if (__syncthreads_or(t < row && ids[t] == id)) return;
    }
    int first = blockIdx.y * (THREADS * VECTORS) + threadIdx.x;
    float sum[VECTORS][W];
#pragma unroll
    for (int u = 0; u < VECTORS; u++)
#pragma unroll
        for (int i = 0; i < W; i++) {
            int col = (first + u * THREADS) * W + i;
            sum[u][i] = add && col < D ? dW[(int64_t)id * D + col] : 0;
        }
    for (int t0 = row; t0 < n; t0 += THREADS) {
        int t = t0 + (int)threadIdx.x;
        uint32_t found = __ballot_sync(0xFFFFFFFFu, t < n && ids[t] == id);
        __syncthreads(); /* the last list has been read */
        if (threadIdx.x % 32 == 0) same[threadIdx.x / 32] = found;
        __syncthreads();
        for (int word = 0; word < THREADS / 32; word++)
            for (uint32_t left = same[word]; left; left &= left - 1) {
                const T *in = dy.data + (int64_t)(t0 + word * 32 + __ffs((int)left) - 1) * dy.ld;
#pragma unroll
                for (int u = 0; u < VECTORS; u++) {
                    int col = (first + u * THREADS) * W;
                    if (col >= D) continue;
                    float x[W];
                    unpack<T, W>(x, load<T, W>(in + col));
#pragma unroll
                    for (int i = 0; i < W; i++) sum[u][i] += x[i];
                }
            }
    }
#pragma unroll
    for (int u = 0; u < VECTORS; u++) {
        int col = (first + u * THREADS) * W;
        if (col >= D) continue;
#pragma unroll
        for (int i = 0; i < W; i++) dW[(int64_t)id * D + col + i] = sum[u][i];
    }
}
} // namespace

extern "C" void cuda_op_embed_bwd(const kernel_call *call) {
    const tensor *dy = &call->in[0], *dW = &call->out[0];
    int n = kernel_rows(call);
    assert(dW->type == DTYPE_F32 && dW->ld == dW->cols);
    if (!dW->add) cudaMemsetAsync(dW->data, 0, (size_t)(dW->rows * dW->cols) * sizeof(float), cuda_stream());
    if (!n) return;
    cuda_with_type(dy, [&](auto zero) {
        using T = decltype(zero);
        cuda_with_width<T>(cuda_is_wide<T>(dy), [&](auto W) {
            dim3 grid((unsigned)n, (unsigned)cuda_ceil(dy->cols, THREADS * VECTORS * W()));
            embed_bwd_kernel<T, W()><<<grid, THREADS, 0, cuda_stream()>>>((float *)dW->data, dW->rows, span_of<T>(dy),
                                                                          (const int32_t *)call->in[1].data, n,
                                                                          (int)dy->cols, dW->add);
        });
    });
    cuda_check_launch(call);
}
