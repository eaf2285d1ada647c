/* op_check.c - reads an operand pattern such as "x[N,K] W[M,K] bias?[M]" beside the values of an op and solves for the
 * symbols: the first use of a symbol fixes its size, every later one must agree.  "H*d" fixes H when d is known (from
 * attr.head_dim), "d/2" and "N+1" are derived, "1" is itself.
 * Ops that have several forms (ops.def: folded ones) are told apart by which optional operands they have; these must
 * be those of one form. */
#include "graph/op_check.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char name[16];
    int64_t size;
} symbol;

typedef struct {
    symbol table[24];
    int n;
    char *why;
    size_t room;
} solver;

static symbol *lookup(solver *s, const char *name) {
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->table[i].name, name) == 0) return &s->table[i];
    return NULL;
}

static void fix(solver *s, const char *name, int64_t size) {
    symbol *at = &s->table[s->n++];
    snprintf(at->name, sizeof at->name, "%s", name);
    at->size = size;
}

/* The size an expression stands for, or 0 when its symbol has none yet (then it is fixed to `have`). */
static int64_t expected(solver *s, const char *expr, int64_t have) {
    if (isdigit((unsigned char)expr[0])) return strtol(expr, NULL, 10);
    symbol *known = lookup(s, expr);
    if (known) return known->size;
    const char *d = strchr(expr, '*'), *tail = strpbrk(expr, "/+");
    if (tail) { /* "d/2", "N+1" */
        char base[16] = {0};
        memcpy(base, expr, (size_t)(tail - expr));
        symbol *b = lookup(s, base);
        int64_t by = strtol(tail + 1, NULL, 10);
        if (b) return *tail == '/' ? b->size / by : b->size + by;
        fix(s, base, *tail == '/' ? have * by : have - by);
        return have;
    }
    if (d) { /* "H*d": fix H too when d is known */
        symbol *width = lookup(s, d + 1);
        char heads[16] = {0};
        memcpy(heads, expr, (size_t)(d - expr));
        symbol *h = lookup(s, heads);
        if (h && width) return h->size * width->size;
        if (width && have % width->size == 0) fix(s, heads, have / width->size);
    }
    fix(s, expr, have);
    return have;
}

static bool check_dim(solver *s, const char *operand, const char *expr, int64_t have) {
    int64_t want = expected(s, expr, have);
    if (want == have) return true;
    snprintf(s->why, s->room, "operand %s: found %lld where %s = %lld is expected", operand, (long long)have, expr,
             (long long)want);
    return false;
}

/* One operand of the pattern: name, "?", "[rows(,cols)]". Moves *at past it. */
static bool check_operand(solver *s, const graph *g, const char **at, vid v) {
    char name[32] = {0}, dim[2][16] = {{0}};
    bool optional = false;
    const char *p = *at;
    while (*p == ' ') p++;
    for (size_t n = 0; *p != '[' && *p != '?'; p++) name[n++] = *p;
    if (*p == '?') optional = true, p++;
    p++;
    int dims = 0;
    for (size_t n = 0; *p != ']'; p++) {
        if (*p == ',') dims++, n = 0;
        else dim[dims][n++] = *p;
    }
    *at = p + 1;
    if (!v) {
        if (optional) return true;
        snprintf(s->why, s->room, "operand %s is absent", name);
        return false;
    }
    const graph_value *value = &g->values[v];
    if (!check_dim(s, name, dim[0], value->rows)) return false;
    if (dims == 1) return check_dim(s, name, dim[1], value->cols);
    return check_dim(s, name, "1", value->cols);
}

static bool check_list(solver *s, const graph *g, const char *pattern, const vid *ids, int room) {
    int n = op_operands(pattern);
    const char *at = pattern;
    for (int k = 0; k < n; k++)
        if (!check_operand(s, g, &at, ids[k])) return false;
    for (int k = n; k < room; k++) {
        if (!ids[k]) continue;
        snprintf(s->why, s->room, "more operands than \"%s\"", pattern);
        return false;
    }
    return true;
}

