/* shard_gradients.c - gradients in pieces (ZeRO stages 2 and 3): every rank keeps the sum of one piece of each; run
 * instead of pass_shard.
 *
 * What an op adds to a gradient becomes a temporary, and a reduce_scatter right behind the op adds this rank's piece of
 * its sum over the ranks to the gradient: in every micro-batch, because nobody keeps the rest.  The optimizer updates
 * the same piece of the weight and keeps its moments alone. */
#include "base/array.h"
#include "pass/pass.h"

static int64_t padded_rows(const graph_value *gradient) {
    return (gradient->parts * value_part(gradient) + gradient->cols - 1) / gradient->cols;
}

static void mark(graph *g, const shard_options *o) {
    for (vid v = 1; v < arrlen(g->values); v++) {
        graph_value *param = &g->values[v];
        if (param->role != ROLE_PARAM || !param->trainable || !param->grad) continue;
        graph_value *gradient = &g->values[param->grad];
        gradient->base = 0, gradient->at = 0, gradient->ld = 0, gradient->storage_rows = 0; /* pass_layout's place */
        gradient->parts = o->ranks;
        gradient->part = o->rank < 0 ? 0 : o->rank;
        if (!param->parts) param->storage_rows = padded_rows(gradient); /* pieces are gathered into it */
    }
}

/* A temporary in the place of gradient v. */
static vid add_whole(graph *g, vid v) {
    graph_value like = g->values[v];
    int number = (int)arrlen(g->values);
    vid whole = graph_add_value(g, ROLE_TEMP, DTYPE_F32, like.rows, like.cols, "whole.%d.%s", number, like.name);
    g->values[whole].storage_rows = padded_rows(&like);
    g->values[whole].whole_of = v;
    return whole;
}

void pass_shard_gradients(graph *g, const shard_options *o) {
    mark(g, o);
    graph_op *old = g->ops;
    int n_forward = g->n_forward;
    g->ops = NULL;
    for (int i = 0; i < arrlen(old); i++) {
        graph_op op = old[i];
        vid pieces[GRAPH_MAX_OUT] = {0};
        for (int k = 0; k < GRAPH_MAX_OUT; k++)
            if (g->values[op.out[k]].role == ROLE_GRAD) {
                pieces[k] = op.out[k];
                op.out[k] = add_whole(g, pieces[k]);
            }
        if (i == n_forward) g->n_forward = (int)arrlen(g->ops);
        arrput(g->ops, op);
        g->layer = op.layer;
        g->backward = true;
        for (int k = 0; k < GRAPH_MAX_OUT; k++)
            if (pieces[k]) graph_emit(g, (graph_op){OP_reduce_scatter, {op.out[k]}, {pieces[k]}});
    }
    g->layer = 0;
    g->backward = false;
    arrfree(old);
}
