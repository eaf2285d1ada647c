/* test_sample.c - greedy choice, the cuts, and frequencies of draws against the softmax. */
#include "unit.h"

#include "base/rng.h"
#include "eval/sample.h"

#include <math.h>

/* Softmax of these at temperature 1: 0.0321, 0.0871, 0.2369, 0.6439. */
static const float four[4] = {0, 1, 2, 3};

static int32_t take(const float *logits, int n, sample_options o, double uniform) {
    return sample_token(logits, n, &o, uniform);
}

static void greedy_takes_the_likeliest_and_lowest_id(void **state) {
    (void)state;
    assert_int_equal(take(four, 4, (sample_options){0, 1, 0}, 0.9), 3);
    float tie[4] = {1, 5, 5, NAN};
    assert_int_equal(take(tie, 4, (sample_options){0, 1, 0}, 0.0), 1);
    float none[2] = {NAN, -INFINITY};
    assert_int_equal(take(none, 2, (sample_options){0, 1, 0}, 0.0), -1);
    assert_int_equal(take(none, 2, (sample_options){1, 1, 0}, 0.0), -1);
}

static void draws_follow_the_sorted_probabilities(void **state) {
    (void)state;
    sample_options o = {1, 1, 0};
    assert_int_equal(take(four, 4, o, 0.0), 3);
    assert_int_equal(take(four, 4, o, 0.643), 3);
    assert_int_equal(take(four, 4, o, 0.645), 2);
    assert_int_equal(take(four, 4, o, 0.880), 2);
    assert_int_equal(take(four, 4, o, 0.882), 1);
    assert_int_equal(take(four, 4, o, 0.999999), 0);
}

static void cuts_keep_the_head(void **state) {
    (void)state;
    assert_int_equal(take(four, 4, (sample_options){1, 1, 1}, 0.999999), 3);
    assert_int_equal(take(four, 4, (sample_options){1, 1, 2}, 0.999999), 2);
    assert_int_equal(take(four, 4, (sample_options){1, 0.64, 0}, 0.999999), 3);
    assert_int_equal(take(four, 4, (sample_options){1, 0.65, 0}, 0.999999), 2);
    assert_int_equal(take(four, 4, (sample_options){1, 0.0, 0}, 0.999999), 3);
    /* top_k first: of the two that stay, 0.731 and 0.269, one reaches 0.7. */
    assert_int_equal(take(four, 4, (sample_options){1, 0.7, 2}, 0.999999), 3);
    assert_int_equal(take(four, 4, (sample_options){1, 0.7, 0}, 0.999999), 2);
}

static void temperature_scales_the_logits(void **state) {
    (void)state;
    sample_options o = {0.5, 1, 0}; /* 0.865 for the likeliest */
    assert_int_equal(take(four, 4, o, 0.864), 3);
    assert_int_equal(take(four, 4, o, 0.866), 2);
    float huge[3] = {1e30f, -1e30f, 1e30f};
    assert_int_equal(take(huge, 3, (sample_options){1, 1, 0}, 0.49), 0);
    assert_int_equal(take(huge, 3, (sample_options){1, 1, 0}, 0.51), 2);
}

static void frequencies_match_the_softmax(void **state) {
    (void)state;
    enum { DRAWS = 100000 };
    int count[4] = {0};
    for (int i = 0; i < DRAWS; i++)
        count[take(four, 4, (sample_options){1, 1, 0}, (double)(rng_bits(7, (uint64_t)i) >> 11) * 0x1p-53)]++;
    const double p[4] = {0.03205860, 0.08714432, 0.23688282, 0.64391426};
    for (int i = 0; i < 4; i++) /* five standard deviations */
        assert_true(fabs(count[i] - p[i] * DRAWS) < 5 * sqrt(DRAWS * p[i] * (1 - p[i])));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_likeliest_and_lowest_id),
        cmocka_unit_test(draws_follow_the_sorted_probabilities),
        cmocka_unit_test(cuts_keep_the_head),
        cmocka_unit_test(temperature_scales_the_logits),
        cmocka_unit_test(frequencies_match_the_softmax),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
