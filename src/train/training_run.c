/* training_run.c - the loop over steps; see training_run.h.
 *
 * Its order makes a resumed run do what an uninterrupted one does: behind a step come its report, its evaluation, its
 * checkpoint, and only then the question whether to stop.  An evaluation that a signal cut off is done when the run
 * goes on, because the state says which step was evaluated last. */
#include "train/training_run.h"
#include "base/array.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "exec/device_stats.h"
#include "train/ranks.h"
#include "train/save.h"
#include "train/saver.h"
#include "train/schedule.h"
#include "train/skipped.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct run {
    session *s;
    optimizer *o;
    loader *l;
    saver *saver;
    schedule rate;
    micro_batch *batches; /* [n_batches] */
    int n_batches;
    run_state state;
    int64_t first, saved; /* steps done when it began, when it was saved last */
    double seconds;       /* of the runs before */
    text_buf left_out;    /* the rows of the step that was left out last */
};

/* ---- open and close ---- */

static bool open_loader(run *t, const dataset *data, failure *f) {
    const config *c = t->s->c;
    int64_t most = dataset_count(data); /* micro-batches of an epoch, at most */
    t->n_batches = (int)(c->gradient_accumulation_steps < most ? c->gradient_accumulation_steps : most);
    loader_options options = {.batch_size = (int)c->per_device_train_batch_size,
                              .max_length = (int)c->max_length,
                              .grad_accumulation = t->n_batches,
                              .rank = comm_rank(t->s->ranks),
                              .ranks = comm_size(t->s->ranks),
                              .epochs = c->num_train_epochs,
                              .max_steps = c->max_steps,
                              .packed = c->packing,
                              .shuffle = c->dataset_shuffle,
                              .seed = (uint64_t)c->seed};
    TRY(loader_open(&t->l, data, &options, f));
    t->rate = schedule_from_config(c, loader_steps(t->l));
    t->batches = xcalloc((size_t)t->n_batches, sizeof *t->batches);
    for (int i = 0; i < t->n_batches; i++) micro_batch_init(&t->batches[i], train_slots(c));
    return true;
}

static bool go_to(run *t, const resume *from, failure *f) {
    run_source source = t->state.source;
    TRY(resume_check(from, t->s, &source, t->l, f));
    TRY(checkpoint_restore(&from->from, t->o, t->s, f));
    run_state_copy(&t->state, &from->from.state);
    t->first = t->saved = t->state.sum.resumed_from = t->state.step;
    t->seconds = t->state.sum.seconds;
    loader_seek(t->l, t->state.step);
    return true;
}

static bool open_parts(run *t, const dataset *data, const resume *from, failure *f) {
    const config *c = t->s->c;
    TRY(open_loader(t, data, f));
    TRY(optimizer_open(&t->o, t->s, f));
    t->saver = saver_open(t->s, t->o);
    int64_t rows = c->per_device_train_batch_size * c->gradient_accumulation_steps * comm_size(t->s->ranks);
    t->state = (run_state){.steps = loader_steps(t->l),
                           .rows = loader_rows(t->l),
                           .source = resume_source(t->s, data),
                           .best_loss = NAN,
                           .sum.step_rows = rows,
                           .sum.eval_loss = NAN};
    return !from || from->kind != RESUME_BEHIND || go_to(t, from, f);
}

bool run_open(run **out, session *s, const dataset *data, const resume *from, failure *f) {
    run *t = xcalloc(1, sizeof *t);
    t->s = s;
    if (!open_parts(t, data, from, f)) {
        run_close(t);
        return false;
    }
    text_buf spread = {0};
    if (s->ranks)
        text_printf(&spread, ", zero_stage %d, shard_base %s", s->spread.zero_stage,
                    s->spread.shard_base ? "true" : "false");
    log_info("%lld trainable weights, %lld steps of %d x %d slots%s, peak memory planned %.2f GiB (recompute %s%s)",
             (long long)optimizer_params(t->o), (long long)t->rate.total, t->n_batches * comm_size(s->ranks),
             train_slots(s->c), s->ranks ? " over all ranks" : "", (double)plan_peak(&s->p) / 0x1p30,
             recompute_name(s->level), spread.size ? spread.data : "");
    text_free(&spread);
    *out = t;
    return true;
}

void run_close(run *t) {
    if (!t) return;
    saver_close(t->saver);
    for (int i = 0; i < t->n_batches && t->batches; i++) micro_batch_free(&t->batches[i]);
    free(t->batches);
    optimizer_close(t->o);
    loader_close(t->l);
    run_state_free(&t->state);
    text_free(&t->left_out);
    free(t);
}

const run_state *run_where(const run *t) { return &t->state; }

/* ---- a step and what belongs to it ---- */

