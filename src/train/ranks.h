/* ranks.h - what the ranks of a training run tell each other beside gradients. With one rank everything here is what it
 * is without ranks. */
#ifndef TRAIN_RANKS_H
#define TRAIN_RANKS_H
#include "data/dataset.h"
#include "report/report.h"
#include "train/resume.h"
#include "train/session.h"

/* Behind session_open_backend: gives the ranks what carries their gradients, as ddp_backend says. Where it fails on one
 * rank alone the others may still be waiting for it: the caller then ends at once, without another call to them. */
bool ranks_join(session *s, failure *f);
/* That every rank has the same settings, weights and examples: a failure for all when one has not. */
bool ranks_check_inputs(session *s, const dataset *data, failure *f);
/* That every rank begins at the same step. */
bool ranks_check_start(comm *c, const resume *from, failure *f);
/* Sums tokens, label_tokens and slots of a step over the micro-batches of all ranks. */
bool ranks_count(session *s, const micro_batch *batches, int n, step_metrics *m, failure *f);
/* Behind the step: loss becomes the sum over the ranks, mfu the mean, step_seconds the longest. The gradient norm must
 * be one and the same: ranks whose weights have parted end here. */
bool ranks_finish_step(session *s, step_metrics *m, failure *f);
/* Of this rank's utilisation and peak memory: the mean, the largest, and the peaks one by one (in s->memory). */
bool ranks_finish_run(session *s, run_summary *out, failure *f);
/* The signal that waits for an answer on any rank (base/signals.h); 0: none. */
bool ranks_signal(const session *s, int *out, failure *f);
bool ranks_add(const session *s, int *x, failure *f); /* x becomes its sum over the ranks */
/* The lists (stb_ds) of all ranks one behind the other, on every rank. */
bool ranks_gather(const session *s, int32_t **list, failure *f);
#endif
