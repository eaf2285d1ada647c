/* thin_kernel.cuh - ds and dB of adapters in one pass over dz, for sm_90a; see thin.h.
 *
 * Both products have dz as the wide operand of wgmma (n up to 256), so that shared memory is read little, and the rank
 * as its 64 rows:  ds' = B' dz' over the columns of dz, dB' = s' dz over its rows.  dz lies in shared memory as TMA
 * brings it; the first reads it along its rows, the second across them.
 *
 * A CTA owns a slab of SLAB columns for a range of rows, and walks down it in blocks of ROWS.  Its B stays in shared
 * memory.  One warpgroup sums up ds' of a block over the slab, two sum up dB', PAIRS / 2 pairs each, over all blocks:
 * the sums of the whole slab are in their registers.
 *
 * Sums over CTAs: dB' of each range goes to scratch, and combine_kernel adds the ranges.  ds' of all slabs would be
 * half as many bytes as dz: where ranges are long, the slabs of a chain add their sums of a block into one place in L2,
 * one behind the other.  A chain's slab starts one block before the one ahead of it, around the range's end: so at each
 * step all are at different blocks, and at a block they are one step behind each other.  Whose turn it is at a place is
 * a counter.  All CTAs are on the card at once, and each waits only for what another does in an earlier step: all end.
 */
#ifndef CUDA_THIN_KERNEL_CUH
#define CUDA_THIN_KERNEL_CUH
#include "cuda.cuh"
#include "thin.h"
#include "wgmma.cuh"

