/* test_linear_ce.c - L02: head and loss in one, chunk by chunk, against plain loops in double that know no chunks:
 * losses and both gradients, with none, half and all of the rows ignored; numbers worked out by hand; inputs stay as
 * they are. */
#include "unit.h"

#include "base/memory.h"
#include "base/rng.h"
#include "cpu/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int N, D, V;
    int32_t *target;
    float *x, *W, *weight, *nll, *lse, *dx, *dW;
    int labels;
} problem;

static float *floats(size_t n) { return xcalloc(n, sizeof(float)); }

static problem problem_make(int N, int D, int V, int ignored_percent) {
    problem p = {N, D, V};
    size_t rows = (size_t)N, x = rows * (size_t)D, w = (size_t)V * (size_t)D;
    p.target = xcalloc(rows, sizeof *p.target);
    p.x = floats(x), p.W = floats(w), p.weight = floats(rows), p.nll = floats(rows), p.lse = floats(rows);
    p.dx = floats(x), p.dW = floats(w);
    for (size_t i = 0; i < x; i++) p.x[i] = rng_normal(1, i);
    for (size_t i = 0; i < w; i++) p.W[i] = rng_normal(2, i) / sqrtf((float)D);
    for (int t = 0; t < N; t++) {
        bool ignored = t * ignored_percent / 100 != (t + 1) * ignored_percent / 100; /* spread evenly */
        p.target[t] = ignored ? -100 : (int32_t)(rng_uniform(3, (uint64_t)t) * (float)V);
        p.labels += !ignored;
    }
    for (int t = 0; t < N; t++) p.weight[t] = p.target[t] >= 0 ? (1 + (float)(t % 3)) / (float)p.labels : 0;
    return p;
}

static void problem_free(problem *p) {
    free(p->target);
    float *all[] = {p->x, p->W, p->weight, p->nll, p->lse, p->dx, p->dW};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static tensor tensor_of(void *data, dtype type, int64_t rows, int64_t cols) {
    return (tensor){.data = data, .type = type, .rows = rows, .cols = cols, .ld = cols};
}

static void run(problem *p) {
    graph g;
    int64_t N = p->N, D = p->D, V = p->V;
    graph_init(&g, DTYPE_F32);
    graph_op op = {.kind = OP_linear_ce};
    const int64_t in[4][2] = {{N, D}, {V, D}, {N, 1}, {N, 1}}, out[4][2] = {{N, 1}, {N, 1}, {N, D}, {V, D}};
    for (int i = 0; i < 4; i++) {
        op.in[i] = graph_add_value(&g, ROLE_TEMP, i == 2 ? DTYPE_I32 : DTYPE_F32, in[i][0], in[i][1], "in%d", i);
        op.out[i] = graph_add_value(&g, ROLE_TEMP, DTYPE_F32, out[i][0], out[i][1], "out%d", i);
    }
    batch_info batch = {.rows = p->N, .docs = 1, .labels = p->labels, .longest = p->N, .training = true};
    kernel_call call = {.op = graph_emit(&g, op),
                        .in = {tensor_of(p->x, DTYPE_F32, N, D), tensor_of(p->W, DTYPE_F32, V, D),
                               tensor_of(p->target, DTYPE_I32, N, 1), tensor_of(p->weight, DTYPE_F32, N, 1)},
                        .out = {tensor_of(p->nll, DTYPE_F32, N, 1), tensor_of(p->lse, DTYPE_F32, N, 1),
                                tensor_of(p->dx, DTYPE_F32, N, D), tensor_of(p->dW, DTYPE_F32, V, D)},
                        .batch = &batch};
    call.scratch = aligned_alloc(256, (cpu_backend.scratch(&g, call.op) + 511) / 256 * 256);
    cpu_op_linear_ce(&call);
    free(call.scratch);
    graph_free(&g);
}

/* Loss of row t; p[v] gets the probabilities. */
static double row_loss(const problem *p, int t, double *probability) {
    double most = -INFINITY, sum = 0, logit = 0;
    for (int v = 0; v < p->V; v++) {
        double z = 0;
        for (int k = 0; k < p->D; k++) z += (double)p->x[(size_t)t * p->D + k] * (double)p->W[(size_t)v * p->D + k];
        probability[v] = z;
        if (z > most) most = z;
        if (v == p->target[t]) logit = z;
    }
    for (int v = 0; v < p->V; v++) sum += exp(probability[v] - most);
    for (int v = 0; v < p->V; v++) probability[v] = exp(probability[v] - most) / sum;
    return most + log(sum) - logit;
}

/* Largest difference over the largest wanted number; equal zeros are 0. */
static double distance(const float *got, const double *want, size_t n) {
    double worst = 0, top = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - want[i]);
        if (!(d <= worst)) worst = d;
        if (fabs(want[i]) > top) top = fabs(want[i]);
    }
    return worst == 0 ? 0 : worst / top;
}

