/* checkpoint.h - checkpoint folders: OUTPUT_DIR/checkpoint-N, N the optimizer steps done.
 *
 *   adapter_model.safetensors, adapter_config.json    as PEFT writes them; after full tuning the model's files instead
 *   optimizer.safetensors    exp_avg.NAME and exp_avg_sq.NAME of every trained tensor; of full tuning also master.NAME,
 *                            the float32 weights (the model's files hold them in their stored type)
 *   trainer_state.json       as transformers' Trainer writes it
 *   run_state.json           steps, position in the data, totals (train/run_state.h)
 *   args.json                the settings
 *
 * A folder is made as checkpoint-N.tmp and renamed when every byte is on the disk: the name is the mark of a whole one.
 * A folder that goes is renamed to such a name first. */
#ifndef TRAIN_CHECKPOINT_H
#define TRAIN_CHECKPOINT_H
#include "train/run_state.h"
#include "train/snapshot.h"

/* Writes OUTPUT_DIR/checkpoint-<step>, then removes the oldest ones beyond save_total_limit: never this one, and never
 * the one with the best evaluation. On failure nothing of it stays, and earlier ones are as they were. */
bool checkpoint_write(snapshot *p, const run_state *state, failure *f);

/* Steps of the whole checkpoints in a folder, ascending (stb_ds, to be freed); NULL when there is none. */
int64_t *checkpoint_list(const char *folder);
/* FOLDER/checkpoint-STEP; lives in a. */
const char *checkpoint_path(arena *a, const char *folder, int64_t step);
bool checkpoint_remove(const char *folder, int64_t step, failure *f);
/* Removes what a broken run left: checkpoint-*.tmp. */
bool checkpoint_clean(const char *folder, failure *f);

/* One that was opened: every file is there and readable. */
typedef struct {
    const char *folder; /* NULL: none is open */
    bool full;
    run_state state;
    cJSON *args;
    st_set *optimizer, *weights; /* weights: the adapter; NULL for full tuning, whose masters are in `optimizer` */
    arena memory;
} checkpoint;
bool checkpoint_open(checkpoint *c, const char *folder, failure *f);
void checkpoint_close(checkpoint *c); /* also when none is open */
/* Puts weights and moments back. Every tensor must be there with its shape. */
bool checkpoint_restore(const checkpoint *c, optimizer *o, const session *s, failure *f);
#endif
