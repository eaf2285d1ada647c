/* exact_match.h - how many rows a model answers word for word. */
#ifndef EVAL_EXACT_MATCH_H
#define EVAL_EXACT_MATCH_H
#include "data/dataset.h"
#include "eval/generate.h"

typedef struct {
    int64_t rows;  /* examples with an answer */
    int64_t exact; /* answered with the very text of the row, and then stopped */
} match_result;

/* Answers the last turn of every example greedily. An example whose prompt leaves no room counts as wrong. */
bool eval_exact_match(match_result *r, generator *gen, const tokenizer *t, const dataset *d, const int32_t *stop,
                      int n_stop, failure *f);
#endif
