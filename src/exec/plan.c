/* plan.c - gives every temporary, and what an op needs beside its operands, an offset in one arena.
 *
 * Lifetimes come from the op list: from the first op that touches a value to the last; an op's scratch lives while it
 * runs.  Placement goes largest first, at the lowest offset that is free for the whole lifetime; no allocator, no free
 * list. */
#include "exec/plan.h"
#include "base/array.h"

#include <stdlib.h>

enum { ALIGN = 256 };

typedef struct {
    vid v; /* -1 - i: the scratch of op i */
    int first, last;
    int64_t bytes, offset;
} span;

static int by_size(const void *a, const void *b) {
    const span *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->v - y->v;
}

/* Half a billion GiB: a config.json may describe more than 64 bits count, and a sum stays here then. */
static int64_t clip(int64_t bytes) {
    const int64_t most = (int64_t)1 << 59;
    return bytes < most ? bytes : most;
}
static void add(int64_t *sum, int64_t bytes) { *sum = clip(*sum + clip(bytes)); }

static int64_t aligned(int64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

/* A value inside another's storage keeps that one alive. */
static void touch(span *s, const graph *g, vid v, int op) {
    while (g->values[v].base) v = g->values[v].base;
    if (s[v].first < 0) s[v].first = op;
    s[v].last = op;
}

/* On a device where reduce_scatter and to_host go on beside other work, what they read is there until the next of the
 * kind sets out. */
static void find_lifetimes(span *s, const graph *g, bool beside) {
    vid scattered = 0, sent = 0;
    for (int i = 0; i < arrlen(g->ops); i++) {
        const graph_op *o = &g->ops[i];
        vid *under_way = o->kind == OP_reduce_scatter ? &scattered : o->kind == OP_to_host ? &sent : NULL;
        if (beside && under_way) {
            if (*under_way) touch(s, g, *under_way, i);
            *under_way = o->in[0];
        }
        for (int k = 0; k < GRAPH_MAX_IN; k++) touch(s, g, o->in[k], i);
        for (int k = 0; k < GRAPH_MAX_OUT; k++) touch(s, g, o->out[k], i);
    }
}

/* Lowest offset at which s fits between the placed spans that live at the same time; `live` is sorted by offset. */
static int64_t lowest_gap(span *const *live, int n, int64_t bytes) {
    int64_t at = 0;
    for (int j = 0; j < n && live[j]->offset < at + bytes; j++) {
        int64_t end = clip(live[j]->offset + live[j]->bytes);
        if (end > at) at = end;
    }
    return at;
}

/* Places the n spans of `s`; `placed` and `live` are work space. Placed spans are kept sorted by offset. */
static int64_t place(span *s, int n, span **placed, span **live, bool planned) {
    int64_t top = 0;
    int n_placed = 0;
    for (int i = 0; i < n; i++) {
        int n_live = 0;
        for (int j = 0; j < n_placed; j++)
            if (placed[j]->first <= s[i].last && s[i].first <= placed[j]->last) live[n_live++] = placed[j];
        s[i].offset = planned ? lowest_gap(live, n_live, s[i].bytes) : top;
        int64_t end = clip(s[i].offset + s[i].bytes);
        if (end > top) top = end;
        int at = n_placed++;
        for (; at > 0 && placed[at - 1]->offset > s[i].offset; at--) placed[at] = placed[at - 1];
        placed[at] = &s[i];
    }
    return top;
}

/* Of one moment of a trained param of so many bytes. */
static int64_t moment_bytes(const graph *g, const graph_value *v, int64_t bytes) {
    const graph_value *gradient = &g->values[v->grad];
    if (v->grad && gradient->parts) return aligned(value_part(gradient) * (int64_t)dtype_size(gradient->type));
    return v->elsewhere ? 0 : bytes;
}

static void add_persistent(plan *p, const graph *g, vid id) {
    const graph_value *v = &g->values[id];
    int64_t bytes = aligned(value_storage(g, id));
    switch (v->role) {
    case ROLE_PARAM:
        add(&p->params, bytes);
        if (v->trainable) add(&p->trainable, bytes), add(&p->moments, 2 * moment_bytes(g, v, bytes));
        break;
    case ROLE_GRAD: add(&p->grads, bytes); break;
    case ROLE_INPUT: add(&p->inputs, bytes); break;
    case ROLE_STATE:
    case ROLE_OUTPUT: add(&p->outputs, bytes); break;
    case ROLE_HOST: add(&p->host, bytes); break;
    case ROLE_TEMP: break;
    }
}

void plan_make(plan *p, const graph *g, const backend *b, bool planned) {
    int n_values = (int)arrlen(g->values), n_ops = (int)arrlen(g->ops), n = 0;
    span *s = xcalloc((size_t)(n_values + n_ops), sizeof *s);
    *p = (plan){.offset = xmalloc((size_t)n_values * sizeof *p->offset),
                .scratch = xmalloc((size_t)(n_ops + 1) * sizeof *p->scratch)};
    for (vid v = 0; v < n_values; v++) s[v] = (span){.v = v, .first = -1, .last = -1}, p->offset[v] = -1;
    find_lifetimes(s, g, b && !b->host_memory);
    for (vid v = 1; v < n_values; v++) {
        const graph_value *value = &g->values[v];
        add_persistent(p, g, v);
        if (value->role != ROLE_TEMP || value->base || s[v].first < 0) continue;
        s[v].bytes = clip(aligned(value_storage(g, v)));
        add(&p->naive, s[v].bytes);
        s[n++] = s[v];
    }
    for (int i = 0; i < n_ops; i++) {
        int64_t bytes = b ? clip(aligned((int64_t)b->scratch(g, &g->ops[i]))) : 0;
        p->scratch[i] = (op_scratch){0, bytes};
        if (!bytes) continue;
        add(&p->naive, bytes);
        s[n++] = (span){.v = -1 - i, .first = i, .last = i, .bytes = bytes};
    }
    qsort(s, (size_t)n, sizeof *s, by_size);
    span **work = xmalloc(2 * (size_t)(n + 1) * sizeof *work);
    p->arena = place(s, n, work, work + n + 1, planned);
    for (int i = 0; i < n; i++) *(s[i].v < 0 ? &p->scratch[-1 - s[i].v].at : &p->offset[s[i].v]) = s[i].offset;
    p->overhead = b && b->overhead ? (int64_t)b->overhead() : 0;
    p->total = p->params + p->grads + p->moments + p->inputs + p->outputs + p->arena;
    if (b && b->host_memory) add(&p->total, p->host);
    free(work);
    free(s);
}

void plan_free(plan *p) {
    free(p->offset);
    free(p->scratch);
    *p = (plan){0};
}
