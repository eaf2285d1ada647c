/* fuse.c - the fused layer: rewrites chains of ops into fused ops, before pass_backward, so that each fused op brings
 * its own backward rule.  use_liger_kernel turns the pass on; nothing else changes.
 *
 * A rule looks at one op, finds its chain through the producers of its operands, writes the fused op in the place of
 * the first op of the chain (where all inputs exist) and marks the rest dead.  Rules run one after the other, each over
 * the whole program. */
#include "base/array.h"
#include "base/text.h"
#include "pass/pass.h"

#include <assert.h>
#include <string.h>

typedef struct {
    graph *g;
    int *producer; /* [values] op that writes it, -1: none */
    int *uses;     /* [values] how many operands read it */
} context;

static void index_ops(context *c) {
    graph *g = c->g;
    int n = (int)arrlen(g->values);
    for (int v = 0; v < n; v++) c->producer[v] = -1, c->uses[v] = 0;
    for (int i = 0; i < arrlen(g->ops); i++) {
        if (g->ops[i].kind == OP_COUNT) continue;
        for (int k = 0; k < GRAPH_MAX_OUT; k++)
            if (g->ops[i].out[k]) c->producer[g->ops[i].out[k]] = i;
        for (int k = 0; k < GRAPH_MAX_IN; k++) c->uses[g->ops[i].in[k]]++;
    }
}

/* The op of this kind that writes v, or NULL. */
static graph_op *made_by(context *c, vid v, op_kind kind) {
    int i = v ? c->producer[v] : -1;
    return i >= 0 && c->g->ops[i].kind == kind ? &c->g->ops[i] : NULL;
}

static void kill_op(graph_op *op) {
    if (op) op->kind = OP_COUNT;
}

/* Puts the fused op in the place of the first op of its chain, under the layer of the last (a residual add belongs to
 * the layer below the norm that reads it; what crosses the edge is the sum). */
static bool replace(graph_op *first, graph_op *last, graph_op fused) {
    fused.layer = last->layer;
    kill_op(last);
    *first = fused;
    return true;
}

/* add(linear(x, W), scale(linear(linear(x, A), B))) -> linear_lora */
static bool fuse_linear_lora(context *c, graph_op *add) {
    graph_op *base = made_by(c, add->in[0], OP_linear), *scale = made_by(c, add->in[1], OP_scale);
    graph_op *up = scale ? made_by(c, scale->in[0], OP_linear) : NULL;
    graph_op *down = up ? made_by(c, up->in[0], OP_linear) : NULL;
    if (!base || !down || base->in[0] != down->in[0] || c->uses[add->in[0]] != 1) return false;
    graph_op fused = {OP_linear_lora,
                      {base->in[0], base->in[1], base->in[2], down->in[1], up->in[1]},
                      {add->out[0], down->out[0]},
                      {.scale = scale->attr.scale}};
    kill_op(scale), kill_op(up), kill_op(down);
    return replace(base, add, fused);
}

/* A product with or without an adapter, as the two fused ops below take it apart. */
typedef struct {
    graph_op *op;
    vid x, W, bias, A, B, s;
    float scale;
} product;

static bool find_product(context *c, vid y, product *p) {
    graph_op *plain = made_by(c, y, OP_linear), *lora = made_by(c, y, OP_linear_lora), *op = plain ? plain : lora;
    if (!op) return false;
    *p = (product){.op = op, .x = op->in[LORA_X], .W = op->in[LORA_W], .bias = op->in[LORA_BIAS]};
    if (lora) p->A = op->in[LORA_A], p->B = op->in[LORA_B], p->s = op->out[1], p->scale = op->attr.scale;
    return true;
}

/* glu(product(x), product(x)) -> gate_up_glu */
static bool fuse_gate_up_glu(context *c, graph_op *glu) {
    product gate, up;
    if (!find_product(c, glu->in[0], &gate) || !find_product(c, glu->in[1], &up)) return false;
    if (gate.x != up.x || gate.bias || up.bias || c->uses[glu->in[0]] != 1 || c->uses[glu->in[1]] != 1) return false;
    graph_op fused = {OP_gate_up_glu,
                      {gate.x, gate.W, up.W, gate.A, gate.B, up.A, up.B},
                      {glu->out[0], glu->in[0], glu->in[1], gate.s, up.s},
                      {.glu = glu->attr.glu, .scale = gate.A ? gate.scale : up.scale}};
    graph_op *first = gate.op < up.op ? gate.op : up.op;
    graph_op *second = gate.op < up.op ? up.op : gate.op;
    kill_op(second);
    return replace(first, glu, fused);
}

