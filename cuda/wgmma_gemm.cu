/* wgmma_gemm.cu - launches wgmma_kernel.cuh: tensor maps, the tile for a shape, what is served; see wgmma_gemm.h. */
#include "cuda.cuh"
#include "sum_parts.cuh"
#include "wgmma_gemm.h"
#include "wgmma_kernel.cuh"
#include "wgmma_map.cuh"

namespace {
using namespace wgmma;

enum {
    ROWS_TOGETHER = 16, /* tile rows walked together: their part of a stays in L2 while b streams by */
};

__global__ void table_kernel(float2 *table, const float *freq, int64_t n, int half) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float2 at;
    sincosf((float)(i / half) * freq[i % half], &at.y, &at.x);
    table[i] = at;
}

__global__ void rstd_kernel(float *rstd, const float *row_sums, int64_t rows, int parts, float width, float eps) {
    int64_t row;
    float sum;
    if (sum_of_parts(row_sums, rows, parts, &row, &sum)) rstd[row] = 1.0f / sqrtf(sum / width + eps);
}

/* Which matrices a call has beside a, b and c. */
struct wants {
    gemm_form form;
    bool any_form, b_up, c_up, y, in, in_up;
};

wants wants_of(const wgmma_call *g) {
    switch (g->kind) {
    case WGMMA_PLAIN: return {GEMM_NT, true, false, false, false, false, false};
    case WGMMA_ROPE: return {GEMM_NT, false, false, false, false, false, false};
    case WGMMA_GLU: return {GEMM_NT, false, true, true, g->y != NULL, false, false};
    case WGMMA_ADD: return {GEMM_NT, false, false, false, false, true, false};
    case WGMMA_GLU_BWD: return {GEMM_NN, false, false, true, g->y != NULL, true, true};
    case WGMMA_NORM_BWD: return {GEMM_NN, false, false, false, false, true, true};
    }
    return {};
}

/* ---- launching ---- */

/* b or its tail: `depth` values along k. */
bool map_b(CUtensorMap *map, const wgmma_call *g, const void *b, int64_t depth, int64_t ld, failure *f) {
    bool nt = g->form == GEMM_NT;
    return map_matrix(map, b, nt ? g->cols : depth, nt ? depth : g->cols, ld, 64, f);
}

int64_t ld_in_up(const wgmma_call *g) { return g->ld_in_up ? g->ld_in_up : g->ld_in; }

bool map_operands(tile_maps *maps, const wgmma_call *g, failure *f) {
    memset(maps, 0, sizeof *maps);
    TRY(map_matrix(&maps->a, g->a, g->rows, g->depth, g->lda, BM, f));
    TRY(map_b(&maps->b[0], g, g->b, g->depth, g->ldb, f));
    TRY(map_matrix(&maps->c[0], g->c, g->rows, g->cols, g->ldc, GROUP_ROWS, f));
    if (g->rank) {
        TRY(map_matrix(&maps->a2, g->a2, g->rows, g->rank, g->lda2, BM, f));
        TRY(map_b(&maps->b2[0], g, g->b2, g->rank, g->ldb2, f));
    }
    wants w = wants_of(g);
    if (w.b_up) TRY(map_b(&maps->b[1], g, g->b_up, g->depth, g->ldb, f));
    if (w.b_up && g->rank) TRY(map_b(&maps->b2[1], g, g->b2_up, g->rank, g->ldb2, f));
    if (w.c_up) TRY(map_matrix(&maps->c[1], g->c_up, g->rows, g->cols, g->ldc, GROUP_ROWS, f));
    if (w.y) TRY(map_matrix(&maps->c[2], g->y, g->rows, g->cols, g->ldy, GROUP_ROWS, f));
    if (w.in) TRY(map_matrix(&maps->in[0], g->in, g->rows, g->cols, g->ld_in, GROUP_ROWS, f));
    if (w.in_up) TRY(map_matrix(&maps->in[1], g->in_up, g->rows, g->cols, ld_in_up(g), GROUP_ROWS, f));
    return true;
}

