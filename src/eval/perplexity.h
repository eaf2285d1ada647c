/* perplexity.h - mean loss over a file's label tokens. */
#ifndef EVAL_PERPLEXITY_H
#define EVAL_PERPLEXITY_H
#include "data/dataset.h"
#include "exec/executor.h"
#include "model/model.h"

typedef struct {
    double loss, perplexity; /* mean over label tokens, and its exponential; NAN without label tokens */
    int64_t rows;            /* packed rows */
    int64_t tokens, label_tokens;
} eval_result;

/* Runs the forward half of a started program (of model_build) over d, packed into rows of max_length; the program's N
 * must be a multiple of max_length.  Clears the OUTPUT values, so a trainer calls it between steps. */
bool eval_loss(eval_result *r, executor *x, const graph *g, const model_io *io, const dataset *d, int max_length,
               bool packed, failure *f);
#endif
