/* save.h - what was trained, as files: a PEFT adapter folder, or a model folder after full tuning. */
#ifndef TRAIN_SAVE_H
#define TRAIN_SAVE_H
#include "train/snapshot.h"

/* Refuses an output_dir that already holds a result (unless overwrite_output_dir, or `goes_on`: a run that was broken
 * off goes on there), or that is the model's own. */
bool save_check_folder(const session *s, bool goes_on, failure *f);
/* Writes what was trained into a folder that is there. Of the session only what does not change in training is read
 * beside the snapshot, so a thread may do it. */
bool save_weights(snapshot *p, const char *folder, failure *f);
/* The result of a run: the weights as they are now, into output_dir. o: whom to ask for weights in pieces, while the
 * other ranks are in optimizer_serve; NULL where all are whole. */
bool save_result(const session *s, const optimizer *o, failure *f);
bool save_is_full(const config *c); /* tuner_type */
#endif
