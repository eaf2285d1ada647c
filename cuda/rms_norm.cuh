/* rms_norm.cuh - how the norms cut rows into groups of threads.
 *
 * A slice (a row, or one head's part of it) belongs to a group of threads that keeps it in registers: CACHED vectors of
 * each; what a very wide slice has beyond these (REST) is read again, from L2. Narrow slices share a block: a group is
 * then a power of two up to 32 lanes. */
#ifndef CUDA_RMS_NORM_CUH
#define CUDA_RMS_NORM_CUH
#include "cuda.cuh"

enum { CACHED = 2, NARROW_THREADS = 256, MOST_LANES = 512 };

typedef struct {
    int lanes;         /* threads of a group: a power of two up to 32, or the block */
    int vectors;       /* of a slice */
    int slices;        /* of a row */
    uint32_t n_slices; /* of all rows */
    int log_lanes;     /* of a narrow group */
} norm_shape;

static inline norm_shape norm_shape_of(int64_t rows, int64_t cols, int64_t d, int W) {
    assert(d > 0 && d % W == 0 && cols % d == 0);
    assert(rows * (cols / d) < INT32_MAX);
    norm_shape s = {1, (int)(d / W), (int)(cols / d), (uint32_t)(rows * (cols / d)), 0};
    if (s.vectors <= 32 * CACHED) {
        while (s.lanes * CACHED < s.vectors) s.lanes *= 2, s.log_lanes++;
    } else {
        s.lanes = (int)cuda_ceil(cuda_ceil(s.vectors, CACHED), 32) * 32;
        if (s.lanes > MOST_LANES) s.lanes = MOST_LANES;
    }
    return s;
}
static inline bool norm_has_rest(const norm_shape *s) { return s->vectors > s->lanes * CACHED; }
static inline int norm_threads(const norm_shape *s) { return s->lanes > 32 ? s->lanes : NARROW_THREADS; }
static inline unsigned norm_blocks(const norm_shape *s) {
    return (unsigned)cuda_ceil(s->n_slices, norm_threads(s) / s->lanes);
}

/* The slice of this thread's group, and the thread's place in the group. A slice at or beyond n_slices is none, but its
 * threads take part in sums. */
struct norm_place {
    uint32_t slice, row;
    int head, lane; /* head: which slice of the row */
};
__device__ __forceinline__ norm_place norm_place_of(const norm_shape &s) {
    norm_place p = {blockIdx.x, blockIdx.x, 0, (int)threadIdx.x};
    if (s.lanes <= 32) {
        p.slice = blockIdx.x * (blockDim.x >> s.log_lanes) + (threadIdx.x >> s.log_lanes);
        p.lane = threadIdx.x & (s.lanes - 1);
    }
    p.row = s.slices == 1 ? p.slice : p.slice / (uint32_t)s.slices;
    p.head = (int)(p.slice - p.row * (uint32_t)s.slices);
    return p;
}
#endif