/* Of the device where there is one to ask, else of this process. `peak`: the most so far, not what is held now. */
static void measure(double *util, double *memory_gib, bool peak) {
    device_stats d;
    bool device = device_stats_read(&d);
    *util = device ? d.util_percent : NAN;
    *memory_gib = !device ? report_peak_memory_gib() : peak ? d.peak_memory_gib : d.memory_gib;
}

static void add_to_state(run *t, const step_metrics *m) {
    run_state *state = &t->state;
    run_summary *sum = &state->sum;
    if (sum->steps++ == 0) sum->first_loss = m->loss;
    sum->loss = m->loss;
    sum->tokens += m->tokens;
    sum->label_tokens += m->label_tokens;
    sum->slots += m->slots;
    state->busy += m->step_seconds;
    state->step = m->step;
    state->epoch = m->epoch;
    state->row = loader_row(t->l);
    state->updates = optimizer_updates(t->o);
    const config *c = t->s->c;
    if (m->step == 1 || m->step == m->steps || m->step % c->logging_steps == 0) run_state_log_step(state, m);
}

/* Names the rows of a step that was left out: on standard error the bad ones, in metrics.jsonl all of them. */
static bool leave_out(run *t, int n, report *r, const step_metrics *m, failure *f) {
    const dataset *d = loader_data(t->l);
    const char *const *paths = t->s->c->dataset.items;
    int tried;
    int32_t *bad = NULL, *all = skipped_examples(t->batches, n);
    text_buf *rows = &t->left_out, json = {0};
    bool ok = skipped_find(t->s, t->batches, n, &bad, &tried, f) && ranks_gather(t->s, &bad, f) &&
              ranks_gather(t->s, &all, f) && ranks_add(t->s, &tried, f);
    text_clear(rows);
    bool many = arrlen(bad) >= SKIPPED_MOST_BAD, every = many && tried == (int)arrlen(bad);
    text_puts(rows, every
                        ? "no row that was tried is finite by itself, so look at the weights and learning_rate first: "
                    : many ? "not finite by itself, among others: "
                    : bad  ? "not finite by itself: "
                           : "every row is finite by itself, the step has ");
    skipped_put_rows(rows, d, paths, bad ? bad : all, 20);
    skipped_put_json(&json, d, paths, all);
    text_puts(&json, ", \"bad_rows\": ");
    skipped_put_json(&json, d, paths, bad);
    int64_t skipped = ++t->state.sum.skipped_steps;
    if (ok) {
        report_pause(r);
        log_warning("step %lld: loss %g, gradient norm %g: no update (%lld skipped so far); %s", (long long)m->step,
                    m->loss, m->grad_norm, (long long)skipped, rows->data);
        ok = report_skipped(r, m->step, json.data, f);
    }
    text_free(&json);
    arrfree(all);
    arrfree(bad);
    return ok;
}

static bool do_step(run *t, int n, report *r, failure *f) {
    step_metrics m = {.steps = t->rate.total, .step = t->state.step + 1};
    bool skipped;
    report_begin(r, m.step);
    TRY(train_step(t->s, t->o, t->batches, n, schedule_rate(&t->rate, t->state.step), &m, &skipped, f));
    m.epoch = loader_epoch(t->l);
    measure(&m.gpu_util, &m.memory_gib, false);
    if (t->state.step == t->first) device_stats_reset(); /* the first step also chooses algorithms */
    add_to_state(t, &m);
    TRY(report_step(r, &m, f));
    return !skipped || leave_out(t, n, r, &m, f);
}

/* ---- evaluations, checkpoints, signals ---- */

static bool is_last(const run *t) { return t->state.step == t->rate.total; }

static bool evaluation_due(const run *t, const dataset *eval) {
    int64_t step = t->state.step, every = t->s->c->eval_steps;
    if (!eval || !step || t->state.evaluated == step) return false;
    return is_last(t) || (every && step % every == 0);
}

static bool evaluate_now(run *t, const dataset *eval, report *r, failure *f) {
    eval_result e;
    TRY(train_evaluate(t->s, eval, &e, f));
    if (e.stopped) return true;
    t->state.sum.eval_loss = e.loss;
    t->state.evaluated = t->state.step;
    run_state_log_eval(&t->state, e.loss, e.seconds);
    return report_eval(r, t->state.step, e.loss, e.seconds, f);
}

static bool save_now(run *t, double begin, failure *f) {
    run_state *state = &t->state;
    double started = clock_seconds();
    bool writes = comm_rank(t->s->ranks) == 0; /* all ranks are in the same state */
    bool evaluated = state->evaluated == state->step && isfinite(state->sum.eval_loss);
    if (evaluated && (!state->best_step || state->sum.eval_loss < state->best_loss))
        state->best_step = state->step, state->best_loss = state->sum.eval_loss;
    state->sum.checkpoints++;
    state->sum.seconds = t->seconds + started - begin;
    if (!writes) TRY(optimizer_serve(t->o, f));
    else {
        failure other;
        bool ok = saver_start(t->saver, state, f);
        TRY((optimizer_served(t->o, ok ? f : &other) && ok)); /* the others wait for it even then */
    }
    t->saved = state->step;
    state->sum.save_seconds += clock_seconds() - started;
    return true;
}

