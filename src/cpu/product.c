/* product.c - matrix products with a weight that may be stored as F32, BF16 or F16.
 *
 * The output is cut into about one tile per thread; each tile is one single-threaded sgemm.  A weight that is not F32
 * is converted to float a panel at a time into that thread's scratch, which stays in its cache.  OpenBLAS sums every
 * element over k in the same order whatever the tile (test/ops holds it to that), and no tile is so small that it
 * would take its other kernels for small matrices: the bits of a result do not depend on the number of threads.
 * A handful of rows (generation) is bound by reading the weight: plain dot products that convert on the way. */
#include "cpu/cpu.h"

#include <cblas.h>
#include <omp.h>

enum {
    FEW_ROWS = 4,    /* up to here dot products beat sgemm */
    WIDE = 384,      /* most columns of the output in a tile */
    THIN = 64,       /* tiles thinner than this are cut by rows instead */
    STEP = 16,       /* widths are multiples of it */
    DEEP = 768,      /* most rows of W summed over in one piece by cpu_product_nn */
    LEAST = 1 << 21, /* least multiply-adds of a tile: twice what OpenBLAS calls small */
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* A tile of an output [rows, columns]; `down` tiles cover its rows. */
typedef struct {
    int64_t height, width, down, count;
} tiling;

static tiling cut(int64_t rows, int64_t columns, int64_t depth) {
    int64_t parts = most(1, least(cpu_threads(), rows * columns * depth / LEAST));
    int64_t across = most(1, least(parts, columns / THIN)), down = ceil_div(parts, across);
    if (columns > across * WIDE) across = ceil_div(ceil_div(columns, WIDE), across) * across; /* equal shares */
    tiling t;
    t.width = ceil_div(ceil_div(columns, across), STEP) * STEP;
    t.height = ceil_div(ceil_div(rows, down), STEP) * STEP;
    t.down = ceil_div(rows, t.height);
    t.count = t.down * ceil_div(columns, t.width);
    return t;
}

/* Enough for a panel of either product. */
static int64_t panel_floats(int64_t M, int64_t K) {
    int64_t wide_m = least(M, WIDE), wide_k = least(K, WIDE);
    return cpu_round(most(wide_m * K, least(M, DEEP) * wide_k));
}

int64_t cpu_product_scratch(const graph *g, vid W) {
    if (!W || g->values[W].type == DTYPE_F32) return 0;
    return cpu_threads() * panel_floats(g->values[W].rows, g->values[W].cols);
}

static const void *element(const tensor *W, int64_t row, int64_t column) {
    return (const char *)W->data + (size_t)(row * W->cols + column) * dtype_size(W->type);
}

/* W[m0 : m0+m, k0 : k0+k] as floats with *stride between rows: in place, or converted into `panel`. */
static const float *open_panel(const tensor *W, int64_t m0, int64_t m, int64_t k0, int64_t k, float *panel,
                               int64_t *stride) {
    if (W->type == DTYPE_F32) {
        *stride = W->cols;
        return element(W, m0, k0);
    }
    *stride = k;
    if (k == W->cols) {
        cpu_convert(panel, element(W, m0, 0), W->type, m * k);
    } else {
        for (int64_t i = 0; i < m; i++) cpu_convert(panel + i * k, element(W, m0 + i, k0), W->type, k);
    }
    return panel;
}

static float *thread_panel(const tensor *W, float *scratch) {
    return W->type == DTYPE_F32 ? NULL : scratch + omp_get_thread_num() * panel_floats(W->rows, W->cols);
}

/* Four rows of W at a time, or one. */
static void dot_rows(float *out, const float *x, const tensor *W, int64_t m, int64_t rows, float *panel) {
    int64_t K = W->cols, stride = K;
    const void *w = element(W, m, 0);
    bool direct = W->type == DTYPE_BF16 && (uintptr_t)w % 2 == 0;
    const float *as_float = direct ? NULL : open_panel(W, m, rows, 0, K, panel, &stride);
    if (rows == 4 && direct) cpu_dot4_bf16(out, x, w, K);
    else if (rows == 4) cpu_dot4(out, x, as_float, K);
    else out[0] = direct ? cpu_dot_bf16(x, w, K) : cpu_dot(x, as_float, K);
}

static void few_rows_nt(float *y, const float *x, const tensor *W, int64_t n, float alpha, float beta, float *scratch) {
    int64_t M = W->rows, K = W->cols, quads = M / 4;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < quads + M % 4; i++) {
        int64_t m = i < quads ? i * 4 : quads * 4 + i - quads, rows = i < quads ? 4 : 1;
        for (int64_t t = 0; t < n; t++) {
            float sum[4];
            dot_rows(sum, x + t * K, W, m, rows, thread_panel(W, scratch));
            for (int64_t j = 0; j < rows; j++) {
                float *out = y + t * M + m + j;
                *out = beta == 0 ? alpha * sum[j] : alpha * sum[j] + beta * *out;
            }
        }
    }
}

void cpu_product_nt(float *y, const float *x, const tensor *W, int64_t n, float alpha, float beta, float *scratch) {
    int64_t M = W->rows, K = W->cols;
    if (n <= FEW_ROWS) {
        few_rows_nt(y, x, W, n, alpha, beta, scratch);
        return;
    }
    tiling tile = cut(n, M, K);
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t i = 0; i < tile.count; i++) {
        int64_t m0 = i / tile.down * tile.width, t0 = i % tile.down * tile.height, stride;
        int64_t m = least(tile.width, M - m0), rows = least(tile.height, n - t0);
        const float *w = open_panel(W, m0, m, 0, K, thread_panel(W, scratch), &stride);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)m, (int)K, alpha, x + t0 * K, (int)K, w,
                    (int)stride, beta, y + t0 * M + m0, (int)M);
    }
}

void cpu_product_nn(float *dx, const float *dy, const tensor *W, int64_t n, float alpha, float beta, float *scratch) {
    int64_t M = W->rows, K = W->cols;
    tiling tile = cut(n, K, M);
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t i = 0; i < tile.count; i++) {
        int64_t k0 = i / tile.down * tile.width, t0 = i % tile.down * tile.height, stride;
        int64_t k = least(tile.width, K - k0), rows = least(tile.height, n - t0);
        for (int64_t m0 = 0; m0 < M; m0 += DEEP) {
            int64_t m = least(DEEP, M - m0);
            const float *w = open_panel(W, m0, m, k0, k, thread_panel(W, scratch), &stride);
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)k, (int)m, alpha, dy + t0 * M + m0,
                        (int)M, w, (int)stride, m0 ? 1 : beta, dx + t0 * K + k0, (int)K);
        }
    }
}

void cpu_product_tn(float *dW, const float *dy, const float *x, int64_t n, int64_t M, int64_t K, float alpha,
                    float beta) {
    tiling tile = cut(M, K, n);
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t i = 0; i < tile.count; i++) {
        int64_t k0 = i / tile.down * tile.width, m0 = i % tile.down * tile.height;
        int64_t k = least(tile.width, K - k0), m = least(tile.height, M - m0);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)m, (int)k, (int)n, alpha, dy + m0, (int)M, x + k0,
                    (int)K, beta, dW + m0 * K + k0, (int)K);
    }
}
