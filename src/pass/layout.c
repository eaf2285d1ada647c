/* layout.c - where values lie, for backends whose products run on tensor cores; run last, after pass_recompute.
 *
 * One product does base and adapter, in both directions, when they lie in one matrix (docs/adr/0008):
 *       What = [ W  B ]   rows M + S      forward:  y  = [x | s] What[0:M]'      with s  = x A'
 *              [ A  0 ]   columns K + S   backward: dx = [dy | ds] What[:, 0:K]  with ds = dy B
 * W may be several weights that read the same x, one below the other (q, k, v; gate, up), B then block-diagonal.  S is
 * the sum of their ranks rounded up to 8; what is in no block stays 0.  So x and dy get S columns of room behind each
 * row, which belong to the op that is running; outputs of stacked weights lie side by side in one matrix, the
 * gradients of their A below each other. Folded forms (pass_fold) have their small operands in the scratch and need no
 * room; their W and A are stored with the columns times the norm's weight. Every trainable param gets a working copy in
 * the compute type; only masters and gradients stay float32.
 * The gradients of gate and up lie where these lay, if they have the same gaps: ops that write them read each element
 * before they write it. */
#include "base/array.h"
#include "pass/pass.h"

#include <assert.h>

enum { STACK = 3 };

typedef struct {
    int n;
    vid W[STACK], bias[STACK], A[STACK], B[STACK]; /* params; absent: 0 */
    vid fold;                                      /* the norm's weight of a folded form; 0: W and A lie as they are */
} stack;

static int64_t strip(const graph *g, const stack *s) {
    int64_t ranks = 0;
    for (int i = 0; i < s->n; i++) ranks += s->A[i] ? g->values[s->A[i]].rows : 0;
    return (ranks + 7) / 8 * 8;
}

/* The value that ops read: of a trainable param its working copy. */
static graph_value *read_value(graph *g, vid v) { return &g->values[g->values[v].working ? g->values[v].working : v]; }
static vid read_id(const graph *g, vid v) { return g->values[v].working ? g->values[v].working : v; }

/* v lies inside first's storage from element `at` on. Saying the same twice is fine. */
static void put_inside(graph *g, vid first, vid v, int64_t at) {
    graph_value *value = read_value(g, v);
    if (value == read_value(g, first)) return;
    assert(!value->base || (value->base == read_id(g, first) && value->at == at));
    assert(!value->ld && !value->storage_rows);
    value->base = read_id(g, first);
    value->at = at;
}

static void place_weights(graph *g, const stack *s) {
    int64_t S = strip(g, s), K = g->values[s->W[0]].cols, M = 0, row = 0, column = K;
    for (int i = 0; i < s->n; i++) M += g->values[s->W[i]].rows;
    graph_value *first = read_value(g, s->W[0]);
    if (first->ld) return; /* placed by another op that reads them */
    first->ld = K + S;
    first->storage_rows = M + S;
    for (int i = 0; i < s->n; i++) {
        put_inside(g, s->W[0], s->W[i], row * (K + S));
        if (s->bias[0]) put_inside(g, s->bias[0], s->bias[i], row);
        if (s->A[i]) {
            put_inside(g, s->W[0], s->A[i], (M + column - K) * (K + S));
            put_inside(g, s->W[0], s->B[i], row * (K + S) + column);
            column += g->values[s->A[i]].rows;
        }
        row += g->values[s->W[i]].rows;
    }
    if (s->bias[0] && s->n > 1) read_value(g, s->bias[0])->storage_rows = M;
}

/* Room behind the rows of x or dy. A value that lies inside another has none; its product then adds the adapter apart.
 */
static void make_room(graph *g, vid v, int64_t columns) {
    graph_value *value = &g->values[v];
    if (value->base || value->role != ROLE_TEMP || !columns) return;
    if (value->ld < value->cols + columns) value->ld = value->cols + columns;
}

