/* cmd_plan.c - `liger-sft plan`: the memory of a run, by role, for each recompute level. Needs config.json only. */
#include "cli/command.h"
#include "train/trainer.h"

#include <stdio.h>
#include <string.h>

static double gib(int64_t bytes) { return (double)bytes / 0x1p30; }

static void print_header(const session *s) {
    const model_config *m = &s->model;
    const config *c = s->c;
    printf("model %s (%s): %d layers, width %d, %d/%d heads of %d, feed-forward %d, vocabulary %d\n", s->folder,
           m->family, m->n_layer, m->d_model, m->n_head, m->n_kv_head, m->head_dim, m->d_ff, m->vocab);
    printf("run: %s, %lld x %lld slots a micro-batch, use_liger_kernel %s, backend %s\n\n", c->tuner_type,
           (long long)c->per_device_train_batch_size, (long long)c->max_length, c->use_liger_kernel ? "true" : "false",
           s->b->name);
    printf("%-10s %10s %10s %10s %10s %10s %10s %10s %10s  %s\n", "recompute", "frozen", "trained", "gradients",
           "moments", "activations", "scratch", "in+out", "device", "peak (GiB)");
}

static void print_row(const char *level, const plan *p, bool chosen) {
    printf("%-10s %10.3f %10.3f %10.3f %10.3f %11.3f %10.3f %10.3f %10.3f  %.3f (%lld bytes)%s\n", level,
           gib(p->params - p->trainable), gib(p->trainable), gib(p->grads), gib(p->moments), gib(p->arena),
           gib(p->scratch), gib(p->inputs + p->outputs), gib(p->overhead), gib(plan_peak(p)), (long long)plan_peak(p),
           chosen ? "  <- auto" : "");
}

static bool print_plan(session *s, const config *c, failure *f) {
    TRY(session_open_model(s, c, f));
    TRY(session_open_backend(s, f));
    size_t room = s->b->memory();
    bool chosen = false;
    for (recompute_level level = 0; level < RECOMPUTE_COUNT; level++) {
        session_drop_program(s);
        TRY(session_build(s, SESSION_TRAIN, train_slots(c), level, f));
        if (level == 0) print_header(s);
        plan p;
        plan_make(&p, &s->g, s->b, true);
        bool fits = !room || (size_t)p.total <= room;
        print_row(recompute_name(level), &p, fits && !chosen);
        chosen |= fits;
        plan_free(&p);
    }
    if (room) printf("\n%.2f GiB are free on this machine%s\n", gib((int64_t)room), chosen ? "" : ": no level fits");
    return true;
}

bool cmd_plan(const config *c, failure *f) {
    session s = {0};
    bool ok = print_plan(&s, c, f);
    session_close(&s);
    return ok;
}
