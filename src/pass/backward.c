/* backward.c - reverse-mode differentiation as a rewrite: appends the backward ops of every op that leads from a
 * trainable param to the loss.
 *
 * One rule per forward op.  A rule reads the gradient of its outputs with GRAD() and hands each wanted input gradient
 * to give().  What nobody wants stays 0 and its kernel skips it: frozen weights cost nothing, and nothing runs below
 * the first trainable layer.  The gradient of a param is one persistent value that every contribution is added to. */
#include "base/array.h"
#include "pass/pass.h"

#include <assert.h>

typedef struct {
    graph *g;
    bool *wants; /* [forward values] leads to a trainable param */
    vid *grad;   /* [forward values] gradient so far */
} context;

#define IN(i)     o.in[i]
#define GRAD(i)   c->grad[o.out[i]]
#define EMIT(...) graph_emit(c->g, (graph_op){__VA_ARGS__})

static vid like(context *c, vid v) {
    graph_value t = c->g->values[v];
    return graph_add_value(c->g, ROLE_TEMP, t.type, t.rows, t.cols, "d.%s", t.name);
}

/* <dz, z> by row of an op that reads the residual stream and its norm apart (pass_fold); 0 when the stream's gradient
 * is not wanted. */
static vid row_dot(context *c, vid stream) {
    if (!c->wants[stream]) return 0;
    const char *name = c->g->values[stream].name;
    return graph_add_value(c->g, ROLE_TEMP, DTYPE_F32, c->g->values[stream].rows, 1, "dot.%s", name);
}

/* Where the gradient of input v is to be written: a param's own gradient, a fresh temporary, or 0 when not wanted. */
static vid target(context *c, vid v) {
    if (!v || !c->wants[v]) return 0;
    graph_value t = c->g->values[v];
    if (t.role != ROLE_PARAM) return like(c, v);
    if (!t.grad) {
        vid d = graph_add_value(c->g, ROLE_GRAD, DTYPE_F32, t.rows, t.cols, "d.%s", t.name);
        c->g->values[v].grad = d;
    }
    return c->g->values[v].grad;
}

/* Second and later contributions to a fan-out value are summed; params gather by themselves. */
static void give(context *c, vid v, vid d) {
    if (!d || c->g->values[v].role == ROLE_PARAM) return;
    c->grad[v] = c->grad[v] ? g_add(c->g, c->grad[v], d) : d;
}

static void bwd_embed(context *c, graph_op o) {
    vid dW = target(c, IN(1));
    if (dW) EMIT(OP_embed_bwd, {GRAD(0), IN(0)}, {dW});
}

static void bwd_rms_norm(context *c, graph_op o) {
    vid dx = target(c, IN(0)), dw = target(c, IN(1));
    EMIT(OP_rms_norm_bwd, {GRAD(0), IN(0), IN(1), o.out[1]}, {dx, dw}, o.attr);
    give(c, IN(0), dx);
}

/* Backward of a product whose weight (and bias) may train; returns the gradient of x or 0. */
static vid bwd_product(context *c, vid dy, vid x, vid W, vid bias) {
    vid dx = target(c, x), dW = target(c, W), dbias = target(c, bias);
    if (dW || dbias) EMIT(OP_linear_dw, {dy, x}, {dW, dbias});
    if (dx) EMIT(OP_linear_dx, {dy, W}, {dx});
    return dx;
}

static void bwd_linear(context *c, graph_op o) { give(c, IN(0), bwd_product(c, GRAD(0), IN(0), IN(1), IN(2))); }

static void bwd_rope(context *c, graph_op o) { give(c, IN(0), g_rope(c->g, GRAD(0), IN(1), IN(2), !o.attr.inverse)); }

static void bwd_attention(context *c, graph_op o) {
    vid dq = like(c, IN(0)), dk = like(c, IN(1)), dv = like(c, IN(2));
    EMIT(OP_attention_bwd, {GRAD(0), IN(0), IN(1), IN(2), IN(3), o.out[0], o.out[1]}, {dq, dk, dv}, o.attr);
    give(c, IN(0), dq);
    give(c, IN(1), dk);
    give(c, IN(2), dv);
}

static void bwd_add(context *c, graph_op o) {
    for (int i = 0; i < 2; i++)
        if (c->wants[IN(i)]) give(c, IN(i), GRAD(0));
}

static void bwd_scale(context *c, graph_op o) { give(c, IN(0), g_scale(c->g, GRAD(0), o.attr.scale)); }

/* The same mask on the gradient. */
static void bwd_dropout(context *c, graph_op o) {
    if (c->wants[IN(0)]) give(c, IN(0), g_dropout(c->g, GRAD(0), o.attr.rate, o.attr.salt));
}

