/* bench_kernels.c - what each fused op replaces, timed alone; see bench_kernels.h.
 *
 * A middle layer of an excerpt of the model is cut into the groups of ops that fusing makes one op of, forward and
 * backward, in three forms: unfused, fused, and with norms that dissolve (pass_fold). Each group runs back to back for
 * 0.1 s and as long again before that, so that the clock is that of a card kept busy. Beside them stands the
 * bare product of the group's base weights, all in one, as the backend's library runs it: its way back is dx alone.
 *
 * The forms share work between groups in different ways (the residual is added by the product in front, or by the norm
 * behind): the sum over a layer compares like with like. But rope's way back is part of attention's, which is not timed
 * here, in all forms but the unfused one. */
#include "cli/bench_kernels.h"
#include "base/array.h"
#include "base/clock.h"
#include "base/rng.h"
#include "cli/traffic.h"
#include "exec/flops.h"
#include "train/excerpt.h"
#include "train/trainer.h"

#include <math.h>
#include <string.h>

static const double KERNEL_SECONDS = 0.1, WARM_SECONDS = 1.5; /* of a card; processors need less */
enum { LAYERS = 3 };

/* The head's both ways are one group: its fused op makes gradients at once. */
typedef enum { QKV, QKV_BACK, OUT, OUT_BACK, GATE_UP, GATE_UP_BACK, DOWN, DOWN_BACK, HEAD, GROUPS } group;
static const char *const group_names[GROUPS] = {"norm, q k v, rope", "  backward",         "o, residual",
                                                "  backward",        "norm, gate up, glu", "  backward, norm",
                                                "down, residual",    "  backward, glu",    "head, loss, gradient"};

typedef enum { PRODUCT, UNFUSED, FUSED, FOLDED, FORMS } form;
static const char *const form_names[FORMS] = {"product alone", "unfused", "fused", "folded"};

typedef struct {
    int launches; /* -1: not known */
    int64_t bytes;
    double flops, seconds; /* seconds 0: not there */
} figures;

/* ---- the groups of a program ---- */

/* Where the walk through a layer stands, forward and backward. */
typedef struct {
    group at[2];
    bool norm_ended; /* backward: the op before was the norm's */
} walk;

/* The group of the layer's next op; GROUPS: none. */
static group next_forward(walk *w, const graph_op *o) {
    bool norm = (o->kind == OP_rms_norm || o->kind == OP_add_rms_norm) && !o->attr.head_dim;
    if (o->kind == OP_attention) return w->at[0] = OUT, GROUPS;
    if (w->at[0] == OUT && (norm || o->kind == OP_gate_up_glu)) w->at[0] = GATE_UP;
    group now = w->at[0];
    if (o->kind == OP_glu || o->kind == OP_gate_up_glu) w->at[0] = DOWN;
    return now;
}

static group next_backward(walk *w, const graph_op *o) {
    group now = w->at[1];
    bool residual = w->norm_ended && o->kind == OP_add;
    w->norm_ended = false;
    if (o->kind == OP_attention_bwd) return w->at[1] = QKV_BACK, GROUPS;
    if (residual) return GATE_UP_BACK;
    if (o->kind == OP_glu_bwd || (o->kind == OP_linear_lora_bwd && o->in[LORA_BWD_GATE])) w->at[1] = GATE_UP_BACK;
    if (now != GATE_UP_BACK) return now;
    w->norm_ended = o->kind == OP_rms_norm_bwd;
    if (w->norm_ended || (o->kind == OP_gate_up_bwd && o->in[GUB_RSTD])) w->at[1] = OUT_BACK;
    return now;
}

static bool is_head(op_kind kind) {
    return kind == OP_linear || kind == OP_cross_entropy || kind == OP_linear_ce || kind == OP_linear_dx ||
           kind == OP_linear_dw || kind == OP_cross_entropy_bwd || kind == OP_linear_ce_bwd;
}

