/* step_watch.c - medians over a short window, so that one odd step does not move what the next is compared with; see
 * step_watch.h. */
#include "report/step_watch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the values. */
static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static void middle_and_spread(const step_window *w, double *middle, double *spread) {
    double x[STEP_WATCH_WINDOW];
    memcpy(x, w->value, sizeof x);
    *middle = median(x, w->n);
    for (int i = 0; i < w->n; i++) x[i] = fabs(x[i] - *middle);
    *spread = 1.4826 * median(x, w->n);
}

static void keep(step_window *w, double x) {
    w->value[w->next] = x;
    w->next = (w->next + 1) % STEP_WATCH_WINDOW;
    if (w->n < STEP_WATCH_WINDOW) w->n++;
}

double step_watch_usual(const step_watch *w) {
    double middle, spread;
    if (w->seconds.n < STEP_WATCH_LEAST) return 0;
    middle_and_spread(&w->seconds, &middle, &spread);
    return middle;
}

step_alarm step_watch_add(step_watch *w, double loss, double seconds) {
    step_alarm out = {0};
    double middle, spread;
    if (w->loss.n >= STEP_WATCH_LEAST) {
        middle_and_spread(&w->loss, &middle, &spread);
        double band = fmax(6 * spread, 0.25 * middle);
        if (isfinite(loss) && middle > 0 && loss > middle + band) out.loss_spike = loss / middle;
    }
    if (w->seconds.n >= STEP_WATCH_LEAST) {
        middle_and_spread(&w->seconds, &middle, &spread);
        if (middle > 0 && seconds > 3 * middle && seconds > middle + 1) out.stall = seconds / middle;
    }
    if (isfinite(loss)) keep(&w->loss, loss);
    if (isfinite(seconds)) keep(&w->seconds, seconds);
    return out;
}