static void bwd_glu(context *c, graph_op o) {
    vid dgate = like(c, IN(0)), dup = like(c, IN(1));
    EMIT(OP_glu_bwd, {GRAD(0), IN(0), IN(1)}, {dgate, dup}, o.attr);
    give(c, IN(0), dgate);
    give(c, IN(1), dup);
}

static void bwd_cross_entropy(context *c, graph_op o) {
    vid d = like(c, IN(0));
    EMIT(OP_cross_entropy_bwd, {GRAD(0), IN(0), IN(1), o.out[1]}, {d});
    give(c, IN(0), d);
}

static void bwd_add_rms_norm(context *c, graph_op o) {
    vid dx = target(c, o.out[0]), dw = target(c, IN(2));
    EMIT(OP_rms_norm_bwd, {GRAD(1), o.out[0], IN(2), o.out[2], GRAD(0)}, {dx, dw}, o.attr);
    for (int i = 0; i < 2; i++)
        if (c->wants[IN(i)]) give(c, IN(i), dx);
}

static void bwd_linear_lora(context *c, graph_op o) {
    assert(!c->wants[IN(LORA_W)] && !(IN(LORA_BIAS) && c->wants[IN(LORA_BIAS)]));
    vid dx = target(c, IN(LORA_X)), dA = target(c, IN(LORA_A)), dB = target(c, IN(LORA_B));
    vid x = IN(LORA_A) ? IN(LORA_X) : 0;
    EMIT(OP_linear_lora_bwd, {GRAD(LORA_Y), x, IN(LORA_W), IN(LORA_A), IN(LORA_B), o.out[LORA_S]}, {dx, dA, dB},
         {.scale = o.attr.scale});
    give(c, IN(LORA_X), dx);
    if (IN(LORA_RES) && c->wants[IN(LORA_RES)]) give(c, IN(LORA_RES), GRAD(LORA_Y));
}

/* The op of this kind that wrote gradient d as its first output. */
static graph_op *written_by(context *c, op_kind kind, vid d) {
    for (int i = (int)arrlen(c->g->ops) - 1; i >= c->g->n_forward; i--)
        if (c->g->ops[i].kind == kind && c->g->ops[i].out[0] == d) return &c->g->ops[i];
    assert(!"fusing left another op between");
    return NULL;
}

/* The op that gave the gradient of a folded gate_up_glu's y (pass_fold made it the x of a linear_lora, and of nothing
 * else) goes on to those of gate and up; dy itself never is, and y, which that op makes again, need not be kept. */
static void pass_through_glu(context *c, graph_op o, vid dgate, vid dup, vid dot) {
    graph_op *down = written_by(c, OP_linear_lora_bwd, GRAD(GUG_Y));
    down->in[LORA_BWD_GATE] = o.out[GUG_GATE], down->in[LORA_BWD_UP] = o.out[GUG_UP];
    down->in[LORA_BWD_X] = down->out[LORA_BWD_DX] = 0;
    down->out[LORA_BWD_DGATE] = dgate, down->out[LORA_BWD_DUP] = dup, down->out[LORA_BWD_DOT] = dot;
    down->attr.glu = o.attr.glu;
}

/* The op that gave the gradients of norm_qkv_rope's q, k and v (pass_fuse made them operands of an attention) turns
 * those of q and k back through rope. Rope turns z and dz alike, so that dot may be taken on either side of it. */
static void pass_through_rope(context *c, graph_op o, vid dot) {
    graph_op *attention = written_by(c, OP_attention_bwd, GRAD(NQR_Q));
    assert(attention->out[ATB_DK] == GRAD(NQR_K) && attention->out[ATB_DV] == GRAD(NQR_V));
    attention->in[ATB_POS] = IN(NQR_POS), attention->in[ATB_FREQ] = IN(NQR_FREQ);
    attention->out[ATB_DOT] = dot;
}

/* The gradient of the stream that an op reads beside its norm: what it had so far is in it. */
static void take_over(context *c, vid stream, vid dx) {
    if (dx) c->grad[stream] = dx;
}

