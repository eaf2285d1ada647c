/* random_batch.h - micro-batches of random tokens, for measuring. */
#ifndef TRAIN_RANDOM_BATCH_H
#define TRAIN_RANDOM_BATCH_H
#include "config/config.h"
#include "data/dataset.h"

/* Fills `slots` slots with documents of max_length tokens, or of log-normal length where bench_mean_length says so.
 * Every token but a document's first is learnt. `key` and the seed decide all. */
void random_batch_fill(micro_batch *b, const config *c, int slots, int vocab, uint64_t key);
#endif
