/* trainer.c - the loop: deal the micro-batches of a step, run them, clip, step, report.
 *
 * The loss is divided once by all label tokens of the step: every micro-batch runs with dLoss/dnll = 1 / labels, and
 * the loss and the gradients gather over them on the device. */
#include "train/trainer.h"
#include "base/array.h"
#include "base/clock.h"
#include "base/log.h"
#include "exec/device_stats.h"
#include "exec/flops.h"
#include "train/optimizer.h"
#include "train/schedule.h"
#include "train/skipped.h"

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
    for (recompute_level level = 0; level < RECOMPUTE_COUNT; level++)
        if (strcmp(s->c->gradient_checkpointing, recompute_name(level)) == 0) return build_at(s, level, f);
    TRY(session_open_backend(s, f));
    size_t room = s->b->memory();
    int64_t least = 0;
    for (recompute_level level = 0; level < RECOMPUTE_COUNT; level++) {
        TRY(build_at(s, level, f));
        plan p;
        plan_make(&p, &s->g, s->b, true);
        least = p.total;
        plan_free(&p);
        if (!room || (size_t)least <= room) return true;
    }
    return fail(f, FAIL_MACHINE,
                "this run needs %.2f GiB on the %s even with full recompute, %.2f GiB are free: lower "
                "per_device_train_batch_size or max_length, or lora_rank",
                (double)least / 0x1p30, s->b->name, (double)room / 0x1p30);
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

typedef struct {
    session *s;
    optimizer *o;
    loader *l;
    schedule rate;
    micro_batch *batches; /* [accumulation] */
    int n_batches;
    int64_t step, skipped;
} run;

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

/* Names the rows of a step that was left out, in metrics.jsonl all of them; the run ends at max_skipped_steps. */
static bool leave_out(run *t, int n, report *r, const step_metrics *m, failure *f) {
    const config *c = t->s->c;
    const dataset *d = loader_data(t->l);
    const char *const *paths = c->dataset.items;
    int32_t *bad = NULL, *all = skipped_examples(t->batches, n);
    text_buf rows = {0}, json = {0};
    bool ok = skipped_find(t->s, t->batches, n, &bad, f);
    text_puts(&rows, !bad                              ? "every row is finite by itself, the step has "
                     : arrlen(bad) == SKIPPED_MOST_BAD ? "not finite by itself, among others: "
                                                       : "not finite by itself: ");
    skipped_put_rows(&rows, d, paths, bad ? bad : all, 20);
    skipped_put_json(&json, d, paths, all);
    text_puts(&json, ", \"bad_rows\": ");
    skipped_put_json(&json, d, paths, bad);
    t->skipped++;
    if (ok) {
        log_warning("step %lld: loss %g, gradient norm %g: no update (%lld skipped so far); %s", (long long)m->step,
                    m->loss, m->grad_norm, (long long)t->skipped, rows.data);
        ok = report_skipped(r, m->step, json.data, f);
    }
    if (ok && c->max_skipped_steps && t->skipped >= c->max_skipped_steps)
        ok = fail(f, FAIL_INPUT,
                  "step %lld: %lld steps had a loss or gradient that is not finite (max_skipped_steps), the last %s; "
                  "look at these rows with `liger-sft data`, or lower learning_rate",
                  (long long)m->step, (long long)t->skipped, rows.data);
    text_free(&json);
    text_free(&rows);
    arrfree(all);
    arrfree(bad);
    return ok;
}

static void add_to_summary(run_summary *out, const step_metrics *m) {
    if (out->steps++ == 0) out->first_loss = m->loss;
    out->loss = m->loss;
    out->tokens += m->tokens;
    out->label_tokens += m->label_tokens;
    out->slots += m->slots;
}

/* Of the device where there is one to ask, else of this process. `peak`: the most so far, not what is held now. */
static void measure(double *util, double *memory_gib, bool peak) {
    device_stats d;
    bool device = device_stats_read(&d);
    *util = device ? d.util_percent : NAN;
    *memory_gib = !device ? report_peak_memory_gib() : peak ? d.peak_memory_gib : d.memory_gib;
}

