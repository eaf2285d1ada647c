/* save.h - the result of a run: a PEFT adapter folder, or a model folder after full tuning. */
#ifndef TRAIN_SAVE_H
#define TRAIN_SAVE_H
#include "train/session.h"

/* Refuses a folder that already holds a result (unless overwrite_output_dir) or cannot be written. Makes it. */
bool save_check_folder(const config *c, failure *f);
/* Writes what was trained into output_dir. */
bool save_result(session *s, failure *f);
#endif
