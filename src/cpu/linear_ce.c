/* linear_ce.c - head and loss in one: logits = x W', nll[t] = log(sum(exp(logits[t]))) - logits[t, target[t]], for
 * the rows that have a target (the others get 0), and its gradient.  The logits never exist as a whole.
 *
 * Label rows are gathered, at most `chunk` at a time.  The vocabulary is cut into panels of PANEL rows of W; a thread
 * takes a panel, converts it, multiplies, and keeps each row's maximum and sum of exponentials.  These are joined in
 * panel order.  The backward computes a panel's logits again, turns them into dlogits with the lse that was kept and
 * uses them at once for dx and dW.  For dx the panels are dealt to GROUPS partial sums, added up in order. */
#include "base/simd.h"
#include "cpu/cpu.h"
#include "cpu/exp.h"

#include <assert.h>
#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <string.h>

enum { PANEL = 512, GROUPS = 16, MOST_ROWS = 512, MOST_PARTIAL = 1 << 20 };

typedef struct {
    int64_t N, D, V, chunk, panels;
    int64_t converted; /* floats of a converted panel; 0 when W is F32 */
} sizes;

static sizes size_of(int64_t N, int64_t D, int64_t V, dtype type) {
    sizes s = {N, D, V, MOST_PARTIAL / D, (V + PANEL - 1) / PANEL, 0};
    if (s.chunk > MOST_ROWS) s.chunk = MOST_ROWS;
    if (s.chunk < 16) s.chunk = 16;
    if (s.chunk > N) s.chunk = N;
    if (type != DTYPE_F32) s.converted = cpu_round(PANEL * D);
    return s;
}

static int64_t thread_floats(const sizes *s) { return s->converted + cpu_round(s->chunk * PANEL); }

static int64_t common_floats(const sizes *s) {
    return cpu_round(s->N) + cpu_round(s->chunk * s->D) + cpu_threads() * thread_floats(s);
}

static sizes size_of_op(const graph *g, vid x, vid W) {
    return size_of(g->values[x].rows, g->values[x].cols, g->values[W].rows, g->values[W].type);
}

static int64_t gradient_floats(const sizes *s, vid dx) {
    return common_floats(s) + (dx ? GROUPS * cpu_round(s->chunk * s->D) : 0);
}

/* With a weight the gradient follows and takes the same scratch. */
int64_t cpu_scratch_linear_ce(const graph *g, const graph_op *op) {
    sizes s = size_of_op(g, op->in[0], op->in[1]);
    int64_t loss = common_floats(&s) + 2 * cpu_round(s.panels * s.chunk) + cpu_round(s.chunk);
    int64_t gradient = op->in[3] ? gradient_floats(&s, op->out[2]) : 0;
    return gradient > loss ? gradient : loss;
}

int64_t cpu_scratch_linear_ce_bwd(const graph *g, const graph_op *op) {
    sizes s = size_of_op(g, op->in[1], op->in[2]);
    return gradient_floats(&s, op->out[0]);
}

/* The rows that have a target, in order. */
static int64_t list_labels(int32_t *list, const int32_t *target, int64_t n, int64_t V) {
    int64_t count = 0;
    for (int64_t t = 0; t < n; t++) {
        assert(target[t] < V);
        if (target[t] >= 0) list[count++] = (int32_t)t;
    }
    return count;
}

static void gather(float *out, const float *x, const int32_t *list, int64_t rows, int64_t D) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; i++) memcpy(out + i * D, x + list[i] * D, (size_t)D * 4);
}

/* Panel p of W as floats: where it lies, or converted into `panel`. */
static const float *open_panel(const tensor *W, int64_t p, int64_t width, float *panel) {
    const char *from = (const char *)W->data + (size_t)(p * PANEL * W->cols) * dtype_size(W->type);
    if (W->type == DTYPE_F32) return (const float *)(const void *)from;
    cpu_convert(panel, from, W->type, width * W->cols);
    return panel;
}

