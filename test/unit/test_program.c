/* test_program.c - the whole program on the CPU, on a model of random weights: what the passes change must not change
 * the numbers.  Three documents are packed; values are seeded by name, so every variant starts from the same weights.
 */
#include "unit.h"

#include "base/array.h"
#include "base/rng.h"
#include "exec/executor.h"
#include "unit/program.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum { N = 20, V = 31 };
static const int32_t starts[] = {0, 7, 8, 17}; /* documents of 7, 1 and 9 rows; the last 3 rows are not real */

typedef struct {
    graph g;
    model_io io;
    plan p;
    executor *x;
    batch_info info;
    float loss;
} program;

static uint64_t key_of(const char *name) {
    uint64_t key = 7;
    for (; *name; name++) key = rng_fold(key, (unsigned char)*name);
    return key;
}

static void bind_random(program *r, vid v, failure *f) {
    const graph_value *value = &r->g.values[v];
    int64_t n = value_count(value);
    float *w = xmalloc((size_t)n * sizeof *w);
    bool norm = strstr(value->name, "norm") != NULL;
    for (int64_t i = 0; i < n; i++)
        w[i] = (norm ? 1 : 0) + 0.6f * (rng_uniform(key_of(value->name), (uint64_t)i) - 0.5f);
    assert_done(executor_bind(r->x, v, w, DTYPE_F32, f), f);
    if (executor_data(r->x, v) != (void *)w) free(w);
}

static void upload_batch(program *r, failure *f) {
    int32_t ids[N], pos[N], target[N];
    float weight[N], freq[4] = {1, 0.1f, 0.01f, 0.001f};
    int labels = 0;
    for (int d = 0; d < 3; d++)
        for (int t = starts[d]; t < starts[d + 1]; t++) {
            ids[t] = (t * 7 + 3) % V;
            pos[t] = t - starts[d];
            bool last = t + 1 == starts[d + 1];
            target[t] = last || t % 4 == 1 ? -100 : ((t + 1) * 7 + 3) % V;
            labels += target[t] >= 0;
        }
    for (int t = 0; t < starts[3]; t++) weight[t] = target[t] >= 0 ? 1 / (float)labels : 0;
    r->info = (batch_info){.rows = starts[3], .docs = 3, .labels = labels, .longest = 9, .seed = 5, .training = true};
    assert_done(executor_upload(r->x, r->io.ids, ids, starts[3], f), f);
    assert_done(executor_upload(r->x, r->io.pos, pos, starts[3], f), f);
    assert_done(executor_upload(r->x, r->io.target, target, starts[3], f), f);
    assert_done(executor_upload(r->x, r->io.weight, weight, starts[3], f), f);
    assert_done(executor_upload(r->x, r->io.cu, starts, 4, f), f);
    assert_done(executor_upload(r->x, r->io.freq, freq, 4, f), f);
}

static void start(program *r, const program_kind *k, bool planned) {
    failure f = {0};
    r->io = program_build(&r->g, k, N, &f);
    assert_done(pass_verify(&r->g, &f), &f);
    plan_make(&r->p, &r->g, &cpu_backend, planned);
    assert_done(executor_open(&r->x, &r->g, &r->p, &cpu_backend, &f), &f);
    for (vid v = 1; v < arrlen(r->g.values); v++)
        if (r->g.values[v].role == ROLE_PARAM) bind_random(r, v, &f);
    upload_batch(r, &f);
}

static float run(program *r, bool backward) {
    failure f = {0};
    assert_done(executor_clear(r->x, ROLE_GRAD, &f), &f);
    assert_done(executor_clear(r->x, ROLE_OUTPUT, &f), &f);
    assert_done(executor_run(r->x, 0, backward ? (int)arrlen(r->g.ops) : r->g.n_forward, &r->info, &f), &f);
    assert_done(executor_download(r->x, r->io.loss, &r->loss, 1, &f), &f);
    return r->loss;
}

/* Frozen params are used where bind_random put them; they are ours to free. */
static void stop(program *r) {
    for (vid v = 1; v < arrlen(r->g.values); v++)
        if (r->g.values[v].role == ROLE_PARAM && !r->g.values[v].trainable) free(executor_data(r->x, v));
    executor_close(r->x);
    plan_free(&r->p);
    graph_free(&r->g);
}

static const float *gradient(const program *r, const char *name, int64_t *n) {
    vid v = graph_find(&r->g, name);
    assert_true(v && r->g.values[v].grad);
    *n = value_count(&r->g.values[v]);
    return executor_data(r->x, r->g.values[v].grad);
}

/* Largest difference of any gradient of b from a's, relative to the gradient's norm; also of the loss. */
static double compare(const program *a, const program *b) {
    double worst = fabs(a->loss - b->loss) / fabs(a->loss);
    int compared = 0;
    for (vid v = 1; v < arrlen(a->g.values); v++) {
        if (!a->g.values[v].grad) continue;
        int64_t n, m;
        const float *p = gradient(a, a->g.values[v].name, &n), *q = gradient(b, a->g.values[v].name, &m);
        double diff = 0, norm = 0;
        assert_int_equal(n, m);
        for (int64_t i = 0; i < n; i++) diff += pow(p[i] - q[i], 2), norm += pow(p[i], 2);
        assert_true(norm > 0); /* cases.md A05: every adapter gets a gradient */
        worst = fmax(worst, sqrt(diff / norm));
        compared++;
    }
    assert_true(compared > 0);
    return worst;
}

static const program_kind families[] = {
    {.rank = 3},
    {.rank = 3, .qk_norm = true, .bias = true, .window = true, .tied = true},
    {.full = true, .bias = true},
    {.full = true, .qk_norm = true, .tied = true, .window = true},
};
enum { FAMILIES = sizeof families / sizeof *families };