namespace thin {
using namespace wgmma;

enum {
    ROWS = 128, /* of a block */
    PAIR = 128, /* columns that are loaded and released together: two boxes of 64, the width of the swizzle */
    PAIRS = 4,
    SLAB = PAIRS * PAIR,
    TILE = THIN_RANK * 128, /* sums of one wgmma: ds' of a block or dB' of a pair */
    STEP = 16,              /* depth of one wgmma */
    THREADS = 4 * 128,      /* warpgroups: loads and turns; ds; dB, dB */
    BOX_BYTES = 128 * 128,  /* 128 rows of 64 values: of dz, s and B */
    PAIR_BYTES = 2 * BOX_BYTES,
    MAX_TURNS = 1 << 15,
    CHAIN = 4,      /* slabs */
    CHAIN_PAYS = 8, /* blocks of a range for each slab of a chain */
    MAY_ADD = 1,    /* named barriers */
    ADDED = 2,
};

/* In shared memory, bytes. */
enum {
    B_AT = 0,
    S_AT = B_AT + PAIRS * BOX_BYTES, /* two, in turns */
    DZ_AT = S_AT + 2 * BOX_BYTES,
    BARRIERS_AT = DZ_AT + PAIRS * PAIR_BYTES,
    SHARED_BYTES = BARRIERS_AT + (2 * PAIRS + 2 * 2 + 1) * 8,
};
static_assert(SHARED_BYTES <= 227 * 1024, "a CTA has 227 KiB");

struct place {
    int first_slab, slabs, first_part, chain; /* chain: slabs of a part of ds, but for the last part */
};
struct plan {
    int adapters, slabs, parts, blocks, ranges;
    place of[THIN_ADAPTERS];
    __host__ __device__ int parts_of(int i) const { return (of[i].slabs + of[i].chain - 1) / of[i].chain; }
    __host__ __device__ int adapter_of(int slab) const {
        int i = 0;
        while (i + 1 < adapters && slab >= of[i + 1].first_slab) i++;
        return i;
    }
    int64_t ds_tiles() const { return (int64_t)parts * blocks; }
    int64_t dB_tiles() const { return (int64_t)ranges * slabs * PAIRS; }
};

struct maps {
    CUtensorMap dz[THIN_ADAPTERS], s[THIN_ADAPTERS], B[THIN_ADAPTERS];
};

/* How many slabs have added to a place of ds; 0 before and after every launch. */
static __device__ unsigned turns[MAX_TURNS];

/* What one CTA does, and in which order. */
struct walk {
    int adapter, slab, range, part, first_block, blocks, chain, position; /* slab: of all adapters */
    WGMMA_INLINE walk(const plan &p, int cta) {
        slab = cta % p.slabs, range = cta / p.slabs;
        adapter = p.adapter_of(slab);
        const place &at = p.of[adapter];
        int in_adapter = slab - at.first_slab;
        part = at.first_part + in_adapter / at.chain, position = in_adapter % at.chain;
        chain = min(at.chain, at.slabs - in_adapter / at.chain * at.chain);
        first_block = (int)((int64_t)p.blocks * range / p.ranges);
        blocks = (int)((int64_t)p.blocks * (range + 1) / p.ranges) - first_block;
    }
    WGMMA_INLINE int column(const plan &p) const { return (slab - p.of[adapter].first_slab) * SLAB; }
    /* Of the range, in step t. */
    WGMMA_INLINE int block(int t) const {
        int b = t - position;
        return b < 0 ? b + blocks : b;
    }
    /* Slabs of the chain that were there before: first those that started at or behind this block. */
    WGMMA_INLINE int turn(int t) const {
        int behind = blocks - block(t); /* the first of them */
        return position >= behind ? position - behind : max(0, chain - behind) + position;
    }
    WGMMA_INLINE int64_t ds_tile(const plan &p, int t) const {
        return (int64_t)part * p.blocks + first_block + block(t);
    }
};

struct barriers {
    uint32_t full, empty, s_full, s_empty, b_full;
    WGMMA_INLINE barriers(uint32_t base)
        : full(base), empty(full + 8 * PAIRS), s_full(empty + 8 * PAIRS), s_empty(s_full + 16), b_full(s_empty + 16) {}
    WGMMA_INLINE void init() const {
        for (int i = 0; i < PAIRS; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 8);
        for (int i = 0; i < 2; i++) barrier_init(s_full + 8 * i, 1), barrier_init(s_empty + 8 * i, 8);
        barrier_init(b_full, 1);
        barrier_init_fence();
    }
};

/* One thread. */
WGMMA_INLINE void load_all(const plan &p, const walk &w, const maps &m, uint32_t base, const barriers &bar) {
    const CUtensorMap *dz = &m.dz[w.adapter], *s = &m.s[w.adapter], *B = &m.B[w.adapter];
    int column = w.column(p);
    uint64_t policy = evict_first(); /* partial sums stay in L2 */
    tma_prefetch_map(dz);
    tma_prefetch_map(s);
    barrier_expect(bar.b_full, PAIRS * BOX_BYTES);
    for (int i = 0; i < PAIRS; i++) tma_load(base + B_AT + i * BOX_BYTES, B, bar.b_full, 0, column + i * PAIR);
    for (int t = 0; t < w.blocks; t++) {
        int row = (w.first_block + w.block(t)) * ROWS, place = t & 1;
        barrier_wait(bar.s_empty + 8 * place, (t >> 1 & 1) ^ 1);
        barrier_expect(bar.s_full + 8 * place, BOX_BYTES);
        tma_load(base + S_AT + place * BOX_BYTES, s, bar.s_full + 8 * place, 0, row);
        for (int i = 0; i < PAIRS; i++) {
            uint32_t to = base + DZ_AT + i * PAIR_BYTES, full = bar.full + 8 * i;
            barrier_wait(bar.empty + 8 * i, (t & 1) ^ 1);
            barrier_expect(full, PAIR_BYTES);
            tma_load(to, dz, full, column + i * PAIR, row, policy);
            tma_load(to + BOX_BYTES, dz, full, column + i * PAIR + 64, row, policy);
        }
    }
}

/* One warp: tells the warpgroup of ds when its turn has come, and the next slab of the chain when it has added. */
WGMMA_INLINE void keep_order(const plan &p, const walk &w) {
    for (int t = 0; t < w.blocks; t++) {
        unsigned *at = turns + w.ds_tile(p, t), turn = (unsigned)w.turn(t), seen = turn;
        if (threadIdx.x % 32 == 0 && turn) do {
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(at) : "memory");
            } while (seen != turn);
        __syncwarp();
        named_arrive(MAY_ADD, 32 + 128);
        named_sync(ADDED, 32 + 128);
        if (threadIdx.x % 32 || w.chain == 1) continue;
        unsigned next = (int)turn + 1 == w.chain ? 0 : turn + 1;
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(next) : "memory");
    }
}

