/* attention_wgmma.cuh - what the attention kernels for sm_90a (attention_wgmma.cu, _dq.cu and _dkv.cu) share.
 *
 * A block has a warpgroup of which one thread loads (TMA) and two that multiply (wgmma), 64 rows each.  It walks tiles
 * of 128 rows (of queries or of keys), each for one head, in an order that gives all blocks the same work: the tiles
 * with most work first (attention_bounds() lists them), dealt out there and back.
 * All matrices lie in shared memory in boxes of 64 rows x 64 columns with the 128-byte swizzle; boxes of one tile's 64
 * columns lie behind each other, so that their rows go on. */
#ifndef CUDA_ATTENTION_WGMMA_CUH
#define CUDA_ATTENTION_WGMMA_CUH
#include "attention.h"
#include "attention_launch.cuh"
#include "attention_tile.cuh"
#include "wgmma.cuh"
#include "wgmma_epilogue.cuh"
#include "wgmma_map.cuh"

namespace attention {
using namespace wgmma;

enum {
    TILE = 128,      /* rows of a tile, and keys of a block of a tile of queries */
    GROUP_ROWS = 64, /* of them a warpgroup's own; also the queries of a block of a tile of keys */
    CONSUMERS = 2,
    THREADS = 128 * (1 + CONSUMERS),
    CONSUMER_WARPS = 4 * CONSUMERS,
    BOX = 64 * 128, /* bytes */
    STAGES = 2,     /* of keys and of values */
};

struct place {
    int tile, head;
};

/* The tiles and heads that this block takes, one a round. */
struct walk {
    const int32_t *order; /* [tiles] */
    int items, heads;

    /* Tile -1: behind the last round. */
    WGMMA_INLINE place find(int round) const {
        int of_round = (int)(round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        int item = round * (int)gridDim.x + of_round;
        if (item >= items) return {-1, 0};
        return {order[item / heads], item % heads};
    }
};

/* The first key that a row sees. */
WGMMA_INLINE int first_key(const attention_shape &s, const int32_t *bounds, int row) {
    row = min(row, s.N - 1);
    return tile::first_seen(bounds[row], row, s.window);
}
/* The row behind the last one that sees a key. */
WGMMA_INLINE int end_row(const attention_shape &s, const int32_t *bounds, int key) {
    key = min(key, s.N - 1);
    int end = bounds[s.N + key];
    return s.window ? min(end, key + s.window) : end;
}

/* d[64, N 2] = a b' over D columns.  a: 64 rows.  b: B_ROWS high. */
template <int D, int B_ROWS, int N> WGMMA_INLINE void product(float (&d)[N], uint64_t a, uint64_t b) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint64_t a_k = a + (k / 4 * BOX + k % 4 * 32) / 16, b_k = b + (k / 4 * B_ROWS * 128 + k % 4 * 32) / 16;
        multiply<0>(d, a_k, b_k, k);
    }
}
/* d += a b; b MN-major. */
template <int KT, int N> WGMMA_INLINE void product_add(float (&d)[N], const uint32_t (&a)[KT][4], uint64_t b) {
#pragma unroll
    for (int k = 0; k < KT; k++) multiply<1>(d, a[k], b + k * (16 * 128 / 16), 1);
}

/* Sums as operand of the next product. */
template <int KT> WGMMA_INLINE void round_pairs(uint32_t (&a)[KT][4], const float (&s)[8 * KT]) {
#pragma unroll
    for (int i = 0; i < 4 * KT; i++) a[i / 4][i % 4] = tile::pack(s[2 * i], s[2 * i + 1]);
}

template <int N> WGMMA_INLINE void clear(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) d[i] = 0;
}

template <int N> WGMMA_INLINE void scale_rows(float (&d)[N], const float (&by)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++) d[i] *= by[i >> 1 & 1];
}

/* Row 0 or 1 of the two that a thread holds, of the warpgroup's 64. */
WGMMA_INLINE int row_of_thread(int which) {
    return (int)(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4) + 8 * which;
}
/* Column of element 0 of a thread. */
WGMMA_INLINE int column_of_thread() { return (int)(threadIdx.x % 4) * 2; }

/* Elements of s[64, 2 N] outside columns low[row] .. high[row] become `with`. */
template <int N>
WGMMA_INLINE void mask(float (&s)[N], const int (&low)[2], const int (&high)[2], int first_column, float with) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int from = low[r] - first_column, to = high[r] - first_column;
#pragma unroll
        for (int i = 0; i < N / 4; i++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                if ((8 * i + c < from) | (8 * i + c > to)) s[4 * i + 2 * r + c] = with;
    }
}

