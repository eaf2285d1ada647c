/* linear.cu - y = x W' + bias, and its gradients. */
#include "cuda.cuh"
#include "product.h"

void cuda_op_linear(const kernel_call *call) {
    const tensor *x = &call->in[0], *W = &call->in[1], *y = &call->out[0];
    product_nt(matrix_at(y, 0, 0), matrix_at(x, 0, 0), matrix_at(W, 0, 0), kernel_rows(call), W->rows, W->cols, 1,
               y->add, &call->in[2]);
}

void cuda_op_linear_dx(const kernel_call *call) {
    const tensor *dy = &call->in[0], *W = &call->in[1], *dx = &call->out[0];
    product_nn(matrix_at(dx, 0, 0), matrix_at(dy, 0, 0), matrix_at(W, 0, 0), kernel_rows(call), W->rows, W->cols, 1,
               dx->add);
}

/* out[m] (+)= sum over t of x[t, m].  A block sums 32 columns, its 32 warps every 32nd row; then the first warp adds
 * the 32 sums of each column in order.  Grid: ceil(M / 32).  Shared memory: 4 KB. */
template <typename T>
static __global__ void column_sum_kernel(float *out, span<const T> x, int64_t n, int64_t M, bool add) {
    __shared__ float sums[32][33];
    int64_t m = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float sum = 0;
    if (m < M)
        for (int64_t t = threadIdx.y; t < n; t += 32) sum += to_float(x.data[t * x.ld + m]);
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || m >= M) return;
    sum = add ? out[m] : 0;
    for (int i = 0; i < 32; i++) sum += sums[i][threadIdx.x];
    out[m] = sum;
}

void cuda_op_linear_dw(const kernel_call *call) {
    const tensor *dy = &call->in[0], *x = &call->in[1], *dW = &call->out[0], *dbias = &call->out[1];
    int64_t n = kernel_rows(call);
    if (dW->data)
        product_tn(matrix_at(dW, 0, 0), matrix_at(dy, 0, 0), matrix_at(x, 0, 0), n, dW->rows, dW->cols, 1, dW->add);
    if (!dbias->data) return;
    assert(dbias->type == DTYPE_F32);
    cuda_with_type(dy, [&](auto zero) {
        using T = decltype(zero);
        column_sum_kernel<T><<<(unsigned)cuda_ceil(dy->cols, 32), dim3(32, 32), 0, cuda_stream()>>>(
            (float *)dbias->data, {(const T *)dy->data, dy->ld}, n, dy->cols, dbias->add);
    });
}
