/* recompute.c - activation checkpointing, run after pass_backward.
 *
 * Before the first backward op of a layer it repeats forward ops of that layer into fresh values and points the layer's
 * backward ops at them, so that the originals die in the forward half; the planner sees to the memory.
 *   cheap: repeats what costs one pass over memory (norms, activations, dropout); products and attention are kept.
 *   full:  repeats the whole layer from its input, but for its last product.
 *   offload: as full, and the inputs wait in host memory (offload.c).
 * Of the last layer nothing is repeated where the loss comes in chunks: its way back begins where its forward half has
 * just ended, so what it keeps needs no memory that another layer's repeats would not.  (Beside full logits it would,
 * and at offload beside the head's chunks.)
 * The repeats run the same kernels on the same bits, so results do not change. */
#include "base/array.h"
#include "pass/pass.h"

#include <assert.h>

const char *recompute_name(recompute_level level) {
    static const char *const names[RECOMPUTE_COUNT] = {"none", "cheap", "full", "offload"};
    return names[level];
}

/* An op that makes value v again from kept ones, cheaply: true and *again filled with v as its output. */
static bool cheap_form(const graph_op *o, vid v, graph_op *again) {
    *again = (graph_op){.layer = o->layer, .attr = o->attr};
    switch ((int)o->kind) {
    case OP_rms_norm:
    case OP_glu:
    case OP_dropout: *again = *o; return v == o->out[0];
    case OP_add_rms_norm: /* the sum is kept */
        again->kind = OP_rms_norm;
        again->in[0] = o->out[0], again->in[1] = o->in[2];
        again->out[0] = o->out[1], again->out[1] = o->out[2];
        return v == o->out[1];
    case OP_norm_qkv_rope: /* only the normed rows */
        again->kind = OP_rms_norm;
        again->attr = (op_attr){.eps = o->attr.eps};
        again->in[0] = o->out[NQR_SUM] ? o->out[NQR_SUM] : o->in[NQR_A], again->in[1] = o->in[NQR_W];
        again->out[0] = o->out[NQR_H], again->out[1] = o->out[NQR_RSTD];
        return v == o->out[NQR_H];
    case OP_gate_up_glu: /* gate and up are kept */
        again->kind = OP_glu;
        again->attr = (op_attr){.glu = o->attr.glu};
        again->in[0] = o->out[GUG_GATE], again->in[1] = o->out[GUG_UP];
        again->out[0] = o->out[GUG_Y];
        return v == o->out[GUG_Y];
    default: return false;
    }
}

/* The op again. A fused residual add is not repeated: its sum is what crosses the layer's edge; nor is a y that the way
 * back makes of gate and up. */
static graph_op full_form(const graph_op *o, const bool *needed) {
    graph_op again = *o;
    if (o->kind == OP_gate_up_glu && !needed[o->out[GUG_Y]]) again.out[GUG_Y] = 0;
    if (o->kind == OP_norm_qkv_rope && o->out[NQR_SUM]) {
        again.in[NQR_A] = o->out[NQR_SUM];
        again.in[NQR_B] = again.out[NQR_SUM] = 0;
    }
    return again;
}

typedef struct {
    graph *g;
    const graph_op *old;
    int *producer; /* [values] forward op that writes it, -1 */
    bool *needed;  /* [values] this layer's repeats or backward ops read it */
    vid *fresh;    /* [values] its repeat, 0 */
    recompute_level level;
} context;

/* Whether v is to be made again for `layer`, and how. */
static bool repeat_form(const context *c, vid v, int layer, graph_op *again) {
    int i = v ? c->producer[v] : -1;
    if (i < 0 || c->old[i].layer != layer) return false;
    if (c->level == RECOMPUTE_CHEAP) return cheap_form(&c->old[i], v, again);
    /* Of the last product of a layer only the adapter's s is needed: as few numbers as its rank, they are kept. */
    if (c->old[i].kind == OP_linear_lora && !c->needed[c->old[i].out[LORA_Y]]) return false;
    *again = full_form(&c->old[i], c->needed);
    for (int k = 0; k < GRAPH_MAX_OUT; k++)
        if (again->out[k] == v) return true;
    return false;
}

