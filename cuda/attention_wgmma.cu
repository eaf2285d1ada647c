/* attention_wgmma.cu - attention over packed documents, forward, on Hopper: FlashAttention-3 (Shah et al. 2024).
 *
 * Scores of a block of keys are multiplied while the block before it meets its values, and a softmax runs while the
 * tensor cores do either.  Keys are walked from a tile's own down to the first that it sees; a mask is applied in the
 * first block, which is the diagonal, and where a document begins. */
#include "attention_wgmma.cuh"
#include "wgmma_gemm.h"

#include <math.h>

namespace attention {

struct forward_maps {
    CUtensorMap q, k, v, o;
};

template <int D> struct forward_layout {
    enum {
        Q_AT = 0,
        K_AT = Q_AT + 2 * tile_bytes<D>::ONE,
        V_AT = K_AT + STAGES * tile_bytes<D>::ONE,
        O_AT = V_AT + STAGES * tile_bytes<D>::ONE,
        BARRIERS_AT = O_AT + tile_bytes<D>::ONE,
        TOTAL = BARRIERS_AT + (4 + 4 * STAGES) * 8,
    };
    static_assert(TOTAL <= 227 * 1024, "a CTA has 227 KiB");
};

/* One thread: loads what all tiles of this block need. */
template <int D>
WGMMA_INLINE void produce_forward(const attention_shape &shape, const int32_t *bounds, const walk &items,
                                  const forward_maps &maps, uint32_t base, const query_barriers<2> &bar) {
    typedef forward_layout<D> at;
    enum { BYTES = tile_bytes<D>::ONE };
    ring q, kv;
    for (int round = 0;; round++) {
        const place now = items.find(round);
        if (now.tile < 0) return;
        const int head = now.head, t = now.tile, group = head / (shape.H / shape.G);
        const int blocks = t - first_key(shape, bounds, t * TILE) / TILE + 1;
        barrier_wait(bar.q_empty + 8 * q.stage, q.phase ^ 1);
        barrier_expect(bar.q_full + 8 * q.stage, BYTES);
        load_groups<D>(base + at::Q_AT + q.stage * BYTES, &maps.q, bar.q_full + 8 * q.stage, head * D, t * TILE);
        q.next<2>();
        load_blocks<D>(maps.k, maps.v, base + at::K_AT, base + at::V_AT, bar, &kv, group * D, t, blocks);
    }
}

/* Turns scores into exp(score - max); `shrink`: by what earlier sums are to be multiplied.  Every row has seen a key:
 * its own is in the first block.  factor: score unit -> log2. */
template <int N>
WGMMA_INLINE void softmax_step(float (&s)[N], float (&max)[2], float (&sum)[2], float (&shrink)[2], float factor) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = max[r];
#pragma unroll
        for (int i = 0; i < N; i += 4) most = fmaxf(most, fmaxf(s[i + 2 * r], s[i + 2 * r + 1]));
        most = tile::quad_max(most);
        const float base = most * factor;
        shrink[r] = exp2_fast(max[r] * factor - base);
        max[r] = most;
        float part = 0;
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            s[i + 2 * r] = exp2_fast(s[i + 2 * r] * factor - base);
            s[i + 2 * r + 1] = exp2_fast(s[i + 2 * r + 1] * factor - base);
            part += s[i + 2 * r] + s[i + 2 * r + 1];
        }
        sum[r] = sum[r] * shrink[r] + part;
    }
}

/* A block computes o and lse of 128 rows of a query head at a time; the first scores of a tile are multiplied while the
 * tile before it meets its last values.  Shared memory: two tiles of q, two stages of 128 rows of k and v, and o on its
 * way out: 224 KB at D = 128. */
