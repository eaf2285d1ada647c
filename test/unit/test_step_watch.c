/* test_step_watch.c - which losses are spikes and which steps stalls: against bands worked out by hand. */
#include "unit.h"

#include "base/rng.h"
#include "report/step_watch.h"

#include <math.h>
#include <string.h>

/* Losses 0.9, 1.1, 0.9, ...: median 1, spread 0.14826, so the band ends at 1.88956. */
static step_watch alternating(int n) {
    step_watch w;
    memset(&w, 0, sizeof w);
    for (int i = 0; i < n; i++) {
        step_alarm a = step_watch_add(&w, i % 2 ? 1.1 : 0.9, i % 2 ? 2.2 : 1.8);
        assert_true(a.loss_spike == 0 && a.stall == 0);
    }
    return w;
}

static void test_bands(void **state) {
    (void)state;
    for (int n = STEP_WATCH_LEAST; n < 100; n += 2) {
        step_watch w = alternating(n), again = w;
        assert_true(fabs(step_watch_usual(&w) - 2) < 1e-12);
        assert_true(step_watch_add(&w, 1.88, 2).loss_spike == 0);
        step_alarm a = step_watch_add(&again, 1.9, 6.1);
        assert_true(fabs(a.loss_spike - 1.9) < 1e-12 && fabs(a.stall - 3.05) < 1e-12);
        again = alternating(n);
        a = step_watch_add(&again, NAN, 5.9);
        assert_true(a.loss_spike == 0 && a.stall == 0);
        again = alternating(n);
        assert_true(step_watch_add(&again, INFINITY, 1).loss_spike == 0); /* a skipped step has a word of its own */
        assert_true(step_watch_add(&again, 0.01, 1).loss_spike == 0);     /* nor is a low loss one */
    }
    step_watch few = alternating(STEP_WATCH_LEAST - 1);
    assert_true(step_watch_usual(&few) == 0);
    step_alarm a = step_watch_add(&few, 1e9, 1e9);
    assert_true(a.loss_spike == 0 && a.stall == 0);
}

/* No spread at all: a quarter above counts; short steps must also be a second longer. */
static void test_floors(void **state) {
    (void)state;
    step_watch w;
    memset(&w, 0, sizeof w);
    for (int i = 0; i < 20; i++) step_watch_add(&w, 2, 0.01);
    step_watch a = w, b = w, c = w, d = w;
    assert_true(step_watch_add(&a, 2.49, 0.01).loss_spike == 0);
    assert_true(fabs(step_watch_add(&b, 2.51, 0.01).loss_spike - 1.255) < 1e-12);
    assert_true(step_watch_add(&c, 2, 1.0).stall == 0);
    assert_true(fabs(step_watch_add(&d, 2, 1.02).stall - 102) < 1e-9);
}

/* One spike does not hide the next; a lasting change is told for half a window, then it is the usual. */
static void test_memory(void **state) {
    (void)state;
    step_watch w = alternating(STEP_WATCH_WINDOW);
    for (int i = 0; i < 5; i++) assert_true(step_watch_add(&w, 9, 2).loss_spike > 8);
    w = alternating(STEP_WATCH_WINDOW);
    int told = 0;
    for (int i = 0; i < 100; i++) told += step_watch_add(&w, 9, 2).loss_spike > 0;
    assert_true(told >= STEP_WATCH_WINDOW / 4 && told <= STEP_WATCH_WINDOW / 2 + 1);
}

/* A curve as runs have it, falling from 3 to 1 with 5 % of noise, is quiet; so are normal step times. */
static void test_quiet(void **state) {
    (void)state;
    int told = 0;
    for (uint64_t key = 0; key < 20; key++) {
        step_watch w;
        memset(&w, 0, sizeof w);
        for (uint64_t i = 0; i < 1000; i++) {
            double loss = (1 + 2 * exp(-(double)i / 100)) * (1 + 0.05 * (double)rng_normal(key, i));
            step_alarm a = step_watch_add(&w, loss, 2 + 0.2 * (double)rng_normal(key + 100, i));
            told += (a.loss_spike > 0) + (a.stall > 0);
        }
    }
    print_message("%d alarms in 20000 steps\n", told);
    assert_true(told <= 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bands), cmocka_unit_test(test_floors),
                                       cmocka_unit_test(test_memory), cmocka_unit_test(test_quiet)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
