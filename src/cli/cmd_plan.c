/* cmd_plan.c - `liger-sft plan`: the memory of a run, by role, for each recompute level, and with --gpus N of the rank
 * that needs most for each way to spread it, with what the ranks send. Needs config.json only. */
#include "base/array.h"
#include "cli/command.h"
#include "train/fit.h"
#include "train/fold_choice.h"
#include "train/trainer.h"

#include <stdio.h>
#include <string.h>

static double gib(int64_t bytes) { return (double)bytes / 0x1p30; }

static void print_header(const session *s) {
    const model_config *m = &s->model;
    const config *c = s->c;
    printf("model %s (%s): %d layers, width %d, %d/%d heads of %d, feed-forward %d, vocabulary %d\n", s->folder,
           m->family, m->n_layer, m->d_model, m->n_head, m->n_kv_head, m->head_dim, m->d_ff, m->vocab);
    printf("run: %s, %lld x %lld slots a micro-batch, use_liger_kernel %s, backend %s\n", c->tuner_type,
           (long long)c->per_device_train_batch_size, (long long)c->max_length, c->use_liger_kernel ? "true" : "false",
           s->b->name);
}

static void print_titles(void) {
    printf("%-10s %10s %10s %10s %10s %10s %10s %10s  %s\n", "recompute", "frozen", "trained", "gradients", "moments",
           "activations", "in+out", "device", "peak (GiB)");
}

static void print_row(const char *level, const plan *p, bool chosen) {
    printf("%-10s %10.3f %10.3f %10.3f %10.3f %11.3f %10.3f %10.3f  %.3f (%lld bytes)", level,
           gib(p->params - p->trainable), gib(p->trainable), gib(p->grads), gib(p->moments), gib(p->arena),
           gib(p->inputs + p->outputs), gib(p->overhead), gib(plan_peak(p)), (long long)plan_peak(p));
    if (p->host) printf(", %.3f GiB of host memory", gib(p->host));
    printf("%s\n", chosen ? "  <- auto" : "");
}

/* What one rank sends, and receives: a sum over N ranks moves every gradient 2 (N - 1) / N times, in pieces half of
 * that; gathered weights come from N - 1 ranks. A trained param goes to N - 1 ranks from the one that updated it,
 * handed on by each but the last, or in pieces. */
static void print_traffic(const session *s, const plan *p, int ranks) {
    int stage = s->spread.zero_stage;
    double share = (double)(ranks - 1) / ranks, sums = stage < 2 ? 2 * share * (double)p->grads : 0;
    double updates = stage == 1 ? (double)p->trainable : stage == 2 ? share * (double)p->trainable : 0;
    double gathered = 0, scattered = 0;
    for (int i = 0; i < arrlen(s->g.ops); i++) {
        const graph_op *o = &s->g.ops[i];
        vid part = o->in[0], working = s->g.values[part].working;
        if (o->kind == OP_all_gather) gathered += (double)value_storage(&s->g, working ? working : part) * (ranks - 1);
        if (o->kind == OP_reduce_scatter) scattered += (double)value_storage(&s->g, o->out[0]) * (ranks - 1);
    }
    printf("a rank sends and receives, in a step: %.3f GiB of gradients, %.3f GiB of trained weights", sums / 0x1p30,
           updates / 0x1p30);
    if (gathered + scattered > 0)
        printf("; in each micro-batch: %.3f GiB of weights, %.3f GiB of gradients", gathered / 0x1p30,
               scattered / 0x1p30);
    printf("\n");
}

/* In front of the rows of one way to spread it; printed when its first program is built: a refusal prints nothing on
 * standard output. */
static void print_above(const session *s, bool first) {
    if (first) print_header(s);
    printf("\n");
    if (s->plan_ranks)
        printf("zero_stage %d, shard_base %s, the largest of %d ranks\n", s->spread.zero_stage,
               s->spread.shard_base ? "true" : "false", s->plan_ranks);
    print_titles();
}

/* The levels with what is spread now; *chosen: one that auto takes was printed. */
static bool print_sharding(session *s, const config *c, size_t room, bool first, bool *chosen, failure *f) {
    const recompute_level last = fit_last_level(s->b);
    for (recompute_level level = 0; level <= last; level++) {
        session_drop_program(s);
        TRY(session_build(s, SESSION_TRAIN, train_slots(c), level, f));
        plan p;
        plan_make(&p, &s->g, s->b, true);
        bool fits = !room || (size_t)p.total <= room;
        if (level == 0) print_above(s, first);
        print_row(recompute_name(level), &p, fits && !*chosen);
        *chosen |= fits;
        if (s->plan_ranks && level == last) print_traffic(s, &p, s->plan_ranks);
        plan_free(&p);
    }
    return true;
}

static bool print_plan(session *s, const config *c, failure *f) {
    TRY(session_open_model(s, c, f));
    TRY(session_open_backend(s, f) && fold_choice_make(s, f));
    bool chosen = false;
    s->plan_ranks = c->gpus > 1 ? (int)c->gpus : 0;
    size_t room = s->b->memory() / (s->plan_ranks && s->b->host_memory ? (size_t)s->plan_ranks : 1);
    sharding list[TRAIN_SHARDINGS];
    int n;
    TRY(train_shardings(s, s->plan_ranks, list, &n, f));
    for (int i = 0; i < n; i++) {
        s->spread = list[i];
        TRY(print_sharding(s, c, room, i == 0, &chosen, f));
    }
    if (s->fold_note) printf("\n%s\n", s->fold_note);
    if (room)
        printf("\n%.2f GiB are free%s%s\n", gib((int64_t)room), s->plan_ranks ? " for each rank" : " on this machine",
               chosen ? "" : ": no level fits");
    return true;
}

bool cmd_plan(const config *c, failure *f) {
    session s = {0};
    bool ok = print_plan(&s, c, f);
    session_close(&s);
    return ok;
}
