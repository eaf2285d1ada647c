/* graph.c - values, ops and the typed builders. The shape rules live in op_check.c, as the patterns of ops.def. */
#include "graph/graph.h"
#include "base/array.h"
#include "graph/op_check.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

static const struct {
    const char *name, *in, *out;
} op_info[OP_COUNT] = {
#define OP(kind, in, out) {#kind, in, out},
#include "graph/ops.def"
#undef OP
};

const char *op_name(op_kind kind) { return op_info[kind].name; }
const char *op_inputs(op_kind kind) { return op_info[kind].in; }
const char *op_outputs(op_kind kind) { return op_info[kind].out; }

int op_operands(const char *list) {
    int n = 0;
    for (const char *p = list; *p; p++) n += *p == '[';
    return n;
}

int64_t value_count(const graph_value *v) { return v->rows * v->cols; }
int64_t value_bytes(const graph_value *v) { return value_count(v) * (int64_t)dtype_size(v->type); }

static int64_t storage_rows(const graph_value *v) { return v->storage_rows ? v->storage_rows : v->rows; }
static int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

/* Its pieces are rows of its storage. */
static bool in_rows(const graph_value *v) { return v->parts && (v->ld || v->storage_rows); }

int64_t value_part(const graph_value *v) {
    const int64_t align = 64; /* elements: pieces begin on whole lines of the cache, whatever the type */
    int64_t n = value_count(v);
    if (in_rows(v)) return ceil_div(storage_rows(v), v->parts) * (v->ld ? v->ld : v->cols);
    return v->parts ? ceil_div(ceil_div(n, v->parts), align) * align : n;
}

int64_t value_piece(const graph_value *v, int64_t *n) {
    int64_t room = value_part(v), first = v->part * room, rest = value_count(v) - first;
    *n = rest < 0 ? 0 : rest < room ? rest : room;
    return *n ? first : 0;
}

kept_rows value_kept(const graph *g, vid v) {
    const graph_value *value = &g->values[v], *in = &g->values[value->base ? value->base : v];
    kept_rows k = {0, value->rows, value->at};
    if (!in_rows(in)) return k;
    int64_t ld = value_ld(g, v), rows = value_part(in) / ld, begin = in->part * rows - value->at / ld;
    int64_t end = begin + rows < k.n ? begin + rows : k.n;
    if (begin > 0) k.first = begin;
    k.n = end > k.first ? end - k.first : 0;
    k.at += k.first * ld - in->part * value_part(in);
    return k;
}

int64_t value_ld(const graph *g, vid v) {
    const graph_value *value = &g->values[v];
    if (value->base && !value->own_ld) return value_ld(g, value->base);
    return value->ld ? value->ld : value->cols;
}

int64_t value_room(const graph *g, vid v) {
    const graph_value *value = &g->values[v];
    int64_t ld = value_ld(g, v), end = value->at % (ld ? ld : 1) + value->cols;
    if (value->role != ROLE_TEMP || ld <= value->cols) return 0;
    vid storage = value->base ? value->base : v;
    for (vid other = 1; other < arrlen(g->values); other++) {
        const graph_value *o = &g->values[other];
        if ((other == storage || o->base == storage) && o->at % ld + o->cols > end) return 0;
    }
    return ld - end;
}

int64_t value_storage(const graph *g, vid v) {
    const graph_value *value = &g->values[v];
    if (value->base) return 0;
    if (value->parts) return value_part(value) * (int64_t)dtype_size(value->type);
    return storage_rows(value) * value_ld(g, v) * (int64_t)dtype_size(value->type);
}

void graph_init(graph *g, dtype compute) {
    *g = (graph){.compute = compute};
    arrput(g->values, (graph_value){.name = "none"});
}

void graph_free(graph *g) {
    arrfree(g->values);
    arrfree(g->ops);
    arrfree(g->notes);
    arena_free(&g->names);
    *g = (graph){0};
}

vid graph_find(const graph *g, const char *name) {
    for (vid v = 1; v < arrlen(g->values); v++)
        if (strcmp(g->values[v].name, name) == 0) return v;
    return 0;
}

vid graph_add_value(graph *g, value_role role, dtype type, int64_t rows, int64_t cols, const char *format, ...) {
    char name[256];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    assert(rows > 0 && cols > 0);
    graph_value v = {.name = arena_strdup(&g->names, name),
                     .type = type,
                     .role = role,
                     .rows = rows,
                     .cols = cols,
                     .layer = g->layer};
    arrput(g->values, v);
    return (vid)arrlen(g->values) - 1;
}

graph_op *graph_emit(graph *g, graph_op op) {
    op.layer = g->layer;
    op.backward = g->backward;
    char why[256];
    if (!op_check(g, &op, why, sizeof why)) {
        fprintf(stderr, "malformed op %s: %s\n", op_name(op.kind), why);
        assert(!"malformed op");
    }
    arrput(g->ops, op);
    return &g->ops[arrlen(g->ops) - 1];
}

static void print_operands(const graph *g, FILE *out, const vid *ids, int n, bool shapes) {
    for (int k = 0, printed = 0; k < n; k++) {
        if (!ids[k]) continue;
        const graph_value *v = &g->values[ids[k]];
        fprintf(out, "%s%s", printed++ ? ", " : "", v->name);
        if (!shapes) continue;
        if (v->cols == 1) fprintf(out, "[%lld]", (long long)v->rows);
        else fprintf(out, "[%lld,%lld]", (long long)v->rows, (long long)v->cols);
    }
}

