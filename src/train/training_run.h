/* training_run.h - a whole training run over a started session: steps, evaluations, checkpoints, and where it stops.
 *
 * Between two steps the run is a run_state and the tensors of the optimizer: what a checkpoint holds. */
#ifndef TRAIN_TRAINING_RUN_H
#define TRAIN_TRAINING_RUN_H
#include "train/resume.h"
#include "train/trainer.h"

typedef struct run run;

/* Deals the data, opens the optimizer, and goes to where `from` says (NULL: the first step). All must outlive the run.
 * Changes no file. */
bool run_open(run **out, session *s, const dataset *data, const resume *from, failure *f);
void run_close(run *t); /* NULL is fine */
/* Steps done before. */
const run_state *run_where(const run *t);

/* Runs every step that is left and fills `out` (begin: clock_seconds() of the program's start). eval: NULL or empty for
 * none. Saves a checkpoint every save_steps and at the end; also when a signal waits (base/signals.h), which then ends
 * the run with FAIL_INTERRUPT. */
bool run_train(run *t, const dataset *eval, report *r, double begin, run_summary *out, failure *f);
/* Writes the result (save_result): all ranks call it, rank 0 writes. */
bool run_save_result(const run *t, failure *f);
#endif