static vid clone_value(context *c, vid v) {
    graph_value t = c->g->values[v];
    return graph_add_value(c->g, t.role, t.type, t.rows, t.cols, "again.%s", t.name);
}

static void emit_repeat(context *c, graph_op again) {
    for (int k = 0; k < GRAPH_MAX_IN; k++)
        if (c->fresh[again.in[k]]) again.in[k] = c->fresh[again.in[k]];
    for (int k = 0; k < GRAPH_MAX_OUT; k++)
        if (again.out[k]) again.out[k] = c->fresh[again.out[k]] = clone_value(c, again.out[k]);
    c->g->layer = again.layer;
    c->g->backward = true;
    graph_emit(c->g, again);
    c->g->backward = false;
}

/* Marks what the layer's backward ops read, then, last op first, what the repeats of those values read. */
static void repeat_layer(context *c, int layer, int n_values) {
    int n_old = (int)arrlen(c->old), first = n_old, last = -1;
    for (int v = 0; v < n_values; v++) c->needed[v] = false;
    for (int i = 0; i < n_old; i++) {
        if (c->old[i].layer != layer) continue;
        if (!c->old[i].backward) first = i < first ? i : first, last = i;
        else
            for (int k = 0; k < GRAPH_MAX_IN; k++)
                if (c->old[i].in[k] < n_values) c->needed[c->old[i].in[k]] = true;
    }
    graph_op *repeats = NULL;
    for (int i = last; i >= first; i--) {
        if (c->old[i].layer != layer || c->old[i].backward) continue;
        for (int k = 0; k < GRAPH_MAX_OUT; k++) {
            graph_op again;
            vid v = c->old[i].out[k];
            if (!v || !c->needed[v] || !repeat_form(c, v, layer, &again)) continue;
            for (int j = 0; j < GRAPH_MAX_IN; j++) c->needed[again.in[j]] = true;
            arrput(repeats, again);
            break; /* one op makes all its outputs again */
        }
    }
    for (int i = (int)arrlen(repeats) - 1; i >= 0; i--) emit_repeat(c, repeats[i]);
    arrfree(repeats);
}

static bool has_op(const graph *g, op_kind kind) {
    for (int i = 0; i < (int)arrlen(g->ops); i++)
        if (g->ops[i].kind == kind) return true;
    return false;
}

void pass_recompute(graph *g, recompute_level level) {
    if (level == RECOMPUTE_NONE) return;
    bool last_too = level == RECOMPUTE_OFFLOAD || !has_op(g, OP_linear_ce);
    int n_values = (int)arrlen(g->values), n_old = (int)arrlen(g->ops), reached = 0;
    context c = {g,
                 g->ops,
                 xcalloc((size_t)n_values, sizeof(int)),
                 xcalloc((size_t)n_values, sizeof(bool)),
                 xcalloc((size_t)n_values, sizeof(vid)),
                 level};
    for (int v = 0; v < n_values; v++) c.producer[v] = -1;
    for (int i = 0; i < g->n_forward; i++)
        for (int k = 0; k < GRAPH_MAX_OUT; k++)
            if (c.old[i].out[k]) c.producer[c.old[i].out[k]] = i;
    g->ops = NULL;
    for (int i = 0; i < n_old; i++) {
        graph_op o = c.old[i];
        if (o.backward && o.layer && o.layer != reached) {
            if (reached || last_too) repeat_layer(&c, o.layer, n_values);
            reached = o.layer;
        }
        if (o.backward && o.layer)
            for (int k = 0; k < GRAPH_MAX_IN; k++)
                if (o.in[k] < n_values && c.fresh[o.in[k]]) o.in[k] = c.fresh[o.in[k]];
        arrput(g->ops, o);
    }
    g->layer = 0;
    graph_op *old = (graph_op *)(uintptr_t)c.old;
    arrfree(old);
    free(c.producer);
    free(c.needed);
    free(c.fresh);
    if (level == RECOMPUTE_OFFLOAD) pass_offload(g);
}
