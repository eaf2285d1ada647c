/* product.c - matrix products with a weight that may be stored as F32, BF16 or F16.
 *
 * The output is cut into about one tile per thread; each tile is one single-threaded sgemm.  A weight that is not F32
 * is converted to float a panel at a time into that thread's scratch, which stays in its cache.
 * Equal thread counts give equal bits.  With OpenBLAS's AVX-512 kernels any counts do: these sum each element over k in
 * the same order in any tile, and no tile is so small that it would take the kernels for small matrices.
 * A handful of rows (generation) is bound by reading the weight: plain dot products that convert on the way. */
#include "cpu/cpu.h"

#include <cblas.h>
#include <omp.h>

enum {
    FEW_ROWS = 4,     /* up to here dot products beat sgemm */
    WIDE = 768,       /* most columns of the output in a tile: each tile packs x again ... */
    PANEL = 1 << 19,  /* ... but the floats of its panel of W should stay in the cache */
    LEAST_WIDE = 256, /* (narrower ones cost more than they save) */
    THIN = 64,        /* tiles thinner than this are cut by rows instead ... */
    SHORT = 32,       /* ... but not into shorter ones than this */
    STEP = 16,        /* widths are multiples of it */
    DEEP = 768,       /* most rows of W summed over in one piece by cpu_product_nn */
    LEAST = 1 << 21,  /* least multiply-adds of a tile (on average): twice what OpenBLAS calls small */
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* An output [rows, columns] in across x down tiles of nearly equal size. */
typedef struct {
    int64_t across, down, count;
} tiling;

typedef struct {
    int64_t from, size;
} span;

static int64_t widest(int64_t depth) { return most(LEAST_WIDE, least(WIDE, PANEL / depth / STEP * STEP)); }

static tiling cut(int64_t rows, int64_t columns, int64_t depth) {
    int64_t parts = most(1, least(cpu_threads(), rows * columns * depth / LEAST)), wide = widest(depth);
    tiling t = {.across = most(1, least(parts, columns / THIN))};
    t.down = most(1, least(ceil_div(parts, t.across), rows / SHORT));
    if (columns > t.across * wide) t.across = ceil_div(ceil_div(columns, wide), t.across) * t.across;
    t.count = t.across * t.down;
    return t;
}

/* The i-th of `parts` shares of `total`, in whole steps. */
static span share(int64_t total, int64_t parts, int64_t i) {
    int64_t steps = ceil_div(total, STEP), from = steps * i / parts * STEP;
    return (span){from, least(total, steps * (i + 1) / parts * STEP) - from};
}

/* Enough for a panel of either product. */
static int64_t panel_floats(int64_t M, int64_t K) {
    int64_t rows = least(M, widest(K)), columns = least(K, widest(M / ceil_div(M, DEEP)));
    return cpu_round(most(rows * K, least(M, DEEP) * columns));
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

/* The rows after these are wanted next; the processor's own prefetching stops at each page. */
static void prefetch_rows(const tensor *W, int64_t m, int64_t rows) {
    if (m + rows > W->rows) return;
    const char *from = element(W, m, 0), *to = from + (size_t)(rows * W->cols) * dtype_size(W->type);
    for (; from < to; from += 64) __builtin_prefetch(from);
}

static void few_rows_nt(float *y, const float *x, const tensor *W, int64_t n, float alpha, float beta, float *scratch) {
    int64_t M = W->rows, K = W->cols, quads = M / 4;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < quads + M % 4; i++) {
        int64_t m = i < quads ? i * 4 : quads * 4 + i - quads, rows = i < quads ? 4 : 1;
        if (rows == 4) prefetch_rows(W, m + 4, 4);
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
        span m = share(M, tile.across, i / tile.down), t = share(n, tile.down, i % tile.down);
        int64_t stride;
        const float *w = open_panel(W, m.from, m.size, 0, K, thread_panel(W, scratch), &stride);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)t.size, (int)m.size, (int)K, alpha, x + t.from * K,
                    (int)K, w, (int)stride, beta, y + t.from * M + m.from, (int)M);
    }
}

/* The sum over M goes in equal pieces, so that a panel stays small. */
void cpu_product_nn(float *dx, const float *dy, const tensor *W, int64_t n, float alpha, float beta, float *scratch) {
    int64_t M = W->rows, K = W->cols, pieces = ceil_div(M, DEEP);
    tiling tile = cut(n, K, M / pieces);
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t i = 0; i < tile.count; i++) {
        span k = share(K, tile.across, i / tile.down), t = share(n, tile.down, i % tile.down);
        for (int64_t piece = 0; piece < pieces; piece++) {
            span m = share(M, pieces, piece);
            int64_t stride;
            const float *w = open_panel(W, m.from, m.size, k.from, k.size, thread_panel(W, scratch), &stride);
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)t.size, (int)k.size, (int)m.size, alpha,
                        dy + t.from * M + m.from, (int)M, w, (int)stride, piece ? 1 : beta, dx + t.from * K + k.from,
                        (int)K);
        }
    }
}

void cpu_product_tn(float *dW, const float *dy, const float *x, int64_t n, int64_t M, int64_t K, float alpha,
                    float beta) {
    tiling tile = cut(M, K, n);
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t i = 0; i < tile.count; i++) {
        span k = share(K, tile.across, i / tile.down), m = share(M, tile.down, i % tile.down);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)m.size, (int)k.size, (int)n, alpha, dy + m.from,
                    (int)M, x + k.from, (int)K, beta, dW + m.from * K + k.from, (int)K);
    }
}
