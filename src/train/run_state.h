/* run_state.h - where a run stands between two steps: all that a checkpoint holds beside tensors and settings.
 *
 * Random numbers need no state of their own: the order of an epoch is a function of seed and epoch, a dropout mask of
 * seed, step, micro-batch and element (base/rng.h). */
#ifndef TRAIN_RUN_STATE_H
#define TRAIN_RUN_STATE_H
#include "base/json.h"
#include "data/dataset.h"
#include "report/report.h"

typedef struct { /* what the run learns from, by content: paths may change */
    int64_t examples, tokens;
    uint64_t data;  /* dataset_fingerprint */
    uint64_t model; /* of the base model's tensors: names, shapes, types, samples of their data */
} run_source;

typedef struct {
    int64_t step, steps;    /* done; of the whole run */
    int64_t updates;        /* steps that changed the weights: Adam's t */
    int64_t evaluated;      /* step of the last evaluation; 0: none */
    int64_t best_step;      /* of the checkpoint with the lowest evaluation loss; 0: none was evaluated */
    double best_loss, busy; /* busy: seconds inside steps */
    double epoch;           /* epochs done */
    int64_t row, rows;      /* next packed row of the epoch; rows of an epoch */
    run_source source;
    run_summary sum;  /* so far */
    text_buf history; /* the entries of trainer_state.json's log_history, with commas between */
} run_state;

void run_state_free(run_state *s);
void run_state_copy(run_state *to, const run_state *from);
/* Adds a step or an evaluation to the history as transformers' Trainer logs them. */
void run_state_log_step(run_state *s, const step_metrics *m);
void run_state_log_eval(run_state *s, double loss, double seconds);

/* run_state.json, and the names of transformers' TrainerState (trainer_state.json). */
void run_state_put(text_buf *out, const run_state *s, const config *c);
void run_state_put_trainer(text_buf *out, const run_state *s, const config *c);
/* From both files of a folder; out must be zero before. */
bool run_state_read(run_state *out, const char *folder, failure *f);
#endif
