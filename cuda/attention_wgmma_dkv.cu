/* attention_wgmma_dkv.cu - the gradients of keys and values of attention on Hopper: as in attention_bwd.cu, on wgmma.
 *
 * Tiles of keys walk the queries of all heads that share them, in steps of 64 rows: S' = k q', dP' = v dout',
 * dv += P' dout, dk += dS' q.  P' and dS' go from sums to operands in registers.  The next scores are multiplied behind
 * dk's share of a step, dP' beside the exponentials, dv's share beside what is left of dS'. */
#include "attention_wgmma.cuh"

namespace attention {

struct keys_maps {
    CUtensorMap k, v, q, dout, dk, dv, pairs;
};

template <int D> struct keys_layout {
    enum {
        STEPS = 3, /* stages of 64 rows of q and dout and their pairs */
        ROWS_BYTES = GROUP_ROWS * D * 2,
        PAIR_BYTES = GROUP_ROWS * 8,
        K_AT = 0,
        V_AT = K_AT + STAGES * tile_bytes<D>::ONE,
        Q_AT = V_AT + STAGES * tile_bytes<D>::ONE,
        DOUT_AT = Q_AT + STEPS * ROWS_BYTES,
        PAIRS_AT = DOUT_AT + STEPS * ROWS_BYTES,
        BARRIERS_AT = PAIRS_AT + STEPS * PAIR_BYTES,
        TOTAL = BARRIERS_AT + (2 * STAGES + 2 * STEPS) * 8,
    };
    static_assert(TOTAL <= 227 * 1024, "a CTA has 227 KiB");
};

template <int D> struct keys_barriers {
    enum { STEPS = keys_layout<D>::STEPS };
    uint32_t kv_full, kv_empty, full, empty; /* one for each stage, 8 bytes apart */
    WGMMA_INLINE keys_barriers(uint32_t at)
        : kv_full(at), kv_empty(at + 8 * STAGES), full(kv_empty + 8 * STAGES), empty(full + 8 * STEPS) {}
    WGMMA_INLINE void init() const {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(kv_full + 8 * i, 1);
            barrier_init(kv_empty + 8 * i, CONSUMERS);
        }
        for (int i = 0; i < STEPS; i++) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, CONSUMER_WARPS);
        }
        barrier_init_fence();
    }
};

/* The block of queries behind the last that sees a tile of keys. */
WGMMA_INLINE int keys_end(const attention_shape &shape, const int32_t *bounds, int tile) {
    return (end_row(shape, bounds, tile * TILE + TILE - 1) + 63) / 64;
}

/* Which queries see the keys of a thread, and of its warpgroup. */
struct keys_seen {
    int end, group_end;  /* blocks of queries: behind the last that sees the tile, the group's keys */
    int first_end;       /* the row behind the last that sees the group's first key */
    int low[2], high[2]; /* rows that see the thread's keys */
    WGMMA_INLINE void find(const attention_shape &shape, const int32_t *bounds, int tile, int w) {
        const int key0 = tile * TILE + w * GROUP_ROWS;
        end = keys_end(shape, bounds, tile);
        group_end = (end_row(shape, bounds, key0 + GROUP_ROWS - 1) + 63) / 64;
        first_end = end_row(shape, bounds, key0);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            low[r] = key0 + row_of_thread(r);
            high[r] = end_row(shape, bounds, low[r]) - 1;
        }
    }
};

template <int D>
WGMMA_INLINE void produce_keys(const attention_shape &shape, const int32_t *bounds, const walk &items,
                               const keys_maps &maps, uint32_t base, const keys_barriers<D> &bar) {
    typedef keys_layout<D> at;
    enum { BYTES = tile_bytes<D>::ONE };
    ring kv, step;
    const int share = shape.H / shape.G;
    for (int round = 0;; round++) {
        const place now = items.find(round);
        if (now.tile < 0) return;
        const int t = now.tile, group = now.head, first = t * (TILE / 64), end = keys_end(shape, bounds, t);
        const uint32_t kv_full = bar.kv_full + 8 * kv.stage;
        barrier_wait(bar.kv_empty + 8 * kv.stage, kv.phase ^ 1);
        barrier_expect(kv_full, 2 * BYTES);
        load_groups<D>(base + at::K_AT + kv.stage * BYTES, &maps.k, kv_full, group * D, t * TILE);
        load_groups<D>(base + at::V_AT + kv.stage * BYTES, &maps.v, kv_full, group * D, t * TILE);
        kv.next<STAGES>();
        for (int head = group * share; head < (group + 1) * share; head++)
            for (int b = first; b < end; b++) {
                const uint32_t full = bar.full + 8 * step.stage;
                barrier_wait(bar.empty + 8 * step.stage, step.phase ^ 1);
                barrier_expect(full, 2 * at::ROWS_BYTES + at::PAIR_BYTES);
                load_tile<D, 64>(base + at::Q_AT + step.stage * at::ROWS_BYTES, &maps.q, full, head * D, b * 64);
                tma_load(base + at::PAIRS_AT + step.stage * at::PAIR_BYTES, &maps.pairs, full, b * GROUP_ROWS * 2,
                         head);
                load_tile<D, 64>(base + at::DOUT_AT + step.stage * at::ROWS_BYTES, &maps.dout, full, head * D, b * 64);
                step.next<at::STEPS>();
            }
    }
}

