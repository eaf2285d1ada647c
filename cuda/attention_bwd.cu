/* attention_bwd.cu - the gradient of attention over packed documents, without atomics, on mma.sync; on Hopper the two
 * walks below are those of attention_wgmma_dkv.cu and attention_wgmma_dq.cu.
 *
 * With P = exp(score - lse), dP = dout v' and delta = rowsum(dout o):   dS = P (dP - delta),   dv = P' dout,
 * dk = scale dS' q,   dq = scale dS k.   One kernel walks the query rows for a tile of keys (dk, dv), one the keys for
 * a tile of query rows (dq).  Scores are computed in both: 7 products instead of 5, for sums in a fixed order, no
 * float32 dq and no second kernel to round it.  All query heads of a key head are summed by the same block.
 * At D = 256 dk and dv don't fit into the registers together, so each has a walk of its own (8 products).
 * With a soft cap, score = cap tanh(x / cap) and dS gets the factor 1 - (score / cap)^2.
 * With positions dq and dk turn back through rope behind them (attention_turn.cu). */
#include "attention.h"
#include "attention_launch.cuh"
#include "attention_tile.cuh"

#include <assert.h>
#include <math.h>

using namespace tile;

/* pairs[h][row] = (lse log2(e), rowsum(dout o)), zeros in rows behind the last.  D / 8 lanes per row and head, 16 bytes
 * of each operand per lane.  Grid: ceil(attention_pair_rows(N) H D / 8 / 256) blocks of 256.  Reads 4 D bytes per row
 * and head, writes 8. */