/* `rows` x D of matrix `map`, from (row, col), by one thread. */
template <int D, int ROWS>
WGMMA_INLINE void load_tile(uint32_t to, const CUtensorMap *map, uint32_t barrier, int col, int row) {
#pragma unroll
    for (int c = 0; c < D / 64; c++)
#pragma unroll
        for (int r = 0; r < ROWS / 64; r++)
            tma_load(to + (c * (ROWS / 64) + r) * BOX, map, barrier, col + 64 * c, row + 64 * r);
}
/* Two warpgroups' rows, each group's D columns together. */
template <int D>
WGMMA_INLINE void load_groups(uint32_t to, const CUtensorMap *map, uint32_t barrier, int col, int row) {
#pragma unroll
    for (int w = 0; w < CONSUMERS; w++)
        load_tile<D, GROUP_ROWS>(to + w * (D / 64) * BOX, map, barrier, col, row + w * GROUP_ROWS);
}

/* A warp has read a stage: all of its threads, whose reads are in order before the one arrival. */
WGMMA_INLINE void release(uint32_t empty) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty);
}

template <int D> struct tile_bytes {
    enum { ONE = TILE * D * 2, GROUP = GROUP_ROWS * D * 2 };
};

/* Of a kernel whose tiles of queries walk keys. Each a number of stages, 8 bytes apart. */
template <int TILES> struct query_barriers {
    uint32_t q_full, q_empty, k_full, k_empty, v_full, v_empty;
    WGMMA_INLINE query_barriers(uint32_t at)
        : q_full(at), q_empty(q_full + 8 * TILES), k_full(q_empty + 8 * TILES), k_empty(k_full + 8 * STAGES),
          v_full(k_empty + 8 * STAGES), v_empty(v_full + 8 * STAGES) {}
    WGMMA_INLINE void init() const {
        for (int i = 0; i < TILES; i++) {
            barrier_init(q_full + 8 * i, 1);
            barrier_init(q_empty + 8 * i, CONSUMER_WARPS);
        }
        for (int i = 0; i < STAGES; i++) {
            barrier_init(k_full + 8 * i, 1);
            barrier_init(v_full + 8 * i, 1);
            barrier_init(k_empty + 8 * i, CONSUMER_WARPS);
            barrier_init(v_empty + 8 * i, CONSUMER_WARPS);
        }
        barrier_init_fence();
    }
};

/* Loads the keys and values of a tile of queries: its own block, then those before it. */
template <int D, int TILES>
WGMMA_INLINE void load_blocks(const CUtensorMap &k, const CUtensorMap &v, uint32_t k_at, uint32_t v_at,
                              const query_barriers<TILES> &bar, ring *kv, int col, int tile, int blocks) {
    enum { BYTES = tile_bytes<D>::ONE };
    for (int b = 0; b < blocks; b++) {
        const int key = (tile - b) * TILE;
        const uint32_t k_full = bar.k_full + 8 * kv->stage, v_full = bar.v_full + 8 * kv->stage;
        barrier_wait(bar.k_empty + 8 * kv->stage, kv->phase ^ 1);
        barrier_expect(k_full, BYTES);
        load_tile<D, TILE>(k_at + kv->stage * BYTES, &k, k_full, col, key);
        barrier_wait(bar.v_empty + 8 * kv->stage, kv->phase ^ 1);
        barrier_expect(v_full, BYTES);
        load_tile<D, TILE>(v_at + kv->stage * BYTES, &v, v_full, col, key);
        kv->next<STAGES>();
    }
}

/* What the rows of a thread, and of its warpgroup, see of keys. */
struct rows_seen {
    int first_block;                             /* the first block of keys that the tile sees */
    int first[2], group_first, group_last_first; /* first keys: of the thread's rows, the group's first and last row */
    WGMMA_INLINE void find(const attention_shape &shape, const int32_t *bounds, int tile, int w) {
        const int row0 = tile * TILE + w * GROUP_ROWS;
        first_block = first_key(shape, bounds, tile * TILE) / TILE;
        first[0] = first_key(shape, bounds, row0 + row_of_thread(0));
        first[1] = first_key(shape, bounds, row0 + row_of_thread(1));
        group_first = first_key(shape, bounds, row0);
        group_last_first = first_key(shape, bounds, row0 + GROUP_ROWS - 1);
    }
};

/* Rows of `heads` heads, in boxes of 64 by 64. */
inline bool map_heads(CUtensorMap *map, const attention_rows &x, const attention_shape *s, int heads, failure *f) {
    return map_matrix(map, x.data, s->N, heads * s->d, x.ld, 64, f);
}
} // namespace attention

/* `kernel` on as many blocks as there are multiprocessors, or items. */
template <typename... P, typename... A>
static bool attention_launch_walk(const char *what, void (*kernel)(P...), int items, int bytes, cudaStream_t stream,
                                  failure *f, const A &...args) {
    int blocks = items < cuda_processors() ? items : cuda_processors();
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e != cudaSuccess)
        return fail(f, FAIL_MACHINE, "%s: a block needs %d bytes of shared memory: %s", what, bytes,
                    cudaGetErrorString(e));
    kernel<<<(unsigned)blocks, attention::THREADS, (size_t)bytes, stream>>>(args...);
    return attention_launched(what, f);
}
#endif
