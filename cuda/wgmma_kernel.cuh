/* wgmma_kernel.cuh - a persistent, warp-specialised matrix product for sm_90a.
 *
 * A tile is 128 rows of c by BN columns.  The two CTAs of a cluster compute tiles above each other: they need the same
 * part of b, so each loads a share of it and multicasts it to both, which saves traffic from L2.  In a CTA one thread
 * loads (TMA into a ring of STAGES blocks of 64 k) and two warpgroups multiply (wgmma) and store through shared memory
 * by TMA, while the loads of the next tile already run.  The warpgroups either share a tile, 64 rows each, or take
 * tiles in turns: then one multiplies while the other stores, which hides everything an epilogue does but limits BN,
 * since a warpgroup's registers hold the whole tile.
 *
 * Barriers of a stage: `full` ends its phase when all bytes of the block have landed; `empty` when every consumer warp
 * of every CTA that the block goes to has read it.  Blocks over an edge are filled with zeros by TMA, and stores over
 * an edge are cut by it, so no size needs code of its own. */
#ifndef CUDA_WGMMA_KERNEL_CUH
#define CUDA_WGMMA_KERNEL_CUH
#include "wgmma.cuh"
#include "wgmma_epilogue.cuh"

namespace wgmma {
enum {
    BM = 128,        /* rows of a tile */
    BK = 64,         /* depth of a block: 128 bytes, the width of the swizzle */
    GROUP_ROWS = 64, /* rows of a warpgroup */
    CONSUMERS = 2,   /* warpgroups that multiply */
    THREADS = 128 * (1 + CONSUMERS),
    A_BYTES = BM * BK * 2, /* of a block */
    BOX = 64 * BK * 2,     /* bytes of 64 columns of c in a block of b: what one load brings */
    TURN = 3,              /* named barrier 3 + w: warpgroup w may multiply; 1 and 2 are the warpgroups' own */
};

struct tile_args {
    int tile_rows, tile_cols; /* of the grid of cluster tiles */
    int blocks, tail_blocks;  /* of BK */
    int group;                /* rows of that grid walked together, column by column */

