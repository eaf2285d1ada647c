/* plan.h - memory known before it is used: an offset in one arena for every temporary, and totals by role. */
#ifndef EXEC_PLAN_H
#define EXEC_PLAN_H
#include "exec/backend.h"

typedef struct {
    int64_t *offset; /* [values]; -1: not in the arena */
    int64_t arena;   /* bytes of the arena (peak of live temporaries, as placed) */
    int64_t naive;   /* bytes if every temporary had memory of its own */
    int64_t scratch; /* largest scratch of any op */
    int64_t params, trainable, grads, moments, inputs, outputs; /* persistent bytes; `trainable` is part of `params` */
    int64_t total;                                              /* everything above but naive */
    int64_t overhead; /* what the device holds beside: its context, libraries and kernels */
} plan;

/* `b` sizes the scratch; NULL: none. `planned` false gives every temporary its own memory (for tests). */
void plan_make(plan *p, const graph *g, const backend *b, bool planned);
void plan_free(plan *p);

/* Bytes that the device will show for the run. */
static inline int64_t plan_peak(const plan *p) { return p->total + p->overhead; }
#endif
