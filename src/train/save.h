/* save.h - the result of a run: a PEFT adapter folder, or a model folder after full tuning. */
#ifndef TRAIN_SAVE_H
#define TRAIN_SAVE_H
#include "train/session.h"

/* Refuses an output_dir that already holds a result (unless overwrite_output_dir), or that is the model's own. */
bool save_check_folder(const session *s, failure *f);
/* Writes what was trained into output_dir. */
bool save_result(session *s, failure *f);
#endif