template <int D>
static __global__ void delta_kernel(attention_shape shape, attention_operands x, const int32_t *bounds, float2 *pairs) {
    constexpr int LANES = D / 8;
    int64_t task = ((int64_t)blockIdx.x * 256 + threadIdx.x) / LANES;
    const int lane = threadIdx.x % LANES, row = (int)(task / shape.H), head = (int)(task % shape.H);
    const bool valid = row < bounds[2 * shape.N];
    float sum = 0;
    if (valid) {
        uint4 a = *(const uint4 *)((const bf16 *)x.dout.data + row * x.dout.ld + head * D + lane * 8);
        uint4 b = *(const uint4 *)((const bf16 *)x.o.data + row * x.o.ld + head * D + lane * 8);
        const uint32_t wa[4] = {a.x, a.y, a.z, a.w}, wb[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sum += __uint_as_float(wa[i] << 16) * __uint_as_float(wb[i] << 16);
            sum += __uint_as_float(wa[i] & 0xffff0000u) * __uint_as_float(wb[i] & 0xffff0000u);
        }
    }
#pragma unroll
    for (int i = LANES / 2; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    if (row < attention_pair_rows(shape.N) && lane == 0)
        pairs[(int64_t)head * attention_pair_rows(shape.N) + row] =
            make_float2(valid ? x.lse[(int64_t)row * shape.H + head] * LOG2E : 0, sum);
}

/* Score (q . k) -> P, and the slope of which dS is (dP - delta) times: P, or with a soft cap P (1 - tanh^2).
 * factor: scale log2(e), or with a cap scale / cap; cap: cap log2(e); lse: times log2(e). */
template <bool CAP>
static __device__ inline void probability(float &p, float &slope, float score, float lse, float factor, float cap) {
    if (CAP) {
        float t = tanh_exact(score * factor);
        p = exp2_fast(t * cap - lse);
        slope = p * (1 - t * t);
    } else {
        p = slope = exp2_fast(score * factor - lse);
    }
}
static __device__ inline float score_factor(const attention_shape &s, bool cap) {
    return s.scale * (cap ? 1 / s.soft_cap : LOG2E);
}

/* A block computes dk and / or dv of 64 rows of keys for one key head, over all its query heads; a warp owns 16 keys.
 * Scores are held transposed (keys x query rows), so that P' and dS' are A fragments without a trip through memory.
 * Grid: (ceil(N / 64), G), the first rows first as most query rows see them.
 * Shared memory: 64 rows of k (and v for dk), STAGES x BM rows of q and dout and their (lse, delta) and document
 * start: 97 KB at D = 128.  Rows behind the pack are loaded as zeros: P = 1 there, and adds 0.
 * Reads k, v once, q and dout once per tile of keys that they see; writes 4 D bytes per row and key head. */
template <int D, int BM, int STAGES, bool CAP, bool DK, bool DV>
static __global__ void __launch_bounds__(THREADS, 2)
    keys_kernel(attention_shape shape, attention_operands x, const int32_t *bounds, const float2 *pairs) {
    constexpr int BN = 64, NT = BM / 8;
    extern __shared__ __align__(128) unsigned char shared[];
    bf16 *sk = (bf16 *)shared, *sv = sk + BN * D, *sq = sv + BN * D, *so = sq + STAGES * BM * D;
    float2 *spair = (float2 *)(so + STAGES * BM * D);
    int32_t *sstart = (int32_t *)(spair + STAGES * BM);
    const int rows = bounds[2 * shape.N], key0 = (int)blockIdx.x * BN;
    if (key0 >= rows) return;
    const int last = min(key0 + BN, rows) - 1, group = blockIdx.y, share = shape.H / shape.G;
    const int lane = threadIdx.x & 31, warp_row = (threadIdx.x >> 5) * 16;
    const float factor = score_factor(shape, CAP), cap = shape.soft_cap * LOG2E;
    int end = bounds[shape.N + last]; /* behind the last query row that sees a key of the tile */
    if (shape.window && last + shape.window < end) end = last + shape.window;
    const int blocks = (end - key0 + BM - 1) / BM, steps = blocks * share;

    auto request = [&](int step, int stage) {
        int head = group * share + step / blocks, row0 = key0 + step % blocks * BM;
        load<BM, D>(sq + stage * BM * D, (const bf16 *)x.q.data + head * D, x.q.ld, row0, rows);
        load<BM, D>(so + stage * BM * D, (const bf16 *)x.dout.data + head * D, x.dout.ld, row0, rows);
        if (threadIdx.x < BM) {
            int row = row0 + (int)threadIdx.x;
            bool valid = row < rows;
            copy_async<8>(spair + stage * BM + threadIdx.x,
                          pairs + (int64_t)head * attention_pair_rows(shape.N) + (valid ? row : 0), valid);
            copy_async<4>(sstart + stage * BM + threadIdx.x, bounds + (valid ? row : 0), valid);
        }
        copy_commit();
    };
    load<BN, D>(sk, (const bf16 *)x.k.data + group * D, x.k.ld, key0, rows);
    if (DK) load<BN, D>(sv, (const bf16 *)x.v.data + group * D, x.v.ld, key0, rows);
    request(0, 0);

    float dk[1][DK ? D / 8 : 1][4] = {}, dv[1][DV ? D / 8 : 1][4] = {};
    for (int step = 0; step < steps; step++) {
        const int stage = STAGES == 2 ? step & 1 : 0, row0 = key0 + step % blocks * BM;
        const bf16 *tq = sq + stage * BM * D, *to = so + stage * BM * D;
        copy_wait();
        __syncthreads();
        if (STAGES == 2 && step + 1 < steps) request(step + 1, stage ^ 1);

        const int step_first = first_seen(sstart[stage * BM], row0, shape.window);
        if (__any_sync(~0u, step_first <= key0 + warp_row +
                                              15)) { /* else no query row of this step sees any of the warp's keys */
            float s[1][NT][4];
            uint32_t pa[1][NT / 2][4];
            product_rows<D, 1, NT>(s, sk, warp_row, tq);
            const int last_row = min(row0 + BM, rows) - 1;
            const int last_first = first_seen(sstart[stage * BM + last_row - row0], last_row, shape.window);
            const bool mask = row0 < key0 + BN - 1 || key0 < last_first;
#pragma unroll
            for (int n = 0; n < NT; n++) {
                const int column = 8 * n + 2 * (lane & 3), key = key0 + warp_row + (lane >> 2);
                const float4 pair = *(const float4 *)(spair + stage * BM + column); /* of two query rows */
                float p[4];
#pragma unroll
                for (int e = 0; e < 4; e++)
                    probability<CAP>(p[e], s[0][n][e], s[0][n][e], e & 1 ? pair.z : pair.x, factor, cap);
                if (mask) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        int row = row0 + column + (e & 1), at_key = key + 8 * (e >> 1);
                        int first = first_seen(sstart[stage * BM + column + (e & 1)], row, shape.window);
                        if ((at_key > row) | (at_key < first)) p[e] = s[0][n][e] = 0;
                    }
                }
                pa[0][n / 2][(n & 1) * 2] = pack(p[0], p[1]);
                pa[0][n / 2][(n & 1) * 2 + 1] = pack(p[2], p[3]);
            }
            if constexpr (DV) product_add<D, 1, NT / 2>(dv, pa, to);
            if constexpr (DK) {
                float dp[1][NT][4];
                product_rows<D, 1, NT>(dp, sv, warp_row, to);
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    const float4 pair = *(const float4 *)(spair + stage * BM + 8 * n + 2 * (lane & 3));
#pragma unroll
                    for (int e = 0; e < 4; e++) s[0][n][e] *= dp[0][n][e] - (e & 1 ? pair.w : pair.y);
                }
                pack_a<1, NT>(pa, s);
                product_add<D, 1, NT / 2>(dk, pa, tq);
            }
        }
        if (STAGES == 1) {
            __syncthreads();
            if (step + 1 < steps) request(step + 1, 0);
        }
    }
    const float one[1][2] = {{1, 1}}, scale[1][2] = {{shape.scale, shape.scale}};
    int row0 = key0 + warp_row; /* sk and sv: a warp has read only its own rows of them */
    if constexpr (DK) store<D, 1>((bf16 *)x.dk.data + group * D, x.dk.ld, row0, rows, sk, warp_row, dk, scale);
    if constexpr (DV) store<D, 1>((bf16 *)x.dv.data + group * D, x.dv.ld, row0, rows, sv, warp_row, dv, one);
}