static void bwd_gate_up_glu(context *c, graph_op o) {
    vid dgate = like(c, o.out[GUG_GATE]), dup = like(c, o.out[GUG_UP]), x = IN(GUG_X);
    vid dot = IN(GUG_RSTD) ? row_dot(c, x) : 0;
    if (IN(GUG_RSTD)) pass_through_glu(c, o, dgate, dup, dot);
    else EMIT(OP_glu_bwd, {GRAD(GUG_Y), o.out[GUG_GATE], o.out[GUG_UP]}, {dgate, dup}, {.glu = o.attr.glu});
    if (c->wants[IN(GUG_WG)]) { /* full tuning */
        give(c, x, bwd_product(c, dgate, x, IN(GUG_WG), 0));
        give(c, x, bwd_product(c, dup, x, IN(GUG_WU), 0));
        return;
    }
    vid dx = target(c, x);
    graph_op b = {OP_gate_up_bwd, {dgate, dup, x}, {dx}, {.scale = o.attr.scale}};
    for (int k = 0; k < 6; k++) b.in[GUB_WG + k] = IN(GUG_WG + k);
    for (int k = 0; k < 4; k++) b.out[GUB_DAG + k] = target(c, IN(GUG_AG + k));
    b.in[GUB_SG] = o.out[GUG_SG], b.in[GUB_SU] = o.out[GUG_SU];
    if (IN(GUG_RSTD)) {
        b.in[GUB_RSTD] = IN(GUG_RSTD), b.in[GUB_NORM] = IN(GUG_NORM), b.in[GUB_DOT] = dot;
        b.in[GUB_DRES] = dot ? c->grad[x] : 0;
        graph_emit(c->g, b);
        take_over(c, x, dx);
        return;
    }
    graph_emit(c->g, b);
    give(c, x, dx);
}

/* q or k: back through its head norm, where it has one. */
static vid bwd_head_norm(context *c, graph_op o, vid d, vid before_norm, vid norm_weight, vid rstd) {
    if (!before_norm) return d;
    vid dx = like(c, before_norm), dw = target(c, norm_weight);
    op_attr attr = {.eps = o.attr.eps, .head_dim = o.attr.head_dim};
    EMIT(OP_rms_norm_bwd, {d, before_norm, norm_weight, rstd}, {dx, dw}, attr);
    return dx;
}

/* qkv_bwd of the gradients d of the three products. */
static graph_op qkv_bwd_op(context *c, graph_op o, const vid d[3], vid x, vid dx) {
    graph_op b = {OP_qkv_bwd, {d[0], d[1], d[2], x}, {dx}, {.scale = o.attr.scale}};
    for (int i = 0; i < 3; i++) b.in[QKV_WQ + i] = IN(NQR_WQ + i), b.in[QKV_SQ + i] = o.out[NQR_SQ + i];
    for (int i = 0; i < 6; i++) b.in[QKV_AQ + i] = IN(NQR_AQ + i), b.out[QKV_DAQ + i] = target(c, IN(NQR_AQ + i));
    return b;
}

static void bwd_folded_qkv(context *c, graph_op o) {
    vid x = IN(NQR_A), dot = row_dot(c, x), d[3] = {GRAD(NQR_Q), GRAD(NQR_K), GRAD(NQR_V)};
    pass_through_rope(c, o, dot);
    graph_op b = qkv_bwd_op(c, o, d, x, target(c, x));
    b.in[QKV_RSTD] = IN(NQR_RA), b.in[QKV_NORM] = IN(NQR_W), b.in[QKV_DOT] = dot;
    b.in[QKV_DRES] = dot ? c->grad[x] : 0;
    graph_emit(c->g, b);
    take_over(c, x, b.out[QKV_DX]);
}

static void bwd_norm_qkv_rope(context *c, graph_op o) {
    if (IN(NQR_RA)) {
        bwd_folded_qkv(c, o);
        return;
    }
    pass_through_rope(c, o, 0);
    vid d[3] = {bwd_head_norm(c, o, GRAD(NQR_Q), o.out[NQR_Q0], IN(NQR_NORM_Q), o.out[NQR_RQ]),
                bwd_head_norm(c, o, GRAD(NQR_K), o.out[NQR_K0], IN(NQR_NORM_K), o.out[NQR_RK]), GRAD(NQR_V)};
    vid h = o.out[NQR_H], x = o.out[NQR_SUM] ? o.out[NQR_SUM] : IN(NQR_A);
    /* h is wanted when anything above it is: the residual stream, or a trainable norm weight. */
    c->wants[h] = c->wants[x] || c->wants[IN(NQR_W)] || (IN(NQR_B) && c->wants[IN(NQR_B)]);
    if (c->wants[IN(NQR_WQ)]) { /* full tuning */
        for (int i = 0; i < 3; i++) give(c, h, bwd_product(c, d[i], h, IN(NQR_WQ + i), IN(NQR_BIAS_Q + i)));
    } else {
        vid dh = target(c, h);
        graph_emit(c->g, qkv_bwd_op(c, o, d, h, dh));
        give(c, h, dh);
    }
    if (!c->wants[h]) return;
    vid dx = target(c, x), dw = target(c, IN(NQR_W));
    vid dres = o.out[NQR_SUM] ? GRAD(NQR_SUM) : 0;
    EMIT(OP_rms_norm_bwd, {c->grad[h], x, IN(NQR_W), o.out[NQR_RSTD], dres}, {dx, dw}, {.eps = o.attr.eps});
    if (c->wants[IN(NQR_A)]) give(c, IN(NQR_A), dx);
    if (IN(NQR_B) && c->wants[IN(NQR_B)]) give(c, IN(NQR_B), dx);
}

