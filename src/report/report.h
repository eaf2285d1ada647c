/* report.h - what a run says: progress on a terminal or key=value lines, metrics.jsonl, summary.json, the last line. */
#ifndef REPORT_REPORT_H
#define REPORT_REPORT_H
#include "base/failure.h"
#include "config/config.h"

/* Figures that do not exist (MFU or utilisation on the CPU) are NAN: "na" on a line, null in JSON. mfu and gpu_util are
 * in percent, packing_efficiency is a share (0 to 1). A rate counts real tokens unless its name says otherwise. */
typedef struct {
    int64_t step, steps;
    double epoch, loss, learning_rate, grad_norm;
    int64_t tokens, label_tokens, slots; /* of this step: real tokens, learnt tokens, slots including padding */
    double tokens_per_second, mfu, gpu_util, memory_gib, step_seconds;
    double loss_spike, stall; /* set by report_step: times the median of the steps before it (step_watch.h), 0: none */
} step_metrics;

typedef struct {
    int64_t steps, skipped_steps; /* skipped: without an update, for a loss or gradient that is not finite */
    double first_loss, loss;      /* of the first and the last step */
    int64_t step_rows;            /* packed rows of a step, over all ranks */
    int64_t tokens, label_tokens, slots;
    double tokens_per_second, label_tokens_per_second, slots_per_second;
    double packing_efficiency;                                /* tokens / slots */
    double gpu_util, peak_memory_gib, seconds, start_seconds; /* start: from the program's start to the first step */
    double eval_loss;                                         /* NAN when nothing was evaluated */
    int64_t resumed_from;                                     /* step of the checkpoint; 0: the run began here */
    int64_t checkpoints;                                      /* saved */
    double save_seconds;                                      /* that steps waited for them */
    int64_t ranks; /* of these figures: tokens and rates are sums, gpu_util is the mean, peak_memory_gib the largest */
    const double *rank_peaks; /* [ranks] peak_memory_gib of each; lives as long as the session */
} run_summary;

typedef struct report report;
/* Makes OUTPUT_DIR and opens its metrics.jsonl: afresh, or to go on with. An old summary.json goes, so
 * that a broken run leaves none. Progress goes to standard output: one rewritten line on a terminal, else a key=value
 * line per logging_steps (and for the first and last step). `c` must outlive the report. */
bool report_open(report **out, const config *c, bool goes_on, failure *f);
/* Lines even on a terminal: mpirun gives a rank one that is nobody's. */
void report_lines(report *r);
/* A report that writes and prints nothing: of a rank past 0. */
void report_open_silent(report **out);
/* Behind report_open, for a run that goes on after `step`: lines about later steps leave metrics.jsonl, and that of the
 * evaluation behind `step` unless `evaluated`. */
bool report_resume(report *r, int64_t step, bool evaluated, failure *f);
/* Before a step: one that hangs (for a minute and 10 times the usual) is told on standard error while it does. */
void report_begin(report *r, int64_t step);
/* Behind it: appends one whole line to metrics.jsonl. A step that stands out has its line on standard output whatever
 * logging_steps says; on a terminal that line stays. */
bool report_step(report *r, const step_metrics *m, failure *f);
/* Appends {"step", "skipped_rows"} about a step without an update; rows: JSON text, file name -> row numbers. It may
 * bring further members. */
bool report_skipped(report *r, int64_t step, const char *rows, failure *f);
/* Appends {"step", "eval_loss", "eval_perplexity", "eval_seconds"} and prints a line. */
bool report_eval(report *r, int64_t step, double loss, double seconds, failure *f);
/* Writes summary.json and prints the last line: done steps=N loss=X tokens_per_second=X gpu_util=X peak_memory_gib=X
 * seconds=X output_dir=PATH. */
bool report_done(report *r, const run_summary *s, failure *f);
/* Ends the line that is being rewritten on a terminal, so that a line on standard error stands by itself. */
void report_pause(report *r);
void report_close(report *r); /* NULL is fine */
/* Most memory that this process ever had resident (VmHWM; getrusage where there is no /proc). */
double report_peak_memory_gib(void);
#endif
