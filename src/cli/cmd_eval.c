/* cmd_eval.c - loss and perplexity of val_dataset (or else dataset), with or without an adapter; with exact_match also
 * how many rows are answered word for word.
 *
 * The last line is `done rows=N tokens=N label_tokens=N loss=X perplexity=X [exact=N exact_match=X] seconds=X`. */
#include "base/array.h"
#include "base/clock.h"
#include "cli/command.h"
#include "cli/load_data.h"
#include "eval/exact_match.h"
#include "train/trainer.h"

#include <math.h>

static bool measure_loss(session *s, const dataset *d, eval_result *loss, failure *f) {
    const config *c = s->c;
    TRY(session_build(s, SESSION_EVAL, (int)(c->per_device_eval_batch_size * c->max_length), RECOMPUTE_NONE, f));
    TRY(session_start(s, true, f));
    return train_evaluate(s, d, loss, f);
}

/* Rows that go through the program at once while a prompt is read. */
enum { PROMPT_ROWS = 256 };

static bool measure_match(session *s, const dataset *d, match_result *match, failure *f) {
    int longest = s->model.max_position, context = (int)s->c->max_length;
    if (longest > 0 && context > longest) context = longest;
    session_drop_program(s);
    s->n_context = context;
    TRY(session_build(s, SESSION_GENERATE, context < PROMPT_ROWS ? context : PROMPT_ROWS, RECOMPUTE_NONE, f));
    TRY(session_start(s, true, f));
    generator g;
    generator_open(&g, s->x, &s->g, &s->io, context);
    int32_t *stop = generate_stop_ids(&s->model, s->chat);
    bool ok = eval_exact_match(match, &g, s->tokens, d, stop, (int)arrlen(stop), f);
    arrfree(stop);
    generator_close(&g);
    return ok;
}

static void print_result(const dataset *d, const eval_result *loss, const match_result *match, double seconds) {
    printf("done rows=%lld tokens=%lld label_tokens=%lld loss=%.6f perplexity=%.6g", (long long)dataset_count(d),
           (long long)loss->tokens, (long long)loss->label_tokens, loss->loss, exp(loss->loss));
    if (match)
        printf(" exact=%lld exact_match=%.4f", (long long)match->exact, (double)match->exact / (double)match->rows);
    printf(" seconds=%.3f\n", seconds);
}

static bool evaluate(session *s, const config *c, dataset *d, failure *f) {
    double begin = clock_seconds();
    bool val = c->val_dataset.n > 0;
    TRY(session_open_model(s, c, f) && session_open_text(s, f));
    TRY(load_files(d, val ? &c->val_dataset : &c->dataset, val ? "val_dataset" : "dataset", s, f));
    TRY(session_open_weights(s, f));
    eval_result loss;
    match_result match;
    TRY(measure_loss(s, d, &loss, f));
    if (c->exact_match) TRY(measure_match(s, d, &match, f));
    print_result(d, &loss, c->exact_match ? &match : NULL, clock_seconds() - begin);
    return true;
}

bool cmd_eval(const config *c, failure *f) {
    session s = {0};
    dataset d = {0};
    bool ok = evaluate(&s, c, &d, f);
    dataset_free(&d);
    session_close(&s);
    return ok;
}