/* A block computes dq of 64 MT rows of the pack for one query head; a warp owns 16 MT rows.
 * Grid: (ceil(N / (64 MT)), H), the last rows first.  Shared memory: the tiles of q and dout, and STAGES x BN rows of
 * k and v: 96 KB at D = 128.  Reads q and dout once, k and v once per tile that sees them; writes 2 D bytes per row
 * and head. */
template <int D, int MT, int BN, int STAGES, bool CAP>
static __global__ void __launch_bounds__(THREADS, 2)
    queries_kernel(attention_shape shape, attention_operands x, const int32_t *bounds, const float2 *pairs) {
    constexpr int BM = 64 * MT, NT = BN / 8;
    extern __shared__ __align__(128) unsigned char shared[];
    bf16 *sq = (bf16 *)shared, *so = sq + BM * D, *sk = so + BM * D, *sv = sk + STAGES * BN * D;
    const int rows = bounds[2 * shape.N], row0 = (int)(gridDim.x - 1 - blockIdx.x) * BM;
    if (row0 >= rows) return;
    const int last = min(row0 + BM, rows) - 1, head = blockIdx.y, group = head / (shape.H / shape.G);
    const int lane = threadIdx.x & 31, warp_row = (threadIdx.x >> 5) * 16 * MT;
    const float factor = score_factor(shape, CAP), cap = shape.soft_cap * LOG2E;
    const int key0 = first_seen(bounds[row0], row0, shape.window);
    const int last_first = first_seen(bounds[last], last, shape.window), blocks = (last - key0) / BN + 1;

    auto request = [&](int block, int stage) {
        load<BN, D>(sk + stage * BN * D, (const bf16 *)x.k.data + group * D, x.k.ld, key0 + block * BN, rows);
        load<BN, D>(sv + stage * BN * D, (const bf16 *)x.v.data + group * D, x.v.ld, key0 + block * BN, rows);
        copy_commit();
    };
    load<BM, D>(sq, (const bf16 *)x.q.data + head * D, x.q.ld, row0, rows);
    load<BM, D>(so, (const bf16 *)x.dout.data + head * D, x.dout.ld, row0, rows);
    request(0, 0);

    int first[MT][2];
    float lse[MT][2], delta[MT][2];
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        int row = min(row0 + warp_row + 8 * i + (lane >> 2), last);
        float2 pair = pairs[(int64_t)head * attention_pair_rows(shape.N) + row];
        first[i / 2][i & 1] = first_seen(bounds[row], row, shape.window);
        lse[i / 2][i & 1] = pair.x;
        delta[i / 2][i & 1] = pair.y;
    }
    const int warp_last = min(row0 + warp_row + 16 * MT - 1, last), warp_first = __shfl_sync(~0u, first[0][0], 0);
    float dq[MT][D / 8][4] = {};
    for (int block = 0; block < blocks; block++) {
        const int stage = STAGES == 2 ? block & 1 : 0, keys = key0 + block * BN;
        const bf16 *tk = sk + stage * BN * D, *tv = sv + stage * BN * D;
        copy_wait();
        __syncthreads();
        if (STAGES == 2 && block + 1 < blocks) request(block + 1, stage ^ 1);

        const bool seen = keys <= warp_last && keys + BN > warp_first;
        if (__any_sync(~0u, seen)) { /* else no row of this warp sees any of the keys */
            float s[MT][NT][4], dp[MT][NT][4];
            product_rows<D, MT, NT>(s, sq, warp_row, tk);
            product_rows<D, MT, NT>(dp, so, warp_row, tv);
            const bool mask = keys + BN - 1 > row0 || keys < last_first;
#pragma unroll
            for (int i = 0; i < MT * NT * 4; i++) {
                int m = i / (NT * 4), n = i / 4 % NT, e = i & 3, r = e >> 1;
                float p;
                probability<CAP>(p, s[m][n][e], s[m][n][e], lse[m][r], factor, cap);
                if (mask) {
                    int key = keys + 8 * n + 2 * (lane & 3) + (e & 1),
                        row = row0 + warp_row + 16 * m + (lane >> 2) + 8 * r;
                    if ((key > row) | (key < first[m][r])) s[m][n][e] = 0;
                }
                s[m][n][e] *= dp[m][n][e] - delta[m][r];
            }
            uint32_t a[MT][NT / 2][4];
            pack_a<MT, NT>(a, s);
            product_add<D, MT, NT / 2>(dq, a, tk);
        }
        if (STAGES == 1) {
            __syncthreads();
            if (block + 1 < blocks) request(block + 1, 0);
        }
    }
    float scale[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++) scale[m][0] = scale[m][1] = shape.scale;
    store<D, MT>((bf16 *)x.dq.data + head * D, x.dq.ld, row0 + warp_row, rows, sq, warp_row, dq, scale);
}