/* A block computes dk and dv of 128 rows of a key head at a time, over all its query heads; scores are held transposed,
 * keys x queries.  dk and dv leave by way of the places of k and v.  Shared memory: two tiles of k and v, three stages
 * of 64 rows of q and dout and their pairs: 226 KB at D = 128. */
template <int D>
__global__ void __launch_bounds__(THREADS, 1)
    keys_kernel(const attention_shape shape, const int32_t *bounds, const __grid_constant__ keys_maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef keys_layout<D> at;
    enum { STEPS = at::STEPS, BYTES = at::ROWS_BYTES, TILE_BYTES = tile_bytes<D>::ONE };
    extern __shared__ __align__(1024) char shared[];
    const uint32_t base = shared_address(shared);
    const keys_barriers<D> bar(base + at::BARRIERS_AT);
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        if (base % 1024) __trap();
        bar.init();
    }
    __syncthreads();
    const walk items = {bounds + attention_order_of_keys(shape.N), attention_tiles(shape.N) * shape.G, shape.G};
    if (group == 0) {
        registers_give<24>();
        if (threadIdx.x == 0) produce_keys<D>(shape, bounds, items, maps, base, bar);
        __syncwarp();
    } else {
        registers_take<240>();
        const int w = group - 1, share = shape.H / shape.G;
        const float factor = shape.scale * LOG2E;
        const uint64_t k_rows = operand(base + at::K_AT + w * tile_bytes<D>::GROUP, 0);
        const uint64_t v_rows = operand(base + at::V_AT + w * tile_bytes<D>::GROUP, 0);
        const uint64_t q_rows = operand(base + at::Q_AT, GROUP_ROWS * 128);
        const uint64_t dout_rows = operand(base + at::DOUT_AT, GROUP_ROWS * 128);
        ring kv, at_step;
        place now = items.find(0), next = items.find(1); /* one block has at least one item */
        keys_seen seen;
        seen.find(shape, bounds, now.tile, w);
        int block = now.tile * (TILE / 64) - 1, head = 0; /* of the step; blocks of one query head, then of the next */
        float dk[D / 2], dv[D / 2], s[32], dp[32];
        uint32_t p[4][4], ds[4][4], previous = 0; /* the barrier of the step before, if its products are not awaited */
        /* To the next step that has queries which see these keys; false behind the last. */
        auto advance = [&] {
            const int first = now.tile * (TILE / 64);
            for (;;) {
                if (++block == seen.end) block = first, head++;
                if (head == share) return false;
                barrier_wait(bar.full + 8 * at_step.stage, at_step.phase);
                if (block >= first + w && block < seen.group_end) return true;
                release(bar.empty + 8 * at_step.stage);
                at_step.next<STEPS>();
            }
        };
        auto multiply_scores = [&] {
            fence();
            product<D, GROUP_ROWS>(s, k_rows + kv.stage * (TILE_BYTES / 16), q_rows + at_step.stage * (BYTES / 16));
            commit();
        };
        auto finish_products = [&] {
            wait<0>();
            settle(dk);
            settle(dv);
            settle(p);
            settle(ds);
            if (previous) release(previous);
            previous = 0;
        };
        for (int round = 0;; round++) {
            clear(dk);
            clear(dv);
            barrier_wait(bar.kv_full + 8 * kv.stage, kv.phase);
            /* Query heads follow each other without a pause if the stages that a warpgroup passes over in between, and
             * one more, can arrive while it holds the one before. */
            const bool follow = seen.end - seen.group_end + w + 2 <= STEPS;
            while (advance()) {
                multiply_scores();
                for (;;) {
                    const int row0 = block * 64;
                    const uint64_t q_block = q_rows + at_step.stage * (BYTES / 16);
                    const uint64_t dout_block = dout_rows + at_step.stage * (BYTES / 16);
                    const float4 *two_pairs =
                        (const float4 *)(shared + at::PAIRS_AT + at_step.stage * at::PAIR_BYTES) + threadIdx.x % 4;
                    wait<1>();
                    settle(ds);
                    settle(p);
                    if (previous) release(previous);
                    fence();
                    product<D, GROUP_ROWS>(dp, v_rows + kv.stage * (TILE_BYTES / 16), dout_block);
                    commit();
                    wait<1>();
                    settle(s);
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        const float4 pair = two_pairs[4 * i]; /* of two queries: lse log2(e), delta */
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            s[4 * i + e] = exp2_fast(s[4 * i + e] * factor - (e & 1 ? pair.z : pair.x));
                    }
                    if (row0 < now.tile * TILE + (w + 1) * GROUP_ROWS || row0 + 64 > seen.first_end)
                        mask(s, seen.low, seen.high, row0 + column_of_thread(), 0);
                    round_pairs(p, s);
                    settle(p);
                    settle(dv);
                    fence();
                    product_add(dv, p, dout_block);
                    commit();
                    wait<1>();
                    settle(dp);
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        const float4 pair = two_pairs[4 * i];
#pragma unroll
                        for (int e = 0; e < 4; e++) s[4 * i + e] *= dp[4 * i + e] - (e & 1 ? pair.w : pair.y);
                    }
                    round_pairs(ds, s);
                    settle(ds);
                    settle(dk);
                    fence();
                    product_add(dk, ds, q_block);
                    commit();
                    previous = bar.empty + 8 * at_step.stage;
                    at_step.next<STEPS>();
                    if (block + 1 == seen.group_end && !(follow && head + 1 < share)) break;
                    advance();
                    multiply_scores();
                }
                finish_products();
            }
            const bool first = threadIdx.x % 128 == 0;
            const uint32_t slots = base + w * tile_bytes<D>::GROUP + kv.stage * TILE_BYTES;
            pieces<D / 64> dk_out = {slots + at::K_AT, 0, group, 0, 0, first};
            pieces<D / 64> dv_out = {slots + at::V_AT, 0, group, 0, 0, first};
            const float by[2] = {shape.scale, shape.scale};
            const int row = now.tile * TILE + w * GROUP_ROWS;
            scale_rows(dk, by);
