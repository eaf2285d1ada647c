/* attention_wgmma_dq.cu - the gradient of the queries of attention on Hopper: as in attention_bwd.cu, on wgmma.
 *
 * Tiles of queries walk keys, as forward does: S = q k', dP = dout v', dq += dS k.  The next scores are multiplied
 * behind dq's share of a block, dP beside the exponentials.  A warpgroup whose rows see fewer blocks than the other's
 * leaves out the rest. */
#include "attention_wgmma.cuh"

namespace attention {

struct queries_maps {
    CUtensorMap q, dout, k, v, dq;
};

template <int D> struct queries_layout {
    enum {
        Q_AT = 0,
        DOUT_AT = Q_AT + tile_bytes<D>::ONE,
        K_AT = DOUT_AT + tile_bytes<D>::ONE,
        V_AT = K_AT + STAGES * tile_bytes<D>::ONE,
        DQ_AT = V_AT + STAGES * tile_bytes<D>::ONE,
        BARRIERS_AT = DQ_AT + tile_bytes<D>::ONE,
        TOTAL = BARRIERS_AT + (2 + 4 * STAGES) * 8,
    };
    static_assert(TOTAL <= 227 * 1024, "a CTA has 227 KiB");
};

template <int D>
WGMMA_INLINE void produce_queries(const attention_shape &shape, const int32_t *bounds, const walk &items,
                                  const queries_maps &maps, uint32_t base, const query_barriers<1> &bar) {
    typedef queries_layout<D> at;
    enum { BYTES = tile_bytes<D>::ONE };
    ring q, kv;
    for (int round = 0;; round++) {
        const place now = items.find(round);
        if (now.tile < 0) return;
        const int head = now.head, t = now.tile, group = head / (shape.H / shape.G);
        const int blocks = t - first_key(shape, bounds, t * TILE) / TILE + 1;
        barrier_wait(bar.q_empty, q.phase ^ 1);
        barrier_expect(bar.q_full, 2 * BYTES);
        load_groups<D>(base + at::Q_AT, &maps.q, bar.q_full, head * D, t * TILE);
        load_groups<D>(base + at::DOUT_AT, &maps.dout, bar.q_full, head * D, t * TILE);
        q.next<1>();
        load_blocks<D>(maps.k, maps.v, base + at::K_AT, base + at::V_AT, bar, &kv, group * D, t, blocks);
    }
}

/* A block computes dq of 128 rows of a query head at a time.  Shared memory: q and dout, two stages of 128 rows of k
 * and v, and dq on its way out: 224 KB at D = 128. */
template <int D>
__global__ void __launch_bounds__(THREADS, 1)
    queries_kernel(const attention_shape shape, const int32_t *bounds, const float2 *pairs,
                   const __grid_constant__ queries_maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef queries_layout<D> at;
    enum { BYTES = tile_bytes<D>::ONE };
    extern __shared__ __align__(1024) char shared[];
    const uint32_t base = shared_address(shared);
    const query_barriers<1> bar(base + at::BARRIERS_AT);
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        if (base % 1024) __trap();
        bar.init();
    }
    __syncthreads();
    const walk items = {bounds + attention_order_of_queries(shape.N), attention_tiles(shape.N) * shape.H, shape.H};
    if (group == 0) {
        registers_give<40>();
        if (threadIdx.x == 0) produce_queries<D>(shape, bounds, items, maps, base, bar);
        __syncwarp();
    } else {
        registers_take<232>();
        const int w = group - 1;
        const float factor = shape.scale * LOG2E, by[2] = {shape.scale, shape.scale};
        const uint64_t q_rows = operand(base + at::Q_AT + w * tile_bytes<D>::GROUP, 0);
        const uint64_t dout_rows = operand(base + at::DOUT_AT + w * tile_bytes<D>::GROUP, 0);
        const uint64_t k_rows = operand(base + at::K_AT, TILE * 128), v_rows = operand(base + at::V_AT, 0);
        pieces<D / 64> out = {base + at::DQ_AT + w * tile_bytes<D>::GROUP, 0, group, 0, 0, threadIdx.x % 128 == 0};
        ring q, k, v;
        rows_seen seen, next_seen;
        float2 pair[2], next_pair[2]; /* lse log2(e) and delta of the thread's rows */
        place now = items.find(0), next = items.find(1), later = {-1, 0}; /* one block has at least one item */
        auto look_up = [&](const place &at, rows_seen &rows, float2(&both)[2]) {
            rows.find(shape, bounds, at.tile, w);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int row = min(at.tile * TILE + w * GROUP_ROWS + row_of_thread(r), shape.N - 1);
                both[r] = pairs[(int64_t)at.head * attention_pair_rows(shape.N) + row];
            }
        };
        look_up(now, seen, pair);
        for (int round = 0;; round++) {
            const int t = now.tile, head = now.head, row0 = t * TILE + w * GROUP_ROWS;
            const int blocks = t - seen.first_block + 1, mine = t - seen.group_first / TILE + 1;
            if (next.tile >= 0) { /* long before it is needed */
                look_up(next, next_seen, next_pair);
                later = items.find(round + 2);
            }
            const int high[2] = {row0 + row_of_thread(0), row0 + row_of_thread(1)};
            float dq[D / 2], s[64], dp[64];
            uint32_t ds[8][4];
            clear(dq);
            barrier_wait(bar.q_full, q.phase);
            barrier_wait(bar.k_full + 8 * k.stage, k.phase);
            fence();
            product<D, TILE>(s, q_rows, k_rows + k.stage * (BYTES / 16));
            commit();
            for (int b = 0;; b++) {
                const int key = (t - b) * TILE;
                barrier_wait(bar.v_full + 8 * v.stage, v.phase);
                wait<1>();
                settle(ds);
                if (b > 0) { /* dq of the block before has been multiplied, and its k is free */
                    release(bar.k_empty + 8 * k.stage);
                    k.next<STAGES>();
                }
                fence();
                product<D, TILE>(dp, dout_rows, v_rows + v.stage * (BYTES / 16));
                commit();
                wait<1>();
                settle(s);
#pragma unroll
                for (int i = 0; i < 64; i++) s[i] = exp2_fast(s[i] * factor - pair[i >> 1 & 1].x);
                if (b == 0 || key < seen.group_last_first) mask(s, seen.first, high, key + column_of_thread(), 0);
                wait<0>();
                settle(dp);
                release(bar.v_empty + 8 * v.stage);
                v.next<STAGES>();
#pragma unroll
                for (int i = 0; i < 64; i++) s[i] *= dp[i] - pair[i >> 1 & 1].y;
                round_pairs(ds, s);
                settle(ds);
                settle(dq);
                fence();
                product_add(dq, ds, k_rows + k.stage * (BYTES / 16));
                commit();
                if (b + 1 == mine) break;
                ring behind = k;
                behind.next<STAGES>();
                barrier_wait(bar.k_full + 8 * behind.stage, behind.phase);
                fence();
                product<D, TILE>(s, q_rows, k_rows + behind.stage * (BYTES / 16));
                commit();
            }
            release(bar.q_empty); /* all of s and dp are there */
            q.next<1>();
            wait<0>();
            settle(dq);
            settle(ds);
            release(bar.k_empty + 8 * k.stage);
            k.next<STAGES>();
            for (int b = mine; b < blocks; b++) { /* of the other warpgroup alone */
                barrier_wait(bar.k_full + 8 * k.stage, k.phase);
                release(bar.k_empty + 8 * k.stage);
                k.next<STAGES>();
                barrier_wait(bar.v_full + 8 * v.stage, v.phase);
                release(bar.v_empty + 8 * v.stage);
                v.next<STAGES>();
            }
            scale_rows(dq, by);
#pragma unroll
            for (int piece = 0; piece < D / 64; piece++) out.put(dq, piece, &maps.dq, head * D + 64 * piece, row0);
            if (next.tile < 0) break;
            now = next, next = later, seen = next_seen;
            pair[0] = next_pair[0], pair[1] = next_pair[1];
        }
        if (out.first) tma_store_wait_read<0>();
    }
#endif
}

template <int D>
bool launch_queries(const attention_shape *s, const attention_operands *x, const int32_t *bounds, const float2 *pairs,
                    cudaStream_t stream, failure *f) {
    queries_maps maps;
    TRY(map_heads(&maps.q, x->q, s, s->H, f));
    TRY(map_heads(&maps.dout, x->dout, s, s->H, f));
    TRY(map_heads(&maps.k, x->k, s, s->G, f));
    TRY(map_heads(&maps.v, x->v, s, s->G, f));
    TRY(map_heads(&maps.dq, x->dq, s, s->H, f));
    return attention_launch_walk("attention backward, dq", queries_kernel<D>, attention_tiles(s->N) * s->H,
                                 queries_layout<D>::TOTAL, stream, f, *s, bounds, pairs, maps);
}
} // namespace attention

bool attention_wgmma_queries(const attention_shape *shape, const attention_operands *x, const int32_t *bounds,
                             const float2 *pairs, cudaStream_t stream, failure *f) {
    if (shape->d == 64) return attention::launch_queries<64>(shape, x, bounds, pairs, stream, f);
    return attention::launch_queries<128>(shape, x, bounds, pairs, stream, f);
}