/* Values of N rows side by side in one matrix, with room behind. */
static void put_beside(graph *g, const vid *list, int n, int64_t room) {
    int64_t column = 0;
    vid first = 0;
    for (int i = 0; i < n; i++) {
        if (!list[i]) continue;
        if (!first) first = list[i];
        if (first != list[i]) put_inside(g, first, list[i], column);
        column += g->values[list[i]].cols;
    }
    if (first && g->values[first].ld < column + room) g->values[first].ld = column + room;
}

/* The gradients of a stack's A below each other: one product gives them all. Every second of `list` is one; only where
 * their rows are whole vectors, so that each begins on one. */
static void put_below(graph *g, const vid *list, int n) {
    int64_t row = 0;
    vid first = 0;
    for (int i = 0; i < 2 * n; i += 2) {
        if (!list[i]) continue;
        if (!first) first = list[i];
        if (g->values[first].cols % 4 || g->values[first].role != ROLE_GRAD) return;
        if (first != list[i]) put_inside(g, first, list[i], row * g->values[first].cols);
        row += g->values[list[i]].rows;
    }
    if (first && row > g->values[first].rows) g->values[first].storage_rows = row;
}

static void fold_weights(graph *g, const stack *s) {
    for (int i = 0; i < s->n; i++) {
        vid both[] = {s->W[i], s->A[i]};
        for (int k = 0; k < 2 && s->fold; k++) {
            if (!both[k]) continue;
            assert(!g->values[both[k]].fold || g->values[both[k]].fold == s->fold);
            g->values[both[k]].fold = s->fold;
        }
    }
}

static vid norm_of(const graph_op *o) {
    switch ((int)o->kind) {
    case OP_gate_up_glu: return o->in[GUG_NORM];
    case OP_gate_up_bwd: return o->in[GUB_NORM];
    case OP_norm_qkv_rope: return o->in[NQR_RA] ? o->in[NQR_W] : 0;
    case OP_qkv_bwd: return o->in[QKV_NORM];
    default: return 0;
    }
}

static stack stack_of(const graph_op *o) {
    stack s = {.n = 1};
    int W = LORA_W, bias = -1, A = LORA_A;
    if (o->kind == OP_linear_lora) bias = LORA_BIAS;
    else if (o->kind == OP_linear_lora_bwd) W = LORA_BWD_W, A = LORA_BWD_A;
    else if (o->kind == OP_gate_up_glu) s.n = 2, W = GUG_WG, A = GUG_AG;
    else if (o->kind == OP_gate_up_bwd) s.n = 2, W = GUB_WG, A = GUB_AG;
    else if (o->kind == OP_norm_qkv_rope) s.n = 3, W = NQR_WQ, bias = NQR_BIAS_Q, A = NQR_AQ;
    else s.n = 3, W = QKV_WQ, A = QKV_AQ;
    for (int i = 0; i < s.n; i++) {
        s.W[i] = o->in[W + i];
        s.bias[i] = bias < 0 ? 0 : o->in[bias + i];
        s.A[i] = o->in[A + 2 * i];
        s.B[i] = o->in[A + 2 * i + 1];
    }
    s.fold = norm_of(o);
    return s;
}

static void place_op(graph *g, const graph_op *o) {
    stack s = stack_of(o);
    int64_t S = strip(g, &s);
    place_weights(g, &s);
    fold_weights(g, &s);
    if (s.fold || (o->kind == OP_linear_lora && o->in[LORA_RES])) S = 0; /* needs no room */
    if (o->kind == OP_linear_lora_bwd && o->in[LORA_BWD_GATE]) S = 0;
    switch ((int)o->kind) {
    case OP_linear_lora: make_room(g, o->in[LORA_X], S); break;
    case OP_linear_lora_bwd: make_room(g, o->in[LORA_BWD_DY], S); break;
    case OP_gate_up_glu:
        make_room(g, o->in[GUG_X], S);
        put_beside(g, &o->out[GUG_GATE], 2, 0);
        put_beside(g, &o->out[GUG_SG], 2, 0);
        break;
    case OP_gate_up_bwd:
        put_beside(g, &o->in[GUB_DGATE], 2, S);
        put_below(g, &o->out[GUB_DAG], 2);
        break;
    case OP_norm_qkv_rope: {
        bool norms = o->out[NQR_Q0] != 0;
        vid products[STACK] = {o->out[norms ? NQR_Q0 : NQR_Q], o->out[norms ? NQR_K0 : NQR_K], o->out[NQR_V]};
        if (o->out[NQR_H]) make_room(g, o->out[NQR_H], S);
        put_beside(g, products, STACK, 0);
        put_beside(g, &o->out[NQR_SQ], STACK, 0);
        break;
    }
    default:
        put_beside(g, &o->in[QKV_DQ], STACK, S);
        put_below(g, &o->out[QKV_DAQ], STACK);
        break;
    }
}