/* "a, b": both are there or neither. */
static bool paired(solver *s, vid a, vid b, const char *names) {
    if (!a == !b) return true;
    snprintf(s->why, s->room, "of the operands %s one is absent", names);
    return false;
}

/* b is there only where a is. */
static bool needs(solver *s, vid b, vid a, const char *names) {
    if (a || !b) return true;
    snprintf(s->why, s->room, "of the operands %s the second is absent", names);
    return false;
}

static bool check_form(solver *s, const graph_op *o) {
    const vid *in = o->in, *out = o->out;
    switch ((int)o->kind) {
    case OP_attention_bwd:
        return paired(s, in[ATB_POS], in[ATB_FREQ], "pos, freq") && needs(s, out[ATB_DOT], in[ATB_POS], "dot, pos");
    case OP_linear_lora:
        return paired(s, in[LORA_A], in[LORA_B], "A, B") && paired(s, in[LORA_A], out[LORA_S], "A, s") &&
               needs(s, out[LORA_RSTD], in[LORA_RES], "rstd, res");
    case OP_linear_lora_bwd:
        return paired(s, in[LORA_BWD_A], in[LORA_BWD_B], "A, B") &&
               (in[LORA_BWD_GATE] ? paired(s, 0, in[LORA_BWD_X], "gate, no x")
                                  : paired(s, in[LORA_BWD_A], in[LORA_BWD_X], "A, x")) &&
               paired(s, in[LORA_BWD_GATE], in[LORA_BWD_UP], "gate, up") &&
               paired(s, in[LORA_BWD_GATE], out[LORA_BWD_DGATE], "gate, dgate") &&
               paired(s, in[LORA_BWD_GATE], out[LORA_BWD_DUP], "gate, dup") &&
               needs(s, out[LORA_BWD_DOT], in[LORA_BWD_GATE], "dot, gate");
    case OP_gate_up_glu: return paired(s, in[GUG_RSTD], in[GUG_NORM], "rstd, w");
    case OP_gate_up_bwd:
        return paired(s, in[GUB_RSTD], in[GUB_NORM], "rstd, w") && needs(s, in[GUB_DRES], in[GUB_DOT], "dres, dot") &&
               needs(s, in[GUB_DOT], in[GUB_RSTD], "dot, rstd") &&
               (!in[GUB_RSTD] || paired(s, out[GUB_DX], in[GUB_DOT], "dx, dot"));
    case OP_norm_qkv_rope:
        return paired(s, out[NQR_H], out[NQR_RSTD], "h, rstd") && paired(s, in[NQR_B], out[NQR_SUM], "b, sum") &&
               paired(s, !in[NQR_RA], out[NQR_H], "ra, h") && needs(s, in[NQR_B], out[NQR_H], "b, h");
    case OP_qkv_bwd:
        return paired(s, in[QKV_RSTD], in[QKV_NORM], "rstd, w") && needs(s, in[QKV_DRES], in[QKV_DOT], "dres, dot") &&
               needs(s, in[QKV_DOT], in[QKV_RSTD], "dot, rstd") &&
               (!in[QKV_RSTD] || paired(s, out[QKV_DX], in[QKV_DOT], "dx, dot"));
    default: return true;
    }
}

bool op_check(const graph *g, const graph_op *op, char *why, size_t room) {
    solver s = {.why = why, .room = room};
    const char *in = op_inputs(op->kind), *out = op_outputs(op->kind);
    if (op->attr.head_dim) fix(&s, "d", op->attr.head_dim);
    if (op->attr.head_dim && op->kind == OP_rms_norm) { /* each head by itself */
        in = "x[N,H*d] w[d]";
        out = "y[N,H*d] rstd[N,H]";
    } else if (op->attr.head_dim && op->kind == OP_rms_norm_bwd) {
        in = "dy[N,H*d] x[N,H*d] w[d] rstd[N,H] dres?[N,H*d]";
        out = "dx?[N,H*d] dw?[d]";
    }
    return check_list(&s, g, in, op->in, GRAPH_MAX_IN) && check_list(&s, g, out, op->out, GRAPH_MAX_OUT) &&
           check_form(&s, op);
}
