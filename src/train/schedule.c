/* schedule.c - warm-up, then cosine, linear or constant, counted in optimizer steps (never micro-batches). */
#include "train/schedule.h"

#include <math.h>
#include <string.h>

schedule schedule_from_config(const config *c, int64_t total) {
    static const char *const names[] = {"cosine", "linear", "constant", "constant_with_warmup"};
    schedule s = {.total = total, .peak = c->learning_rate};
    for (int k = 0; k < 4; k++)
        if (strcmp(c->lr_scheduler_type, names[k]) == 0) s.kind = (schedule_kind)k;
    s.warmup = c->warmup_steps > 0 ? c->warmup_steps : (int64_t)ceil(c->warmup_ratio * (double)total);
    if (s.kind == SCHEDULE_CONSTANT) s.warmup = 0;
    return s;
}

double schedule_rate(const schedule *s, int64_t step) {
    if (step < s->warmup) return s->peak * (double)step / (double)s->warmup;
    if (s->kind == SCHEDULE_CONSTANT || s->kind == SCHEDULE_CONSTANT_WARMUP) return s->peak;
    int64_t span = s->total - s->warmup;
    double done = span > 0 ? (double)(step - s->warmup) / (double)span : 0;
    if (s->kind == SCHEDULE_LINEAR) return s->peak * fmax(0, 1 - done);
    return s->peak * fmax(0, 0.5 * (1 + cos(3.14159265358979323846 * done)));
}
