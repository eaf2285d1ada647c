/* product.c - matrix products with a weight that may be stored as F32, BF16 or F16.
 *
 * The output is cut into tiles; each tile is one single-threaded sgemm on the thread that picks it up.  A weight that
 * is not F32 is converted to float a panel at a time into that thread's scratch, which stays in its cache.  Tile
 * sizes follow from shapes alone, so the bits of a result do not depend on the number of threads.
 * A handful of rows (generation) is bound by reading the weight: plain dot products that convert on the way. */
#include "cpu/cpu.h"

#include <cblas.h>
#include <omp.h>

enum {
    FEW_ROWS = 4,      /* up to here dot products beat sgemm */
    TALL = 512,        /* token rows of a tile */
    TALL_NARROW = 128, /* ... when the output has few columns */
    NARROW = 128,
    DEEP = 768, /* most rows of W summed over in one piece by cpu_product_nn */
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Columns of a tile of an output that has `columns` of them: several tiles even for small models. */
static int64_t tile_width(int64_t columns) { return columns >= 1024 ? 256 : 96; }
static int64_t tile_height(int64_t columns) { return columns <= NARROW ? TALL_NARROW : TALL; }

static int64_t panel_floats(int64_t M, int64_t K) {
    int64_t rows = tile_width(M) * K, slices = least(M, DEEP) * tile_width(K);
    return cpu_round(rows > slices ? rows : slices);
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

static void few_rows_nt(float *y, const float *x, const tensor *W, int64_t n, float alpha, float beta, float *scratch) {
    int64_t M = W->rows, K = W->cols;
#pragma omp parallel for schedule(static)
    for (int64_t m = 0; m < M; m++) {
        const void *w = element(W, m, 0);
        bool direct = W->type == DTYPE_BF16 && (uintptr_t)w % 2 == 0;
        int64_t stride;
        const float *row = direct ? NULL : open_panel(W, m, 1, 0, K, thread_panel(W, scratch), &stride);
        for (int64_t t = 0; t < n; t++) {
            float sum = alpha * (direct ? cpu_dot_bf16(x + t * K, w, K) : cpu_dot(x + t * K, row, K));
            float *out = y + t * M + m;
            *out = beta == 0 ? sum : sum + beta * *out;
        }
    }
}

void cpu_product_nt(float *y, const float *x, const tensor *W, int64_t n, float alpha, float beta, float *scratch) {
    int64_t M = W->rows, K = W->cols, width = tile_width(M), height = tile_height(M);
    if (n <= FEW_ROWS) {
        few_rows_nt(y, x, W, n, alpha, beta, scratch);
        return;
    }
    int64_t down = ceil_div(n, height), tiles = ceil_div(M, width) * down;
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t tile = 0; tile < tiles; tile++) {
        int64_t m0 = tile / down * width, t0 = tile % down * height, stride;
        int64_t m = least(width, M - m0), rows = least(height, n - t0);
        const float *w = open_panel(W, m0, m, 0, K, thread_panel(W, scratch), &stride);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)m, (int)K, alpha, x + t0 * K, (int)K, w,
                    (int)stride, beta, y + t0 * M + m0, (int)M);
    }
}

void cpu_product_nn(float *dx, const float *dy, const tensor *W, int64_t n, float alpha, float beta, float *scratch) {
    int64_t M = W->rows, K = W->cols, width = tile_width(K), height = tile_height(K);
    int64_t down = ceil_div(n, height), tiles = ceil_div(K, width) * down;
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t tile = 0; tile < tiles; tile++) {
        int64_t k0 = tile / down * width, t0 = tile % down * height, stride;
        int64_t k = least(width, K - k0), rows = least(height, n - t0);
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
    int64_t width = tile_width(M), height = M <= NARROW ? TALL_NARROW : TALL; /* of W's rows; of W's columns */
    int64_t down = ceil_div(K, height), tiles = ceil_div(M, width) * down;
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t tile = 0; tile < tiles; tile++) {
        int64_t m0 = tile / down * width, k0 = tile % down * height;
        int64_t m = least(width, M - m0), k = least(height, K - k0);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)m, (int)k, (int)n, alpha, dy + m0, (int)M, x + k0,
                    (int)K, beta, dW + m0 * K + k0, (int)K);
    }
}
