/* attention.cu - attention over packed documents, forward: FlashAttention-2 (Dao 2023) on mma.sync.
 *
 * Tiles of query rows are cut from the whole pack, not from each document: a tile may hold the end of one document
 * and several short ones, so a pack of many short documents costs about what one long row of the same visible pairs
 * does.  Its keys run from the first one that its first row sees to its own last row; a mask is applied only in the
 * blocks of keys that some row does not see whole.  The softmax is kept up to date block by block (running maximum
 * and sum per row), from the last block of keys to the first.
 * The gradient is in attention_bwd.cu; Hopper has kernels of its own, attention_wgmma.cu. */
#include "attention.h"
#include "attention_launch.cuh"
#include "attention_tile.cuh"

#include <math.h>

using namespace tile;

/* The last document that begins at or before row. */
static __device__ inline int document_of(int row, const int32_t *cu, int docs) {
    int low = 0, high = docs;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (cu[middle] <= row) low = middle;
        else high = middle;
    }
    return low;
}

/* The tiles with most work first, those of equal work in order: a list for tiles of queries, one for tiles of keys.
 * One block; `work`: 2 tiles int32. */
static __device__ inline void order_tiles(int32_t *order, int32_t *work, const int32_t *cu, int docs, int N) {
    const int tiles = attention_tiles(N);
    for (int t = threadIdx.x; t < tiles; t += blockDim.x) {
        const int first = t * ATTENTION_TILE, last = min(first + ATTENTION_TILE, N) - 1;
        work[t] = first - cu[document_of(first, cu, docs)] / ATTENTION_TILE * ATTENTION_TILE;
        work[tiles + t] = cu[document_of(last, cu, docs) + 1] - first;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * tiles; i += blockDim.x) {
        const int t = i % tiles;
        const int32_t *all = work + (i - t);
        int before = 0;
        for (int other = 0; other < tiles; other++) before += all[other] > all[t] - (other < t);
        order[i - t + before] = t;
    }
}

/* One thread per row: bounds[row] = first row of its document, bounds[N + row] = the row behind its last; and a block
 * for the order of tiles, which lies behind them.  Grid: ceil(N / 256) + 1 blocks of 256.  A binary search in
 * cu[docs + 1]; writes 8 bytes per row. */
static __global__ void bounds_kernel(int32_t *bounds, const int32_t *cu, int docs, int N) {
    if (blockIdx.x == gridDim.x - 1) {
        int32_t *order = bounds + attention_order_of_queries(N);
        order_tiles(order, order + 2 * attention_tiles(N), cu, docs, N);
        return;
    }
    int row = blockIdx.x * 256 + threadIdx.x, rows = cu[docs];
    if (row == 0) bounds[2 * N] = rows;
    if (row >= N) return;
    const int doc = document_of(row, cu, docs);
    bool inside = row < rows;
    bounds[row] = inside ? cu[doc] : row;
    bounds[N + row] = inside ? cu[doc + 1] : row;
}

/* What one row of a tile has so far: maximum of the raw scores, and this lane's share of the sum of exp. */
template <int MT> struct softmax_state { float max[MT][2], sum[MT][2]; };

/* Turns scores into exp(score - max), rescaling o and the sums where the maximum grew.  factor: score unit -> log2. */
template <int D, int MT, int NT>
static __device__ inline void softmax_step(float (&s)[MT][NT][4], softmax_state<MT> &state, float (&o)[MT][D / 8][4],
                                           float factor) {
    float shrink[MT][2];
    bool grew = false;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float max = state.max[m][r], sum = 0;
#pragma unroll
            for (int n = 0; n < NT; n++) max = fmaxf(max, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
            max = quad_max(max);
            grew = grew || max != state.max[m][r];
            float base = max == -INFINITY ? 0 : max * factor; /* no key seen yet: every exp below is 0 */
            shrink[m][r] = exp2_fast(state.max[m][r] * factor - base);
            state.max[m][r] = max;
#pragma unroll
            for (int n = 0; n < NT; n++) {
                s[m][n][2 * r] = exp2_fast(s[m][n][2 * r] * factor - base);
                s[m][n][2 * r + 1] = exp2_fast(s[m][n][2 * r + 1] * factor - base);
                sum += s[m][n][2 * r] + s[m][n][2 * r + 1];
            }
            state.sum[m][r] = state.sum[m][r] * shrink[m][r] + sum;
        }
    if (!__any_sync(~0u, grew)) return; /* most blocks of a long row: o stays as it is */
#pragma unroll
    for (int i = 0; i < MT * D / 2; i++) o[i / (D / 2)][i / 4 % (D / 8)][i & 3] *= shrink[i / (D / 2)][i >> 1 & 1];
}