template <int D>
__global__ void __launch_bounds__(THREADS, 1)
    forward_kernel(const attention_shape shape, float *lse, const int32_t *bounds,
                   const __grid_constant__ forward_maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef forward_layout<D> at;
    enum { BYTES = tile_bytes<D>::ONE };
    extern __shared__ __align__(1024) char shared[];
    const uint32_t base = shared_address(shared);
    const query_barriers<2> bar(base + at::BARRIERS_AT);
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0); /* the same in a warp: branches do not diverge */
    if (threadIdx.x == 0) {
        if (base % 1024) __trap();
        bar.init();
        tma_prefetch_map(&maps.q), tma_prefetch_map(&maps.k), tma_prefetch_map(&maps.v), tma_prefetch_map(&maps.o);
    }
    __syncthreads();
    const walk items = {bounds + attention_order_of_queries(shape.N), attention_tiles(shape.N) * shape.H, shape.H};
    if (group == 0) {
        registers_give<40>();
        if (threadIdx.x == 0) produce_forward<D>(shape, bounds, items, maps, base, bar);
        __syncwarp(); /* lanes that wait in a barrier of hardware would hold up the one that loads */
    } else {
        registers_take<232>();
        const int w = group - 1;
        const float factor = shape.scale * LOG2E;
        const uint64_t q_rows = operand(base + at::Q_AT + w * tile_bytes<D>::GROUP, 0);
        const uint64_t k_rows = operand(base + at::K_AT, 0), v_rows = operand(base + at::V_AT, TILE * 128);
        pieces<D / 64> out = {base + at::O_AT + w * tile_bytes<D>::GROUP, 0, group, 0, 0, threadIdx.x % 128 == 0};
        ring q, k, v;
        place now = items.find(0), next = items.find(1), later = {-1, 0}; /* one block has at least one item */
        rows_seen seen, next_seen;
        seen.find(shape, bounds, now.tile, w);
        float o[D / 2], s[64], max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, shrink[2] = {0, 0}, inverse[2];
        uint32_t p[8][4];
        int block = now.tile;
        /* What the next tile needs is asked for long before. */
        auto look_ahead = [&](int round) {
            if (next.tile < 0) return;
            next_seen.find(shape, bounds, next.tile, w);
            later = items.find(round + 2);
        };
        /* Scores, which have been multiplied, of `block` become probabilities. */
        auto softmax = [&] {
            settle(s);
            release(bar.k_empty + 8 * k.stage);
            k.next<STAGES>();
            if (block == now.tile || block * TILE < seen.group_last_first) {
                const int row = now.tile * TILE + w * GROUP_ROWS + row_of_thread(0), high[2] = {row, row + 8};
                mask(s, seen.first, high, block * TILE + column_of_thread(), -INFINITY);
            }
            softmax_step(s, max, sum, shrink, factor);
        };
        /* The sums of a tile are complete but for their last block of values: writes lse. */
        auto finish_sums = [&] {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float all = tile::quad_sum(sum[r]);
                const int row = now.tile * TILE + w * GROUP_ROWS + row_of_thread(r);
                inverse[r] = 1 / all;
                if (threadIdx.x % 4 == 0 && row < shape.N)
                    lse[(int64_t)row * shape.H + now.head] = max[r] * shape.scale + logf(all);
            }
        };
        auto store = [&](const place &of) {
            scale_rows(o, inverse);
#pragma unroll
            for (int piece = 0; piece < D / 64; piece++)
                out.put(o, piece, &maps.o, of.head * D + 64 * piece, of.tile * TILE + w * GROUP_ROWS);
        };
        clear(o);
        barrier_wait(bar.q_full, 0);
        barrier_wait(bar.k_full, 0);
        fence();
        product<D, TILE>(s, q_rows, k_rows);
        commit();
        look_ahead(0);
        wait<0>();
        softmax();
        round_pairs(p, s);
        for (int round = 0;;) {
            const bool ends = block == seen.first_block;
            const place old = now;
            if (ends) {
                release(bar.q_empty + 8 * q.stage);
                q.next<2>();
                finish_sums();
                if (next.tile < 0) break;
                now = next, next = later, seen = next_seen, block = now.tile;
                max[0] = max[1] = -INFINITY, sum[0] = sum[1] = 0;
                barrier_wait(bar.q_full + 8 * q.stage, q.phase);
            } else {
                block--;
            }
            barrier_wait(bar.k_full + 8 * k.stage, k.phase);
            fence();
            product<D, TILE>(s, q_rows + q.stage * (BYTES / 16), k_rows + k.stage * (BYTES / 16));
            commit();
            scale_rows(o, shrink);
            barrier_wait(bar.v_full + 8 * v.stage, v.phase);
            fence();
            product_add(o, p, v_rows + v.stage * (BYTES / 16));
            commit();
            if (ends) look_ahead(++round);
            wait<1>();
            softmax();
            wait<0>();
            settle(o);
            settle(p);
            release(bar.v_empty + 8 * v.stage);
            v.next<STAGES>();
            if (ends) {
                store(old);
                clear(o);
            }
            round_pairs(p, s);
        }
        scale_rows(o, shrink);
        barrier_wait(bar.v_full + 8 * v.stage, v.phase);
        fence();
        product_add(o, p, v_rows + v.stage * (BYTES / 16));
        commit();
        wait<0>();
        settle(o);
        store(now);
        if (out.first) tma_store_wait_read<0>();
    }
#endif
}

template <int D>
bool launch_forward(const attention_shape *s, const attention_operands *x, const int32_t *bounds, cudaStream_t stream,
                    failure *f) {
    forward_maps maps;
    TRY(map_heads(&maps.q, x->q, s, s->H, f));
    TRY(map_heads(&maps.k, x->k, s, s->G, f));
    TRY(map_heads(&maps.v, x->v, s, s->G, f));
    TRY(map_heads(&maps.o, x->o, s, s->H, f));
    return attention_launch_walk("attention forward", forward_kernel<D>, attention_tiles(s->N) * s->H,
                                 forward_layout<D>::TOTAL, stream, f, *s, x->lse, bounds, maps);
}
} // namespace attention

bool attention_on_wgmma(const attention_shape *shape) {
    const char *why;
    return !shape->on_mma && (shape->d == 64 || shape->d == 128) && shape->soft_cap == 0 && wgmma_here(&why);
}

bool attention_wgmma_forward(const attention_shape *shape, const attention_operands *x, const int32_t *bounds,
                             cudaStream_t stream, failure *f) {
    if (shape->d == 64) return attention::launch_forward<64>(shape, x, bounds, stream, f);
    return attention::launch_forward<128>(shape, x, bounds, stream, f);
}