static void bwd_linear_ce(context *c, graph_op o) {
    vid dx = target(c, IN(0)), dW = target(c, IN(1));
    EMIT(OP_linear_ce_bwd, {GRAD(0), IN(0), IN(1), IN(2), o.out[1]}, {dx, dW});
    give(c, IN(0), dx);
}

static void (*const rule[OP_COUNT])(context *, graph_op) = {
    [OP_embed] = bwd_embed,
    [OP_rms_norm] = bwd_rms_norm,
    [OP_linear] = bwd_linear,
    [OP_rope] = bwd_rope,
    [OP_attention] = bwd_attention,
    [OP_add] = bwd_add,
    [OP_scale] = bwd_scale,
    [OP_dropout] = bwd_dropout,
    [OP_glu] = bwd_glu,
    [OP_cross_entropy] = bwd_cross_entropy,
    [OP_add_rms_norm] = bwd_add_rms_norm,
    [OP_linear_lora] = bwd_linear_lora,
    [OP_gate_up_glu] = bwd_gate_up_glu,
    [OP_norm_qkv_rope] = bwd_norm_qkv_rope,
    [OP_linear_ce] = bwd_linear_ce,
};

bool backward_has_rule(op_kind kind) { return rule[kind] != NULL; }

static void mark_wanted(context *c, int n_values, int n_ops) {
    const graph *g = c->g;
    for (vid v = 1; v < n_values; v++) c->wants[v] = g->values[v].role == ROLE_PARAM && g->values[v].trainable;
    for (int i = 0; i < n_ops; i++) {
        bool any = false;
        for (int k = 0; k < GRAPH_MAX_IN; k++) any |= c->wants[g->ops[i].in[k]];
        for (int k = 0; k < GRAPH_MAX_OUT; k++)
            if (g->ops[i].out[k]) c->wants[g->ops[i].out[k]] = any;
    }
}

/* Rules write every gradient of an op; one that nobody reads (q's, when only k trains below) is taken out again. */
static void drop_unread(graph *g) {
    bool *read = xcalloc((size_t)arrlen(g->values), sizeof *read);
    int kept = (int)arrlen(g->ops);
    for (int i = (int)arrlen(g->ops) - 1; i >= g->n_forward; i--) {
        graph_op o = g->ops[i];
        bool live = false;
        for (int k = 0; k < GRAPH_MAX_OUT; k++)
            live |= o.out[k] && (read[o.out[k]] || g->values[o.out[k]].role != ROLE_TEMP);
        if (!live) continue;
        for (int k = 0; k < GRAPH_MAX_IN; k++) read[o.in[k]] = true;
        g->ops[--kept] = o;
    }
    int n = (int)arrlen(g->ops) - kept;
    for (int i = 0; i < n; i++) g->ops[g->n_forward + i] = g->ops[kept + i];
    arrsetlen(g->ops, g->n_forward + n);
    free(read);
}

void pass_backward(graph *g, vid nll, vid seed) {
    int n_values = (int)arrlen(g->values), n_ops = (int)arrlen(g->ops);
    context c = {g, xcalloc((size_t)n_values, sizeof(bool)), xcalloc((size_t)n_values, sizeof(vid))};
    mark_wanted(&c, n_values, n_ops);
    c.grad[nll] = seed;
    g->n_forward = n_ops;
    g->backward = true;
    for (int i = n_ops - 1; i >= 0; i--) {
        graph_op o = g->ops[i]; /* a copy: rules append to g->ops */
        bool reached = false;
        for (int k = 0; k < GRAPH_MAX_OUT; k++) reached |= o.out[k] && c.grad[o.out[k]] && c.wants[o.out[k]];
        if (!reached) continue;
        assert(rule[o.kind]);
        g->layer = o.layer;
        rule[o.kind](&c, o);
    }
    g->backward = false;
    g->layer = 0;
    drop_unread(g);
    free(c.wants);
    free(c.grad);
}
