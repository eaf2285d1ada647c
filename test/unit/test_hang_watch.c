/* test_hang_watch.c - a step that hangs is told while it does, once; a slow one, a first one and none are not. */
#include "unit.h"

#include "base/clock.h"
#include "report/hang_watch.h"

#include <time.h>

static void wait_seconds(double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

/* Up to ten seconds for a machine under load. */
static int count_reaches(hang_watch *w, int want) {
    for (double end = clock_seconds() + 10; hang_watch_count(w) < want && clock_seconds() < end;) wait_seconds(0.01);
    return hang_watch_count(w);
}

static void test_hanging_step(void **state) {
    (void)state;
    hang_watch *w = hang_watch_open(0.1, 3);
    assert_non_null(w);
    wait_seconds(0.2);         /* no step runs */
    hang_watch_begin(w, 1, 0); /* nothing is known yet */
    wait_seconds(0.2);
    hang_watch_end(w);
    hang_watch_begin(w, 2, 1e3); /* slow steps are the usual */
    wait_seconds(0.2);
    hang_watch_end(w);
    assert_int_equal(hang_watch_count(w), 0);
    hang_watch_begin(w, 3, 0.01);
    assert_int_equal(count_reaches(w, 1), 1);
    wait_seconds(0.2); /* once a step */
    hang_watch_end(w);
    wait_seconds(0.1);
    assert_int_equal(hang_watch_count(w), 1);
    hang_watch_begin(w, 4, 0.01);
    assert_int_equal(count_reaches(w, 2), 2);
    hang_watch_close(w); /* in the middle of a step */
}

static void test_nothing_to_watch(void **state) {
    (void)state;
    double began = clock_seconds();
    hang_watch_close(hang_watch_open(3600, 3)); /* does not wait for its hour */
    assert_true(clock_seconds() - began < 60);
    hang_watch_begin(NULL, 1, 1);
    hang_watch_end(NULL);
    assert_int_equal(hang_watch_count(NULL), 0);
    hang_watch_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hanging_step), cmocka_unit_test(test_nothing_to_watch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