template <int D, int BM, int STAGES, bool CAP, bool DK, bool DV>
static bool launch_keys(const attention_shape *shape, const attention_operands *x, const int32_t *bounds,
                        const float2 *pairs, cudaStream_t stream, failure *f) {
    dim3 grid((unsigned)(shape->N + 63) / 64, (unsigned)shape->G);
    int bytes = (2 * 64 + 2 * STAGES * BM) * D * 2 + STAGES * BM * 12;
    return attention_launch("attention backward, dk dv", keys_kernel<D, BM, STAGES, CAP, DK, DV>, grid, bytes, stream,
                            f, *shape, *x, bounds, pairs);
}

template <int D, int MT, int BN, int STAGES, bool CAP>
static bool launch_queries(const attention_shape *shape, const attention_operands *x, const int32_t *bounds,
                           const float2 *pairs, cudaStream_t stream, failure *f) {
    dim3 grid((unsigned)((shape->N + 64 * MT - 1) / (64 * MT)), (unsigned)shape->H);
    int bytes = (2 * 64 * MT + 2 * STAGES * BN) * D * 2;
    return attention_launch("attention backward, dq", queries_kernel<D, MT, BN, STAGES, CAP>, grid, bytes, stream, f,
                            *shape, *x, bounds, pairs);
}

