/* verify.c - what must hold of a program after every pass. */
#include "base/array.h"
#include "graph/op_check.h"
#include "pass/pass.h"

/* Roles that an op may write more than once. */
static bool gathers(value_role role) { return role == ROLE_GRAD || role == ROLE_OUTPUT || role == ROLE_STATE; }

/* Lies in a matrix that was gathered: written with it. */
static bool came_with(const graph *g, const bool *written, vid v) {
    return g->values[v].whole_of && g->values[v].base && written[g->values[v].base];
}

bool pass_verify(const graph *g, failure *f) {
    int n = (int)arrlen(g->values);
    bool *written = xcalloc((size_t)n, sizeof *written), ok = true;
    for (vid v = 1; v < n; v++) written[v] = g->values[v].role == ROLE_INPUT || g->values[v].role == ROLE_PARAM;
    for (int i = 0; i < arrlen(g->ops) && ok; i++) {
        const graph_op *o = &g->ops[i];
        char why[256];
        if (!op_check(g, o, why, sizeof why)) ok = fail(f, FAIL_INPUT, "op %d %s: %s", i, op_name(o->kind), why);
        for (int k = 0; k < GRAPH_MAX_IN && ok; k++)
            if (o->in[k] && !written[o->in[k]] && !came_with(g, written, o->in[k]))
                ok = fail(f, FAIL_INPUT, "op %d %s reads %s before it is written", i, op_name(o->kind),
                          g->values[o->in[k]].name);
        for (int k = 0; k < GRAPH_MAX_OUT && ok; k++) {
            vid v = o->out[k];
            if (!v) continue;
            if (written[v] && !gathers(g->values[v].role))
                ok = fail(f, FAIL_INPUT, "op %d %s writes %s a second time", i, op_name(o->kind), g->values[v].name);
            written[v] = true; /* and with a gradient its bucket */
            for (; g->values[v].role == ROLE_GRAD && v; v = g->values[v].base) written[v] = true;
        }
    }
    free(written);
    return ok;
}
