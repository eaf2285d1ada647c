/* perf.c - test_ops --perf: time of every op at the shapes of a real model; µs is the median of many runs.
 *
 * With one thread (OMP_NUM_THREADS=1) the clock is processor time, which other work on the machine disturbs less. */
#include "ops/ops.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(omp_get_max_threads() == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Multiply-adds of the products, times two; 0 for ops that are bound by memory. */
static double operations(const op_case *c, const operand_set *s) {
    double n = s->batch.rows, sum = 0;
    int labels = 0;
    for (int i = 0; i < s->n_in; i++) { /* a product per matrix */
        const operand *o = &s->in[i];
        bool matrix = o->value && o->cols > 1 && strcmp(o->row_symbol, "N") != 0;
        if (matrix) sum += 2 * n * (double)(o->rows * o->cols);
        for (int64_t t = 0; strcmp(o->name, "target") == 0 && t < o->real; t++) labels += o->value[t] >= 0;
    }
    if (c->kind == OP_embed) return 0;
    if (c->kind == OP_linear_ce) return sum / n * labels * (1 + (s->out[2].value != NULL) + (s->out[3].value != NULL));
    if (c->kind == OP_linear_ce_bwd)
        return sum / n * labels * (1 + (s->out[0].value != NULL) + (s->out[1].value != NULL));
    if (c->kind == OP_linear_dw || c->kind == OP_linear_lora_bwd || c->kind == OP_gate_up_bwd || c->kind == OP_qkv_bwd)
        for (int k = 0; k < s->n_out; k++)
            if (s->out[k].cols > 1 && strcmp(s->out[k].row_symbol, "N") != 0)
                sum += 2 * n * (double)(s->out[k].rows * s->out[k].cols);
    if (c->kind == OP_attention || c->kind == OP_attention_bwd)
        for (int d = 0; d < s->batch.docs; d++) {
            double length = s->cu[d + 1] - s->cu[d], pairs = length * (length + 1) / 2;
            sum += 2 * pairs * (double)(case_dim(c, "H") * case_dim(c, "d")) * (c->kind == OP_attention ? 2 : 5);
        }
    return sum;
}

static double bytes_moved(const operand_set *s, const prepared *p) {
    double sum = 0;
    for (int i = 0; i < s->n_in + s->n_out; i++) sum += (double)p->bytes[i];
    if (s->kind == OP_embed) sum += (double)p->bytes[s->n_in] / 2 - (double)p->bytes[1]; /* of the table, some rows */
    return sum;
}

static void time_case(const op_case *c) {
    enum { MOST = 200 };
    operand_set s;
    prepared p;
    double times[MOST], begin = now();
    operands_make(&s, c, c->kind);
    if (s.batch.labels == 0) s.batch.labels = s.batch.rows;
    prepare(&p, &s);
    int n = 0;
    for (begin = now(); n < MOST && (n < 5 || now() - begin < 0.5); n++) {
        double start = now();
        cpu_backend.kernels[c->kind](&p.call);
        times[n] = now() - start;
    }
    qsort(times, (size_t)n, sizeof *times, by_value);
    double flop = operations(c, &s), median = times[n / 2];
    printf("%-18s %-34s %-4s rows %-4d docs %-2d %9.1f us (best %9.1f) ", op_name(c->kind), c->dims,
           dtype_name(c->weight), s.batch.rows, s.batch.docs, median * 1e6, times[0] * 1e6);
    if (flop > 0) printf("%7.1f GFLOP/s\n", flop / median / 1e9);
    else printf("%7.1f GB/s\n", bytes_moved(&s, &p) / median / 1e9);
    prepared_free(&p);
    operands_free(&s);
}

int run_perf(const char *only) {
    printf("%d threads\n", omp_get_max_threads());
    for (int i = 0; i < n_op_perf_cases; i++)
        if (!only || strcmp(only, op_name(op_perf_cases[i].kind)) == 0) time_case(&op_perf_cases[i]);
    return 0;
}
