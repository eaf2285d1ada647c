/* linear.c - y = x W' + bias, and its gradients. */
#include "cpu/cpu.h"

#include <string.h>

int64_t cpu_linear_scratch(const graph *g, vid W, vid bias) {
    return cpu_product_scratch(g, W) + (bias ? cpu_round(g->values[bias].rows * g->values[bias].cols) : 0);
}

/* The bias is laid into y first and the product added to it. */
void cpu_linear(float *y, const float *x, const tensor *W, const tensor *bias, int64_t n, bool add, float *scratch) {
    int64_t M = W->rows;
    const float *b = bias ? cpu_vector(bias, &scratch) : NULL;
    if (b) {
#pragma omp parallel for schedule(static)
        for (int64_t t = 0; t < n; t++) {
            if (add) cpu_add(y + t * M, y + t * M, b, M);
            else memcpy(y + t * M, b, (size_t)M * 4);
        }
    }
    cpu_product_nt(y, x, W, n, 1, b || add ? 1 : 0, scratch);
}

int64_t cpu_scratch_linear(const graph *g, const graph_op *op) { return cpu_linear_scratch(g, op->in[1], op->in[2]); }
int64_t cpu_scratch_linear_dx(const graph *g, const graph_op *op) { return cpu_product_scratch(g, op->in[1]); }

void cpu_op_linear(const kernel_call *call) {
    const tensor *x = &call->in[0], *y = &call->out[0];
    cpu_linear(y->data, x->data, &call->in[1], &call->in[2], kernel_rows(call), y->add, call->scratch);
}

void cpu_op_linear_dx(const kernel_call *call) {
    const tensor *dy = &call->in[0], *dx = &call->out[0];
    cpu_product_nn(dx->data, dy->data, &call->in[1], kernel_rows(call), 1, dx->add ? 1 : 0, call->scratch);
}

/* dbias = column sums of dy, in double, in row order; a thread owns a strip of columns. */
static void sum_columns(float *out, const float *x, int64_t n, int64_t M, bool add) {
    enum { STRIP = 64 };
#pragma omp parallel for schedule(static)
    for (int64_t m0 = 0; m0 < M; m0 += STRIP) {
        int64_t m = M - m0 < STRIP ? M - m0 : STRIP;
        double sum[STRIP] = {0};
        for (int64_t t = 0; t < n; t++)
            for (int64_t j = 0; j < m; j++) sum[j] += (double)x[t * M + m0 + j];
        for (int64_t j = 0; j < m; j++) out[m0 + j] = (float)(sum[j] + (add ? (double)out[m0 + j] : 0));
    }
}

void cpu_op_linear_dw(const kernel_call *call) {
    const tensor *dy = &call->in[0], *x = &call->in[1], *dW = &call->out[0], *dbias = &call->out[1];
    int64_t n = kernel_rows(call);
    if (dW->data) cpu_product_tn(dW->data, dy->data, x->data, n, dW->rows, dW->cols, 1, dW->add ? 1 : 0);
    if (dbias->data) sum_columns(dbias->data, dy->data, n, dy->cols, dbias->add);
}
