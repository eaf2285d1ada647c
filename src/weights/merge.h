/* merge.h - a LoRA adapter folded into its base model: a new model folder. */
#ifndef WEIGHTS_MERGE_H
#define WEIGHTS_MERGE_H
#include "base/failure.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    const char *model, *adapter, *output; /* folders */
    bool overwrite;                       /* the output folder may hold files already */
    int64_t shard_bytes;                  /* most bytes of tensors in one file; 5e9 as transformers */
} merge_options;

typedef struct {
    int tensors, merged, files;
    int64_t bytes;
    double rounding; /* norm of what rounding to the stored type changed, over the norm of what the adapter changed */
} merge_report;

/* Writes W + scale * B * A, computed in float32 and rounded to the type W is stored in, for every adapted W; copies all
 * other tensors bit for bit, and config.json, tokenizer files and the like; then opens the new folder and compares
 * every tensor with what it must be. Holds one block of rows in memory, never a whole model. */
bool merge_adapter(const merge_options *o, merge_report *r, failure *f);
#endif