template <int D, bool CAP>
static bool launch_walks(const attention_shape *shape, const attention_operands *x, const int32_t *bounds,
                         const float2 *pairs, cudaStream_t stream, failure *f) {
    if constexpr (D == 256) {
        TRY((launch_keys<D, 32, 1, CAP, false, true>(shape, x, bounds, pairs, stream, f)));
        TRY((launch_keys<D, 32, 1, CAP, true, false>(shape, x, bounds, pairs, stream, f)));
        return launch_queries<D, 1, 32, 1, CAP>(shape, x, bounds, pairs, stream, f);
    } else {
        TRY((launch_keys<D, 64, 2, CAP, true, true>(shape, x, bounds, pairs, stream, f)));
        return launch_queries < D, 2, D == 64 ? 64 : 32, 2, CAP > (shape, x, bounds, pairs, stream, f);
    }
}

template <int D, bool CAP>
static bool launch_all(const attention_shape *shape, const attention_operands *x, const int32_t *bounds, float2 *pairs,
                       cudaStream_t stream, failure *f) {
    int64_t threads = (int64_t)attention_pair_rows(shape->N) * shape->H * (D / 8);
    delta_kernel<D><<<(unsigned)((threads + 255) / 256), 256, 0, stream>>>(*shape, *x, bounds, pairs);
    TRY(attention_launched("attention backward, delta", f));
    if (attention_on_wgmma(shape)) {
        TRY(attention_wgmma_keys(shape, x, bounds, pairs, stream, f));
        TRY(attention_wgmma_queries(shape, x, bounds, pairs, stream, f));
    } else {
        TRY((launch_walks<D, CAP>(shape, x, bounds, pairs, stream, f)));
    }
    return !x->pos || attention_turn(shape, x, x->dq, DTYPE_BF16, stream, f);
}

size_t attention_workspace(const attention_shape *shape) {
    return (size_t)attention_pair_rows(shape->N) * (size_t)shape->H * sizeof(float2);
}

bool attention_backward(const attention_shape *shape, const attention_operands *x, const int32_t *bounds,
                        void *workspace, cudaStream_t stream, failure *f) {
    TRY(attention_check(shape, f));
    TRY(attention_check_rows("q", &x->q, f) && attention_check_rows("k", &x->k, f));
    TRY(attention_check_rows("v", &x->v, f) && attention_check_rows("o", &x->o, f));
    TRY(attention_check_rows("dout", &x->dout, f) && attention_check_rows("dq", &x->dq, f));
    TRY(attention_check_rows("dk", &x->dk, f) && attention_check_rows("dv", &x->dv, f));
    assert(x->pos || !x->dot);
    float2 *pairs = (float2 *)workspace;
    bool cap = shape->soft_cap > 0;
    if (shape->d == 64)
        return cap ? launch_all<64, true>(shape, x, bounds, pairs, stream, f)
                   : launch_all<64, false>(shape, x, bounds, pairs, stream, f);
    if (shape->d == 128)
        return cap ? launch_all<128, true>(shape, x, bounds, pairs, stream, f)
                   : launch_all<128, false>(shape, x, bounds, pairs, stream, f);
    return cap ? launch_all<256, true>(shape, x, bounds, pairs, stream, f)
               : launch_all<256, false>(shape, x, bounds, pairs, stream, f);
}
