/* sum_parts.cuh - sums of rows from the parts that an epilogue left of them, one for each tile of columns or head. */
#ifndef CUDA_SUM_PARTS_CUH
#define CUDA_SUM_PARTS_CUH
#include <stdint.h>

/* A block has a lane to a row, and shares a row's parts out among its warps. */
enum { PARTS_ROWS = 32, PARTS_WARPS = 8, PARTS_THREADS = PARTS_ROWS * PARTS_WARPS };

/* All threads of the block call it. True in those that get the whole sum of a row, one thread to each. Reads parts
 * [width, n] once; the order of a sum depends on `width` alone. */
static __device__ __forceinline__ bool sum_of_parts(const float *parts, int64_t n, int width, int64_t *row,
                                                    float *sum) {
    __shared__ float of_warp[PARTS_WARPS][PARTS_ROWS];
    int lane = threadIdx.x % PARTS_ROWS, warp = threadIdx.x / PARTS_ROWS;
    *row = (int64_t)blockIdx.x * PARTS_ROWS + lane;
    float mine = 0;
    if (*row < n)
        for (int i = warp; i < width; i += PARTS_WARPS) mine += parts[i * n + *row];
    of_warp[warp][lane] = mine;
    __syncthreads();
    if (warp || *row >= n) return false;
    *sum = mine;
#pragma unroll
    for (int w = 1; w < PARTS_WARPS; w++) *sum += of_warp[w][lane];
    return true;
}
#endif