static bool save_due(const run *t, bool stopping) {
    int64_t step = t->state.step, every = t->s->c->save_steps;
    if (step == t->saved) return false;
    return stopping || (every && (step % every == 0 || is_last(t)));
}

/* Failures that all ranks have at once; rank 0 may have a worse one. */
static bool stopped_here(run *t, int signal, failure *f) {
    const char *name = signals_name(signal);
    TRY(saver_wait(t->saver, f));
    if (!t->state.step) return fail(f, FAIL_INTERRUPT, "stopped by %s before the first step; nothing to save", name);
    return fail(f, FAIL_INTERRUPT, "stopped by %s after step %lld of %lld; %s/checkpoint-%lld is saved, go on with %s",
                name, (long long)t->state.step, (long long)t->rate.total, t->s->c->output_dir, (long long)t->saved,
                "--resume_from_checkpoint auto");
}

static bool stopped(run *t, int signal, failure *f) { return comm_agree(t->s->ranks, stopped_here(t, signal, f), f); }

/* At max_skipped_steps. What was learnt before is saved: the weights are those of the last update. */
static bool stop_for_skipped_here(run *t, double begin, failure *f) {
    const run_state *state = &t->state;
    bool saves = state->updates > 0 && state->step != t->saved;
    if (saves) TRY(save_now(t, begin, f));
    TRY(saver_wait(t->saver, f));
    fail(f, FAIL_INPUT,
         "step %lld: %lld steps had a loss or gradient that is not finite (max_skipped_steps), the last %s; look at "
         "these rows with `liger-sft data`, or lower learning_rate",
         (long long)state->step, (long long)state->sum.skipped_steps, t->left_out.data);
    if (!saves) return false;
    char text[sizeof f->text];
    memcpy(text, f->text, sizeof text);
    return fail(f, FAIL_INPUT, "%s; what was learnt before is in %s/checkpoint-%lld", text, t->s->c->output_dir,
                (long long)t->saved);
}

static bool stop_for_skipped(run *t, double begin, failure *f) {
    return comm_agree(t->s->ranks, stop_for_skipped_here(t, begin, f), f);
}

static bool run_steps(run *t, const dataset *eval, report *r, double begin, failure *f) {
    for (int n, signal;;) {
        if (evaluation_due(t, eval)) TRY(evaluate_now(t, eval, r, f));
        TRY(ranks_signal(t->s, &signal, f));
        bool stopping = signal && !(is_last(t) && !evaluation_due(t, eval));
        if (save_due(t, stopping)) TRY(save_now(t, begin, f));
        if (saver_failed(t->saver)) return saver_wait(t->saver, f);
        if (stopping) return stopped(t, signal, f);
        if (!loader_next(t->l, t->batches, &n)) break;
        int64_t most = t->s->c->max_skipped_steps, before = t->state.sum.skipped_steps;
        TRY(do_step(t, n, r, f));
        if (most && t->state.sum.skipped_steps > before && before + 1 >= most) return stop_for_skipped(t, begin, f);
    }
    return saver_wait(t->saver, f);
}

static bool fill_summary(const run *t, double begin, run_summary *out, failure *f) {
    double start = out->start_seconds, busy = t->state.busy;
    *out = t->state.sum;
    out->start_seconds = start;
    out->tokens_per_second = (double)out->tokens / busy;
    out->label_tokens_per_second = (double)out->label_tokens / busy;
    out->slots_per_second = (double)out->slots / busy;
    out->packing_efficiency = (double)out->tokens / (double)out->slots;
    measure(&out->gpu_util, &out->peak_memory_gib, true);
    TRY(ranks_finish_run(t->s, out, f));
    out->seconds = t->seconds + clock_seconds() - begin;
    return true;
}

bool run_train(run *t, const dataset *eval, report *r, double begin, run_summary *out, failure *f) {
    if (eval && !dataset_count(eval)) eval = NULL;
    out->start_seconds = clock_seconds() - begin;
    TRY(run_steps(t, eval, r, begin, f));
    if (t->state.sum.skipped_steps == t->state.step) {
        fail(f, FAIL_INPUT, "every step had a loss or gradient that is not finite");
        return comm_agree(t->s->ranks, false, f);
    }
    return fill_summary(t, begin, out, f);
}

bool run_save_result(const run *t, failure *f) {
    if (comm_rank(t->s->ranks) > 0) return optimizer_serve(t->o, f);
    failure other;
    bool ok = save_result(t->s, t->o, f);
    return optimizer_served(t->o, ok ? f : &other) && ok; /* the others wait for it even then */
}