static void fused_equals_unfused(void **state) {
    (void)state;
    for (int i = 0; i < FAMILIES; i++) {
        program a = {0}, b = {0};
        program_kind fused = families[i];
        fused.fused = true;
        start(&a, &families[i], true), start(&b, &fused, true);
        run(&a, true), run(&b, true);
        assert_true(isfinite(a.loss) && a.loss > 1);
        assert_true(compare(&a, &b) < 1e-5);
        stop(&a), stop(&b);
    }
}

static void planned_equals_unplanned_bit_for_bit(void **state) {
    (void)state;
    for (int i = 0; i < 2 * FAMILIES; i++) {
        program a = {0}, b = {0};
        program_kind k = families[i / 2];
        k.fused = i % 2;
        start(&a, &k, true), start(&b, &k, false);
        run(&a, true), run(&b, true);
        assert_true(compare(&a, &b) == 0);
        run(&a, true); /* a second run finds the arena as the first left it */
        assert_true(compare(&a, &b) == 0);
        stop(&a), stop(&b);
    }
}

static void recomputed_equals_kept_bit_for_bit(void **state) {
    (void)state;
    for (int i = 0; i < 2 * FAMILIES; i++)
        for (recompute_level level = RECOMPUTE_CHEAP; level < RECOMPUTE_COUNT; level++) {
            program a = {0}, b = {0};
            program_kind k = families[i / 2];
            k.fused = i % 2;
            start(&a, &k, true);
            k.level = level;
            start(&b, &k, true);
            run(&a, true), run(&b, true);
            assert_true(compare(&a, &b) == 0);
            stop(&a), stop(&b);
        }
}

/* cases.md A05, A06: the same masks in forward and repeat; off in evaluation; other seeds give other masks. */
static void dropout_masks(void **state) {
    (void)state;
    program none = {0}, a = {0}, b = {0};
    program_kind k = {.rank = 3};
    start(&none, &k, true);
    k.dropout = 0.5f;
    start(&a, &k, true);
    k.level = RECOMPUTE_FULL;
    start(&b, &k, true);
    run(&a, true), run(&b, true);
    assert_true(compare(&a, &b) == 0);
    float loss = a.loss;
    a.info.seed = 6;
    assert_true(run(&a, true) != loss);
    a.info.training = false;
    assert_true(run(&a, false) == run(&none, false));
    stop(&none), stop(&a), stop(&b);
}

/* The gradient of the whole program against central differences, along a random direction in each param. */
static void check_differences(const program_kind *k) {
    program r = {0};
    start(&r, k, true);
    run(&r, true);
    for (vid v = 1; v < arrlen(r.g.values); v++) {
        if (!r.g.values[v].grad) continue;
        int64_t n;
        const float *g = gradient(&r, r.g.values[v].name, &n);
        float *w = executor_data(r.x, v), *saved = xmalloc((size_t)n * sizeof *saved);
        double slope = 0, norm = 0;
        for (int64_t i = 0; i < n; i++) norm += (double)g[i] * g[i];
        float h = 2e-2f;
        memcpy(saved, w, (size_t)n * sizeof *saved);
        float *direction = xmalloc((size_t)n * sizeof *direction); /* the gradient's: the largest slope there is */
        for (int64_t i = 0; i < n; i++) direction[i] = (float)(g[i] / sqrt(norm));
        for (int64_t i = 0; i < n; i++) slope += (double)g[i] * direction[i];
        for (int64_t i = 0; i < n; i++) w[i] = saved[i] + h * direction[i];
        double up = run(&r, false);
        for (int64_t i = 0; i < n; i++) w[i] = saved[i] - h * direction[i];
        double down = run(&r, false);
        memcpy(w, saved, (size_t)n * sizeof *saved);
        double measured = (up - down) / (2 * (double)h);
        if (fabs(measured - slope) > 2e-3 + 2e-2 * fabs(slope))
            test_fail("%s: slope %g, by differences %g", r.g.values[v].name, slope, measured);
        run(&r, true); /* gradients again: g points into the program */
        free(direction);
        free(saved);
    }
    stop(&r);
}

static void gradients_match_differences(void **state) {
    (void)state;
    for (int i = 0; i < FAMILIES; i++) check_differences(&families[i]);
}

/* cases.md M09: a document's losses do not depend on what is packed beside it. */
static void packed_documents_are_isolated(void **state) {
    (void)state;
    failure f = {0};
    for (int i = 0; i < FAMILIES; i++) {
        program r = {0};
        start(&r, &families[i], true);
        float before[N], after[N];
        run(&r, false);
        memcpy(before, executor_data(r.x, r.io.nll), sizeof before);
        int32_t ids[8] = {30, 29, 28, 27, 26, 25, 24, 23}; /* the first two documents change */
        assert_done(executor_upload(r.x, r.io.ids, ids, 8, &f), &f);
        run(&r, false);
        memcpy(after, executor_data(r.x, r.io.nll), sizeof after);
        assert_memory_equal(before + 8, after + 8, 9 * sizeof(float));
        assert_memory_not_equal(before, after, 7 * sizeof(float));
        stop(&r);
    }
}

int main(void) {
    omp_set_num_threads(1); /* the models are tiny: threads would only wait for each other */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_equals_unfused),
        cmocka_unit_test(planned_equals_unplanned_bit_for_bit),
        cmocka_unit_test(recomputed_equals_kept_bit_for_bit),
        cmocka_unit_test(dropout_masks),
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(packed_documents_are_isolated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