#pragma unroll
            for (int piece = 0; piece < D / 64; piece++) {
                const int column = now.head * D + 64 * piece;
                dv_out.put(dv, piece, &maps.dv, column, row);
                dk_out.put(dk, piece, &maps.dk, column, row);
            }
            if (first) {
                tma_store_wait_read<0>();
                barrier_arrive(bar.kv_empty + 8 * kv.stage);
            }
            kv.next<STAGES>();
            if (next.tile < 0) break;
            now = next;
            seen.find(shape, bounds, now.tile, w);
            next = items.find(round + 2);
            block = now.tile * (TILE / 64) - 1, head = 0;
        }
    }
#endif
}

template <int D>
bool launch_keys(const attention_shape *s, const attention_operands *x, const int32_t *bounds, const float2 *pairs,
                 cudaStream_t stream, failure *f) {
    keys_maps maps;
    TRY(map_heads(&maps.k, x->k, s, s->G, f));
    TRY(map_heads(&maps.v, x->v, s, s->G, f));
    TRY(map_heads(&maps.q, x->q, s, s->H, f));
    TRY(map_heads(&maps.dout, x->dout, s, s->H, f));
    TRY(map_heads(&maps.dk, x->dk, s, s->G, f));
    TRY(map_heads(&maps.dv, x->dv, s, s->G, f));
    TRY(map_floats(&maps.pairs, pairs, s->H, attention_pair_rows(s->N) * 2, GROUP_ROWS * 2, f));
    return attention_launch_walk("attention backward, dk dv", keys_kernel<D>, attention_tiles(s->N) * s->G,
                                 keys_layout<D>::TOTAL, stream, f, *s, bounds, maps);
}
} // namespace attention

bool attention_wgmma_keys(const attention_shape *shape, const attention_operands *x, const int32_t *bounds,
                          const float2 *pairs, cudaStream_t stream, failure *f) {
    if (shape->d == 64) return attention::launch_keys<64>(shape, x, bounds, pairs, stream, f);
    return attention::launch_keys<128>(shape, x, bounds, pairs, stream, f);
}