epilogue_args extra_of(const wgmma_call *g) {
    wants w = wants_of(g);
    return {(int)g->rows,      g->row_scale,          g->sum_scale, g->rope.pos,     g->rope.table,
            (int)g->rope.cols, activation_of(g->glu), g->row_sums,  1 + w.c_up + w.y};
}

int64_t blocks_of(int64_t n, int64_t of) { return (n + of - 1) / of; }

template <int BN, int B_MN, int STAGES, int SLOTS, bool TURNS, typename EPILOGUE>
bool launch(const wgmma_call *g, cudaStream_t stream, failure *f) {
    typedef layout<BN, STAGES, SLOTS, TURNS && EPILOGUE::READS ? 1 : CONSUMERS> at;
    static const auto kernel = wgmma_kernel<BN, B_MN, STAGES, SLOTS, TURNS, EPILOGUE>;
    tile_maps maps;
    TRY(map_operands(&maps, g, f));
    unsigned size = g->rows > BM ? 2 : 1;
    int group = (g->group ? g->group : ROWS_TOGETHER) / size;
    tile_args args = {(int)blocks_of(g->rows, BM * size), (int)blocks_of(g->cols, BN / EPILOGUE::SOURCES),
                      (int)blocks_of(g->depth, BK), (int)blocks_of(g->rank, BK), group > 0 ? group : 1};
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = size, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.blockDim = dim3(THREADS), config.dynamicSmemBytes = at::TOTAL, config.stream = stream;
    config.attrs = &cluster, config.numAttrs = 1;
    config.gridDim = dim3(size);
    static int most[3]; /* clusters of this size that the card holds at once */
    if (!most[size]) {
        TRY(cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, at::TOTAL),
                       "shared memory of a product", f));
        TRY(cuda_check(cudaOccupancyMaxActiveClusters(&most[size], kernel, &config), "clusters of a product", f));
    }
    if (!most[size]) return fail(f, FAIL_MACHINE, "a product's cluster of %u blocks does not fit this card", size);
    int64_t tiles = (int64_t)args.tile_rows * args.tile_cols;
    config.gridDim = dim3((unsigned)(tiles < most[size] ? tiles : most[size]) * size);
    return cuda_check(cudaLaunchKernelEx(&config, kernel, args, extra_of(g), maps), "launch of a product", f);
}

/* Columns of a tile: the widest that leaves at most one in 32 of its columns unused. A wide tile moves least through
 * L2, which counts where the card is at its power limit (docs/kernels/wgmma.md). */
int choose_tile(const wgmma_call *g) {
    for (int tile : {256, 192})
        if (blocks_of(g->cols, tile) * tile * 31 <= g->cols * 32) return tile;
    return 128;
}

template <int B_MN> bool launch_plain(const wgmma_call *g, cudaStream_t stream, failure *f) {
    int tile = g->tile ? g->tile : choose_tile(g);
    if (tile == 128) return launch<128, B_MN, 6, 2, true, plain_epilogue>(g, stream, f);
    if (tile == 192) return launch<192, B_MN, 5, 1, true, plain_epilogue>(g, stream, f);
    return launch<256, B_MN, 4, 2, false, plain_epilogue>(g, stream, f);
}

bool aligned(const void *p, int64_t ld) { return (uintptr_t)p % 16 == 0 && ld % 8 == 0; }

/* A build for older cards alone has these kernels without their bodies. */
bool has_code() {
    static int found = -1;
    cudaFuncAttributes of_table;
    if (found < 0) found = cudaFuncGetAttributes(&of_table, table_kernel) == cudaSuccess && of_table.ptxVersion >= 90;
    return found;
}