/* The numbers of the ops of each group (stb_ds), of the second layer where there is one. */
static void find_groups(const graph *g, int layer, int *list[GROUPS]) {
    walk w = {.at = {QKV, DOWN_BACK}};
    for (int i = 0; i < arrlen(g->ops); i++) {
        const graph_op *o = &g->ops[i];
        group to = GROUPS;
        if (o->layer == 0 && is_head(o->kind)) to = HEAD;
        if (o->layer == layer) to = o->backward ? next_backward(&w, o) : next_forward(&w, o);
        if (to != GROUPS) arrput(list[to], i);
    }
}

/* ---- timing ---- */

/* A started program, and which of its ops are run. */
typedef struct {
    const backend *b;
    const graph *g;
    executor *x;
    vid wait; /* a value to read for the device to be done */
    batch_info info;
    double pairs; /* of attention */
} program;

static bool run(const program *p, const int *ops, int times, failure *f) {
    for (int t = 0; t < times; t++)
        for (int i = 0; i < arrlen(ops); i++) TRY(executor_run(p->x, ops[i], 1, &p->info, f));
    return true;
}

static bool time_runs(const program *p, const int *ops, int times, double *seconds, failure *f) {
    char one[sizeof(float)];
    double started = clock_seconds();
    TRY(run(p, ops, times, f) && executor_download(p->x, p->wait, one, 1, f));
    *seconds = (clock_seconds() - started) / times;
    return true;
}

static double kernel_seconds(const backend *b) { return b->host_memory ? KERNEL_SECONDS / 5 : KERNEL_SECONDS; }

/* Seconds of one of as many runs as take kernel_seconds, behind as many. */
static bool time_ops(const program *p, const int *ops, double *seconds, failure *f) {
    TRY(time_runs(p, ops, 1, seconds, f) && time_runs(p, ops, 1, seconds, f)); /* the first chooses algorithms */
    int times = 1 + (int)(kernel_seconds(p->b) / (*seconds + 1e-9));
    return time_runs(p, ops, times, seconds, f) && time_runs(p, ops, times, seconds, f);
}

/* What cannot be counted is -1. */
static int count_launches(const program *p, const int *ops) {
    int n = (int)arrlen(ops);
    failure f = {0};
    if (!p->b->count_launches) return n;
    if (!p->b->count_launches(true, &n, &f)) return -1;
    bool ok = run(p, ops, 1, &f);
    return p->b->count_launches(false, &n, &f) && ok ? n : -1;
}

/* All groups in turn for WARM_SECONDS: a card that was idle takes as long to settle at its power limit. */
static bool warm_up(const program *p, int *const list[GROUPS], failure *f) {
    double seconds, end = clock_seconds() + (p->b->host_memory ? 0 : WARM_SECONDS);
    while (clock_seconds() < end)
        for (int k = 0; k < GROUPS; k++) TRY(time_runs(p, list[k], 1, &seconds, f));
    return true;
}

/* Frees the lists. */
static bool measure_groups(const program *p, int *list[GROUPS], figures out[GROUPS], failure *f) {
    bool ok = warm_up(p, list, f);
    for (int k = 0; k < GROUPS; k++) {
        for (int i = 0; i < arrlen(list[k]); i++) {
            const graph_op *o = &p->g->ops[list[k][i]];
            out[k].bytes += op_bytes(p->g, o);
            out[k].flops += op_flops(p->g, o, &p->info, p->pairs);
        }
        ok = ok && time_ops(p, list[k], &out[k].seconds, f);
        if (ok) out[k].launches = count_launches(p, list[k]);
        arrfree(list[k]);
    }
    return ok;
}

/* ---- the three forms ---- */

static bool any_folded(const graph *g) {
    for (int i = 0; i < arrlen(g->ops); i++)
        if (g->ops[i].kind == OP_gate_up_glu && g->ops[i].in[GUG_RSTD]) return true;
    return false;
}

