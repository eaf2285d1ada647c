/* test_cpu.c - the CPU backend beside its ops: exp, sine and conversions of row.c against libm and base/dtype.h,
 * memory, the optimizer step and the norm against double, and that OpenBLAS runs the kernels of this processor. */
#include "unit.h"

#include "base/rng.h"
#include "base/simd.h"
#include "cpu/cpu.h"
#include "cpu/exp.h"

#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>

/* Distance in units of the last place of the float nearest to `exact`. */
static double ulps(float got, double exact) {
    float nearest = (float)exact;
    double unit = (double)nextafterf(fabsf(nearest), INFINITY) - fabs((double)nearest);
    return fabs((double)got - exact) / unit;
}

static void exp_is_within_2_ulp(void **state) {
    (void)state;
    double worst = 0;
    for (int i = 0; i <= 1753300; i++) {
        float x = -87.33f + (float)i * 1e-4f;
        if (x > 88.0f) break;
        double d = ulps(cpu_exp(x), exp((double)x));
        worst = d > worst ? d : worst;
    }
    printf("exp: worst error %.3f units in the last place\n", worst);
    assert_true(worst <= 2);
    assert_true(cpu_exp(0) == 1);
    assert_true(cpu_exp(-1e30f) < 1.3e-38f && cpu_exp(-INFINITY) < 1.3e-38f && cpu_exp(-1e30f) >= 0);
    assert_true(isnan(cpu_exp(NAN)));
}

static void vector_exp_equals_scalar(void **state) {
    (void)state;
    float x[37], y[37], sum = 0;
    for (int i = 0; i < 37; i++) x[i] = rng_normal(3, (uint64_t)i) * 10;
    float got = cpu_exp_sum(y, x, 1.5f, 37);
    for (int i = 0; i < 37; i++) {
        assert_true(ulps(y[i], exp((double)(x[i] - 1.5f))) <= 2);
        sum += y[i];
    }
    assert_true(fabsf(got - sum) <= 1e-5f * sum);
    assert_true(fabsf(cpu_exp_sum_only(x, 1.5f, 37) - sum) <= 1e-5f * sum);
    assert_true(isnan(cpu_max((float[]){NAN, 1, 2}, 3)) || cpu_max((float[]){NAN, 1, 2}, 3) == 2);
}

static void sine_and_cosine_of_positions(void **state) {
    (void)state;
    enum { N = 32 };
    float freq[N], cosine[N], sine[N];
    double worst = 0;
    for (int j = 0; j < N; j++) freq[j] = powf(10000, -(float)j / N);
    for (int pos = 0; pos < 200000; pos += 37) {
        cpu_sincos(cosine, sine, freq, (float)pos, N);
        for (int j = 0; j < N; j++) {
            float angle = (float)pos * freq[j];
            double s = fabs((double)sine[j] - sin((double)angle)), c = fabs((double)cosine[j] - cos((double)angle));
            worst = fmax(worst, fmax(s, c));
        }
    }
    printf("sin, cos: worst error %.3g\n", worst);
    assert_true(worst < 7e-8); /* half a unit of the last place of 1, and a bit */
}

/* Every 16-bit pattern, aligned and not. */
static void conversions_equal_dtype(void **state) {
    (void)state;
    enum { ALL = 65536 };
    uint16_t *in = xmalloc(2 * ALL + 2);
    float *got = xmalloc(4 * ALL), *want = xmalloc(4 * ALL);
    for (int t = DTYPE_BF16; t <= DTYPE_F16; t++)
        for (int shift = 0; shift < 2; shift++) {
            char *at = (char *)in + shift;
            for (int i = 0; i < ALL; i++) memcpy(at + 2 * i, &(uint16_t){(uint16_t)i}, 2);
            cpu_convert(got, at, (dtype)t, ALL);
            dtype_to_f32(want, at, (dtype)t, ALL);
            for (int i = 0; i < ALL; i++) {
                bool same = isnan(want[i]) ? isnan(got[i]) : memcmp(&got[i], &want[i], 4) == 0;
                if (!same) test_fail("%s 0x%04x: found %g, expected %g", dtype_name((dtype)t), i, got[i], want[i]);
            }
        }
    free(in);
    free(got);
    free(want);
}

static void blas_fits_the_processor(void **state) {
    (void)state;
    failure f;
    omp_set_num_threads(3);
    assert_done(cpu_backend.open(&f), &f);
    assert_int_equal(omp_get_max_threads(), 3);
    assert_int_equal(openblas_get_num_threads(), 1);
    const char *core = openblas_get_corename();
    printf("OpenBLAS runs its %s kernels\n", core);
    if (simd_detect() == SIMD_BASE) return;
    static const char *const old[] = {"Prescott", "Core2", "Penryn", "Nehalem", "Atom", "Barcelona", "Sandybridge"};
    for (size_t i = 0; i < sizeof old / sizeof *old; i++)
        if (strcasecmp(core, old[i]) == 0) test_fail("OpenBLAS runs %s kernels on a processor with AVX2", core);
}

