/* progress.c - the two forms of a line about a step: key=value pairs for files, a fitted line for terminals. */
#include "report/progress.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void progress_put_pair(text_buf *out, const char *key, double x, int digits, bool fixed) {
    text_printf(out, "%s%s=", out->size ? " " : "", key);
    if (isnan(x)) text_puts(out, "na");
    else text_printf(out, fixed ? "%.*f" : "%.*g", digits, x);
}

void progress_put_pairs(text_buf *out, const step_metrics *m, double seconds_left) {
    text_printf(out, "step=%lld steps=%lld", (long long)m->step, (long long)m->steps);
    progress_put_pair(out, "epoch", m->epoch, 4, true);
    progress_put_pair(out, "loss", m->loss, 6, true);
    progress_put_pair(out, "learning_rate", m->learning_rate, 6, false);
    progress_put_pair(out, "grad_norm", m->grad_norm, 6, false);
    progress_put_pair(out, "tokens_per_second", m->tokens_per_second, 1, true);
    progress_put_pair(out, "mfu", m->mfu, 1, true);
    progress_put_pair(out, "gpu_util", m->gpu_util, 1, true);
    progress_put_pair(out, "memory_gib", m->memory_gib, 3, true);
    progress_put_pair(out, "step_seconds", m->step_seconds, 3, true);
    progress_put_pair(out, "seconds_left", seconds_left, 0, true);
    if (m->loss_spike > 0) progress_put_pair(out, "loss_spike", m->loss_spike, 2, true);
    if (m->stall > 0) progress_put_pair(out, "stall", m->stall, 1, true);
    text_puts(out, "\n");
}

/* Fields in the order in which they stand; `keep` is the order in which they are given up: the highest goes first. */
typedef struct {
    char text[40];
    int keep;
} field;
enum { FIELDS = 11 };

static void put_field(field *to, int keep, double exists, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void put_field(field *to, int keep, double exists, const char *format, ...) {
    to->text[0] = 0;
    to->keep = keep;
    if (isnan(exists)) return;
    va_list args;
    va_start(args, format);
    vsnprintf(to->text, sizeof to->text, format, args);
    va_end(args);
}

static void put_duration(field *to, int keep, double seconds) {
    if (!(seconds >= 0 && seconds < 1e9)) seconds = NAN;
    long long s = isnan(seconds) ? 0 : llround(seconds);
    if (s < 3600) put_field(to, keep, seconds, "left %lld:%02lld", s / 60, s % 60);
    else put_field(to, keep, seconds, "left %lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
}

static int line_width(const field *fields) {
    int width = 0;
    for (int i = 0; i < FIELDS; i++)
        if (fields[i].text[0]) width += (int)strlen(fields[i].text) + (width ? 3 : 0);
    return width;
}

void progress_put_line(text_buf *out, const step_metrics *m, double seconds_left, int width) {
    field fields[FIELDS];
    double rate = m->tokens_per_second;
    put_field(&fields[0], 0, 0, "step %lld/%lld", (long long)m->step, (long long)m->steps);
    put_field(&fields[1], 1, m->loss, "loss %.4f", m->loss);
    put_field(&fields[2], 2, m->loss_spike > 0 ? 1 : NAN, "SPIKE %.1fx", m->loss_spike);
    put_field(&fields[3], 3, m->stall > 0 ? 1 : NAN, "STALL %.1fx", m->stall);
    put_field(&fields[4], 7, m->learning_rate, "lr %.2e", m->learning_rate);
    put_field(&fields[5], 8, m->grad_norm, "norm %.3g", m->grad_norm);
    put_field(&fields[6], 5, rate, rate >= 99999.5 ? "%.1fk tok/s" : "%.0f tok/s",
              rate >= 99999.5 ? rate / 1000 : rate);
    put_field(&fields[7], 10, m->mfu, "mfu %.1f%%", m->mfu);
    put_field(&fields[8], 9, m->gpu_util, "gpu %.0f%%", m->gpu_util);
    put_field(&fields[9], 6, m->memory_gib, "%.1f GiB", m->memory_gib);
    put_duration(&fields[10], 4, seconds_left);
    for (int keep = FIELDS - 1; keep > 0 && line_width(fields) > width; keep--)
        for (int i = 0; i < FIELDS; i++)
            if (fields[i].keep == keep) fields[i].text[0] = 0;
    size_t from = out->size;
    for (int i = 0; i < FIELDS; i++)
        if (fields[i].text[0]) text_printf(out, "%s%s", out->size > from ? " | " : "", fields[i].text);
    if (out->size - from > (size_t)width) {
        out->size = from + (size_t)width;
        out->data[out->size] = 0;
    }
}
