/* weighted_sum.cu - sum[0] = sum over rows of x weight, in double and in a fixed order.
 *
 * One block: everything; a micro-batch has at most some ten thousand rows. Reads 8 bytes per row. */
#include "cuda.cuh"

namespace {
enum { THREADS = 1024 };

__global__ void __launch_bounds__(THREADS)
    sum_kernel(float *out, const float *x, const float *weight, int n, bool add) {
    __shared__ double shared[32];
    double sum = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < n; i += THREADS) sum += (double)x[i] * (double)weight[i];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) *out = (float)(sum + (add ? (double)*out : 0));
}
} // namespace

extern "C" void cuda_op_weighted_sum(const kernel_call *call) {
    const tensor *out = &call->out[0];
    sum_kernel<<<1, THREADS, 0, cuda_stream()>>>((float *)out->data, (const float *)call->in[0].data,
                                                 (const float *)call->in[1].data, kernel_rows(call), out->add);
    cuda_check_launch(call);
}
