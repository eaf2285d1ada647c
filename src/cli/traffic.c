/* traffic.c - counts launches and operand bytes of a program's ops by group; see traffic.h. */
#include "cli/traffic.h"
#include "base/array.h"

#include <stdio.h>
#include <string.h>

static const char *const group_names[GROUP_COUNT] = {"norm + q,k,v + rope", "attention",     "o_proj + residual",
                                                     "norm + mlp",          "head and loss", "other"};

int64_t op_bytes(const graph *g, const graph_op *o) {
    int64_t n = 0;
    for (int k = 0; k < GRAPH_MAX_IN; k++) n += o->in[k] ? value_bytes(&g->values[o->in[k]]) : 0;
    for (int k = 0; k < GRAPH_MAX_OUT; k++) n += o->out[k] ? value_bytes(&g->values[o->out[k]]) : 0;
    return n;
}

/* Ops of one layer come in order: prologue, attention, output product, mlp (backward: the reverse). The attention op
 * and the second norm (folded: the op that would have read it) part them. */
void traffic_count(const graph *g, int layer, op_traffic out[GROUP_COUNT]) {
    memset(out, 0, sizeof(op_traffic) * GROUP_COUNT);
    bool second_norm = false, attention[2] = {false, false}, mlp_done = false;
    for (int i = 0; i < arrlen(g->ops); i++) {
        const graph_op *o = &g->ops[i];
        int way = o->backward;
        op_group group = GROUP_OTHER;
        if (o->layer == 0) {
            bool embedding = o->kind == OP_embed || o->kind == OP_embed_bwd;
            group = embedding ? GROUP_OTHER : GROUP_HEAD;
        } else if (o->layer != layer) {
            continue;
        } else if (o->kind == OP_attention || o->kind == OP_attention_bwd) {
            attention[way] = true;
            group = GROUP_ATTENTION;
        } else if (!way) {
            bool norm = o->kind == OP_rms_norm || o->kind == OP_add_rms_norm;
            second_norm |= attention[0] && ((norm && o->attr.head_dim == 0) || o->kind == OP_gate_up_glu);
            group = !attention[0] ? GROUP_QKV : second_norm ? GROUP_MLP : GROUP_OUT;
        } else {
            group = attention[1] ? GROUP_QKV : mlp_done ? GROUP_OUT : GROUP_MLP;
            mlp_done |= o->kind == OP_rms_norm_bwd || (o->kind == OP_gate_up_bwd && o->in[GUB_RSTD]);
        }
        out[group].launches[way]++;
        out[group].bytes[way] += op_bytes(g, o);
    }
}

void traffic_print(const op_traffic *plain, const op_traffic *fused) {
    printf("\n%-22s %21s %21s %25s %25s\n", "", "launches forward", "launches backward", "MiB moved forward",
           "MiB moved backward");
    printf("%-22s %21s %21s %25s %25s\n", "one layer", "unfused -> fused", "unfused -> fused", "unfused -> fused",
           "unfused -> fused");
    op_traffic sum[2] = {{{0}, {0}}, {{0}, {0}}};
    for (int k = 0; k <= GROUP_COUNT; k++) {
        bool total = k == GROUP_COUNT;
        const op_traffic *a = total ? &sum[0] : &plain[k], *b = total ? &sum[1] : &fused[k];
        printf("%-22s", total ? "one layer and the ends" : group_names[k]);
        for (int way = 0; way < 2; way++) printf(" %12d -> %5d", a->launches[way], b->launches[way]);
        for (int way = 0; way < 2; way++)
            printf(" %12.1f -> %9.1f", (double)a->bytes[way] / 0x1p20, (double)b->bytes[way] / 0x1p20);
        printf("\n");
        for (int way = 0; way < 2 && !total; way++) {
            sum[0].launches[way] += a->launches[way], sum[1].launches[way] += b->launches[way];
            sum[0].bytes[way] += a->bytes[way], sum[1].bytes[way] += b->bytes[way];
        }
    }
    printf("\nBytes: every operand of an op read or written once, weights included, at the types of this backend.\n");
}