static void check(const problem *p) {
    size_t x = (size_t)p->N * (size_t)p->D, w = (size_t)p->V * (size_t)p->D;
    double *nll = xcalloc((size_t)p->N, sizeof *nll), *dx = xcalloc(x, sizeof *dx), *dW = xcalloc(w, sizeof *dW);
    double *probability = xcalloc((size_t)p->V, sizeof *probability);
    for (int t = 0; t < p->N; t++) {
        if (p->target[t] < 0) continue;
        nll[t] = row_loss(p, t, probability);
        for (int v = 0; v < p->V; v++) {
            double d = (double)p->weight[t] * (probability[v] - (v == p->target[t]));
            for (int k = 0; k < p->D; k++) {
                dx[(size_t)t * p->D + k] += d * (double)p->W[(size_t)v * p->D + k];
                dW[(size_t)v * p->D + k] += d * (double)p->x[(size_t)t * p->D + k];
            }
        }
    }
    double loss = distance(p->nll, nll, (size_t)p->N), to_x = distance(p->dx, dx, x), to_W = distance(p->dW, dW, w);
    if (!(loss <= 1e-6 && to_x <= 1e-6 && to_W <= 1e-6))
        test_fail("N %d, D %d, V %d, %d labels: loss differs by %g, dx by %g, dW by %g", p->N, p->D, p->V, p->labels,
                  loss, to_x, to_W);
    free(nll), free(dx), free(dW), free(probability);
}

/* Wide rows make chunks of 16: 33 are 16, 16 and 1. Narrow ones make chunks of 512: 1040 are 512, 512 and 16. */
static void l02_chunks(void **state) {
    (void)state;
    static const int sizes[][3] = {{1, 8, 3},      {7, 8, 3},      {7, 70000, 5},  {16, 70000, 5},
                                   {33, 70000, 5}, {512, 24, 600}, {513, 24, 600}, {1040, 8, 30}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int ignored = 0; ignored <= 100; ignored += 50) {
            problem p = problem_make(sizes[i][0], sizes[i][1], sizes[i][2], ignored), before = p;
            size_t x = (size_t)p.N * (size_t)p.D * 4, w = (size_t)p.V * (size_t)p.D * 4;
            before.x = memcpy(xmalloc(x), p.x, x), before.W = memcpy(xmalloc(w), p.W, w);
            assert_int_equal(p.labels, p.N - p.N * ignored / 100);
            run(&p);
            check(&p);
            assert_memory_equal(before.x, p.x, x);
            assert_memory_equal(before.W, p.W, w);
            free(before.x);
            free(before.W);
            problem_free(&p);
        }
}

/* Logits 2, 1, 0 and label 0; the ignored row beside it has no loss and no gradient. */
static void l02_by_hand(void **state) {
    (void)state;
    problem p = problem_make(2, 3, 3, 0);
    memcpy(p.x, (float[]){2, 1, 0, 5, 6, 7}, 6 * sizeof(float));
    memcpy(p.W, (float[]){1, 0, 0, 0, 1, 0, 0, 0, 1}, 9 * sizeof(float));
    p.target[0] = 0, p.target[1] = -100, p.labels = 1;
    p.weight[0] = 1, p.weight[1] = 0;
    run(&p);
    assert_true(fabs((double)p.nll[0] - 0.407605964) < 1e-7 && p.nll[1] == 0);
    static const double dx[] = {-0.334759, 0.244728, 0.090031};
    for (int i = 0; i < 3; i++) assert_true(fabs((double)p.dx[i] - dx[i]) < 1e-6 && p.dx[3 + i] == 0);
    for (int v = 0; v < 3; v++)
        for (int k = 0; k < 3; k++) assert_true(fabs((double)p.dW[3 * v + k] - dx[v] * (2 - k)) < 2e-6);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(l02_chunks), cmocka_unit_test(l02_by_hand)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
