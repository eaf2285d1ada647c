/* cmd_graph.c - `liger-sft graph`: the program as a list of ops, and what fusing changes: kernel launches and bytes
 * moved per layer, by group, without and with use_liger_kernel. Needs config.json only. */
#include "base/array.h"
#include "cli/command.h"
#include "train/trainer.h"

#include <stdio.h>
#include <string.h>

/* What an op belongs to, for the table. */
typedef enum { GROUP_QKV, GROUP_ATTENTION, GROUP_OUT, GROUP_MLP, GROUP_HEAD, GROUP_OTHER, GROUP_COUNT } op_group;
static const char *const group_names[GROUP_COUNT] = {"norm + q,k,v + rope", "attention",     "o_proj + residual",
                                                     "norm + mlp",          "head and loss", "other"};

typedef struct {
    int launches[2];  /* forward, backward */
    int64_t bytes[2]; /* operands read and written once */
} traffic;

static int64_t op_bytes(const graph *g, const graph_op *o) {
    int64_t n = 0;
    for (int k = 0; k < GRAPH_MAX_IN; k++) n += o->in[k] ? value_bytes(&g->values[o->in[k]]) : 0;
    for (int k = 0; k < GRAPH_MAX_OUT; k++) n += o->out[k] ? value_bytes(&g->values[o->out[k]]) : 0;
    return n;
}

/* Ops of one layer come in order: prologue, attention, output product, mlp (backward: the reverse). The attention op
 * and the second norm part them. */
static void count_layer(const graph *g, int layer, traffic out[GROUP_COUNT]) {
    memset(out, 0, sizeof(traffic) * GROUP_COUNT);
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
            second_norm |= attention[0] && norm && o->attr.head_dim == 0;
            group = !attention[0] ? GROUP_QKV : second_norm ? GROUP_MLP : GROUP_OUT;
        } else {
            group = attention[1] ? GROUP_QKV : mlp_done ? GROUP_OUT : GROUP_MLP;
            mlp_done |= o->kind == OP_rms_norm_bwd;
        }
        out[group].launches[way]++;
        out[group].bytes[way] += op_bytes(g, o);
    }
}

static bool count_variant(session *s, const config *c, bool fused, traffic out[GROUP_COUNT], failure *f) {
    config variant = *c;
    variant.use_liger_kernel = fused;
    s->c = &variant;
    session_drop_program(s);
    bool ok = session_build(s, SESSION_TRAIN, train_slots(c), RECOMPUTE_NONE, f);
    if (ok) count_layer(&s->g, s->model.n_layer > 1 ? 2 : 1, out);
    s->c = c;
    return ok;
}

static void print_table(const traffic *plain, const traffic *fused) {
    printf("\n%-22s %21s %21s %25s %25s\n", "", "launches forward", "launches backward", "MiB moved forward",
           "MiB moved backward");
    printf("%-22s %21s %21s %25s %25s\n", "one layer", "unfused -> fused", "unfused -> fused", "unfused -> fused",
           "unfused -> fused");
    traffic sum[2] = {{{0}, {0}}, {{0}, {0}}};
    for (int k = 0; k <= GROUP_COUNT; k++) {
        bool total = k == GROUP_COUNT;
        const traffic *a = total ? &sum[0] : &plain[k], *b = total ? &sum[1] : &fused[k];
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

static bool print_graph(session *s, const config *c, failure *f) {
    traffic plain[GROUP_COUNT], fused[GROUP_COUNT];
    TRY(session_open_model(s, c, f));
    TRY(session_build(s, SESSION_TRAIN, train_slots(c), RECOMPUTE_NONE, f));
    graph_print(&s->g, stdout, c->explain);
    TRY(count_variant(s, c, false, plain, f));
    TRY(count_variant(s, c, true, fused, f));
    print_table(plain, fused);
    return true;
}

bool cmd_graph(const config *c, failure *f) {
    session s = {0};
    bool ok = print_graph(&s, c, f);
    session_close(&s);
    return ok;
}