WGMMA_INLINE void add_at(float4 *at, const float4 &x) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(x.x), "f"(x.y), "f"(x.z),
                 "f"(x.w)
                 : "memory");
}

/* The sums of a warpgroup: thread t's i-th four at 128 i + t, where they lie in no row's order. */
template <bool ADD> WGMMA_INLINE void store_tile(float *tile, const float (&sums)[64]) {
    float4 *at = (float4 *)tile + threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float4 x = make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
        if (ADD) add_at(at + 128 * i, x);
        else at[128 * i] = x;
    }
}

/* One warpgroup. */
WGMMA_INLINE void sum_ds(const plan &p, const walk &w, float *ds, uint32_t base, const barriers &bar) {
    float sums[64];
    uint64_t B = operand(base + B_AT, 0), dz = operand(base + DZ_AT, 0);
    bool tells = threadIdx.x % 32 == 0;
    barrier_wait(bar.b_full, 0);
    for (int t = 0; t < w.blocks; t++) {
        for (int i = 0; i < PAIRS; i++) {
            barrier_wait(bar.full + 8 * i, t & 1);
            fence();
#pragma unroll
            for (int k = 0; k < PAIR; k += STEP)
                multiply<0, 1>(sums, B + ((i * BOX_BYTES + k * 128) >> 4),
                               dz + ((i * PAIR_BYTES + k / 64 * BOX_BYTES + k % 64 * 2) >> 4), i | k);
            commit();
            wait<0>();
            if (tells) barrier_arrive(bar.empty + 8 * i);
        }
        settle(sums);
        float *tile = ds + w.ds_tile(p, t) * TILE;
        named_sync(MAY_ADD, 32 + 128);
        if (w.turn(t)) store_tile<true>(tile, sums);
        else store_tile<false>(tile, sums);
        named_arrive(ADDED, 32 + 128);
    }
}

/* Two warpgroups, `me` 0 and 1: they have every other pair. dB: the range's. */
WGMMA_INLINE void sum_dB(const walk &w, float *dB, uint32_t base, const barriers &bar, int me) {
    float sums[PAIRS / 2][64];
    uint64_t s = operand(base + S_AT, 0), dz = operand(base + DZ_AT + me * PAIR_BYTES, BOX_BYTES);
    bool tells = threadIdx.x % 32 == 0;
    for (int t = 0; t < w.blocks; t++) {
        int place = t & 1;
        barrier_wait(bar.s_full + 8 * place, t >> 1 & 1);
#pragma unroll
        for (int i = 0; i < PAIRS / 2; i++) {
            int pair = 2 * i + me;
            barrier_wait(bar.full + 8 * pair, t & 1);
            fence();
#pragma unroll
            for (int k = 0; k < ROWS; k += STEP)
                multiply<1, 1>(sums[i], s + ((place * BOX_BYTES + k * 128) >> 4),
                               dz + ((2 * i * PAIR_BYTES + k * 128) >> 4), t | k);
            commit();
            wait<0>();
            if (tells) barrier_arrive(bar.empty + 8 * pair);
        }
        if (tells) barrier_arrive(bar.s_empty + 8 * place);
    }
#pragma unroll
    for (int i = 0; i < PAIRS / 2; i++) {
        settle(sums[i]);
        store_tile<false>(dB + (int64_t)(w.slab * PAIRS + 2 * i + me) * TILE, sums[i]);
    }
}

/* Grid: slabs x ranges, all on the card at once. ds: [parts, blocks] tiles; dB: [ranges, slabs, PAIRS] tiles. */
static __global__ void __launch_bounds__(THREADS, 1)
    thin_kernel(const __grid_constant__ plan p, float *ds, float *dB, const __grid_constant__ maps m) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) char shared[];
    uint32_t base = shared_address(shared);
    int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0); /* the same in a warp: branches do not diverge */
    const barriers bar(base + BARRIERS_AT);
    const walk w(p, blockIdx.x);
    if (threadIdx.x == 0) {
        if (base % 1024) __trap();
        bar.init();
    }
    __syncthreads();
    if (warp < 4) {
        registers_give<40>();
        if (threadIdx.x == 0) load_all(p, w, m, base, bar);
        if (warp == 1) keep_order(p, w);
        __syncwarp();
    } else if (warp < 8) {
        sum_ds(p, w, ds, base, bar);
    } else {
        registers_take<168>();
        sum_dB(w, dB + (int64_t)w.range * p.slabs * PAIRS * TILE, base, bar, warp / 4 - 2);
    }
