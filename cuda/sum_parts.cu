/* sum_parts.cu - sums of a row that a product's epilogue left in parts, one for each tile of columns or head.
 *
 * A warp to a row. Reads 4 bytes per part. */
#include "cuda.cuh"

namespace {
enum { THREADS = 256 };

__global__ void sum_parts_kernel(float *to, const float *parts, int64_t n, int width) {
    int64_t row = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (row >= n) return;
    float sum = 0;
    for (int i = threadIdx.x % 32; i < width; i += 32) sum += parts[row * width + i];
    sum = group_sum(sum, 32, NULL);
    if (threadIdx.x % 32 == 0) to[row] = sum;
}
} // namespace

extern "C" void cuda_sum_parts(float *sum, const float *parts, int64_t n, int width, cudaStream_t stream) {
    if (n) sum_parts_kernel<<<(unsigned)cuda_ceil(n, THREADS / 32), THREADS, 0, stream>>>(sum, parts, n, width);
}