/* A block computes o and lse of 64 MT rows of the pack for one query head; each of its 4 warps owns 16 MT rows.
 * Grid: (ceil(N / (64 MT)), H), the last rows first as they see the most keys.
 * Shared memory: the tile of q, two stages of BN rows of k and v, a number per row; 96.5 KB at D = 128.
 * Pointers 16-byte aligned, row strides multiples of 8.  Reads q once and k, v once per tile that sees them (mostly
 * from L2); writes 2 D + 4 bytes per row and head. */
template <int D, int MT, int BN, bool CAP>
static __global__ void __launch_bounds__(THREADS, D == 64 ? 3 : 2)
    forward_kernel(attention_shape shape, attention_operands x, const int32_t *bounds) {
    constexpr int BM = 64 * MT, NT = BN / 8;
    extern __shared__ __align__(128) unsigned char shared[];
    bf16 *sq = (bf16 *)shared, *sk = sq + BM * D, *sv = sk + 2 * BN * D;
    int32_t *sfirst = (int32_t *)(sv + 2 * BN * D); /* the first key that each row sees */
    const int rows = bounds[2 * shape.N], row0 = (int)(gridDim.x - 1 - blockIdx.x) * BM;
    if (row0 >= rows) return;
    const int last = min(row0 + BM, rows) - 1, head = blockIdx.y, group = head / (shape.H / shape.G);
    const int lane = threadIdx.x & 31, warp_row = (threadIdx.x >> 5) * 16 * MT;
    const bf16 *q = (const bf16 *)x.q.data + head * D, *k = (const bf16 *)x.k.data + group * D,
               *v = (const bf16 *)x.v.data + group * D;
    const int key0 = first_seen(bounds[row0], row0, shape.window),
              last_first = first_seen(bounds[last], last, shape.window);
    const float factor = CAP ? LOG2E : shape.scale * LOG2E, inner = CAP ? shape.scale / shape.soft_cap : 0;

    for (int i = threadIdx.x; i < BM; i += THREADS)
        sfirst[i] = first_seen(bounds[min(row0 + i, last)], min(row0 + i, last), shape.window);
    int block = (last - key0) / BN;
    load<BM, D>(sq, q, x.q.ld, row0, rows);
    load<BN, D>(sk, k, x.k.ld, key0 + block * BN, rows);
    load<BN, D>(sv, v, x.v.ld, key0 + block * BN, rows);
    copy_commit();

    float o[MT][D / 8][4] = {}, s[MT][NT][4];
    softmax_state<MT> state;
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        state.max[i / 2][i & 1] = -INFINITY;
        state.sum[i / 2][i & 1] = 0;
    }
    for (int stage = 0; block >= 0; block--, stage ^= 1) {
        const int keys = key0 + block * BN;
        const bf16 *tk = sk + stage * BN * D, *tv = sv + stage * BN * D;
        copy_wait();
        __syncthreads(); /* this stage has arrived, and the other one is no longer read */
        if (block > 0) {
            load<BN, D>(sk + (stage ^ 1) * BN * D, k, x.k.ld, keys - BN, rows);
            load<BN, D>(sv + (stage ^ 1) * BN * D, v, x.v.ld, keys - BN, rows);
            copy_commit();
        }
        const bool seen = keys <= min(row0 + warp_row + 16 * MT - 1, last) && keys + BN > sfirst[warp_row];
        if (!__any_sync(~0u, seen)) continue; /* no row of this warp sees any of the keys */
        product_rows<D, MT, NT>(s, sq, warp_row, tk);
        if (CAP) {
#pragma unroll
            for (int i = 0; i < MT * NT * 4; i++) {
                float &score = s[i / (NT * 4)][i / 4 % NT][i & 3];
                score = shape.soft_cap * tanh_exact(score * inner);
            }
        }
        if (keys + BN - 1 > row0 || keys < last_first) {
#pragma unroll
            for (int i = 0; i < 2 * MT; i++) {
                const int m = i / 2, r = i & 1, row = warp_row + 8 * i + (lane >> 2);
                const int low = sfirst[row] - keys - 2 * (lane & 3), high = row0 + row - keys - 2 * (lane & 3);
#pragma unroll
                for (int n = 0; n < NT; n++)
#pragma unroll
                    for (int c = 0; c < 2; c++)
                        if ((8 * n + c > high) | (8 * n + c < low)) s[m][n][2 * r + c] = -INFINITY;
            }
        }
        softmax_step<D, MT, NT>(s, state, o, factor);
        uint32_t p[MT][NT / 2][4];
        pack_a<MT, NT>(p, s);
        product_add<D, MT, NT / 2>(o, p, tv);
    }

    float inverse[MT][2];
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        int m = i / 2, r = i & 1, row = row0 + warp_row + 8 * i + (lane >> 2);
        float sum = quad_sum(state.sum[m][r]);
        inverse[m][r] = sum > 0 ? 1 / sum : 0;
        if ((lane & 3) == 0 && row < rows)
            x.lse[(int64_t)row * shape.H + head] = state.max[m][r] * (factor / LOG2E) + logf(sum);
    }
    store<D, MT>((bf16 *)x.o.data + head * D, x.o.ld, row0 + warp_row, rows, sq, warp_row, o, inverse);
}

