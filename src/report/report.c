/* report.c - metrics.jsonl, summary.json, progress and the last line of a run.
 *
 * summary.json is written whole at the end. */
#include "report/report.h"
#include "base/file.h"
#include "base/json.h"
#include "report/hang_watch.h"
#include "report/metrics_file.h"
#include "report/progress.h"
#include "report/step_watch.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

struct report {
    const config *c;
    arena names;
    metrics_file metrics;
    bool terminal, silent;
    size_t shown; /* columns of the progress line now on the terminal */
    step_watch watch;
    hang_watch *hangs; /* NULL before the first step */
    int64_t first_step;
    double first_time; /* when the first step was reported; 0 before */
    text_buf text;     /* working memory of a line */
};

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool report_open(report **out, const config *c, bool goes_on, failure *f) {
    TRY(file_make_folders(c->output_dir, f));
    report *r = xcalloc(1, sizeof *r);
    *r = (report){.c = c, .terminal = isatty(STDOUT_FILENO) == 1};
    const char *old = path_join(&r->names, c->output_dir, "summary.json");
    bool ok = metrics_file_open(&r->metrics, path_join(&r->names, c->output_dir, "metrics.jsonl"), goes_on, f);
    if (ok && unlink(old) != 0 && errno != ENOENT) ok = fail_errno(f, FAIL_MACHINE, "%s: cannot remove", old);
    if (!ok) return report_close(r), false;
    *out = r;
    return true;
}

void report_lines(report *r) { r->terminal = false; }

void report_open_silent(report **out) {
    *out = xcalloc(1, sizeof **out);
    **out = (report){.silent = true, .metrics = {.fd = -1}};
}

bool report_resume(report *r, int64_t step, bool evaluated, failure *f) {
    return metrics_file_keep(&r->metrics, step, evaluated, f);
}

void report_pause(report *r) {
    if (!r->shown) return;
    printf("\n");
    fflush(stdout);
    r->shown = 0;
}

void report_close(report *r) {
    if (!r) return;
    hang_watch_close(r->hangs);
    report_pause(r);
    metrics_file_close(&r->metrics);
    text_free(&r->text);
    arena_free(&r->names);
    free(r);
}

static bool append_line(report *r, failure *f) {
    return metrics_file_append(&r->metrics, r->text.data, r->text.size, f);
}

static bool flush_output(failure *f) {
    if (fflush(stdout) == 0) return true;
    return fail_errno(f, FAIL_MACHINE, "standard output: write failed");
}

static void put_int(text_buf *t, const char *before, const char *key, int64_t x) {
    text_printf(t, "%s\"%s\": %lld", before, key, (long long)x);
}

static void put_double(text_buf *t, const char *before, const char *key, double x) {
    text_printf(t, "%s\"%s\": ", before, key);
    json_put_double(t, x);
}

static void put_metrics(text_buf *t, const step_metrics *m) {
    put_int(t, "{", "step", m->step);
    put_double(t, ", ", "epoch", m->epoch);
    put_double(t, ", ", "loss", m->loss);
    put_double(t, ", ", "learning_rate", m->learning_rate);
    put_double(t, ", ", "grad_norm", m->grad_norm);
    put_int(t, ", ", "tokens", m->tokens);
    put_int(t, ", ", "label_tokens", m->label_tokens);
    put_int(t, ", ", "slots", m->slots);
    put_double(t, ", ", "tokens_per_second", m->tokens_per_second);
    put_double(t, ", ", "mfu", m->mfu);
    put_double(t, ", ", "gpu_util", m->gpu_util);
    put_double(t, ", ", "memory_gib", m->memory_gib);
    put_double(t, ", ", "step_seconds", m->step_seconds);
    if (m->loss_spike > 0) put_double(t, ", ", "loss_spike", m->loss_spike);
    if (m->stall > 0) put_double(t, ", ", "stall", m->stall);
    text_puts(t, "}\n");
}

/* Steps to go at the pace since the first step was reported; that first one has only its own time. */
static double seconds_left(report *r, const step_metrics *m) {
    double now = seconds_now(), pace = m->step_seconds;
    if (r->first_time == 0) r->first_time = now, r->first_step = m->step;
    if (m->step > r->first_step) pace = (now - r->first_time) / (double)(m->step - r->first_step);
    return pace * (double)(m->steps - m->step);
}

static int terminal_width(void) {
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
}

/* Writes the line over the one before; blanks cover what a longer one left. */
static void show_line(report *r, const char *text, size_t n) {
    int rest = r->shown > n ? (int)(r->shown - n) : 0;
    printf("\r%.*s%*s", (int)n, text, rest, "");
    if (rest) printf("\r%.*s", (int)n, text);
    r->shown = n;
}

static void clear_line(report *r) {
    if (!r->shown) return;
    show_line(r, "", 0);
    printf("\r");
}

void report_begin(report *r, int64_t step) {
    enum { LEAST_SECONDS = 60, FACTOR = 10 };
    if (!r->hangs) r->hangs = hang_watch_open(LEAST_SECONDS, FACTOR);
    hang_watch_begin(r->hangs, step, step_watch_usual(&r->watch));
}

