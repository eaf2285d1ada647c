/* flops.c - counts the products of every op from the shapes of its operands; see flops.h. */
#include "exec/flops.h"
#include "base/array.h"

double batch_pairs(const int32_t *cu, int docs) {
    double pairs = 0;
    for (int i = 0; i < docs; i++) {
        double n = cu[i + 1] - cu[i];
        pairs += n * (n + 1) / 2;
    }
    return pairs;
}

/* Has this role, or is all of a value in pieces that has it. */
static bool is_or_whole(const graph *g, const graph_value *v, value_role role) {
    return v->role == role || (v->whole_of && g->values[v->whole_of].role == role);
}

/* Elements of the matrices (params with more than one column) among n operands. */
static double matrix_elements(const graph *g, const vid *list, int n) {
    double sum = 0;
    for (int k = 0; k < n; k++) {
        const graph_value *v = &g->values[list[k]];
        if (list[k] && is_or_whole(g, v, ROLE_PARAM) && v->cols > 1) sum += (double)value_count(v);
    }
    return sum;
}

static double gradient_elements(const graph *g, const graph_op *o) {
    double sum = 0;
    for (int k = 0; k < GRAPH_MAX_OUT; k++) {
        const graph_value *v = &g->values[o->out[k]];
        if (o->out[k] && is_or_whole(g, v, ROLE_GRAD) && v->cols > 1) sum += (double)value_count(v);
    }
    return sum;
}

double op_flops(const graph *g, const graph_op *o, const batch_info *b, double pairs) {
    double rows = b->rows, labels = b->labels;
    const graph_value *first = &g->values[o->out[0]];
    switch ((int)o->kind) {
    case OP_attention: return 4 * pairs * (double)first->cols;
    case OP_attention_bwd: return 10 * pairs * (double)first->cols;
    case OP_linear_ce:
        return 2 * labels * ((o->out[2] ? 2 : 1) * matrix_elements(g, o->in, GRAPH_MAX_IN) + gradient_elements(g, o));
    case OP_linear_ce_bwd:
        return 2 * labels * ((o->out[0] ? matrix_elements(g, o->in, GRAPH_MAX_IN) : 0) + gradient_elements(g, o));
    case OP_linear:
    case OP_linear_dx:
    case OP_linear_dw:
    case OP_linear_lora:
    case OP_gate_up_glu:
    case OP_norm_qkv_rope: return 2 * rows * (matrix_elements(g, o->in, GRAPH_MAX_IN) + gradient_elements(g, o));
    case OP_linear_lora_bwd:
    case OP_gate_up_bwd:
    case OP_qkv_bwd: { /* without dx: ds = dy B only */
        double all = matrix_elements(g, o->in, GRAPH_MAX_IN), adapters = gradient_elements(g, o);
        bool dx = o->out[0] || (o->kind == OP_linear_lora_bwd && o->out[LORA_BWD_DGATE]);
        return 2 * rows * ((dx ? all : adapters / 2) + adapters);
    }
    default: return 0;
    }
}

double graph_flops(const graph *g, const batch_info *b, double pairs) {
    double sum = 0;
    for (int i = 0; i < arrlen(g->ops); i++) {
        const graph_op *o = &g->ops[i];
        bool repeat = o->backward && (o->kind == OP_attention || o->kind == OP_linear || o->kind == OP_linear_lora ||
                                      o->kind == OP_gate_up_glu || o->kind == OP_norm_qkv_rope);
        if (!repeat) sum += op_flops(g, o, b, pairs);
    }
    return sum;
}