template <int D, int MT, int BN>
static bool launch(const attention_shape *shape, const attention_operands *x, const int32_t *bounds,
                   cudaStream_t stream, failure *f) {
    dim3 grid((unsigned)((shape->N + 64 * MT - 1) / (64 * MT)), (unsigned)shape->H);
    int bytes = (64 * MT + 4 * BN) * D * 2 + 64 * MT * 4;
    auto kernel = shape->soft_cap > 0 ? forward_kernel<D, MT, BN, true> : forward_kernel<D, MT, BN, false>;
    return attention_launch("attention forward", kernel, grid, bytes, stream, f, *shape, *x, bounds);
}

size_t attention_bounds_size(int N) {
    return ((size_t)attention_order_of_queries(N) + 4 * (size_t)attention_tiles(N)) * sizeof(int32_t);
}

bool attention_bounds(int32_t *bounds, const int32_t *cu, int docs, int N, cudaStream_t stream, failure *f) {
    if (N < 1 || docs < 1) return fail(f, FAIL_MACHINE, "attention bounds: %d rows, %d documents", N, docs);
    bounds_kernel<<<(unsigned)(N + 255) / 256 + 1, 256, 0, stream>>>(bounds, cu, docs, N);
    return attention_launched("attention bounds", f);
}

bool attention_forward(const attention_shape *shape, const attention_operands *x, const int32_t *bounds,
                       cudaStream_t stream, failure *f) {
    TRY(attention_check(shape, f));
    TRY(attention_check_rows("q", &x->q, f) && attention_check_rows("k", &x->k, f));
    TRY(attention_check_rows("v", &x->v, f) && attention_check_rows("o", &x->o, f));
    if (attention_on_wgmma(shape)) return attention_wgmma_forward(shape, x, bounds, stream, f);
    if (shape->d == 64) return launch<64, 2, 64>(shape, x, bounds, stream, f);
    if (shape->d == 128) return launch<128, 2, 64>(shape, x, bounds, stream, f);
    return launch<256, 1, 32>(shape, x, bounds, stream, f);
}
