/* early_loss.c - the head's gradient in the forward half, for objectives whose loss weights are known before a run.
 *
 * linear_ce_bwd makes the logits again, because in general the weight of a row's loss is known only behind the forward
 * half.  For supervised fine-tuning it is known before: then linear_ce makes its gradients from the logits that it
 * has, and linear_ce_bwd goes.  Run after pass_backward. */
#include "base/array.h"
#include "pass/pass.h"

/* The forward op that a linear_ce_bwd belongs to: the one that wrote its lse. */
static graph_op *forward_of(graph *g, const graph_op *back) {
    for (int i = 0; i < g->n_forward; i++)
        if (g->ops[i].kind == OP_linear_ce && g->ops[i].out[1] == back->in[4]) return &g->ops[i];
    return NULL;
}

void pass_early_loss(graph *g) {
    for (int i = g->n_forward; i < arrlen(g->ops); i++) {
        graph_op *back = &g->ops[i];
        if (back->kind != OP_linear_ce_bwd || g->values[back->in[0]].role != ROLE_INPUT) continue;
        graph_op *loss = forward_of(g, back);
        if (!loss || loss->in[3]) continue;
        loss->in[3] = back->in[0];
        loss->out[2] = back->out[0], loss->out[3] = back->out[1];
        arrdel(g->ops, i);
        i--;
    }
}