static int64_t panel_width(const sizes *s, int64_t p) { return p + 1 < s->panels ? PANEL : s->V - p * PANEL; }

/* logits[rows, PANEL] of panel p */
static void panel_logits(float *logits, const float *x, const float *w, int64_t rows, int64_t width, int64_t D) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)width, (int)D, 1, x, (int)D, w, (int)D, 0,
                logits, PANEL);
}

typedef struct {
    float *max, *sum; /* [panels, chunk] */
    float *picked;    /* [chunk]: the target's logit */
} statistics;

static void panel_statistics(const statistics *st, const sizes *s, const float *logits, int64_t p, int64_t width,
                             const int32_t *list, const int32_t *target, int64_t rows) {
    for (int64_t i = 0; i < rows; i++) {
        const float *row = logits + i * PANEL;
        float max = cpu_max(row, width);
        st->max[p * s->chunk + i] = max;
        st->sum[p * s->chunk + i] = cpu_exp_sum_only(row, max, width);
        int64_t at = target[list[i]] - p * PANEL;
        if (at >= 0 && at < width) st->picked[i] = row[at];
    }
}

static float join_panels(const statistics *st, const sizes *s, int64_t i) {
    float max = st->max[i];
    for (int64_t p = 1; p < s->panels; p++) {
        float m = st->max[p * s->chunk + i];
        max = m > max || isnan(m) ? m : max;
    }
    double sum = 0;
    for (int64_t p = 0; p < s->panels; p++)
        sum += (double)st->sum[p * s->chunk + i] * exp((double)st->max[p * s->chunk + i] - (double)max);
    return (float)((double)max + log(sum));
}

static void run_loss(const kernel_call *call) {
    const tensor *x = &call->in[0], *W = &call->in[1];
    const int32_t *target = call->in[2].data;
    float *nll = call->out[0].data, *lse = call->out[1].data, *scratch = call->scratch;
    int64_t n = call->batch->rows;
    sizes s = size_of(x->rows, x->cols, W->rows, W->type);
    int32_t *list = (int32_t *)(void *)cpu_take(&scratch, s.N);
    float *gathered = cpu_take(&scratch, s.chunk * s.D);
    statistics st = {cpu_take(&scratch, s.panels * s.chunk), cpu_take(&scratch, s.panels * s.chunk),
                     cpu_take(&scratch, s.chunk)};
    memset(lse, 0, (size_t)n * 4);
    if (!call->out[0].add) memset(nll, 0, (size_t)n * 4);
    int64_t labels = list_labels(list, target, n, s.V);
    for (int64_t c = 0; c < labels; c += s.chunk) {
        int64_t rows = labels - c < s.chunk ? labels - c : s.chunk;
        const int32_t *at = list + c;
        gather(gathered, x->data, at, rows, s.D);
#pragma omp parallel for schedule(dynamic, 1)
        for (int64_t p = 0; p < s.panels; p++) {
            float *own = scratch + omp_get_thread_num() * thread_floats(&s), *logits = own + s.converted;
            int64_t width = panel_width(&s, p);
            panel_logits(logits, gathered, open_panel(W, p, width, own), rows, width, s.D);
            panel_statistics(&st, &s, logits, p, width, at, target, rows);
        }
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < rows; i++) {
            lse[at[i]] = join_panels(&st, &s, i);
            nll[at[i]] += lse[at[i]] - st.picked[i];
        }
    }
}

SIMD_CLONES static void dlogits_row(float *row, float lse, float dnll, int64_t n) {
    for (int64_t i = 0; i < n; i++) row[i] = dnll * cpu_exp(row[i] - lse);
}

typedef struct {
    const tensor *W, *dW;
    const float *dnll, *lse, *x; /* x: gathered rows */
    const int32_t *target, *list;
    int64_t rows;
    bool add; /* dW: add, not overwrite */
} chunk_bwd;

