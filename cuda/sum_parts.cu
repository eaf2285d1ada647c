/* sum_parts.cu - sums of rows from their parts (sum_parts.cuh). Reads 4 bytes per part. */
#include "cuda.cuh"
#include "sum_parts.cuh"

namespace {
__global__ void sum_parts_kernel(float *to, const float *parts, int64_t n, int width) {
    int64_t row;
    float sum;
    if (sum_of_parts(parts, n, width, &row, &sum)) to[row] = sum;
}
} // namespace

extern "C" void cuda_sum_parts(float *sum, const float *parts, int64_t n, int width, cudaStream_t stream) {
    if (n) sum_parts_kernel<<<(unsigned)cuda_ceil(n, PARTS_ROWS), PARTS_THREADS, 0, stream>>>(sum, parts, n, width);
}
