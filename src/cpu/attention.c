/* attention.c - causal softmax attention over packed documents, with grouped heads and an optional window, and its
 * gradient.
 *
 * Row i sees rows max(document start, i - window + 1) .. i.  Work is cut into (document, head) or (document, head,
 * block of query rows); a block's scores against the keys that it may see fill [ROWS, keys] floats of the thread's
 * scratch: memory is linear in the length of a document, and nothing is computed between documents.
 * The softmax is over whole rows; lse is kept and the backward gets P back from it as exp(s - lse).
 * When several query heads share a key head the backward gives each its own dk and dv, summed at the end in order.
 * With positions it turns dq and dk back through rope, and sums dot = <dq, q> + <dk, k> + <dv, v> by row.
 * attention_cached is the same against the caches of one sequence, whose query rows have positions of their own. */
#include "base/simd.h"
#include "cpu/cpu.h"
#include "cpu/exp.h"

#include <assert.h>
#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <string.h>

enum { ROWS = 64 };

typedef struct {
    const float *q, *k, *v;
    const int32_t *cu;  /* attention_cached: NULL */
    const int32_t *pos; /* attention_cached: the position of each query row, which is its key row; else NULL */
    int64_t H, G, d, N; /* N: stride of a score row, the most keys a block can see */
    int64_t window;
    float scale;
} shapes;

/* Query rows [q0, q1) of one document, which starts at key `start`, against keys [k0, k1). */
typedef struct {
    int64_t start, q0, q1, k0, k1;
} block;

static shapes open_shapes(const kernel_call *call, int q) {
    const tensor *in = call->in + q;
    int64_t d = call->op->attr.head_dim;
    return (shapes){.q = in[0].data,
                    .k = in[1].data,
                    .v = in[2].data,
                    .cu = in[3].data,
                    .H = in[0].cols / d,
                    .G = in[1].cols / d,
                    .d = d,
                    .N = cpu_round(in[0].rows),
                    .window = call->op->attr.window,
                    .scale = call->op->attr.scale};
}

/* The last key that a query row sees, and the first. */
static int64_t last_key(const shapes *s, int64_t row) { return s->pos ? s->pos[row] : row; }
static int64_t first_key(const shapes *s, const block *b, int64_t row) {
    int64_t first = s->window ? last_key(s, row) - s->window + 1 : b->start;
    return first > b->start ? first : b->start;
}

static block block_at(const shapes *s, int64_t start, int64_t end, int64_t q0) {
    block b = {start, q0, q0 + ROWS < end ? q0 + ROWS : end, INT64_MAX, 0};
    for (int64_t row = b.q0; row < b.q1; row++) {
        int64_t first = first_key(s, &b, row), last = last_key(s, row);
        b.k0 = first < b.k0 ? first : b.k0;
        b.k1 = last + 1 > b.k1 ? last + 1 : b.k1;
    }
    return b;
}

/* out[rows, keys] = factor x[q0:q1, head] y[k0:k1, group]' (row strides H*d and G*d) */
static void scores(float *out, const shapes *s, const block *b, const float *x, int64_t h, const float *y,
                   float factor) {
    int64_t H = s->H * s->d, G = s->G * s->d, group = h / (s->H / s->G);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)(b->q1 - b->q0), (int)(b->k1 - b->k0), (int)s->d, factor,
                x + b->q0 * H + h * s->d, (int)H, y + b->k0 * G + group * s->d, (int)G, 0, out, (int)s->N);
}

/* The loops over a row of scores run from lo to hi rounded outwards to whole vectors (score rows are aligned and as
 * long): a scalar remainder would cost more than the rest. */
enum { LANES = 16 };
static int64_t round_down(int64_t i) { return i / LANES * LANES; }
static int64_t round_up(int64_t i) { return round_down(i + LANES - 1); }

static void fill_row(float *row, int64_t from, int64_t to, float with) {
    for (int64_t j = from; j < to; j++) row[j] = with;
}

/* Turns a row of scores into exp(score - max), zero where the row may not look; gives their sum, returns the max. */
static float softmax_row(float *row, int64_t lo, int64_t hi, int64_t keys, float *sum) {
    int64_t from = round_down(lo), n = round_up(hi) - from;
    fill_row(row, from, lo, -INFINITY);
    fill_row(row, hi, from + n, -INFINITY);
    float max = cpu_max(row + from, n);
    *sum = cpu_exp_sum(row + from, row + from, max, n);
    memset(row, 0, (size_t)lo * 4);
    if (keys > hi) memset(row + hi, 0, (size_t)(keys - hi) * 4);
    return max;
}

