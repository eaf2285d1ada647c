/* fit.c - plans other settings of a run that does not fit, until one does; see fit.h.
 *
 * A plan needs no memory of the device and takes milliseconds.  Tried in the order in which they cost least: a stronger
 * recompute level, then half the micro-batch and half again, then rows half as long. */
#include "train/fit.h"
#include "train/trainer.h"

#include <string.h>

enum { SHORTEST = 64 };

static double gib(int64_t bytes) { return (double)bytes / 0x1p30; }

void fit_put_plan(text_buf *out, const plan *p) {
    text_printf(out, "weights %.2f, trained %.2f, gradients %.2f, moments %.2f, activations %.2f, in and out %.2f GiB",
                gib(p->params - p->trainable), gib(p->trainable), gib(p->grads), gib(p->moments), gib(p->arena),
                gib(p->inputs + p->outputs));
}

recompute_level fit_last_level(const backend *b) { return b->host_memory ? RECOMPUTE_FULL : RECOMPUTE_OFFLOAD; }

/* Bytes of the run under other settings. */
static bool total_of(session *s, const config *c, recompute_level level, int64_t *total, failure *f) {
    const config *own = s->c;
    plan p;
    s->c = c;
    session_drop_program(s);
    bool ok = session_build(s, SESSION_TRAIN, train_slots(c), level, f);
    s->c = own;
    if (!ok) return false;
    plan_make(&p, &s->g, s->b, true);
    *total = p.total;
    plan_free(&p);
    return true;
}

/* total: what the run needs as it is. */
static bool put_first_that_fits(session *s, recompute_level level, int64_t total, int64_t room, text_buf *out,
                                failure *f) {
    config c = *s->c;
    const recompute_level most = fit_last_level(s->b);
    for (recompute_level next = level + 1; next <= most; next++) {
        TRY(total_of(s, &c, next, &total, f));
        if (total > room) continue;
        text_printf(out, "gradient_checkpointing %s would need %.2f GiB", recompute_name(next), gib(total));
        return true;
    }
    while (c.per_device_train_batch_size > 1 || c.max_length > SHORTEST) {
        if (c.per_device_train_batch_size > 1) c.per_device_train_batch_size /= 2;
        else c.max_length /= 2;
        TRY(total_of(s, &c, most, &total, f));
        if (total > room) continue;
        text_printf(out, "per_device_train_batch_size %lld with max_length %lld",
                    (long long)c.per_device_train_batch_size, (long long)c.max_length);
        if (level < most) text_printf(out, " and gradient_checkpointing %s", recompute_name(most));
        text_printf(out, " would need %.2f GiB", gib(total));
        return true;
    }
    text_printf(out, "even one row of %lld tokens needs %.2f GiB: take a smaller model or a machine with more memory",
                (long long)c.max_length, gib(total));
    return true;
}

bool fit_refuse(session *s, const plan *p, size_t room, failure *f) {
    text_buf parts = {0}, advice = {0};
    recompute_level level = s->level;
    fit_put_plan(&parts, p);
    int64_t needed = p->total; /* p may be the program's own, which goes now */
    bool ok = put_first_that_fits(s, level, needed, (int64_t)room, &advice, f);
    session_drop_program(s);
    if (ok)
        fail(f, FAIL_MACHINE, "this run needs %.2f GiB on the %s with recompute %s (%s), %.2f GiB are free: %s",
             gib(needed), s->b->name, recompute_name(level), parts.data, (double)room / 0x1p30, advice.data);
    text_free(&parts);
    text_free(&advice);
    return false;
}
