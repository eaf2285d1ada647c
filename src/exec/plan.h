/* plan.h - memory known before it is used: an offset in one arena for every temporary and for what an op needs beside
 * its operands, and totals by role. */
#ifndef EXEC_PLAN_H
#define EXEC_PLAN_H
#include "exec/backend.h"

typedef struct {
    int64_t at, bytes; /* in the arena */
} op_scratch;

typedef struct {
    int64_t *offset;     /* [values]; -1: not in the arena */
    op_scratch *scratch; /* [ops] */
    int64_t arena;       /* bytes of the arena (peak of what lives at a time, as placed) */
    int64_t naive;       /* bytes if everything in it had memory of its own */
    int64_t params, trainable, grads, moments, inputs, outputs; /* persistent bytes; `trainable` is part of `params` */
    int64_t host;     /* bytes of ROLE_HOST, where they are beside the device's */
    int64_t total;    /* everything above but naive, and but host on a device of its own */
    int64_t overhead; /* what the device holds beside: its context, libraries and kernels */
} plan;

/* `b` sizes the scratch; NULL: none. `planned` false gives every temporary its own memory (for tests). */
void plan_make(plan *p, const graph *g, const backend *b, bool planned);
void plan_free(plan *p);

/* Bytes that the device will show for the run. */
static inline int64_t plan_peak(const plan *p) { return p->total + p->overhead; }
#endif
