/* fit.h - does a run fit into memory, and if not, what would. */
#ifndef TRAIN_FIT_H
#define TRAIN_FIT_H
#include "train/session.h"

/* "weights 1.20, adapters 0.02, gradients 0.02, ..." of a plan, in GiB. */
void fit_put_plan(text_buf *out, const plan *p);
/* The last level that gradient_checkpointing auto, advice and plan go to: offload where host memory is another one. */
recompute_level fit_last_level(const backend *b);
/* Always false: says that the program of the session at its recompute level needs `p`, that `room` bytes are free, and
 * which recompute level, micro-batch or row length would fit (found by planning each). Drops the program. */
bool fit_refuse(session *s, const plan *p, size_t room, failure *f);
#endif
