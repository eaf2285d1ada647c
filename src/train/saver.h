/* saver.h - saves checkpoints beside the run: the tensors are copied to host memory between two steps, a thread writes
 * them while the next steps run.  Where the copy would take more than a quarter of the free host memory the run waits
 * instead, and tensors go to the file one by one. */
#ifndef TRAIN_SAVER_H
#define TRAIN_SAVER_H
#include "train/checkpoint.h"

typedef struct saver saver;
saver *saver_open(const session *s, const optimizer *o);
/* Saves the run as it is now. Waits for the save before; its failure is this one's. */
bool saver_start(saver *v, const run_state *state, failure *f);
/* Whether a save has ended in a failure that nobody was told yet: saver_wait then has it. */
bool saver_failed(const saver *v);
bool saver_wait(saver *v, failure *f);
void saver_close(saver *v); /* waits; NULL is fine */
#endif
