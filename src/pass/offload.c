/* offload.c - what the forward half leaves of each layer waits in host memory; the last part of pass_recompute.
 *
 * Behind the op that makes it, a value sets out to host memory.  It comes back, as another value, in the layer before
 * the backward half's first look at it, behind the op that writes that layer's widest matrices: most of the layer is
 * still to come, so that a backend can copy beside its work, and the arena has been at its fullest.  Only matrices as
 * wide as the model go (what adapters keep is a hundredth of that), and of the last layer and the head nothing: their
 * way back begins before it could pay.  The bits are the same. */
#include "base/array.h"
#include "pass/pass.h"

/* Of a value; all 0: it stays. */
typedef struct {
    int segment; /* of the backward half, from 1 on: ops in a row of one layer; the first that reads it */
    vid kept;    /* in host memory */
    vid back;    /* brought back */
} trip;

enum { AHEAD = 1, FIRST = 2 + AHEAD }; /* segments: 1 the head, 2 the last layer */

static int64_t model_width(const graph *g) {
    for (int i = 0; i < arrlen(g->ops); i++)
        if (g->ops[i].kind == OP_embed) return g->values[g->ops[i].out[0]].cols;
    return INT64_MAX;
}

static bool begins_segment(const graph_op *ops, int i, int n_forward) {
    return i == n_forward || (i > n_forward && ops[i].layer != ops[i - 1].layer);
}

/* [values]: which go, and the segments that they are back for. */
static trip *find_trips(const graph *g) {
    int n = (int)arrlen(g->values), segment = 0;
    int64_t width = model_width(g);
    trip *trips = xcalloc((size_t)n, sizeof *trips);
    bool *made = xcalloc((size_t)n, sizeof *made);
    for (int i = 0; i < g->n_forward; i++)
        for (int k = 0; k < GRAPH_MAX_OUT; k++) {
            const graph_value *v = &g->values[g->ops[i].out[k]];
            made[g->ops[i].out[k]] = v->role == ROLE_TEMP && v->cols >= width;
        }
    for (int i = g->n_forward; i < arrlen(g->ops); i++) {
        segment += begins_segment(g->ops, i, g->n_forward);
        for (int k = 0; k < GRAPH_MAX_IN; k++) {
            vid v = g->ops[i].in[k];
            if (made[v] && !trips[v].segment) trips[v].segment = segment;
        }
    }
    for (vid v = 0; v < n; v++)
        if (trips[v].segment < FIRST) trips[v] = (trip){0};
    free(made);
    return trips;
}

/* Columns of the widest temporary that an op writes. */
static int64_t widest(const graph *g, const graph_op *o) {
    int64_t most = 0;
    for (int k = 0; k < GRAPH_MAX_OUT; k++) {
        const graph_value *v = &g->values[o->out[k]];
        if (v->role == ROLE_TEMP && v->cols > most) most = v->cols;
    }
    return most;
}

/* [ops]: the last op of each segment that writes one of its widest matrices. */
static bool *find_places(const graph *g) {
    int n = (int)arrlen(g->ops), place = -1;
    int64_t most = 0;
    bool *places = xcalloc((size_t)n + 1, sizeof *places);
    for (int i = g->n_forward; i < n; i++) {
        if (begins_segment(g->ops, i, g->n_forward)) most = 0, place = -1;
        int64_t width = widest(g, &g->ops[i]);
        if (width < most) continue;
        most = width;
        if (place >= 0) places[place] = false;
        places[place = i] = true;
    }
    return places;
}

static void emit(graph *g, op_kind kind, vid from, vid to, int layer, bool backward) {
    g->layer = layer;
    g->backward = backward;
    graph_emit(g, (graph_op){kind, {from}, {to}});
    g->layer = 0;
    g->backward = false;
}

static void send(graph *g, trip *t, vid v, int layer) {
    graph_value x = g->values[v];
    t->kept = graph_add_value(g, ROLE_HOST, x.type, x.rows, x.cols, "kept.%s", x.name);
    emit(g, OP_to_host, v, t->kept, layer, false);
}

static void bring_back(graph *g, trip *trips, int n, int segment, int layer) {
    for (vid v = 0; v < n; v++) {
        if (!trips[v].kept || trips[v].segment != segment) continue;
        graph_value x = g->values[v];
        trips[v].back = graph_add_value(g, ROLE_TEMP, x.type, x.rows, x.cols, "back.%s", x.name);
        emit(g, OP_from_host, trips[v].kept, trips[v].back, layer, true);
    }
}

void pass_offload(graph *g) {
    int n = (int)arrlen(g->values), n_forward = g->n_forward, segment = 0;
    trip *trips = find_trips(g);
    bool *places = find_places(g);
    graph_op *old = g->ops;
    g->ops = NULL;
    for (int i = 0; i < arrlen(old); i++) {
        graph_op o = old[i];
        if (i == n_forward) g->n_forward = (int)arrlen(g->ops);
        segment += begins_segment(old, i, n_forward);
        for (int k = 0; i >= n_forward && k < GRAPH_MAX_IN; k++)
            if (trips[o.in[k]].back) o.in[k] = trips[o.in[k]].back;
        arrput(g->ops, o);
        if (places[i]) bring_back(g, trips, n, segment + AHEAD, o.layer);
        for (int k = 0; i < n_forward && k < GRAPH_MAX_OUT; k++)
            if (trips[o.out[k]].segment) send(g, &trips[o.out[k]], o.out[k], o.layer);
    }
    arrfree(old);
    free(trips);
    free(places);
}
