/* shard_weights.c - weights in pieces, one at each rank, as ops of the program; run before pass_shard.
 *
 * Every rank keeps one piece of each frozen matrix (vectors, which are few numbers, stay whole), and with ZeRO stage 3
 * of each trained param.  all_gather brings the pieces together into a temporary, so that the plan's arena holds a
 * layer's weights only while they are used.  A gather stands a layer ahead of the first use: what a backend does beside
 * other work is then there when it is read. The backward half gathers anew; what two neighbouring layers read (the head
 * in the last of the forward half and the first of the backward half) is gathered once.  Gathered bits are those of the
 * files: the run is the one of a whole base. */
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

typedef struct {
    vid whole; /* its last gather; 0: none */
    int used;  /* the last segment that reads that */
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

/* A temporary with room for all pieces of v. */
static vid add_whole(graph *g, vid v, int number) {
    graph_value like = g->values[v];
    vid whole = graph_add_value(g, ROLE_TEMP, like.type, like.rows, like.cols, "gathered.%d.%s", number, like.name);
    g->values[whole].storage_rows = (like.parts * value_part(&like) + like.cols - 1) / like.cols;
    g->values[whole].whole_of = v;
    return whole;
}

/* Lets every op read gathered matrices; the gathers that this takes, in the order in which they are read (stb_ds). */
static gather *redirect(graph *g, const segment *segments) {
    spread *state = xcalloc((size_t)arrlen(g->values), sizeof *state);
    gather *list = NULL;
    int s = 0, n_values = (int)arrlen(g->values);
    for (int i = 0; i < arrlen(g->ops); i++) {
        if (s + 1 < arrlen(segments) && segments[s + 1].first == i) s++;
        for (int k = 0; k < GRAPH_MAX_IN; k++) {
            vid v = g->ops[i].in[k];
            if (v >= n_values || g->values[v].parts <= 1) continue;
            if (!state[v].whole || s > state[v].used + 1) {
                bool begins = s == 0 || segments[s - 1].backward != segments[s].backward;
                state[v].whole = add_whole(g, v, (int)arrlen(list));
                gather one = {begins ? s : s - 1, v, state[v].whole};
                arrput(list, one);
            }
            state[v].used = s;
            g->ops[i].in[k] = state[v].whole;
        }
    }
    free(state);
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
    for (vid v = 1; v < arrlen(g->values); v++) {
        graph_value *value = &g->values[v];
        bool trained = value->trainable && value->grad && o->zero_stage == 3;
        bool frozen = !value->trainable && value->cols > 1 && o->base;
        if (value->role != ROLE_PARAM || (!trained && !frozen)) continue;
        assert(!value->ld && !value->base && !value->storage_rows);
        value->parts = o->ranks;
        value->part = o->rank < 0 ? 0 : o->rank;
    }
    segment *segments = find_segments(g);
    gather *list = redirect(g, segments);
    if (list) qsort(list, arrlenu(list), sizeof *list, by_place);
    emit_gathers(g, segments, list);
    arrfree(segments);
    arrfree(list);
}