/* One of q and k on its way from the product to the attention. */
typedef struct {
    product p;
    graph_op *rope, *norm; /* norm: per head, may be NULL */
} branch;

static bool find_branch(context *c, vid y, branch *b) {
    b->rope = made_by(c, y, OP_rope);
    if (!b->rope || c->uses[y] != 1) return false;
    vid x = b->rope->in[0];
    b->norm = made_by(c, x, OP_rms_norm);
    if (b->norm && c->uses[x] != 1) return false;
    return find_product(c, b->norm ? b->norm->in[0] : x, &b->p);
}

/* attention(...) or attention_cached(rope(norm?(product(h))), rope(norm?(product(h))), product(h)) with h = rms_norm(a)
 * or rms_norm(a + b)
 * -> norm_qkv_rope, attention */
static bool fuse_norm_qkv_rope(context *c, graph_op *attention) {
    branch q, k;
    product v;
    if (!find_branch(c, attention->in[0], &q) || !find_branch(c, attention->in[1], &k)) return false;
    if (!find_product(c, attention->in[2], &v) || q.p.x != k.p.x || q.p.x != v.x) return false;
    if (!q.norm != !k.norm || c->uses[q.p.x] != 3) return false;
    graph_op *norm = made_by(c, q.p.x, OP_rms_norm);
    if (!norm || norm->attr.head_dim) return false;
    graph_op *add = made_by(c, norm->in[0], OP_add);
    graph_op fused = {.kind = OP_norm_qkv_rope};
    fused.attr = (op_attr){.eps = norm->attr.eps,
                           .head_dim = attention->attr.head_dim,
                           .scale = q.p.A   ? q.p.scale
                                    : k.p.A ? k.p.scale
                                            : v.scale};
    const vid in[] = {add ? add->in[0] : norm->in[0],
                      add ? add->in[1] : 0,
                      norm->in[1],
                      q.p.W,
                      k.p.W,
                      v.W,
                      q.p.bias,
                      k.p.bias,
                      v.bias,
                      q.p.A,
                      q.p.B,
                      k.p.A,
                      k.p.B,
                      v.A,
                      v.B,
                      q.norm ? q.norm->in[1] : 0,
                      k.norm ? k.norm->in[1] : 0,
                      q.rope->in[1],
                      q.rope->in[2]};
    const vid out[] = {add ? norm->in[0] : 0,
                       q.p.x,
                       norm->out[1],
                       attention->in[0],
                       attention->in[1],
                       attention->in[2],
                       q.p.s,
                       k.p.s,
                       v.s,
                       q.norm ? q.norm->in[0] : 0,
                       k.norm ? k.norm->in[0] : 0,
                       q.norm ? q.norm->out[1] : 0,
                       k.norm ? k.norm->out[1] : 0};
    memcpy(fused.in, in, sizeof in);
    memcpy(fused.out, out, sizeof out);
    graph_op *dead[] = {q.p.op, q.norm, q.rope, k.p.op, k.norm, k.rope, v.op};
    for (size_t i = 0; i < sizeof dead / sizeof *dead; i++) kill_op(dead[i]);
    return replace(add ? add : norm, norm, fused);
}

/* rms_norm(a + b) -> add_rms_norm; the sum stays available */
static bool fuse_add_rms_norm(context *c, graph_op *norm) {
    graph_op *add = made_by(c, norm->in[0], OP_add);
    if (!add || norm->attr.head_dim) return false;
    graph_op fused = {
        OP_add_rms_norm, {add->in[0], add->in[1], norm->in[1]}, {add->out[0], norm->out[0], norm->out[1]}, norm->attr};
    return replace(add, norm, fused);
}

/* cross_entropy(linear(x, W)) -> linear_ce: logits never exist as a whole */
static bool fuse_linear_ce(context *c, graph_op *ce) {
    graph_op *head = made_by(c, ce->in[0], OP_linear);
    if (!head || head->in[2] || c->uses[ce->in[0]] != 1) return false;
    graph_op fused = {OP_linear_ce, {head->in[0], head->in[1], ce->in[1]}, {ce->out[0], ce->out[1]}};
    return replace(head, ce, fused);
}

