/* trainer.c - a step: its micro-batches one after the other, then the clipped update; and evaluation.
 *
 * The loss is divided once by all label tokens of the step, of all ranks: every micro-batch runs with dLoss/dnll =
 * 1 / labels, and the loss and the gradients gather over them on the device. */
#include "train/trainer.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "exec/flops.h"
#include "train/fit.h"
#include "train/fold_choice.h"
#include "train/optimizer.h"
#include "train/ranks.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int train_slots(const config *c) { return (int)(c->per_device_train_batch_size * c->max_length); }

static bool build_at(session *s, recompute_level level, failure *f) {
    session_drop_program(s);
    return session_build(s, SESSION_TRAIN, train_slots(s->c), level, f);
}

/* Builds with what is spread now and the first level that fits; *fits false: there is none, and the last one is built.
 */
static bool build_stage(session *s, size_t room, bool *fits, failure *f) {
    const char *wanted = s->c->gradient_checkpointing;
    bool chosen = strcmp(wanted, "auto") != 0, last = false;
    *fits = false;
    for (recompute_level level = 0; !*fits && !last; level++) {
        if (chosen && strcmp(wanted, recompute_name(level)) != 0) continue;
        plan p;
        TRY(build_at(s, level, f));
        plan_make(&p, &s->g, s->b, true);
        *fits = !room || (size_t)p.total <= room;
        last = chosen || level == fit_last_level(s->b);
        plan_free(&p);
    }
    return true;
}

/* What the settings ask for and is not there. */
static bool check_sharding(const session *s, failure *f) {
    const config *c = s->c;
    bool base = strcmp(c->shard_base, "true") == 0, full = strcmp(c->tuner_type, "full") == 0;
    if (base && full)
        return fail(f, FAIL_INPUT,
                    "shard_base: found true with tuner_type full, which has no frozen weights: expected auto or false "
                    "(zero_stage 3 spreads what full tuning keeps)");
    if (c->zero_stage[0] == '3' && !full && s->b->upload_rows) /* pass_layout */
        return fail(f, FAIL_INPUT,
                    "zero_stage: found 3 with tuner_type lora on the %s, where an adapter lies in one matrix with its "
                    "base: expected auto, 0, 1 or 2 there (shard_base spreads both)",
                    s->b->name);
    return true;
}

/* Whether train_build may spread like this among several ranks. */
static bool allowed(const session *s, sharding one) {
    const config *c = s->c;
    bool full = strcmp(c->tuner_type, "full") == 0, any = strcmp(c->zero_stage, "auto") == 0;
    int stage = any ? one.zero_stage : c->zero_stage[0] - '0', most = full ? 3 : 1;
    if (stage != one.zero_stage || (any && stage > most)) return false;
    if (full) return !one.shard_base;
    if (strcmp(c->shard_base, "auto") == 0) return stage < 3 || one.shard_base; /* ZeRO 3: all weights */
    return one.shard_base == (strcmp(c->shard_base, "true") == 0);
}

bool train_shardings(const session *s, int ranks, sharding out[TRAIN_SHARDINGS], int *n, failure *f) {
    const config *c = s->c;
    bool wanted = strcmp(c->shard_base, "true") == 0 || c->zero_stage[0] == '2' || c->zero_stage[0] == '3';
    *n = 0;
    if (ranks < 2 && !(s->ranks && wanted)) { /* a world of one spreads only what it is told to */
        out[(*n)++] = (sharding){0};
        return true;
    }
    TRY(check_sharding(s, f));
    for (int i = 0; i < TRAIN_SHARDINGS; i++) {
        sharding one = {i % ZERO_STAGES, i / ZERO_STAGES};
        if (allowed(s, one)) out[(*n)++] = one;
    }
    return true;
}

/* What fits here with the least communication. */
static bool build_fitting(session *s, failure *f) {
    TRY(session_open_backend(s, f));
    size_t room = s->b->memory();
    sharding list[TRAIN_SHARDINGS];
    int n;
    TRY(train_shardings(s, comm_size(s->ranks), list, &n, f));
    if (s->b->host_memory) room /= (size_t)comm_local_size(s->ranks); /* the others on this machine take theirs */
    for (int i = 0; i < n; i++) {
        bool fits;
        s->spread = list[i];
        TRY(build_stage(s, room, &fits, f));
        if (fits) return true;
    }
    plan p;
    plan_make(&p, &s->g, s->b, true);
    fit_refuse(s, &p, room, f);
    plan_free(&p);
    return false;
}