/* Rows are divided by their sums after the product: d numbers, not as many as there are keys. */
static void attend(const shapes *s, const block *b, int64_t h, float *o, float *lse, float *P) {
    int64_t keys = b->k1 - b->k0, rows = b->q1 - b->q0, H = s->H * s->d, G = s->G * s->d, group = h / (s->H / s->G);
    float sums[ROWS], *to = o + b->q0 * H + h * s->d;
    scores(P, s, b, s->q, h, s->k, s->scale);
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = b->q0 + i;
        float max =
            softmax_row(P + i * s->N, first_key(s, b, row) - b->k0, last_key(s, row) + 1 - b->k0, keys, &sums[i]);
        if (lse) lse[row * s->H + h] = max + logf(sums[i]);
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)s->d, (int)keys, 1, P, (int)s->N,
                s->v + b->k0 * G + group * s->d, (int)G, 0, to, (int)H);
    for (int64_t i = 0; i < rows; i++) cpu_scale(to + i * H, to + i * H, 1 / sums[i], s->d);
}

int64_t cpu_scratch_attention(const graph *g, const graph_op *op) {
    return cpu_threads() * ROWS * cpu_round(g->values[op->in[0]].rows);
}

/* Blocks are counted over the pack's rows: block j of a document that starts at row c is its rows c + j ROWS ... */
void cpu_op_attention(const kernel_call *call) {
    shapes s = open_shapes(call, 0);
    float *o = call->out[0].data, *lse = call->out[1].data, *scratch = call->scratch;
    int docs = call->batch->docs;
#pragma omp parallel
    {
        float *P = scratch + omp_get_thread_num() * ROWS * s.N;
        for (int doc = 0; doc < docs; doc++) {
            int64_t start = s.cu[doc], end = s.cu[doc + 1], blocks = (end - start + ROWS - 1) / ROWS;
#pragma omp for schedule(dynamic, 1) nowait
            for (int64_t task = 0; task < blocks * s.H; task++) {
                block b = block_at(&s, start, end, start + (blocks - 1 - task / s.H) * ROWS); /* longest first */
                attend(&s, &b, task % s.H, o, lse, P);
            }
        }
    }
}

int64_t cpu_scratch_attention_cached(const graph *g, const graph_op *op) {
    return cpu_threads() * ROWS * cpu_round(g->values[op->out[1]].rows);
}

/* Rows whose keys and values are not in the caches yet: stored first, then attended over. */
void cpu_op_attention_cached(const kernel_call *call) {
    const int32_t *pos = call->in[3].data;
    const tensor *kcache = &call->out[1], *vcache = &call->out[2];
    shapes s = open_shapes(call, 0);
    int64_t n = call->batch->rows, width = s.G * s.d, blocks = (n + ROWS - 1) / ROWS;
    for (int64_t t = 0; t < n; t++) {
        assert(pos[t] >= 0 && pos[t] < kcache->rows);
        memcpy((float *)kcache->data + pos[t] * width, s.k + t * width, (size_t)width * 4);
        memcpy((float *)vcache->data + pos[t] * width, s.v + t * width, (size_t)width * 4);
    }
    s.k = kcache->data;
    s.v = vcache->data;
    s.cu = NULL;
    s.pos = pos;
    s.N = cpu_round(kcache->rows);
    float *o = call->out[0].data, *scratch = call->scratch;
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t task = 0; task < blocks * s.H; task++) {
        block b = block_at(&s, 0, n, task / s.H * ROWS);
        attend(&s, &b, task % s.H, o, NULL, scratch + omp_get_thread_num() * ROWS * s.N);
    }
}

typedef struct {
    const float *dout, *o, *lse;
    float *dq, *dk, *dv; /* dk and dv with row stride `stride` and head h at h * d */
    int64_t stride;
} gradients;

/* P = exp(s - lse), dS = P (dP - delta) scale, in place of s and dP. */
SIMD_CLONES static void gradient_row(float *restrict P, float *restrict dP, float lse, float delta, float scale,
                                     int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        float p = cpu_exp(P[j] - lse);
        P[j] = p;
        dP[j] = p * (dP[j] - delta) * scale;
    }
}

/* ... and zero where the row may not look. */
static void backward_row(float *P, float *dP, float lse, float delta, float scale, int64_t lo, int64_t hi,
                         int64_t keys) {
    int64_t from = round_down(lo);
    gradient_row(P + from, dP + from, lse, delta, scale, round_up(hi) - from);
    memset(P, 0, (size_t)lo * 4);
    memset(dP, 0, (size_t)lo * 4);
    if (keys <= hi) return;
    memset(P + hi, 0, (size_t)(keys - hi) * 4);
    memset(dP + hi, 0, (size_t)(keys - hi) * 4);
}

