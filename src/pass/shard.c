/* shard.c - communication between ranks as ops of the program; run last, after pass_layout.
 *
 * Data parallel: every rank has the whole model and its own micro-batches, so gradients are to be summed over the ranks
 * before the optimizer reads them.  They are summed in buckets: few long messages, each of which can travel while the
 * backward half goes on.  Gradients are put into buckets in the order in which the program writes them for the last
 * time; a bucket is one value that the gradients lie in.  all_reduce does nothing but in a step's last micro-batch.
 * With zero_stage 1 each param has one rank that updates it; the optimizer then sends it to the others (ZeRO stage 1 by
 * whole tensors: the sums of gradients stay as they are, because every rank needs their norm). */
#include "base/array.h"
#include "pass/pass.h"

#include <assert.h>
#include <stdlib.h>

enum { ALIGN = 64 }; /* floats: every gradient begins on 256 bytes, as without buckets */

typedef struct {
    vid v;
    int last; /* op that writes it, or something inside it, last */
    int64_t floats;
} gradient;

static int by_last_write(const void *a, const void *b) {
    const gradient *x = a, *y = b;
    return x->last != y->last ? x->last - y->last : x->v - y->v;
}

static vid storage_of(const graph *g, vid v) {
    while (g->values[v].base) v = g->values[v].base;
    return v;
}

/* Storages of gradients in the order of their last write (stb_ds). */
static gradient *find_gradients(const graph *g) {
    int n = (int)arrlen(g->values);
    int *last = xmalloc((size_t)n * sizeof *last);
    for (vid v = 0; v < n; v++) last[v] = -1;
    for (int i = 0; i < arrlen(g->ops); i++)
        for (int k = 0; k < GRAPH_MAX_OUT; k++) last[storage_of(g, g->ops[i].out[k])] = i;
    gradient *list = NULL;
    for (vid v = 1; v < n; v++) {
        if (g->values[v].role != ROLE_GRAD || g->values[v].base) continue;
        assert(last[v] >= 0 && g->values[v].type == DTYPE_F32);
        int64_t floats = value_storage(g, v) / (int64_t)sizeof(float);
        gradient one = {v, last[v], (floats + ALIGN - 1) / ALIGN * ALIGN};
        arrput(list, one);
    }
    free(last);
    qsort(list, arrlenu(list), sizeof *list, by_last_write);
    return list;
}

/* Puts n gradients into a new value. */
static vid make_bucket(graph *g, const gradient *list, int n, int number) {
    int64_t floats = 0;
    for (int i = 0; i < n; i++) floats += list[i].floats;
    vid bucket = graph_add_value(g, ROLE_GRAD, DTYPE_F32, floats, 1, "bucket.%d", number);
    floats = 0;
    for (int i = 0; i < n; i++) {
        graph_value *member = &g->values[list[i].v];
        member->ld = value_ld(g, list[i].v);
        member->own_ld = true;
        member->base = bucket;
        member->at = floats;
        floats += list[i].floats;
    }
    return bucket;
}

/* The ops anew, with an all_reduce behind op `after` for each bucket. */
static void emit_reduces(graph *g, const vid *buckets, const int *after, int n) {
    graph_op *old = g->ops;
    int n_forward = g->n_forward;
    g->ops = NULL;
    for (int i = 0, k = 0; i < arrlen(old); i++) {
        if (i == n_forward) g->n_forward = (int)arrlen(g->ops); /* the head's gradient is ready before it */
        arrput(g->ops, old[i]);
        g->layer = old[i].layer;
        g->backward = true;
        for (; k < n && after[k] == i; k++) graph_emit(g, (graph_op){OP_all_reduce, {buckets[k]}, {buckets[k]}});
    }
    g->layer = 0;
    g->backward = false;
    arrfree(old);
}

static int by_size(const void *a, const void *b) {
    const gradient *x = a, *y = b;
    if (x->floats != y->floats) return x->floats < y->floats ? 1 : -1;
    return x->v - y->v;
}

/* Trainable params to ranks: the largest first, each to the rank that has least. */
static void share_params(graph *g, const shard_options *o) {
    gradient *list = NULL;
    int64_t *load = xcalloc((size_t)o->ranks, sizeof *load);
    int mine = o->rank < 0 ? 0 : o->rank;
    for (vid v = 1; v < arrlen(g->values); v++) {
        const graph_value *value = &g->values[v];
        gradient one = {.v = v, .floats = value_count(value)};
        if (value->role == ROLE_PARAM && value->trainable && value->grad) arrput(list, one);
    }
    if (list) qsort(list, arrlenu(list), sizeof *list, by_size);
    for (int i = 0; i < arrlen(list); i++) {
        int least = 0;
        for (int r = 1; r < o->ranks; r++)
            if (load[r] < load[least]) least = r;
        load[least] += list[i].floats;
        g->values[list[i].v].owner = least;
    }
    for (int r = 0; o->rank < 0 && r < o->ranks; r++)
        if (load[r] > load[mine]) mine = r;
    for (int i = 0; i < arrlen(list); i++) g->values[list[i].v].elsewhere = g->values[list[i].v].owner != mine;
    arrfree(list);
    free(load);
}

void pass_shard(graph *g, const shard_options *o) {
    if (o->zero_stage == 1) share_params(g, o);
    gradient *list = find_gradients(g);
    vid *buckets = NULL;
    int *after = NULL, n = (int)arrlen(list);
    for (int first = 0, end; first < n; first = end) {
        int64_t bytes = 0;
        for (end = first; end < n && (end == first || bytes < o->bucket_bytes); end++)
            bytes += list[end].floats * (int64_t)sizeof(float);
        arrput(buckets, make_bucket(g, list + first, end - first, (int)arrlen(buckets)));
        arrput(after, list[end - 1].last);
    }
    emit_reduces(g, buckets, after, (int)arrlen(buckets));
    arrfree(list);
    arrfree(buckets);
    arrfree(after);
}
