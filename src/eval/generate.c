/* generate.c - the prompt goes through the program n_rows tokens at a time, then each new token by itself.
 *
 * Keys and values stay in the program's caches at their positions, so a later answer simply writes over them from
 * position 0: attention never reads past the position of a row.  Only the last row's logits are made (io.index). */
#include "eval/generate.h"
#include "base/array.h"
#include "base/rng.h"

#include <assert.h>

void generator_open(generator *r, executor *x, const graph *g, const model_io *io, int n_context) {
    const graph_value *logits = &g->values[io->logits];
    *r = (generator){.x = x, .g = g, .io = *io, .n_context = n_context, .vocab = (int)logits->cols};
    r->n_rows = (int)g->values[io->ids].rows;
    r->raw = xmalloc((size_t)r->vocab * dtype_size(logits->type));
    r->logits = xmalloc((size_t)r->vocab * sizeof(float));
}

void generator_close(generator *r) {
    free(r->raw);
    free(r->logits);
    *r = (generator){0};
}

/* Runs tokens[n], n <= n_rows, which stand at positions first, first + 1 ...; leaves the logits after the last. */
static bool run_rows(generator *r, const int32_t *tokens, int n, int64_t first, failure *f) {
    assert(n > 0 && n <= r->n_rows && first + n <= r->n_context);
    int32_t *pos = xmalloc((size_t)n * sizeof *pos), last = n - 1;
    for (int i = 0; i < n; i++) pos[i] = (int32_t)(first + i);
    batch_info batch = {.rows = n, .docs = 1, .labels = 1, .longest = (int)first + n};
    bool ok = executor_upload(r->x, r->io.ids, tokens, n, f) && executor_upload(r->x, r->io.pos, pos, n, f) &&
              executor_upload(r->x, r->io.index, &last, 1, f) &&
              executor_run(r->x, 0, (int)arrlen(r->g->ops), &batch, f) &&
              executor_download(r->x, r->io.logits, r->raw, r->vocab, f);
    free(pos);
    if (ok) dtype_to_f32(r->logits, r->raw, r->g->values[r->io.logits].type, (size_t)r->vocab);
    return ok;
}

static bool run_prompt(generator *r, const int32_t *prompt, int64_t n, failure *f) {
    for (int64_t first = 0; first < n; first += r->n_rows) {
        int64_t left = n - first;
        TRY(run_rows(r, prompt + first, left < r->n_rows ? (int)left : r->n_rows, first, f));
    }
    return true;
}

static bool is_listed(const int32_t *list, int64_t n, int32_t id) {
    for (int64_t i = 0; i < n; i++)
        if (list[i] == id) return true;
    return false;
}

int32_t *generate_stop_ids(const model_config *m, const chat_format *c) {
    int32_t *ids = NULL;
    for (int i = 0; i < chat_format_n_stop(c); i++)
        if (!is_listed(ids, arrlen(ids), chat_format_stop(c)[i])) arrput(ids, chat_format_stop(c)[i]);
    for (int i = 0; i < m->n_eos; i++)
        if (!is_listed(ids, arrlen(ids), m->eos[i])) arrput(ids, m->eos[i]);
    return ids;
}

/* 53 random bits in [0, 1) for the k-th token of an answer. */
static double uniform(uint64_t key, int64_t k) { return (double)(rng_bits(key, (uint64_t)k) >> 11) * 0x1p-53; }

bool generate_answer(generator *r, const int32_t *prompt, int64_t n, const generate_options *o, token_sink sink,
                     void *context, int32_t **answer, answer_end *end, failure *f) {
    if (n <= 0) return fail(f, FAIL_INPUT, "the prompt has no tokens");
    if (n >= r->n_context)
        return fail(f, FAIL_INPUT, "the prompt has %lld tokens and %d fit: no room for an answer", (long long)n,
                    r->n_context);
    uint64_t key = rng_fold(o->seed, 0x67656E); /* "gen": apart from the seed's other uses */
    *end = ANSWER_FULL;
    TRY(run_prompt(r, prompt, n, f));
    for (int64_t k = 0; k < o->max_new_tokens; k++) {
        int32_t id = sample_token(r->logits, r->vocab, &o->sample, uniform(key, k));
        if (id < 0)
            return fail(f, FAIL_INPUT, "the model's logits are not finite after %lld tokens", (long long)(n + k));
        if (is_listed(o->stop, o->n_stop, id)) {
            *end = ANSWER_STOPPED;
            return true;
        }
        arrput(*answer, id);
        if (sink && !sink(id, context, f)) return f->kind == FAIL_NONE;
        if (n + k >= r->n_context || k + 1 == o->max_new_tokens) return true;
        TRY(run_rows(r, &id, 1, n + k, f));
    }
    return true;
}