static void memory_of_the_backend(void **state) {
    (void)state;
    failure f;
    void *block;
    assert_done(cpu_backend.alloc(&block, 1000, "a block", &f), &f);
    assert_int_equal((uintptr_t)block % 256, 0);
    assert_done(cpu_backend.clear(block, 1000, &f), &f);
    char out[5] = "xxxx";
    assert_done(cpu_backend.upload((char *)block + 7, "abc", 3, &f), &f);
    assert_done(cpu_backend.download(out, (char *)block + 6, 5, &f), &f);
    assert_memory_equal(out, "\0abc\0", 5);
    cpu_backend.free(block);
    assert_false(cpu_backend.alloc(&block, SIZE_MAX - 5, "weights", &f));
    assert_int_equal(f.kind, FAIL_MACHINE);
    assert_non_null(strstr(f.text, "weights"));
    assert_true(cpu_backend.memory() > 1 << 20);
}

/* A group of n gradients g; the other arrays are zero. The caller frees them with free_group. */
static optim_group new_group(float *g, int64_t n) {
    return (optim_group){.weight = xcalloc((size_t)n + 1, 4),
                         .m = xcalloc((size_t)n + 1, 4),
                         .v = xcalloc((size_t)n + 1, 4),
                         .grad = g,
                         .n = n,
                         .decays = true};
}

static void free_group(optim_group *g) { free(g->weight), free(g->m), free(g->v); }

static void norm_of_gradients(void **state) {
    (void)state;
    enum { N = 100003 };
    float *x = xmalloc(N * sizeof *x);
    double want = 0, first, again;
    failure f;
    adamw_args a = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1, .correction1 = 1, .correction2 = 1};
    for (int i = 0; i < N; i++) x[i] = rng_normal(1, (uint64_t)i), want += (double)x[i] * (double)x[i];
    optim_group groups[] = {new_group(x, N - 7), new_group(x + N - 7, 7), new_group(x, 0)};
    omp_set_num_threads(3);
    assert_done(cpu_backend.adamw(groups, 3, &a, &first, &f), &f);
    assert_true(fabs(first - sqrt(want)) < 1e-9 * want);
    omp_set_num_threads(1);
    assert_done(cpu_backend.adamw(groups, 3, &a, &again, &f), &f);
    assert_memory_equal(&first, &again, sizeof first);
    assert_done(cpu_backend.adamw(groups + 2, 1, &a, &first, &f), &f);
    assert_true(first == 0);
    for (int i = 0; i < 3; i++) free_group(&groups[i]);
    free(x);
}

/* Five steps against torch.optim.AdamW's formulas in double; more weights than one piece. */
static void adamw_steps(void **state) {
    (void)state;
    enum { N = 70001, STEPS = 5 };
    float *g = xmalloc(4 * N);
    optim_group group = new_group(g, N);
    float *w = group.weight;
    double *W = xmalloc(8 * N), *M = xcalloc(N, 8), *U = xcalloc(N, 8);
    failure f;
    for (int i = 0; i < N; i++) W[i] = (double)(w[i] = rng_normal(1, (uint64_t)i));
    for (int step = 1; step <= STEPS; step++) {
        double norm, squares = 0;
        adamw_args a = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 50, (float)(1 - pow(0.9, step)), (float)(1 - pow(0.95, step))};
        for (int i = 0; i < N; i++) {
            g[i] = i == 7 ? 0 : rng_normal((uint64_t)step, (uint64_t)i);
            squares += (double)g[i] * (double)g[i];
        }
        assert_done(cpu_backend.adamw(&group, 1, &a, &norm, &f), &f);
        double scale = 50 / (sqrt(squares) + 1e-6);
        assert_true(scale < 1);
        for (int i = 0; i < N; i++) {
            double gradient = scale * (double)g[i];
            W[i] *= 1 - 1e-2 * 0.1;
            M[i] = 0.9 * M[i] + 0.1 * gradient;
            U[i] = 0.95 * U[i] + 0.05 * gradient * gradient;
            W[i] -= 1e-2 / (1 - pow(0.9, step)) * M[i] / (sqrt(U[i]) / sqrt(1 - pow(0.95, step)) + 1e-8);
        }
    }
    for (int i = 0; i < N; i++)
        if (fabs((double)w[i] - W[i]) > 2e-6 * (1 + fabs(W[i])))
            test_fail("weight %d: %.9g, expected %.9g", i, w[i], W[i]);
    free_group(&group);
    free(g), free(W), free(M), free(U);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_2_ulp),
        cmocka_unit_test(vector_exp_equals_scalar),
        cmocka_unit_test(sine_and_cosine_of_positions),
        cmocka_unit_test(conversions_equal_dtype),
        cmocka_unit_test(blas_fits_the_processor),
        cmocka_unit_test(memory_of_the_backend),
        cmocka_unit_test(norm_of_gradients),
        cmocka_unit_test(adamw_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