static void finish_summary(run_summary *out, double begin, double busy) {
    out->tokens_per_second = (double)out->tokens / busy;
    out->label_tokens_per_second = (double)out->label_tokens / busy;
    out->slots_per_second = (double)out->slots / busy;
    out->packing_efficiency = (double)out->tokens / (double)out->slots;
    measure(&out->gpu_util, &out->peak_memory_gib, true);
    out->seconds = clock_seconds() - begin;
}

static bool evaluate_now(run *t, const dataset *eval, report *r, run_summary *out, failure *f) {
    eval_result e;
    TRY(train_evaluate(t->s, eval, &e, f));
    out->eval_loss = e.loss;
    return report_eval(r, t->step, e.loss, e.seconds, f);
}

static bool run_steps(run *t, const dataset *eval, report *r, double begin, run_summary *out, failure *f) {
    const config *c = t->s->c;
    double busy = 0;
    int n;
    out->start_seconds = clock_seconds() - begin;
    while (loader_next(t->l, t->batches, &n)) {
        bool skipped;
        step_metrics m = {.steps = t->rate.total};
        TRY(train_step(t->s, t->o, t->batches, n, schedule_rate(&t->rate, t->step), &m, &skipped, f));
        m.step = ++t->step;
        m.epoch = loader_epoch(t->l);
        measure(&m.gpu_util, &m.memory_gib, false);
        if (t->step == 1) device_stats_reset(); /* the first step also chooses algorithms */
        busy += m.step_seconds;
        add_to_summary(out, &m);
        TRY(report_step(r, &m, f));
        if (skipped) TRY(leave_out(t, n, r, &m, f));
        if (eval && c->eval_steps && t->step % c->eval_steps == 0) TRY(evaluate_now(t, eval, r, out, f));
    }
    if (eval && (!c->eval_steps || t->step % c->eval_steps)) TRY(evaluate_now(t, eval, r, out, f));
    if (t->skipped == t->step) return fail(f, FAIL_INPUT, "every step had a loss or gradient that is not finite");
    out->skipped_steps = t->skipped;
    finish_summary(out, begin, busy);
    return true;
}

bool train_run(session *s, const dataset *data, const dataset *eval, report *r, double begin, run_summary *out,
               failure *f) {
    const config *c = s->c;
    int64_t most = dataset_count(data); /* micro-batches of an epoch, at most */
    run t = {.s = s, .n_batches = (int)(c->gradient_accumulation_steps < most ? c->gradient_accumulation_steps : most)};
    loader_options options = {.batch_size = (int)c->per_device_train_batch_size,
                              .max_length = (int)c->max_length,
                              .grad_accumulation = t.n_batches,
                              .epochs = c->num_train_epochs,
                              .max_steps = c->max_steps,
                              .packed = c->packing,
                              .shuffle = c->dataset_shuffle,
                              .seed = (uint64_t)c->seed};
    *out = (run_summary){.eval_loss = NAN};
    TRY(loader_open(&t.l, data, &options, f));
    t.rate = schedule_from_config(c, loader_steps(t.l));
    t.batches = xcalloc((size_t)t.n_batches, sizeof *t.batches);
    for (int i = 0; i < t.n_batches; i++) micro_batch_init(&t.batches[i], train_slots(c));
    bool ok = optimizer_open(&t.o, s, f);
    if (ok)
        log_info("%lld trainable weights, %lld steps of %d x %d slots, peak memory planned %.2f GiB (recompute %s)",
                 (long long)optimizer_params(t.o), (long long)t.rate.total, t.n_batches, train_slots(c),
                 (double)s->p.total / 0x1p30, recompute_name(s->level));
    ok = ok && run_steps(&t, eval, r, begin, out, f);
    for (int i = 0; i < t.n_batches; i++) micro_batch_free(&t.batches[i]);
    free(t.batches);
    optimizer_close(t.o);
    loader_close(t.l);
    return ok;
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
    while (ok && loader_next(l, &b, &n)) {
        double loss;
        ok = train_loss(s, &b, &loss, f);
        if (!ok) break;
        sum += loss;
        out->tokens += b.info.rows;
        out->label_tokens += b.info.labels;
    }
    micro_batch_free(&b);
    loader_close(l);
    out->loss = out->label_tokens ? sum / (double)out->label_tokens : NAN;
    out->seconds = clock_seconds() - started;
    return ok;
}