    /* Where tile `t` of the walk lies. */
    WGMMA_INLINE void find(int t, int *row, int *col) const {
        int per_group = group * tile_cols, first = t / per_group * group, within = t % per_group;
        int rows = min(group, tile_rows - first);
        *row = first + within % rows;
        *col = within / rows;
    }
};

/* Where things lie in shared memory. SLOTS: pieces of c on their way out, in each of SETS. */
template <int BN, int STAGES, int SLOTS, int SETS> struct layout {
    enum {
        B_BYTES = BN * BK * 2,
        B_AT = STAGES * A_BYTES,
        C_AT = B_AT + STAGES * B_BYTES,
        BARRIERS_AT = C_AT + SETS * SLOTS * PIECE_BYTES,
        LOADED_AT = BARRIERS_AT + STAGES * 16, /* barriers of the pieces that an epilogue reads */
        TOTAL = LOADED_AT + CONSUMERS * SLOTS * 8,
    };
    static_assert(TOTAL <= 227 * 1024, "a CTA has 227 KiB");
};

/* One thread: loads the blocks of all tiles of this CTA. SOURCES: 2 when the halves of a tile's columns are the same
 * columns of two matrices. */
template <int BN, int B_MN, int STAGES, int SOURCES>
WGMMA_INLINE void produce(const tile_args &args, const tile_maps &maps, uint32_t a_at, uint32_t b_at, uint32_t full,
                          uint32_t empty) {
    enum { B_BYTES = BN * BK * 2, BOXES = BN / 64, OF_SOURCE = BOXES / SOURCES };
    int rank = (int)cluster_rank(), size = (int)cluster_size();
    uint16_t mask = (uint16_t)((1 << size) - 1);
    ring at;
    int tiles = args.tile_rows * args.tile_cols;
    for (int t = blockIdx.x / size; t < tiles; t += gridDim.x / size) {
        int row, col;
        args.find(t, &row, &col);
        row = (row * size + rank) * BM, col *= BN / SOURCES;
        auto load = [&](const CUtensorMap *a, const CUtensorMap *b, int k) {
            uint32_t ready = full + 8 * at.stage, to = b_at + at.stage * B_BYTES;
            barrier_wait(empty + 8 * at.stage, at.phase ^ 1);
            barrier_expect(ready, A_BYTES + B_BYTES);
            tma_load(a_at + at.stage * A_BYTES, a, ready, k, row);
            for (int i = rank; i < BOXES; i += size) {
                const CUtensorMap *from = SOURCES == 1 ? b : b + i / OF_SOURCE;
                int column = col + i % OF_SOURCE * 64;
                tma_load_multicast(to + i * BOX, from, ready, B_MN ? column : k, B_MN ? k : column, mask);
            }
            at.next<STAGES>();
        };
        for (int i = 0; i < args.blocks; i++) load(&maps.a, maps.b, i * BK);
        for (int i = 0; i < args.tail_blocks; i++) load(&maps.a2, maps.b2, i * BK);
    }
}

/* sums[PARTS][64, BN] = the product of this warpgroup's rows over all blocks of a tile. a, b: descriptors of stage 0.
 * meanwhile() runs while the fourth block, or the last, is being multiplied; before_last_wait() while the last is. */
template <int BN, int B_MN, int STAGES, int PARTS, typename F, typename G>
WGMMA_INLINE void multiply_tile(float (&sums)[PARTS][BN / 2], int blocks, ring *at, uint64_t a, uint64_t b,
                                uint32_t full, uint32_t empty, F meanwhile, G before_last_wait) {
    enum { A_STEP = A_BYTES >> 4, B_STEP = BN * BK * 2 >> 4, A_16 = 32 >> 4, B_16 = (B_MN ? 16 * 128 : 32) >> 4 };
    enum { PART = GROUP_ROWS * BK * 2 >> 4 };
    uint32_t lane = threadIdx.x % 32, size = cluster_size();
    uint32_t previous = 0; /* the barrier of the block before this one */
    int spare = min(3, blocks - 1);
    for (int i = 0; i < blocks; i++) {
        barrier_wait(full + 8 * at->stage, at->phase);
        uint64_t a_block = a + at->stage * A_STEP, b_block = b + at->stage * B_STEP;
        fence();
#pragma unroll
        for (int k = 0; k < BK / 16; k++)
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                multiply<B_MN>(sums[part], a_block + part * PART + k * A_16, b_block + k * B_16, i | k);
        commit();
        if (i == spare) meanwhile();
        wait<1>();
        if (i > 0 && lane < size) barrier_arrive_at(previous, lane);
        previous = empty + 8 * at->stage;
        at->next<STAGES>();
    }
    before_last_wait();
    wait<0>();
    if (lane < size) barrier_arrive_at(previous, lane);
#pragma unroll
    for (int part = 0; part < PARTS; part++) settle(sums[part]);
}

/* TURNS: the warpgroups take tiles in turns. Then they share the slots of an epilogue that reads: whoever has finished
 * with them fetches the first pieces of the other's tile. */
template <int BN, int B_MN, int STAGES, int SLOTS, bool TURNS, typename EPILOGUE>
__global__ void __launch_bounds__(THREADS, 1)
    wgmma_kernel(const tile_args args, const epilogue_args extra, const __grid_constant__ tile_maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    enum { PARTS = TURNS ? 2 : 1, READERS = TURNS ? 1 : 2, SETS = TURNS && EPILOGUE::READS ? 1 : CONSUMERS };
    typedef layout<BN, STAGES, SLOTS, SETS> at;
    extern __shared__ __align__(1024) char shared[];
    uint32_t base = shared_address(shared), full = base + at::BARRIERS_AT, empty = full + STAGES * 8;
    int size = (int)cluster_size();
    int group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0); /* the same in a warp: branches do not diverge */
    if (threadIdx.x == 0) {
        if (base % 1024) __trap();
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, READERS * 4 * size);
        }
        for (int i = 0; i < CONSUMERS * SLOTS; i++) barrier_init(base + at::LOADED_AT + 8 * i, 1);
        barrier_init_fence();
        tma_prefetch_map(&maps.a);
        tma_prefetch_map(&maps.b[0]);
        tma_prefetch_map(&maps.c[0]);
    }
    cluster_sync();
    if (group == 0) {
        registers_give<40>();
        if (threadIdx.x == 0)
            produce<BN, B_MN, STAGES, EPILOGUE::SOURCES>(args, maps, base, base + at::B_AT, full, empty);
        __syncwarp(); /* lanes that wait in a barrier of hardware would hold up the one that loads */
    } else {
        registers_take<232>();
        ring stage;
        float sums[PARTS][BN / 2];
        uint64_t a_rows = operand(base + (TURNS ? 0 : (group - 1) * GROUP_ROWS * BK * 2), 0);
        uint64_t b_rows = operand(base + at::B_AT, B_MN ? BOX : 0);
        pieces<SLOTS> out = {base + at::C_AT + (group - 1) % SETS * SLOTS * PIECE_BYTES,
                             base + at::LOADED_AT + (group - 1) * SLOTS * 8,
                             group,
                             0,
                             0,
                             threadIdx.x % 128 == 0};
        int tiles = args.tile_rows * args.tile_cols, rank = (int)cluster_rank();
        int blocks = args.blocks + args.tail_blocks, clusters = gridDim.x / size, first = blockIdx.x / size;
        auto find = [&](int t, int *row, int *col) {
            args.find(t, row, col);
            *row = (*row * size + rank) * BM + (TURNS ? 0 : (group - 1) * GROUP_ROWS), *col *= BN / EPILOGUE::SOURCES;
        };
        auto fetch_for = [&](int whose, int t) {
            pieces<SLOTS> to = out;
            int row, col;
            to.loaded = base + at::LOADED_AT + (whose - 1) * SLOTS * 8;
            find(t, &row, &col);
            EPILOGUE::template fetch<PARTS, BN / 2>(maps, to, row, col);
        };
        if (SETS == 1 && group == 1) fetch_for(1, first);
        if (TURNS && group == 2) first += clusters, stage.skip<STAGES>(blocks);
        for (int t = first; t < tiles; t += clusters * PARTS) {
            int row, col;
            find(t, &row, &col);
            /* A warpgroup may look at a stage only when the one before it has seen the stage's last use. */
            if (TURNS && t >= clusters) named_sync(TURN + group - 1, 256);
            multiply_tile<BN, B_MN, STAGES>(
                sums, blocks, &stage, a_rows, b_rows, full, empty,
                [&] {
                    if (SETS > 1) EPILOGUE::template fetch<PARTS, BN / 2>(maps, out, row, col);
                },
                [&] {
                    if (TURNS && t + clusters < tiles) named_arrive(TURN + 2 - group, 256);
                });
            if (TURNS) stage.skip<STAGES>(blocks);
            EPILOGUE::store(sums, extra, maps, out, row, col);
            if (SETS == 1 && t + clusters < tiles) fetch_for(3 - group, t + clusters);
        }
        if (out.first) tma_store_wait_read<0>();
    }
    cluster_sync(); /* the other CTA may still write or arrive here */
#endif
}
} // namespace wgmma
#endif
