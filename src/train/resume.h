/* resume.h - where a run begins: afresh, behind a checkpoint, or not at all because it is finished.
 *
 * resume_from_checkpoint takes a checkpoint folder, an output folder (its newest whole checkpoint), or auto: the newest
 * of output_dir, and a fresh start where there is none. What would make the rest of the run another one is refused by
 * the name of the setting, with both values. */
#ifndef TRAIN_RESUME_H
#define TRAIN_RESUME_H
#include "data/dataset.h"
#include "train/checkpoint.h"

typedef enum { RESUME_FRESH, RESUME_BEHIND, RESUME_FINISHED } resume_kind;

typedef struct {
    resume_kind kind;
    bool goes_on;    /* output_dir may hold files of this run */
    checkpoint from; /* RESUME_BEHIND */
} resume;

/* Looks for what the config names and compares the settings, for a run on so many ranks; reads no weights of the model.
 * Says on standard error what it found. RESUME_FINISHED: output_dir holds this run's result. */
bool resume_find(resume *r, const config *c, int ranks, failure *f);
void resume_close(resume *r);

/* Identity of what the session and the data set hold. */
run_source resume_source(const session *s, const dataset *data);
/* Refuses a checkpoint of another model, other data or another number of steps; `loader` deals this run. */
bool resume_check(const resume *r, const session *s, const run_source *now, const loader *l, failure *f);
#endif