static bool measure_excerpt(excerpt *e, figures out[GROUPS], failure *f) {
    int *list[GROUPS] = {NULL};
    TRY(excerpt_start(e, false, f)); /* values stay: each op finds what it read */
    const micro_batch *b = &e->batch;
    program p = {e->s.b, &e->s.g, e->s.x, e->s.io.loss, b->info, batch_pairs(b->cu, b->info.docs)};
    p.info.training = true;
    find_groups(p.g, e->s.model.n_layer > 1 ? 2 : 1, list);
    return measure_groups(&p, list, out, f);
}

static bool measure_form(const session *s, form kind, figures out[GROUPS], failure *f) {
    config c = *s->c;
    excerpt *e = xcalloc(1, sizeof *e);
    c.use_liger_kernel = kind != UNFUSED;
    c.fuse_rules = kind == FOLDED ? "all,fold" : "all,-fold";
    bool ok = excerpt_build(e, s, &c, FOLD_NONE, LAYERS, s->model.vocab, RECOMPUTE_NONE, f);
    bool there = ok && (kind != FOLDED || any_folded(&e->s.g));
    if (there) ok = measure_excerpt(e, out, f);
    for (int i = 0; ok && !there && i < arrlen(e->s.g.notes); i++) printf("%s\n", e->s.g.notes[i]);
    excerpt_close(e);
    free(e);
    return ok;
}

/* ---- the library's products ---- */

/* Random numbers that repeat every PERIOD elements. */
static void *random_elements(dtype type, int64_t n) {
    enum { PERIOD = (1 << 18) + 3 };
    size_t size = dtype_size(type), all = (size_t)n * size, done = (size_t)(n < PERIOD ? n : PERIOD) * size;
    float *x = xmalloc(PERIOD * sizeof *x);
    char *out = xmalloc(all);
    for (int i = 0; i < PERIOD; i++) x[i] = 0.1f * rng_normal(1, (uint64_t)i);
    dtype_from_f32(out, type, x, done / size);
    for (size_t n_copy; done < all; done += n_copy) {
        n_copy = done < all - done ? done : all - done;
        memcpy(out + done, out, n_copy);
    }
    free(x);
    return out;
}

/* The product of a group's base weights W [M, K], and its way back dx = dy W. */
static void add_products(graph *g, dtype stored, int rows, int64_t M, int64_t K, int *list[GROUPS], group ahead,
                         group back) {
    vid x = graph_add_value(g, ROLE_INPUT, g->compute, rows, K, "x");
    vid dy = graph_add_value(g, ROLE_INPUT, g->compute, rows, M, "dy");
    vid W = graph_add_value(g, ROLE_PARAM, stored, M, K, "W");
    vid dx = graph_add_value(g, ROLE_TEMP, g->compute, rows, K, "dx");
    g_linear(g, x, W, 0);
    arrput(list[ahead], (int)arrlen(g->ops) - 1);
    graph_emit(g, (graph_op){OP_linear_dx, {dy, W}, {dx}});
    arrput(list[back], (int)arrlen(g->ops) - 1);
}

/* Every input and weight; *blocks (stb_ds): the weights' host memory, which may be used in place. */
static bool bind_random(executor *x, const graph *g, void ***blocks, failure *f) {
    bool ok = true;
    for (vid v = 1; v < arrlen(g->values) && ok; v++) {
        const graph_value *value = &g->values[v];
        if (value->role != ROLE_PARAM && value->role != ROLE_INPUT) continue;
        void *block = random_elements(value->type, value_count(value));
        ok = value->role == ROLE_PARAM ? executor_bind(x, v, block, value->type, f)
                                       : executor_upload(x, v, block, value_count(value), f);
        if (executor_data(x, v) == block) arrput(*blocks, block);
        else free(block);
    }
    return ok;
}

