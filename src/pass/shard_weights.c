/* shard_weights.c - weights in pieces, one at each rank, as ops of the program; run before pass_shard.
 *
 * Every rank keeps one piece of each frozen matrix (vectors, which are few numbers, stay whole), and with ZeRO stage 3
 * of each trained param.  all_gather brings the pieces together into a temporary, so that the plan's arena holds a
 * layer's weights only while they are used.  A gather stands a layer ahead of the first use: what a backend does beside
 * other work is then there when it is read. The backward half gathers anew; what two neighbouring layers read (the head
 * in the last of the forward half and the first of the backward half) is gathered once.  Gathered bits are those of the
 * files: the run is the one of a whole base.
 *
 * Where pass_layout put several values into one storage, ops find them so in the temporary too. A frozen weight's
 * storage, with what else lies in it (other weights, the adapter's working copies, zeros), is spread as it is, by rows:
 * one gather brings it all, and each rank publishes the rows of an adapter that it keeps. Trained weights are spread
 * one by one, as their masters are, and gathered below each other: in their order, because the last piece of each may
 * reach into the next. */
#include "base/array.h"
#include "pass/pass.h"

#include <assert.h>
#include <stdlib.h>

/* Ops that follow each other in one layer and one half. */
typedef struct {
    int first; /* op */
    bool backward;
} segment;

typedef struct {
    int ahead; /* the segment in front of which it runs */
    vid part, whole;
} gather;

/* Of a value that ops read. */
typedef struct {
    vid param;  /* whose weights it has */
    vid in;     /* the value whose storage it lies in, itself or another, before anything was spread; 0: stays whole */
    int64_t at; /* from this element on */
    vid whole;  /* its last gather; 0: none */
    int used;   /* of `in`: the last segment that reads what lies there */
} spread;

static segment *find_segments(const graph *g) {
    segment *list = NULL;
    for (int i = 0; i < arrlen(g->ops); i++) {
        if (i > 0 && i != g->n_forward && g->ops[i].layer == g->ops[i - 1].layer) continue;
        segment one = {i, i >= g->n_forward};
        arrput(list, one);
    }
    return list;
}

/* ---- what is spread ---- */

static vid read_id(const graph *g, vid v) { return g->values[v].working ? g->values[v].working : v; }
static vid storage_of(const graph *g, vid v) { return g->values[v].base ? g->values[v].base : v; }

static bool is_spread(const graph_value *v, const shard_options *o) {
    bool trained = v->trainable && v->grad && o->zero_stage == 3, frozen = !v->trainable && v->cols > 1 && o->base;
    return v->role == ROLE_PARAM && (trained || frozen);
}

static void cut(graph_value *v, const shard_options *o) {
    v->parts = o->ranks;
    v->part = o->rank < 0 ? 0 : o->rank;
}

static void cut_trained(graph_value *v, const shard_options *o) {
    v->base = 0, v->at = 0, v->ld = 0, v->storage_rows = 0;
    cut(v, o);
}

/* [values] */
static spread *mark(graph *g, const shard_options *o) {
    int n = (int)arrlen(g->values);
    spread *state = xcalloc((size_t)n, sizeof *state);
    bool *stores = xcalloc((size_t)n, sizeof *stores); /* something in it is spread */
    for (vid v = 1; v < n; v++)
        if (is_spread(&g->values[v], o)) stores[storage_of(g, read_id(g, v))] = true;
    for (vid v = 1; v < n; v++) {
        vid read = read_id(g, v), in = storage_of(g, read);
        if (g->values[v].role != ROLE_PARAM || !stores[in]) continue;
        assert(read >= in); /* the first of what lies there, as pass_layout has it */
        state[read] = (spread){.param = v, .in = in, .at = g->values[read].at};
    }
    for (vid v = 1; v < n; v++) {
        if (!is_spread(&g->values[v], o)) continue;
        if (!g->values[v].trainable) {
            if (!g->values[v].base) cut(&g->values[v], o);
            continue;
        }
        if (g->values[v].working) cut_trained(&g->values[g->values[v].working], o);
        cut_trained(&g->values[v], o);
    }
    free(stores);
    return state;
}

