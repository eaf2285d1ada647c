/* perplexity.c - every example once, in the file's order, weights 1 on label tokens, sums in double.
 *
 * The loss of a pack is the sum over its documents' label tokens, so how rows are packed changes speed alone. */
#include "eval/perplexity.h"
#include "base/array.h"

#include <assert.h>
#include <math.h>

/* Adds the summed nll of one micro-batch. */
static bool add_batch(double *sum, executor *x, const graph *g, const model_io *io, const micro_batch *b, float *weight,
                      failure *f) {
    for (int t = 0; t < b->info.rows; t++) weight[t] = b->target[t] >= 0 ? 1 : 0;
    int forward = g->n_forward ? g->n_forward : (int)arrlen(g->ops);
    batch_info info = b->info;
    info.training = false;
    float loss;
    TRY(executor_clear(x, ROLE_OUTPUT, f));
    TRY(executor_upload(x, io->ids, b->ids, info.rows, f) && executor_upload(x, io->pos, b->pos, info.rows, f) &&
        executor_upload(x, io->cu, b->cu, info.docs + 1, f) &&
        executor_upload(x, io->target, b->target, info.rows, f) &&
        executor_upload(x, io->weight, weight, info.rows, f));
    TRY(executor_run(x, 0, forward, &info, f) && executor_download(x, io->loss, &loss, 1, f));
    *sum += loss;
    return true;
}

bool eval_loss(eval_result *r, executor *x, const graph *g, const model_io *io, const dataset *d, int max_length,
               bool packed, failure *f) {
    int n_slots = (int)g->values[io->ids].rows, n = 0;
    assert(n_slots % max_length == 0);
    *r = (eval_result){.loss = NAN, .perplexity = NAN};
    if (dataset_count(d) == 0) return true;
    loader *l = NULL;
    loader_options o = {.batch_size = n_slots / max_length,
                        .max_length = max_length,
                        .grad_accumulation = 1,
                        .epochs = 1,
                        .max_steps = -1,
                        .packed = packed};
    TRY(loader_open(&l, d, &o, f));
    micro_batch b;
    micro_batch_init(&b, n_slots);
    float *weight = xcalloc((size_t)n_slots, sizeof *weight);
    double sum = 0;
    bool ok = true;
    while (ok && loader_next(l, &b, &n)) {
        r->tokens += b.info.rows;
        r->label_tokens += b.info.labels;
        ok = b.info.labels == 0 || add_batch(&sum, x, g, io, &b, weight, f);
    }
    if (r->label_tokens > 0) {
        r->loss = sum / (double)r->label_tokens;
        r->perplexity = exp(r->loss);
    }
    free(weight);
    micro_batch_free(&b);
    loader_close(l);
    return ok && executor_clear(x, ROLE_OUTPUT, f);
}
