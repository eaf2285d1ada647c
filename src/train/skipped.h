/* skipped.h - a step whose loss or gradient is not finite: which rows of the data files it held, and which of them have
 * such a loss by themselves. */
#ifndef TRAIN_SKIPPED_H
#define TRAIN_SKIPPED_H
#include "data/dataset.h"
#include "train/session.h"

enum { SKIPPED_MOST_BAD = 8 };

/* Runs the examples of the step's n micro-batches forward again, by micro-batch and then one by one, and lists in *bad
 * (stb_ds, in order) the indices of the first SKIPPED_MOST_BAD whose loss is not finite; empty when each is finite by
 * itself. *tried: examples that ran by themselves. Costs about one forward pass of the step; changes no weight. */
bool skipped_find(session *s, const micro_batch *batches, int n, int32_t **bad, int *tried, failure *f);
/* All examples of the micro-batches (stb_ds, in the order of the step). */
int32_t *skipped_examples(const micro_batch *batches, int n);

/* "data.json rows 3, 17-19, 4; more.json row 2"; at most `most` numbers or ranges, then "and N more". paths: the data
 * set's, as they were given to dataset_load. */
void skipped_put_rows(text_buf *out, const dataset *d, const char *const *paths, const int32_t *examples, int most);
/* {"data.json": [3, 4, 17, 18, 19], "more.json": [2]} */
void skipped_put_json(text_buf *out, const dataset *d, const char *const *paths, const int32_t *examples);
#endif