/* A dq that lies alone gets q's row stride: cuDNN's backward knows one for both. */
static void align_query_gradient(graph *g, const graph_op *o) {
    graph_value *dq = &g->values[o->out[ATB_DQ]];
    int64_t ld = value_ld(g, o->in[ATB_Q]);
    if (!dq->base && dq->role == ROLE_TEMP && dq->ld < ld) dq->ld = ld;
}

/* The types that ops see: frozen params in the compute type, trainable ones through a copy of it. */
static void choose_types(graph *g) {
    int n = (int)arrlen(g->values);
    for (vid v = 1; v < n; v++) {
        graph_value value = g->values[v];
        if (value.role != ROLE_PARAM) continue;
        if (!value.trainable) {
            g->values[v].type = g->compute;
            continue;
        }
        g->layer = value.layer;
        vid copy = graph_add_value(g, ROLE_STATE, g->compute, value.rows, value.cols, "working.%s", value.name);
        g->values[v].working = copy;
    }
    g->layer = 0;
}

static bool reads(const graph_op *o, vid v) {
    for (int k = 0; k < GRAPH_MAX_IN; k++)
        if (o->in[k] == v) return true;
    return false;
}

/* dgate and dup take the place of gate and up behind op i, the last to read those, where they lie alike: both pairs
 * side by side, without room. */
static void put_in_place(graph *g, int i, const vid *in, const vid *out) {
    if (!in[0] || !in[1] || !out[0] || !out[1]) return;
    graph_value *gate = &g->values[in[0]], *up = &g->values[in[1]], *dgate = &g->values[out[0]],
                *dup = &g->values[out[1]];
    bool alike = gate->role == ROLE_TEMP && dgate->role == ROLE_TEMP && gate->type == dgate->type && !gate->base &&
                 !dgate->base && up->base == in[0] && dup->base == out[0] && up->at == dup->at &&
                 value_ld(g, in[0]) == value_ld(g, out[0]);
    for (int j = i + 1; alike && j < arrlen(g->ops); j++)
        alike = !reads(&g->ops[j], in[0]) && !reads(&g->ops[j], in[1]);
    if (!alike) return;
    dgate->base = dup->base = in[0];
    dgate->ld = 0;
}

void pass_layout(graph *g) {
    choose_types(g);
    for (int i = 0; i < arrlen(g->ops); i++) {
        op_kind kind = g->ops[i].kind;
        bool products = kind == OP_linear_lora || kind == OP_linear_lora_bwd || kind == OP_gate_up_glu ||
                        kind == OP_gate_up_bwd || kind == OP_norm_qkv_rope || kind == OP_qkv_bwd;
        if (products) place_op(g, &g->ops[i]);
    }
    for (int i = 0; i < arrlen(g->ops); i++)
        if (g->ops[i].kind == OP_attention_bwd) align_query_gradient(g, &g->ops[i]);
    for (int i = 0; i < arrlen(g->ops); i++) {
        const graph_op *o = &g->ops[i];
        if (o->kind == OP_linear_lora_bwd) put_in_place(g, i, &o->in[LORA_BWD_GATE], &o->out[LORA_BWD_DGATE]);
        if (o->kind == OP_glu_bwd) put_in_place(g, i, &o->in[1], &o->out[0]);
    }
}
