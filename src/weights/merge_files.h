/* merge_files.h - the files of a merged model folder; used by merge.c. */
#ifndef WEIGHTS_MERGE_FILES_H
#define WEIGHTS_MERGE_FILES_H
#include "weights/merge.h"
#include "weights/safetensors.h"

typedef struct {
    int *file_of; /* [tensors]: which file each goes to */
    const char **names;
    int n_files;
    int64_t bytes;
} merge_layout;

/* Refuses an output folder with content (unless overwrite), an adapter's or the model's own. */
bool merge_check_output(const merge_options *o, failure *f);
/* Tensors in order, a new file when the next one would make it larger than shard_bytes. Lives in a. */
void merge_layout_make(merge_layout *l, const st_set *s, int64_t shard_bytes, arena *a);
/* Makes the folder; removes an older index, so that older and newer files together are never taken for a model. */
bool merge_folder_prepare(const char *output, failure *f);
/* Removes older weight files that are not part of the layout; writes the index when there are several files. */
bool merge_folder_finish(const merge_layout *l, const st_set *s, const char *output, failure *f);
/* config.json, tokenizer files, licence ...: all plain files that are no weights. */
bool merge_copy_others(const char *model, const char *output, failure *f);
#endif