static const struct {
    const char *name;
    op_kind last;
    bool (*rewrite)(context *, graph_op *);
} rules[] = {
    /* linear_lora first: the rules below it read its result */
    {"linear_lora", OP_add, fuse_linear_lora},
    {"norm_qkv_rope", OP_attention, fuse_norm_qkv_rope},
    {"norm_qkv_rope", OP_attention_cached, fuse_norm_qkv_rope},
    {"gate_up_glu", OP_glu, fuse_gate_up_glu},
    {"add_rms_norm", OP_rms_norm, fuse_add_rms_norm},
    {"linear_ce", OP_cross_entropy, fuse_linear_ce},
};
enum { N_RULES = sizeof rules / sizeof *rules };

/* Sets on[] and *folds from a list of rule names with commas; "all" is every rule, a dash in front takes a name out
 * again. *folds is FOLD_OPEN where the list says all and nothing of folds. */
static bool choose_rules(bool on[N_RULES], int *folds, const char *list, failure *f) {
    enum { ALL = N_RULES, FOLD, N_NAMES = FOLD + FOLD_ALL };
    const char *names[N_NAMES] = {[ALL] = "all", [FOLD] = "fold", "fold_qkv", "fold_mlp"};
    static const int meant[] = {FOLD_ALL, FOLD_QKV, FOLD_MLP};
    bool all = false;
    for (int r = 0; r < N_RULES; r++) names[r] = rules[r].name, on[r] = false;
    *folds = FOLD_OPEN;
    while (*list) {
        char word[64] = {0};
        size_t n = strcspn(list, ",");
        memcpy(word, list, n < sizeof word ? n : sizeof word - 1);
        list += n + (list[n] == ',');
        bool add = word[0] != '-';
        const char *name = word + !add;
        int found = -1;
        for (int r = 0; r < N_NAMES; r++)
            if (strcmp(name, names[r]) == 0) found = r;
        const char *near = text_nearest(name, names, N_NAMES);
        if (found < 0)
            return fail(f, FAIL_INPUT,
                        "fuse_rules: \"%s\" is no rule; there are all, linear_lora, norm_qkv_rope, gate_up_glu, "
                        "add_rms_norm, linear_ce, fold, fold_qkv, fold_mlp, and -NAME takes one out%s%s",
                        name, near ? "; nearest: " : "", near ? near : "");
        if (found == ALL) all = add;
        if (found >= FOLD && *folds == FOLD_OPEN) *folds = FOLD_NONE;
        if (found >= FOLD) *folds = add ? *folds | meant[found - FOLD] : *folds & ~meant[found - FOLD];
        for (int r = 0; r < N_RULES; r++)
            if (found == ALL || strcmp(name, names[r]) == 0) on[r] = add; /* a name may be twice */
    }
    if (!all && *folds == FOLD_OPEN) *folds = FOLD_NONE;
    return true;
}

bool fuse_leaves_folds_open(const char *list) {
    bool on[N_RULES];
    int folds;
    failure ignored = {0}; /* pass_fuse tells it */
    return choose_rules(on, &folds, list, &ignored) && folds == FOLD_OPEN;
}

bool pass_fuse(graph *g, const char *list, int where_open, op_served serves, failure *f) {
    bool on[N_RULES];
    int folds;
    TRY(choose_rules(on, &folds, list, f));
    if (folds == FOLD_OPEN) folds = where_open;
    size_t n_values = (size_t)arrlen(g->values);
    context c = {g, xcalloc(n_values, sizeof(int)), xcalloc(n_values, sizeof(int))};
    for (int r = 0; r < N_RULES; r++) {
        for (bool again = on[r]; again;) { /* what a rewrite leaves out of the index is found in the next round */
            again = false;
            index_ops(&c);
            for (int i = 0; i < arrlen(g->ops); i++)
                if (g->ops[i].kind == rules[r].last && rules[r].rewrite(&c, &g->ops[i])) again = true;
        }
    }
    int n = 0;
    for (int i = 0; i < arrlen(g->ops); i++)
        if (g->ops[i].kind != OP_COUNT) g->ops[n++] = g->ops[i];
    arrsetlen(g->ops, n);
    if (folds) pass_fold(g, folds, serves);
    free(c.producer);
    free(c.uses);
    return true;
}