#endif
}

struct result {
    bf16 *ds[THIN_ADAPTERS];
    float *dB[THIN_ADAPTERS];
    int64_t ld_ds[THIN_ADAPTERS], ld_dB[THIN_ADAPTERS], M[THIN_ADAPTERS], n;
    int r[THIN_ADAPTERS];
    bool add[THIN_ADAPTERS];
    float scale;
};

enum { COMBINE_THREADS = 256, QUARTER = 32 };

/* ds and dB from the sums of all parts and ranges.  A block: 32 rows of a tile, a quarter, transposed in shared memory.
 * Grid: 4 (adapters blocks + slabs PAIRS). */
static __global__ void __launch_bounds__(COMBINE_THREADS)
    combine_kernel(const __grid_constant__ plan p, const float *ds, const float *dB,
                   const __grid_constant__ result out) {
    __shared__ float rows[QUARTER][THIN_RANK + 4];
    await_previous();
    int tile = blockIdx.x / 4, quarter = blockIdx.x % 4, ds_tiles = p.adapters * p.blocks, adapter, count;
    bool is_ds = tile < ds_tiles;
    int64_t stride, row; /* of tiles; of ds, dB */
    const float *from;
    if (is_ds) {
        adapter = tile / p.blocks, count = p.parts_of(adapter), stride = p.blocks;
        from = ds + ((int64_t)p.of[adapter].first_part * p.blocks + tile % p.blocks) * TILE;
        row = tile % p.blocks * ROWS;
    } else {
        tile -= ds_tiles;
        adapter = p.adapter_of(tile / PAIRS), count = p.ranges, stride = p.slabs * PAIRS;
        from = dB + (int64_t)tile * TILE;
        row = (int64_t)(tile - p.of[adapter].first_slab * PAIRS) * PAIR;
    }
    const float4 *at = (const float4 *)from + quarter * (TILE / 16) + threadIdx.x;
    float4 sum[2] = {};
#pragma unroll 4
    for (int i = 0; i < count; i++)
#pragma unroll
        for (int u = 0; u < 2; u++) {
            float4 x = at[i * stride * (TILE / 4) + u * COMBINE_THREADS];
            sum[u].x += x.x, sum[u].y += x.y, sum[u].z += x.z, sum[u].w += x.w;
        }
#pragma unroll
    for (int u = 0; u < 2; u++) {
        int f = threadIdx.x + u * COMBINE_THREADS, thread = f % 128, lane = thread % 32;
        int at_row = f / 128 * 8 + 2 * (lane % 4), k = thread / 32 * 16 + lane / 4;
        rows[at_row][k] = sum[u].x, rows[at_row + 1][k] = sum[u].y;
        rows[at_row][k + 8] = sum[u].z, rows[at_row + 1][k + 8] = sum[u].w;
    }
    __syncthreads();
    int k = threadIdx.x % 8 * 8, at_row = threadIdx.x / 8;
    row += quarter * QUARTER + at_row;
    if (k >= out.r[adapter] || row >= (is_ds ? out.n : out.M[adapter])) return;
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = out.scale * rows[at_row][k + i];
    if (is_ds) {
        store<bf16, 8>(out.ds[adapter] + row * out.ld_ds[adapter] + k, packed<bf16, 8>(x));
        return;
    }
    float *to = out.dB[adapter] + row * out.ld_dB[adapter] + k;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        pack<float, 4> y = {x[i], x[i + 1], x[i + 2], x[i + 3]};
        if (out.add[adapter]) {
            pack<float, 4> old = load<float, 4>(to + i);
            for (int j = 0; j < 4; j++) y.x[j] += old.x[j];
        }
        store<float, 4>(to + i, y);
    }
}
} // namespace thin
#endif
