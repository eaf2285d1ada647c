/* rms_norm.cuh - how the norms cut rows into groups of threads.
 *
 * A slice (a row, or one head's part of it) belongs to a group of threads that keeps it in registers: CACHED vectors of
 * each; what a very wide slice has beyond these is read again (from L2). Narrow slices share a block: a group is then a
 * power of two up to 32 lanes. */
#ifndef CUDA_RMS_NORM_CUH
#define CUDA_RMS_NORM_CUH
#include "cuda.cuh"

enum { CACHED = 2, NARROW_THREADS = 256, MOST_LANES = 384 };

typedef struct {
    int lanes;        /* threads of a group: a power of two up to 32, or the block */
    int vectors;      /* of a slice */
    int slices;       /* of a row */
    int64_t n_slices; /* of all rows */
} norm_shape;

static inline norm_shape norm_shape_of(int64_t rows, int64_t cols, int64_t d, int W) {
    assert(d > 0 && d % W == 0 && cols % d == 0);
    norm_shape s = {1, (int)(d / W), (int)(cols / d), rows * (cols / d)};
    if (s.vectors <= 32 * CACHED) {
        while (s.lanes * CACHED < s.vectors) s.lanes *= 2;
    } else {
        s.lanes = (int)cuda_ceil(cuda_ceil(s.vectors, CACHED), 32) * 32;
        if (s.lanes > MOST_LANES) s.lanes = MOST_LANES;
    }
    return s;
}
static inline int norm_threads(const norm_shape *s) { return s->lanes > 32 ? s->lanes : NARROW_THREADS; }
static inline unsigned norm_blocks(const norm_shape *s) {
    return (unsigned)cuda_ceil(s->n_slices, norm_threads(s) / s->lanes);
}

/* The slice of this thread's group; at or beyond n_slices: none, but the thread takes part in sums. */
__device__ __forceinline__ int64_t norm_slice(const norm_shape &s) {
    return (int64_t)blockIdx.x * (blockDim.x / s.lanes) + threadIdx.x / s.lanes;
}
#endif