void graph_print(const graph *g, FILE *out, bool explain) {
    for (int i = 0; i < arrlen(g->ops); i++) {
        const graph_op *o = &g->ops[i];
        fprintf(out, "%5d %s L%-2d ", i, o->backward ? "bwd" : "fwd", o->layer);
        print_operands(g, out, o->out, GRAPH_MAX_OUT, true);
        fprintf(out, " = %s(", op_name(o->kind));
        print_operands(g, out, o->in, GRAPH_MAX_IN, false);
        fprintf(out, ")\n");
        if (explain) fprintf(out, "              %s  ->  %s\n", op_inputs(o->kind), op_outputs(o->kind));
    }
}

#define ROWS(v)   g->values[v].rows
#define COLS(v)   g->values[v].cols
#define EMIT(...) graph_emit(g, (graph_op){__VA_ARGS__})

/* A temporary of the compute type; its id makes the name unique. */
static vid temp(graph *g, int64_t rows, int64_t cols, const char *what) {
    return graph_add_value(g, ROLE_TEMP, g->compute, rows, cols, "%s.%d", what, (int)arrlen(g->values));
}
/* A float32 temporary: per-row statistics and losses, whatever the compute type. */
static vid stat(graph *g, int64_t rows, int64_t cols, const char *what) {
    return graph_add_value(g, ROLE_TEMP, DTYPE_F32, rows, cols, "%s.%d", what, (int)arrlen(g->values));
}

vid g_embed(graph *g, vid ids, vid W) {
    vid y = temp(g, ROWS(ids), COLS(W), "embed");
    EMIT(OP_embed, {ids, W}, {y});
    return y;
}

vid g_rms_norm(graph *g, vid x, vid w, float eps) {
    int64_t width = ROWS(w), heads = COLS(x) / width;
    vid y = temp(g, ROWS(x), COLS(x), "norm"), rstd = stat(g, ROWS(x), heads, "rstd");
    EMIT(OP_rms_norm, {x, w}, {y, rstd}, {.eps = eps, .head_dim = width == COLS(x) ? 0 : (int)width});
    return y;
}

vid g_linear(graph *g, vid x, vid W, vid bias) {
    vid y = temp(g, ROWS(x), ROWS(W), "linear");
    EMIT(OP_linear, {x, W, bias}, {y});
    return y;
}

vid g_rope(graph *g, vid x, vid pos, vid freq, bool inverse) {
    vid y = temp(g, ROWS(x), COLS(x), "rope");
    EMIT(OP_rope, {x, pos, freq}, {y}, {.head_dim = (int)ROWS(freq) * 2, .inverse = inverse});
    return y;
}

vid g_attention(graph *g, vid q, vid k, vid v, vid cu, int head_dim, int window, float scale) {
    vid o = temp(g, ROWS(q), COLS(q), "attention"), lse = stat(g, ROWS(q), COLS(q) / head_dim, "lse");
    EMIT(OP_attention, {q, k, v, cu}, {o, lse}, {.head_dim = head_dim, .window = window, .scale = scale});
    return o;
}

vid g_attention_cached(graph *g, vid q, vid k, vid v, vid pos, int n_context, op_attr attr) {
    vid o = temp(g, ROWS(q), COLS(q), "attention");
    vid kc = graph_add_value(g, ROLE_STATE, g->compute, n_context, COLS(k), "layers.%d.key_cache", g->layer - 1);
    vid vc = graph_add_value(g, ROLE_STATE, g->compute, n_context, COLS(k), "layers.%d.value_cache", g->layer - 1);
    EMIT(OP_attention_cached, {q, k, v, pos}, {o, kc, vc}, attr);
    return o;
}

vid g_gather(graph *g, vid x, vid index) {
    vid y = temp(g, ROWS(index), COLS(x), "gather");
    EMIT(OP_gather, {x, index}, {y});
    return y;
}

vid g_add(graph *g, vid a, vid b) {
    vid y = temp(g, ROWS(a), COLS(a), "add");
    EMIT(OP_add, {a, b}, {y});
    return y;
}

vid g_scale(graph *g, vid x, float by) {
    vid y = temp(g, ROWS(x), COLS(x), "scale");
    EMIT(OP_scale, {x}, {y}, {.scale = by});
    return y;
}

vid g_dropout(graph *g, vid x, float rate, uint32_t salt) {
    vid y = temp(g, ROWS(x), COLS(x), "dropout");
    EMIT(OP_dropout, {x}, {y}, {.rate = rate, .salt = salt});
    return y;
}

vid g_glu(graph *g, vid gate, vid up, glu_kind kind) {
    vid y = temp(g, ROWS(gate), COLS(gate), "glu");
    EMIT(OP_glu, {gate, up}, {y}, {.glu = kind});
    return y;
}

vid g_cross_entropy(graph *g, vid logits, vid target) {
    vid nll = stat(g, ROWS(logits), 1, "nll"), lse = stat(g, ROWS(logits), 1, "lse");
    EMIT(OP_cross_entropy, {logits, target}, {nll, lse});
    return nll;
}

vid g_weighted_sum(graph *g, vid x, vid weight, const char *name) {
    vid sum = graph_add_value(g, ROLE_OUTPUT, DTYPE_F32, 1, 1, "%s", name);
    EMIT(OP_weighted_sum, {x, weight}, {sum});
    return sum;
}
