/* fold.c - norms dissolve into their neighbours, run by pass_fuse behind its other rules (the rules "fold_qkv" and
 * "fold_mlp", "fold" for both).
 *
 * With k the rstd of a row of the residual stream x and g the norm's weight, h = k o x diag(g), so that
 *       h W' = k o (x (W diag(g))')
 * and no h needs to exist: the product before (o_proj, down_proj) adds the residual and gives x and k, the product
 * behind (q k v, gate up) reads x and scales its rows.  On the way back <dh, h> = <dz, z> of all that was made of h, so
 * that the gradient of x is complete in the product that would have given dh (docs/adr/0010).
 *
 * Only for frozen norms and weights: the gradient of g or W needs h.  What is left as it was gets a note that says why
 * (graph.notes, printed by `liger-sft graph`). */
#include "base/array.h"
#include "pass/pass.h"

#include <string.h>

enum { NOTES = 16 };

typedef struct {
    graph *g;
    int *producer; /* [values] op that writes it, -1: none */
    int *uses;     /* [values] how many operands read it */
    int *reader;   /* [values] the last op that reads it */
    op_served serves;
    struct {
        op_kind kind;
        const char *why;
        int layers;
    } notes[NOTES];
    int n_notes, n_folded;
} context;

static void index_ops(context *c) {
    const graph *g = c->g;
    for (int v = 0; v < arrlen(g->values); v++) c->producer[v] = c->reader[v] = -1, c->uses[v] = 0;
    for (int i = 0; i < arrlen(g->ops); i++) {
        for (int k = 0; k < GRAPH_MAX_OUT; k++)
            if (g->ops[i].out[k]) c->producer[g->ops[i].out[k]] = i;
        for (int k = 0; k < GRAPH_MAX_IN; k++) c->uses[g->ops[i].in[k]]++, c->reader[g->ops[i].in[k]] = i;
    }
}

static bool leave(context *c, op_kind kind, const char *why) {
    for (int i = 0; i < c->n_notes; i++)
        if (c->notes[i].kind == kind && strcmp(c->notes[i].why, why) == 0) {
            c->notes[i].layers++;
            return false;
        }
    if (c->n_notes == NOTES) return false;
    c->notes[c->n_notes].kind = kind, c->notes[c->n_notes].why = why, c->notes[c->n_notes++].layers = 1;
    return false;
}

/* A product as linear_lora, with or without an adapter. */
static bool as_linear_lora(const graph_op *op, graph_op *out) {
    *out = *op;
    out->kind = OP_linear_lora;
    return op->kind == OP_linear_lora || op->kind == OP_linear;
}

/* What folding one norm changes: the product before it, the op that reads it, and the product behind that (gate and
 * up: down_proj; else at -1). The norm's own op goes where it has one. */
typedef struct {
    int before_at, reader_at, behind_at, norm_at;
    graph_op before, reader, behind;
} change;

/* The product that makes b, of sum = a + b: it adds a itself and gives sum and rstd. */
static bool take_residual(context *c, change *to, vid a, vid b, vid sum, vid rstd, float eps, const char **why) {
    int at = c->producer[b];
    *why = "its residual is not added to what a product made";
    if (at < 0 || c->uses[b] != 1 || c->producer[a] > at || !as_linear_lora(&c->g->ops[at], &to->before)) return false;
    if (to->before.in[LORA_RES]) return false;
    to->before_at = at;
    to->before.in[LORA_RES] = a;
    to->before.out[LORA_Y] = sum, to->before.out[LORA_RSTD] = rstd;
    to->before.attr.eps = eps;
    return true;
}

static bool any_trains(const graph *g, const vid *list, int n) {
    bool any = false;
    for (int i = 0; i < n; i++) any |= list[i] && g->values[list[i]].trainable;
    return any;
}

static bool change_qkv(context *c, int at, change *to, const char **why) {
    const graph_op *o = &c->g->ops[at];
    *to = (change){.reader_at = at, .behind_at = -1, .norm_at = -1, .reader = *o};
    *why = "a norm or a weight trains";
    if (any_trains(c->g, &o->in[NQR_W], 4)) return false;
    *why = "q and k have norms of their own";
    if (o->in[NQR_NORM_Q] || o->in[NQR_NORM_K]) return false;
    *why = "q, k or v has a bias";
    if (o->in[NQR_BIAS_Q] || o->in[NQR_BIAS_K] || o->in[NQR_BIAS_V]) return false;
    *why = "it reads the embedding: no product is before it";
    if (!o->in[NQR_B]) return false;
    vid sum = o->out[NQR_SUM], rstd = o->out[NQR_RSTD];
    if (!take_residual(c, to, o->in[NQR_A], o->in[NQR_B], sum, rstd, o->attr.eps, why)) return false;
    to->reader.in[NQR_A] = sum, to->reader.in[NQR_B] = 0, to->reader.in[NQR_RA] = rstd;
    to->reader.out[NQR_SUM] = to->reader.out[NQR_H] = to->reader.out[NQR_RSTD] = 0;
    return true;
}

