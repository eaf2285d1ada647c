/* excerpt.h - a few layers of a run's model, with its shapes and random weights, to be timed on its backend.
 *
 * It runs as the run does (passes, plan, executor), with the run's rows, adapters and settings; only layers and
 * vocabulary are fewer. It has the device's memory for itself: opened before the run has its own, or beside it. */
#ifndef TRAIN_EXCERPT_H
#define TRAIN_EXCERPT_H
#include "data/dataset.h"
#include "train/session.h"

typedef struct {
    config c;
    session s;
    micro_batch batch;
} excerpt;

/* Builds the training program, of at most `layers` layers, under the settings c and folds; `of` has an open backend.
 * e must not move. Also behind a failure excerpt_close is due. */
bool excerpt_build(excerpt *e, const session *of, const config *c, int folds, int layers, int vocab,
                   recompute_level level, failure *f);
/* Memory, weights, a micro-batch, and one run. `planned` as session_start's: false keeps every value. */
bool excerpt_start(excerpt *e, bool planned, failure *f);
void excerpt_close(excerpt *e);

bool excerpt_run(excerpt *e, failure *f);  /* the whole program once: enqueued */
bool excerpt_wait(excerpt *e, failure *f); /* until the device is done */
#endif