static bool measure_products(const session *s, figures out[GROUPS], failure *f) {
    const model_config *m = &s->model;
    int rows = train_slots(s->c), *list[GROUPS] = {NULL};
    int64_t q = (int64_t)m->n_head * m->head_dim, kv = (int64_t)m->n_kv_head * m->head_dim;
    graph g;
    plan p;
    void **blocks = NULL;
    graph_init(&g, strcmp(s->c->torch_dtype, "float32") == 0 ? DTYPE_F32 : s->b->compute);
    add_products(&g, m->stored, rows, q + 2 * kv, m->d_model, list, QKV, QKV_BACK);
    add_products(&g, m->stored, rows, m->d_model, q, list, OUT, OUT_BACK);
    add_products(&g, m->stored, rows, 2 * m->d_ff, m->d_model, list, GATE_UP, GATE_UP_BACK);
    add_products(&g, m->stored, rows, m->d_model, m->d_ff, list, DOWN, DOWN_BACK);
    add_products(&g, m->stored, rows, m->vocab, m->d_model, list, HEAD, HEAD);
    plan_make(&p, &g, s->b, true);
    program all = {.b = s->b, .g = &g, .wait = g.ops[0].in[0], .info = {.rows = rows, .labels = rows}};
    bool ok = executor_open(&all.x, &g, &p, s->b, f) && bind_random(all.x, &g, &blocks, f) &&
              measure_groups(&all, list, out, f);
    executor_close(all.x);
    for (int i = 0; i < arrlen(blocks); i++) free(blocks[i]);
    arrfree(blocks);
    plan_free(&p);
    graph_free(&g);
    return ok;
}

/* ---- the table ---- */

static void print_figures(const char *name, form kind, const figures *one, double product, double unfused) {
    if (one->seconds <= 0) return;
    char launches[16] = "na";
    if (one->launches >= 0) snprintf(launches, sizeof launches, "%d", one->launches);
    printf("%-22s %-14s %8s %10.2f %10.1f %9.3f %9.0f %10.3f %10.3f\n", name, form_names[kind], launches,
           (double)one->bytes / 0x1p20, 1e6 * one->seconds, one->flops / one->seconds / 1e12,
           (double)one->bytes / one->seconds / 1e9, product / one->seconds, unfused / one->seconds);
}

static void print_table(figures all[FORMS][GROUPS]) {
    figures sums[FORMS] = {{0}};
    printf("%-22s %-14s %8s %10s %10s %9s %9s %10s %10s\n", "ops", "form", "launches", "MiB moved", "us", "TFLOP/s",
           "GB/s", "x product", "x unfused");
    for (int k = 0; k < GROUPS; k++)
        for (form i = 0; i < FORMS; i++) {
            const figures *one = &all[i][k];
            print_figures(i ? "" : group_names[k], i, one, all[PRODUCT][k].seconds, all[UNFUSED][k].seconds);
            if (k == HEAD) continue;
            if (one->launches < 0) sums[i].launches = -1;
            if (sums[i].launches >= 0) sums[i].launches += one->launches;
            sums[i].bytes += one->bytes;
            sums[i].flops += one->flops, sums[i].seconds += one->seconds;
        }
    for (form i = 0; i < FORMS; i++)
        print_figures(i ? "" : "a layer, no attention", i, &sums[i], sums[PRODUCT].seconds, sums[UNFUSED].seconds);
}

bool bench_kernels(const config *c, failure *f) {
    figures all[FORMS][GROUPS] = {{{0}}};
    session s = {0};
    bool ok = session_open_model(&s, c, f) && session_open_backend(&s, f);
    for (form i = UNFUSED; i < FORMS && ok; i++) ok = measure_form(&s, i, all[i], f);
    ok = ok && measure_products(&s, all[PRODUCT], f);
    if (ok) {
        printf("%d rows, rank %d, %s; each alone, back to back for %.2f s behind as long; x: how much faster\n\n",
               train_slots(c), (int)c->lora_rank, s.b->name, kernel_seconds(s.b));
        print_table(all);
        printf("\nBytes: every operand of an op read or written once. Product alone: base weights, no adapter; its way "
               "back is dx.\n");
    }
    session_close(&s);
    return ok;
}