/* ---- gathers ---- */

/* What a gather writes, from element `at` of its storage on, ends here. */
static int64_t end_of(const graph_value *piece, int64_t at) { return at + piece->parts * value_part(piece); }

/* Temporaries for all that lies in the storage of `in`, and the gathers that fill them. */
static void add_wholes(graph *g, spread *state, int n_values, vid in, int ahead, gather **list) {
    vid storage = 0;
    int64_t end = 0;
    for (vid v = in; v < n_values; v++) {
        if (state[v].in != in) continue;
        graph_value like = g->values[v];
        vid whole = graph_add_value(g, ROLE_TEMP, like.type, like.rows, like.cols, "gathered.%d.%s", (int)arrlen(*list),
                                    g->values[state[v].param].name);
        if (!storage) storage = whole, g->values[whole].ld = like.ld;
        else g->values[whole].base = storage, g->values[whole].at = state[v].at;
        g->values[whole].whole_of = state[v].param;
        state[v].whole = whole;
        if (!like.parts) continue; /* comes with the storage */
        if (end_of(&like, state[v].at) > end) end = end_of(&like, state[v].at);
        gather one = {ahead, state[v].param, whole};
        arrput(*list, one);
    }
    int64_t ld = value_ld(g, storage);
    g->values[storage].storage_rows = (end + ld - 1) / ld;
}

/* Lets every op read gathered matrices; the gathers that this takes, in the order in which they are read (stb_ds). */
static gather *redirect(graph *g, const segment *segments, spread *state) {
    gather *list = NULL;
    int s = 0, n_values = (int)arrlen(g->values);
    for (int i = 0; i < arrlen(g->ops); i++) {
        if (s + 1 < arrlen(segments) && segments[s + 1].first == i) s++;
        for (int k = 0; k < GRAPH_MAX_IN; k++) {
            vid v = g->ops[i].in[k] < n_values ? read_id(g, g->ops[i].in[k]) : 0, in = state[v].in;
            if (!in) continue;
            if (!state[in].whole || s > state[in].used + 1) {
                bool begins = s == 0 || segments[s - 1].backward != segments[s].backward;
                add_wholes(g, state, n_values, in, begins ? s : s - 1, &list);
            }
            state[in].used = s;
            g->ops[i].in[k] = state[v].whole;
        }
    }
    return list;
}

static int by_place(const void *a, const void *b) {
    const gather *x = a, *y = b;
    return x->ahead != y->ahead ? x->ahead - y->ahead : x->whole - y->whole;
}

/* The ops anew, with the gathers in front of their segments. */
static void emit_gathers(graph *g, const segment *segments, const gather *list) {
    graph_op *old = g->ops;
    int n_forward = g->n_forward, s = 0, k = 0;
    g->ops = NULL;
    for (int i = 0; i < arrlen(old); i++) {
        if (i == n_forward) g->n_forward = (int)arrlen(g->ops);
        if (s < arrlen(segments) && segments[s].first == i) {
            g->layer = old[i].layer;
            g->backward = segments[s].backward;
            for (; k < arrlen(list) && list[k].ahead == s; k++)
                graph_emit(g, (graph_op){OP_all_gather, {list[k].part}, {list[k].whole}});
            s++;
        }
        arrput(g->ops, old[i]);
    }
    if (n_forward == arrlen(old)) g->n_forward = (int)arrlen(g->ops);
    assert(k == arrlen(list));
    g->layer = 0;
    g->backward = false;
    arrfree(old);
}

void pass_shard_weights(graph *g, const shard_options *o) {
    spread *state = mark(g, o);
    segment *segments = find_segments(g);
    gather *list = redirect(g, segments, state);
    if (list) qsort(list, arrlenu(list), sizeof *list, by_place);
    emit_gathers(g, segments, list);
    arrfree(segments);
    arrfree(list);
    free(state);
}
