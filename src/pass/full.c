/* full.c - full tuning: every param trains, with float32 master weights. */
#include "base/array.h"
#include "pass/pass.h"

void pass_full(graph *g) {
    for (vid v = 1; v < arrlen(g->values); v++) {
        if (g->values[v].role != ROLE_PARAM) continue;
        g->values[v].trainable = true;
        g->values[v].type = DTYPE_F32;
    }
}