static void attend_bwd(const shapes *s, const block *b, int64_t h, const gradients *g, float *P, float *dP) {
    int64_t rows = b->q1 - b->q0, keys = b->k1 - b->k0, H = s->H * s->d, G = s->G * s->d, group = h / (s->H / s->G);
    int64_t at = b->q0 * H + h * s->d;
    scores(P, s, b, s->q, h, s->k, s->scale);
    scores(dP, s, b, g->dout, h, s->v, 1);
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = b->q0 + i;
        float delta = cpu_dot(g->dout + at + i * H, g->o + at + i * H, s->d);
        backward_row(P + i * s->N, dP + i * s->N, g->lse[row * s->H + h], delta, s->scale, first_key(s, b, row) - b->k0,
                     last_key(s, row) + 1 - b->k0, keys);
    }
    int64_t to = b->k0 * g->stride + h * s->d;
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)keys, (int)s->d, (int)rows, 1, P, (int)s->N, g->dout + at,
                (int)H, 1, g->dv + to, (int)g->stride);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)keys, (int)s->d, (int)rows, 1, dP, (int)s->N, s->q + at,
                (int)H, 1, g->dk + to, (int)g->stride);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)s->d, (int)keys, 1, dP, (int)s->N,
                s->k + b->k0 * G + group * s->d, (int)G, 0, g->dq + at, (int)H);
}

/* One head of one document: blocks in order, so that dk and dv add up in order. */
static void document_bwd(const shapes *s, int64_t start, int64_t end, int64_t h, const gradients *g, float *P) {
    for (int64_t t = start; t < end; t++) {
        memset(g->dk + t * g->stride + h * s->d, 0, (size_t)s->d * 4);
        memset(g->dv + t * g->stride + h * s->d, 0, (size_t)s->d * 4);
    }
    for (int64_t q0 = start; q0 < end; q0 += ROWS) {
        block b = block_at(s, start, end, q0);
        attend_bwd(s, &b, h, g, P, P + ROWS * s->N);
    }
}

/* out[n, G*d] = sums over each group's heads of in[n, H*d], in head order */
static void sum_groups(float *out, const float *in, const shapes *s, int64_t n) {
    int64_t share = s->H / s->G;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n * s->G; i++) {
        const float *from = in + i * share * s->d;
        cpu_add(out + i * s->d, from, from + s->d, s->d);
        for (int64_t h = 2; h < share; h++) cpu_add(out + i * s->d, out + i * s->d, from + h * s->d, s->d);
    }
}

int64_t cpu_scratch_attention_bwd(const graph *g, const graph_op *op) {
    const graph_value *q = &g->values[op->in[ATB_Q]], *k = &g->values[op->in[ATB_K]];
    int64_t apart = q->cols > k->cols ? 2 * cpu_round(q->rows * q->cols) : 0;
    int64_t table = op->in[ATB_POS] ? cpu_round(q->rows * op->attr.head_dim) : 0;
    return apart + table + cpu_threads() * 2 * ROWS * cpu_round(q->rows);
}

/* dq and dk as they are before rope; dot, where it is wanted, does not depend on rope. */
static void turn_back(const kernel_call *call, float *table) {
    const tensor *in = call->in, *out = call->out;
    float *dot = out[ATB_DOT].data;
    int64_t n = call->batch->rows, d = call->op->attr.head_dim;
    cpu_rope_table(table, in[ATB_POS].data, in[ATB_FREQ].data, n, d);
    for (int i = 0; i < 3; i++) {
        float *dz = out[ATB_DQ + i].data;
        int64_t width = in[ATB_Q + i].cols;
        if (dot) cpu_row_dots(dot, dz, in[ATB_Q + i].data, n, width, i > 0);
        if (i < 2) cpu_rope(dz, dz, table, n, width / d, d, true);
    }
}

void cpu_op_attention_bwd(const kernel_call *call) {
    const tensor *in = call->in;
    shapes s = open_shapes(call, ATB_Q);
    float *dk = call->out[ATB_DK].data, *dv = call->out[ATB_DV].data, *scratch = call->scratch;
    gradients g = {in[ATB_DO].data, in[ATB_O].data, in[ATB_LSE].data, call->out[ATB_DQ].data, dk, dv, s.H * s.d};
    int64_t n = call->batch->rows, size = in[ATB_Q].rows * in[ATB_Q].cols;
    int docs = call->batch->docs;
    bool shared = s.H > s.G, turned = in[ATB_POS].data != NULL;
    float *table = turned ? cpu_take(&scratch, in[ATB_Q].rows * s.d) : NULL;
    if (shared) {
        g.dk = cpu_take(&scratch, size);
        g.dv = cpu_take(&scratch, size);
    }
#pragma omp parallel
    {
        float *P = scratch + omp_get_thread_num() * 2 * ROWS * s.N;
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < docs * s.H; task++) {
            int64_t doc = task / s.H;
            document_bwd(&s, s.cu[doc], s.cu[doc + 1], task % s.H, &g, P);
        }
    }
    if (shared) {
        sum_groups(dk, g.dk, &s, n);
        sum_groups(dv, g.dv, &s, n);
    }
    if (turned) turn_back(call, table);
}
