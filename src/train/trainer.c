/* trainer.c - a step: its micro-batches one after the other, then the clipped update; and evaluation.
 *
 * The loss is divided once by all label tokens of the step: every micro-batch runs with dLoss/dnll = 1 / labels, and
 * the loss and the gradients gather over them on the device. */
#include "train/trainer.h"
#include "base/clock.h"
#include "base/signals.h"
#include "exec/flops.h"
#include "train/fit.h"
#include "train/optimizer.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int train_slots(const config *c) { return (int)(c->per_device_train_batch_size * c->max_length); }

static bool build_at(session *s, recompute_level level, failure *f) {
    session_drop_program(s);
    return session_build(s, SESSION_TRAIN, train_slots(s->c), level, f);
}

bool train_build(session *s, failure *f) {
    const char *wanted = s->c->gradient_checkpointing;
    bool chosen = strcmp(wanted, "auto") != 0, fits = false, last = false;
    TRY(session_open_backend(s, f));
    size_t room = s->b->memory();
    for (recompute_level level = 0; !fits && !last; level++) {
        if (chosen && strcmp(wanted, recompute_name(level)) != 0) continue;
        plan p;
        TRY(build_at(s, level, f));
        plan_make(&p, &s->g, s->b, true);
        fits = !room || (size_t)p.total <= room;
        last = chosen || level == RECOMPUTE_COUNT - 1;
        if (!fits && last) fit_refuse(s, &p, room, f);
        plan_free(&p);
    }
    return fits;
}

static bool upload_batch(session *s, const micro_batch *b, failure *f) {
    int64_t n = b->info.rows;
    return executor_upload(s->x, s->io.ids, b->ids, n, f) && executor_upload(s->x, s->io.pos, b->pos, n, f) &&
           executor_upload(s->x, s->io.cu, b->cu, b->info.docs + 1, f) &&
           executor_upload(s->x, s->io.target, b->target, n, f);
}

bool train_micro_batch(session *s, const micro_batch *b, float scale, bool backward, failure *f) {
    int n = b->info.rows;
    float *weight = xmalloc(sizeof *weight * (size_t)n);
    for (int t = 0; t < n; t++) weight[t] = b->target[t] >= 0 ? scale : 0;
    bool ok = upload_batch(s, b, f) && executor_upload(s->x, s->io.weight, weight, n, f);
    free(weight);
    int ops = backward ? (int)session_ops(s) : s->g.n_forward;
    batch_info info = b->info;
    info.training = backward;
    return ok && executor_run(s->x, 0, ops, &info, f);
}

/* Share of the device's peak that the step's operations took, in percent. */
static double utilisation(const session *s, const micro_batch *batches, int n, double seconds) {
    double peak = s->b->peak_flops ? s->b->peak_flops(s->g.compute) : 0, flops = 0;
    if (peak <= 0) return NAN;
    for (int i = 0; i < n; i++)
        flops += graph_flops(&s->g, &batches[i].info, batch_pairs(batches[i].cu, batches[i].info.docs));
    return 100 * flops / seconds / peak;
}

bool train_step(session *s, optimizer *o, const micro_batch *batches, int n, double learning_rate, step_metrics *m,
                bool *skipped, failure *f) {
    double started = clock_seconds();
    float loss;
    m->label_tokens = m->tokens = 0;
    for (int i = 0; i < n; i++) m->label_tokens += batches[i].info.labels;
    TRY(executor_clear(s->x, ROLE_GRAD, f));
    TRY(executor_clear(s->x, ROLE_OUTPUT, f));
    for (int i = 0; i < n; i++) {
        TRY(train_micro_batch(s, &batches[i], m->label_tokens ? 1 / (float)m->label_tokens : 0, true, f));
        m->tokens += batches[i].info.rows;
    }
    TRY(executor_download(s->x, s->io.loss, &loss, 1, f));
    m->loss = isnan(loss) ? NAN : (double)loss; /* without a sign, which lines would show */
    m->grad_norm = NAN; /* a loss that is not finite can have a finite gradient: that of a label of probability 0 */
    if (isfinite(loss)) TRY(optimizer_step(o, learning_rate, &m->grad_norm, f));
    m->learning_rate = learning_rate;
    m->slots = (int64_t)n * train_slots(s->c);
    m->step_seconds = clock_seconds() - started;
    m->tokens_per_second = (double)m->tokens / m->step_seconds;
    m->mfu = utilisation(s, batches, n, m->step_seconds);
    *skipped = !isfinite(m->grad_norm);
    return true;
}

bool train_loss(session *s, const micro_batch *b, double *loss, failure *f) {
    float sum;
    TRY(executor_clear(s->x, ROLE_OUTPUT, f) && train_micro_batch(s, b, 1, false, f) &&
        executor_download(s->x, s->io.loss, &sum, 1, f));
    *loss = (double)sum;
    return true;
}

bool train_evaluate(session *s, const dataset *data, eval_result *out, failure *f) {
    const config *c = s->c;
    double started = clock_seconds(), sum = 0;
    int n_slots = (int)s->g.values[s->io.ids].rows;
    loader_options options = {.batch_size = n_slots / (int)c->max_length,
                              .max_length = (int)c->max_length,
                              .grad_accumulation = 1,
                              .epochs = 1,
                              .max_steps = -1,
                              .packed = c->packing};
    loader *l;
    *out = (eval_result){0};
    TRY(loader_open(&l, data, &options, f));
    micro_batch b;
    micro_batch_init(&b, n_slots);
    int n;
    bool ok = true;
    while (ok && !signals_caught() && loader_next(l, &b, &n)) {
        double loss;
        ok = train_loss(s, &b, &loss, f);
        if (!ok) break;
        sum += loss;
        out->tokens += b.info.rows;
        out->label_tokens += b.info.labels;
    }
    out->stopped = signals_caught() != 0;
    micro_batch_free(&b);
    loader_close(l);
    out->loss = out->label_tokens ? sum / (double)out->label_tokens : NAN;
    out->seconds = clock_seconds() - started;
    return ok;
}