bool report_step(report *r, const step_metrics *step, failure *f) {
    if (r->silent) return true;
    step_metrics m = *step;
    hang_watch_end(r->hangs);
    step_alarm alarm = step_watch_add(&r->watch, m.loss, m.step_seconds);
    m.loss_spike = alarm.loss_spike;
    m.stall = alarm.stall;
    text_clear(&r->text);
    put_metrics(&r->text, &m);
    TRY(append_line(r, f));
    bool first = r->first_time == 0, odd = m.loss_spike > 0 || m.stall > 0;
    double left = seconds_left(r, &m);
    text_clear(&r->text);
    if (r->terminal) {
        progress_put_line(&r->text, &m, left, terminal_width());
        show_line(r, r->text.data, r->text.size);
        if (odd) report_pause(r);
    } else if (first || odd || m.step == m.steps || m.step % r->c->logging_steps == 0) {
        progress_put_pairs(&r->text, &m, left);
        fputs(r->text.data, stdout);
    } else return true;
    return flush_output(f);
}

bool report_skipped(report *r, int64_t step, const char *rows, failure *f) {
    if (r->silent) return true;
    text_clear(&r->text);
    put_int(&r->text, "{", "step", step);
    text_printf(&r->text, ", \"skipped_rows\": %s}\n", rows);
    return append_line(r, f);
}

bool report_eval(report *r, int64_t step, double loss, double seconds, failure *f) {
    if (r->silent) return true;
    text_buf *t = &r->text;
    text_clear(t);
    put_int(t, "{", "step", step);
    put_double(t, ", ", "eval_loss", loss);
    put_double(t, ", ", "eval_perplexity", exp(loss));
    put_double(t, ", ", "eval_seconds", seconds);
    text_puts(t, "}\n");
    TRY(append_line(r, f));
    clear_line(r);
    text_clear(t);
    text_printf(t, "step=%lld", (long long)step);
    progress_put_pair(t, "eval_loss", loss, 6, true);
    progress_put_pair(t, "eval_perplexity", exp(loss), 6, false);
    progress_put_pair(t, "eval_seconds", seconds, 3, true);
    printf("%s\n", t->data);
    return flush_output(f);
}

static void put_summary(text_buf *t, const run_summary *s, const config *c) {
    const char *next = ",\n  ";
    put_int(t, "{\n  ", "steps", s->steps);
    put_double(t, next, "loss", s->loss);
    put_double(t, next, "tokens_per_second", s->tokens_per_second);
    put_double(t, next, "gpu_util", s->gpu_util);
    put_double(t, next, "peak_memory_gib", s->peak_memory_gib);
    put_double(t, next, "seconds", s->seconds);
    text_printf(t, "%s\"output_dir\": ", next);
    json_put_string(t, c->output_dir, strlen(c->output_dir));
    put_double(t, next, "first_loss", s->first_loss);
    put_double(t, next, "eval_loss", s->eval_loss);
    put_int(t, next, "skipped_steps", s->skipped_steps);
    put_int(t, next, "step_rows", s->step_rows);
    put_int(t, next, "resumed_from", s->resumed_from);
    put_int(t, next, "checkpoints", s->checkpoints);
    put_double(t, next, "save_seconds", s->save_seconds);
    put_int(t, next, "tokens", s->tokens);
    put_int(t, next, "label_tokens", s->label_tokens);
    put_int(t, next, "slots", s->slots);
    put_double(t, next, "label_tokens_per_second", s->label_tokens_per_second);
    put_double(t, next, "slots_per_second", s->slots_per_second);
    put_double(t, next, "packing_efficiency", s->packing_efficiency);
    put_double(t, next, "start_seconds", s->start_seconds);
    put_int(t, next, "world_size", s->ranks);
    text_printf(t, "%s\"rank_peak_memory_gib\": [", next);
    for (int64_t r = 0; r < s->ranks; r++) {
        if (r) text_puts(t, ", ");
        json_put_double(t, s->rank_peaks[r]);
    }
    text_puts(t, "]");
    text_printf(t, "%s\"config\": ", next);
    config_put_json(c, t);
    text_puts(t, "\n}\n");
}

bool report_done(report *r, const run_summary *s, failure *f) {
    if (r->silent) return true;
    text_clear(&r->text);
    put_summary(&r->text, s, r->c);
    TRY(file_write(path_join(&r->names, r->c->output_dir, "summary.json"), r->text.data, r->text.size, f));
    report_pause(r);
    text_clear(&r->text);
    text_printf(&r->text, "done steps=%lld", (long long)s->steps);
    progress_put_pair(&r->text, "loss", s->loss, 6, true);
    progress_put_pair(&r->text, "tokens_per_second", s->tokens_per_second, 1, true);
    progress_put_pair(&r->text, "gpu_util", s->gpu_util, 1, true);
    progress_put_pair(&r->text, "peak_memory_gib", s->peak_memory_gib, 3, true);
    progress_put_pair(&r->text, "seconds", s->seconds, 3, true);
    printf("%s output_dir=%s\n", r->text.data, r->c->output_dir);
    return flush_output(f);
}

double report_peak_memory_gib(void) {
    char line[256];
    double kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (strncmp(line, "VmHWM:", 6) == 0) kib = strtod(line + 6, NULL);
    if (status) fclose(status);
    struct rusage usage;
    if (kib == 0 && getrusage(RUSAGE_SELF, &usage) == 0) kib = (double)usage.ru_maxrss;
    return kib / (1 << 20);
}
