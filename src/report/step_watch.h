/* step_watch.h - notices steps that stand out: a loss far above those before it, a step that takes far longer. */
#ifndef REPORT_STEP_WATCH_H
#define REPORT_STEP_WATCH_H
#include <stdbool.h>

enum { STEP_WATCH_WINDOW = 32, STEP_WATCH_LEAST = 8 };

/* The last values of one figure. */
typedef struct {
    double value[STEP_WATCH_WINDOW];
    int n, next; /* values held; where the next one goes */
} step_window;

typedef struct {
    step_window loss, seconds;
} step_watch; /* zero-initialise */

typedef struct {
    double loss_spike; /* the loss over the median of the steps before it; 0: none */
    double stall;      /* the seconds over their median; 0: none */
} step_alarm;

/* Compares a step with the up to STEP_WATCH_WINDOW steps before it, then adds it to them. Nothing is said about the
 * first STEP_WATCH_LEAST; a loss that is not finite is neither judged nor kept.
 *   loss spike: above the median by more than 6 times the spread (1.4826 x the median distance from the median: the
 *               standard deviation, were the values normally distributed), and by more than a quarter of the median;
 *   stall:      more than 3 times the median, and more than a second longer. */
step_alarm step_watch_add(step_watch *w, double loss, double seconds);
double step_watch_usual(const step_watch *w); /* median of the seconds; 0 before STEP_WATCH_LEAST steps */
#endif