static bool change_gate_up(context *c, int at, change *to, const char **why) {
    const graph_op *o = &c->g->ops[at];
    vid y = o->out[GUG_Y];
    int norm_at = c->producer[o->in[GUG_X]];
    *to = (change){.reader_at = at, .norm_at = norm_at, .reader = *o};
    *why = "its input is no add_rms_norm";
    if (norm_at < 0 || c->g->ops[norm_at].kind != OP_add_rms_norm || c->uses[o->in[GUG_X]] != 1) return false;
    const graph_op *norm = &c->g->ops[norm_at];
    *why = "a norm or a weight trains";
    if (any_trains(c->g, &norm->in[2], 1) || any_trains(c->g, &o->in[GUG_WG], 2)) return false;
    *why = "what it makes does not go into one product";
    if (c->uses[y] != 1 || c->uses[o->out[GUG_GATE]] || c->uses[o->out[GUG_UP]]) return false;
    to->behind_at = c->reader[y];
    if (!as_linear_lora(&c->g->ops[to->behind_at], &to->behind) || to->behind.in[LORA_X] != y) return false;
    if (any_trains(c->g, &to->behind.in[LORA_W], 2)) return false;
    vid sum = norm->out[0], rstd = norm->out[2];
    if (!take_residual(c, to, norm->in[0], norm->in[1], sum, rstd, norm->attr.eps, why)) return false;
    to->reader.in[GUG_X] = sum, to->reader.in[GUG_RSTD] = rstd, to->reader.in[GUG_NORM] = norm->in[2];
    return true;
}

static bool served(const context *c, const change *to, const char **why) {
    if (!c->serves) return true;
    return c->serves(c->g, &to->before, why) && c->serves(c->g, &to->reader, why) &&
           (to->behind_at < 0 || c->serves(c->g, &to->behind, why));
}

static bool apply(context *c, const change *to) {
    graph_op *ops = c->g->ops;
    vid sum = to->before.out[LORA_Y], rstd = to->before.out[LORA_RSTD];
    ops[to->before_at] = to->before;
    ops[to->reader_at] = to->reader;
    if (to->behind_at >= 0) ops[to->behind_at] = to->behind;
    if (to->norm_at >= 0) ops[to->norm_at].kind = OP_COUNT;
    c->producer[sum] = c->producer[rstd] = to->before_at;
    c->uses[sum]++, c->uses[rstd]++;
    c->n_folded++;
    return true;
}

static bool fold(context *c, int at) {
    change to;
    const char *why;
    op_kind kind = c->g->ops[at].kind;
    bool ok = kind == OP_norm_qkv_rope ? change_qkv(c, at, &to, &why) : change_gate_up(c, at, &to, &why);
    return ok && served(c, &to, &why) ? apply(c, &to) : leave(c, kind, why);
}

static void write_notes(const context *c) {
    graph *g = c->g;
    for (int i = 0; i < c->n_notes; i++)
        arrput(g->notes, arena_printf(&g->names, "fold: %s of %d layer%s left as it is: %s", op_name(c->notes[i].kind),
                                      c->notes[i].layers, c->notes[i].layers == 1 ? "" : "s", c->notes[i].why));
    if (!c->n_folded && !c->n_notes)
        arrput(g->notes, "fold: nothing to fold: the rules norm_qkv_rope and gate_up_glu found no chain");
}

/* The kind of fold that an op can be the reader of. */
static int fold_of(const graph_op *o) {
    return o->kind == OP_norm_qkv_rope ? FOLD_QKV : o->kind == OP_gate_up_glu ? FOLD_MLP : FOLD_NONE;
}

void pass_fold(graph *g, int folds, op_served serves) {
    size_t n = (size_t)arrlen(g->values);
    context c = {.g = g,
                 .producer = xcalloc(n, sizeof(int)),
                 .uses = xcalloc(n, sizeof(int)),
                 .reader = xcalloc(n, sizeof(int)),
                 .serves = serves};
    index_ops(&c);
    for (int i = 0; i < arrlen(g->ops); i++)
        if (fold_of(&g->ops[i]) & folds) fold(&c, i);
    int kept = 0;
    for (int i = 0; i < arrlen(g->ops); i++)
        if (g->ops[i].kind != OP_COUNT) g->ops[kept++] = g->ops[i];
    arrsetlen(g->ops, kept);
    write_notes(&c);
    free(c.producer);
    free(c.uses);
    free(c.reader);
}
