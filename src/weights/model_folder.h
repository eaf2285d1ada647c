/* model_folder.h - writes a model folder as transformers lays it out: model.safetensors, or
 * model-00001-of-0000N.safetensors with model.safetensors.index.json, and the side files of the model it comes from. */
#ifndef WEIGHTS_MODEL_FOLDER_H
#define WEIGHTS_MODEL_FOLDER_H
#include "weights/safetensors.h"

#define MODEL_FOLDER_SHARD_BYTES 5000000000 /* transformers' max_shard_size */

/* Refuses the model's own folder, one that holds an adapter, and one with content (unless overwrite). */
bool model_folder_check(const char *output, const char *model, bool overwrite, failure *f);

/* Writes the data of tensor i with st_writer_add, in one piece or several. */
typedef bool (*tensor_source)(void *context, st_writer *w, int i, failure *f);

typedef struct {
    int files;
    int64_t bytes; /* of tensors */
} model_folder_size;
/* Writes tensors of the names, types and shapes of `like`, in its order, a new file when the next tensor would make it
 * larger than shard_bytes. Makes the folder; older weight files in it go once the new ones are whole. */
bool model_folder_write(const char *output, const st_set *like, int64_t shard_bytes, tensor_source source,
                        void *context, model_folder_size *size, failure *f);
/* config.json, tokenizer files, licence ...: all plain files that are no weights. Last: they make the folder a model.
 */
bool model_folder_copy_others(const char *output, const char *model, failure *f);
#endif