bool train_build(session *s, failure *f) {
    TRY(session_open_backend(s, f) && fold_choice_make(s, f));
    if (s->fold_note && s->b->platform) log_info("%s", s->fold_note);
    bool ok = comm_agree(s->ranks, build_fitting(s, f), f);
    int spread = s->spread.shard_base * ZERO_STAGES + s->spread.zero_stage;
    int mine = spread * RECOMPUTE_COUNT + (int)s->level; /* one for all: the ranks run one program */
    double most = mine;
    TRY(ok && comm_max(s->ranks, &most, 1, "what to keep in memory", f));
    if ((int)most == mine) return true;
    spread = (int)most / RECOMPUTE_COUNT;
    s->spread = (sharding){spread % ZERO_STAGES, spread / ZERO_STAGES};
    return build_at(s, (recompute_level)((int)most % RECOMPUTE_COUNT), f);
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

/* One row of one token without a label: what the other ranks need of this one, and no more. */
static bool run_along(session *s, bool backward, bool last, failure *f) {
    int32_t id = 0, pos = 0, target = -100, cu[2] = {0, 1};
    batch_info info = {.rows = 1, .docs = 1, .longest = 1, .last = last, .stand_in = true};
    micro_batch b = {.ids = &id, .pos = &pos, .target = &target, .cu = cu, .info = info};
    return train_micro_batch(s, &b, 0, backward, f);
}

/* Micro-batches of this step: as many as the rank with most has, where every one takes all ranks. */
static bool count_together(const session *s, int n, int *most, failure *f) {
    double x = n;
    *most = n;
    if (!s->spread.shard_base && s->spread.zero_stage < 2) return true;
    TRY(comm_max(s->ranks, &x, 1, "the micro-batches of a step", f));
    *most = (int)x;
    return true;
}

bool train_step(session *s, optimizer *o, const micro_batch *batches, int n, double learning_rate, step_metrics *m,
                bool *skipped, failure *f) {
    double started = clock_seconds();
    float loss;
    int most;
    TRY(ranks_count(s, batches, n, m, f) && count_together(s, n, &most, f));
    TRY(executor_clear(s->x, ROLE_GRAD, f));
    TRY(executor_clear(s->x, ROLE_OUTPUT, f));
    for (int i = 0; i < most; i++) {
        if (i >= n) {
            TRY(run_along(s, true, i == most - 1, f));
            continue;
        }
        micro_batch b = batches[i];
        b.info.last = i == most - 1;
        TRY(train_micro_batch(s, &b, m->label_tokens ? 1 / (float)m->label_tokens : 0, true, f));
    }
    TRY(executor_download(s->x, s->io.loss, &loss, 1, f));
    m->loss = (double)loss;
    TRY(comm_sum(s->ranks, &m->loss, 1, "the loss of a step", f));
    if (isnan(m->loss)) m->loss = NAN; /* without a sign, which lines would show */
    m->grad_norm = NAN; /* a loss that is not finite can have a finite gradient: that of a label of probability 0 */
    if (isfinite(m->loss)) TRY(optimizer_step(o, learning_rate, &m->grad_norm, f));
    m->learning_rate = learning_rate;
    m->step_seconds = clock_seconds() - started;
    m->mfu = utilisation(s, batches, n, m->step_seconds);
    TRY(ranks_finish_step(s, m, f));
    m->tokens_per_second = (double)m->tokens / m->step_seconds;
    *skipped = !isfinite(m->grad_norm);
    return true;
}

/* Whether any rank is about to run a forward half that takes all ranks; false where none does. */
static bool forward_together(session *s, bool mine, bool *any, failure *f) {
    double most = mine;
    *any = false;
    if (!s->spread.shard_base && s->spread.zero_stage < 3) return true;
    TRY(comm_max(s->ranks, &most, 1, "whether a rank needs another loss", f));
    *any = most > 0;
    return true;
}

bool train_losses_end(session *s, failure *f) {
    for (bool any = true; any;) {
        TRY(forward_together(s, false, &any, f));
        if (any) TRY(executor_clear(s->x, ROLE_OUTPUT, f) && run_along(s, false, false, f));
    }
    return true;
}

bool train_loss(session *s, const micro_batch *b, double *loss, failure *f) {
    float sum;
    bool any;
    TRY(forward_together(s, true, &any, f));
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
                              .rank = comm_rank(s->ranks),
                              .ranks = comm_size(s->ranks),
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
        if (b.info.stand_in) continue;
        ok = train_loss(s, &b, &loss, f);
        if (!ok) break;
        sum += loss;
        out->tokens += b.info.rows;
        out->label_tokens += b.info.labels;
    }
    ok = ok && train_losses_end(s, f);
    double all[] = {sum, (double)out->tokens, (double)out->label_tokens, signals_caught() != 0};
    ok = ok && comm_sum(s->ranks, all, 4, "the sums of an evaluation", f);
    out->tokens = (int64_t)all[1];
    out->label_tokens = (int64_t)all[2];
    out->stopped = all[3] > 0;
    micro_batch_free(&b);
    loader_close(l);
    out->loss = out->label_tokens ? all[0] / (double)out->label_tokens : NAN;
    out->seconds = clock_seconds() - started;
    return ok;
}