const char *why_not(const wgmma_call *g) {
    const char *why;
    if (!wgmma_here(&why)) return why;
    wants w = wants_of(g);
    if (g->form != w.form && (!w.any_form || g->form != GEMM_NN)) return "this form is not served";
    if (g->depth < 8) return "nothing to sum over";
    if (g->tile && (g->kind != WGMMA_PLAIN || (g->tile != 128 && g->tile != 192 && g->tile != 256)))
        return "plain products alone have a choice of tiles: 128, 192 or 256 columns";
    if (g->cols % 8 || g->depth % 8 || g->rank % 8) return "columns, depth and rank must be multiples of 8";
    if (g->rows > INT32_MAX / 2 || g->cols > INT32_MAX / 2 || g->depth > INT32_MAX / 2) return "too large";
    bool fine = aligned(g->a, g->lda) && aligned(g->b, g->ldb) && aligned(g->c, g->ldc);
    if (g->rank) fine = fine && aligned(g->a2, g->lda2) && aligned(g->b2, g->ldb2);
    if (w.b_up) fine = fine && aligned(g->b_up, 0) && (!g->rank || aligned(g->b2_up, 0));
    if (w.c_up) fine = fine && aligned(g->c_up, 0);
    if (w.y) fine = fine && aligned(g->y, g->ldy);
    if (w.in) fine = fine && aligned(g->in, g->ld_in);
    if (w.in_up) fine = fine && aligned(g->in_up, ld_in_up(g));
    if (!fine) return "bases and strides must be multiples of 16 bytes";
    if (g->kind != WGMMA_ROPE) return NULL;
    if (g->rope.head_dim != 64 && g->rope.head_dim != 128) return "heads must be 64 or 128 wide";
    if (g->rope.cols % g->rope.head_dim || g->rope.cols > g->cols) return "turned columns must be whole heads";
    return aligned(g->rope.table, 0) ? NULL : "the table of angles must be at a multiple of 16 bytes";
}
} // namespace

bool wgmma_here(const char **why) {
    *why = "the card is not of compute capability 9.0";
    if (cuda_arch() != 90) return false;
    *why = "this build has no code for sm_90a";
    return has_code();
}

bool wgmma_serves(const wgmma_call *g, const char **why) {
    *why = why_not(g);
    return *why == NULL;
}

bool wgmma_run(const wgmma_call *g, cudaStream_t stream, failure *f) {
    const char *why;
    if (!wgmma_serves(g, &why))
        return fail(f, FAIL_MACHINE, "product [%lld, %lld] over %lld + %lld: %s", (long long)g->rows,
                    (long long)g->cols, (long long)g->depth, (long long)g->rank, why);
    if (g->rows == 0 || g->cols == 0) return true;
    switch (g->kind) {
    case WGMMA_ROPE:
        if (g->rope.head_dim == 64) return launch<256, 0, 4, 2, false, rope_epilogue<64>>(g, stream, f);
        return launch<256, 0, 4, 2, false, rope_epilogue<128>>(g, stream, f);
    case WGMMA_GLU: return launch<256, 0, 4, 2, false, glu_epilogue>(g, stream, f);
    case WGMMA_ADD: return launch<WGMMA_ADD_TILE, 0, 3, 4, false, add_epilogue>(g, stream, f);
    case WGMMA_GLU_BWD: return launch<WGMMA_GLU_BWD_TILE, 1, 4, 6, true, glu_bwd_epilogue>(g, stream, f);
    case WGMMA_NORM_BWD: return launch<256, 1, 3, 4, false, norm_bwd_epilogue>(g, stream, f);
    case WGMMA_PLAIN: break;
    }
    return g->form == GEMM_NN ? launch_plain<1>(g, stream, f) : launch_plain<0>(g, stream, f);
}

bool wgmma_rope_table(float *table, const float *freq, int64_t positions, int head_dim, cudaStream_t stream,
                      failure *f) {
    int64_t n = positions * (head_dim / 2);
    if (n) table_kernel<<<(unsigned)blocks_of(n, 256), 256, 0, stream>>>((float2 *)table, freq, n, head_dim / 2);
    return cuda_check(cudaGetLastError(), "table of angles", f);
}

bool wgmma_rstd(float *rstd, const float *row_sums, int64_t rows, int64_t width, float eps, cudaStream_t stream,
                failure *f) {
    if (rows)
        rstd_kernel<<<(unsigned)blocks_of(rows, PARTS_ROWS), PARTS_THREADS, 0, stream>>>(
            rstd, row_sums, rows, (int)wgmma_parts(WGMMA_ADD, width), (float)width, eps);
    return cuda_check(cudaGetLastError(), "rstd of sums", f);
}