/* Panel p's share: logits again, dlogits, then partial += dlogits W and dW (+)= dlogits' x. */
static void panel_bwd(const chunk_bwd *c, const sizes *s, int64_t p, float *partial, bool first, float *own) {
    float *logits = own + s->converted;
    int64_t width = panel_width(s, p), D = s->D;
    const float *w = open_panel(c->W, p, width, own);
    panel_logits(logits, c->x, w, c->rows, width, D);
    for (int64_t i = 0; i < c->rows; i++) {
        int32_t t = c->list[i];
        dlogits_row(logits + i * PANEL, c->lse[t], c->dnll[t], width);
        int64_t at = c->target[t] - p * PANEL;
        if (at >= 0 && at < width) logits[i * PANEL + at] -= c->dnll[t];
    }
    if (partial)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)c->rows, (int)D, (int)width, 1, logits, PANEL, w,
                    (int)D, first ? 0 : 1, partial, (int)D);
    if (c->dW->data)
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)width, (int)D, (int)c->rows, 1, logits, PANEL, c->x,
                    (int)D, c->add ? 1 : 0, (float *)c->dW->data + p * PANEL * D, (int)D);
}

/* dx[list[i]] = sum of the groups' partial rows, in order */
static void join_groups(float *dx, const float *partials, const int32_t *list, int64_t rows, int64_t groups,
                        const sizes *s) {
    int64_t D = s->D, size = cpu_round(s->chunk * D);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        float *out = dx + list[i] * D;
        memcpy(out, partials + i * D, (size_t)D * 4);
        for (int64_t g = 1; g < groups; g++) cpu_add(out, out, partials + g * size + i * D, D);
    }
}

void cpu_op_linear_ce_bwd(const kernel_call *call) {
    const tensor *in = call->in, *x = &in[1], *W = &in[2], *dW = &call->out[1];
    float *dx = call->out[0].data, *scratch = call->scratch;
    int64_t n = call->batch->rows;
    sizes s = size_of(x->rows, x->cols, W->rows, W->type);
    int32_t *list = (int32_t *)(void *)cpu_take(&scratch, s.N);
    float *gathered = cpu_take(&scratch, s.chunk * s.D);
    int64_t size = cpu_round(s.chunk * s.D), groups = s.panels < GROUPS ? s.panels : GROUPS;
    float *partials = dx ? cpu_take(&scratch, GROUPS * size) : NULL;
    if (dx) memset(dx, 0, (size_t)(n * s.D) * 4);
    int64_t labels = list_labels(list, in[3].data, n, s.V);
    if (labels == 0 && dW->data && !dW->add) memset(dW->data, 0, (size_t)(s.V * s.D) * 4);
    for (int64_t c = 0; c < labels; c += s.chunk) {
        int64_t rows = labels - c < s.chunk ? labels - c : s.chunk;
        chunk_bwd chunk = {W, dW, in[0].data, in[4].data, gathered, in[3].data, list + c, rows, dW->add || c > 0};
        gather(gathered, x->data, chunk.list, rows, s.D);
#pragma omp parallel for schedule(dynamic, 1)
        for (int64_t g = 0; g < groups; g++) {
            float *own = scratch + omp_get_thread_num() * thread_floats(&s);
            int64_t first = s.panels * g / groups, end = s.panels * (g + 1) / groups;
            for (int64_t p = first; p < end; p++)
                panel_bwd(&chunk, &s, p, partials ? partials + g * size : NULL, p == first, own);
        }
        if (dx) join_groups(dx, partials, chunk.list, rows, groups, &s);
    }
}

void cpu_op_linear_ce(const kernel_call *call) {
    const tensor *in = call->in, *out = call->out;
    run_loss(call);
    if (!in[3].data || !call->batch->training) return;
    kernel_call gradient = {.op = call->op,
                            .in = {in[3], in[0], in[1], in[2], out[1]},
                            .out = {out[2], out[3]},
                            .batch = call->batch,
                            .scratch = call->scratch};
    cpu_op_linear_ce_bwd(&gradient);
}
