/* rms_norm.c - y = x rstd w with rstd = 1/sqrt(mean(x^2) + eps), over a row or over each slice of it (qk norm), and
 * its gradient.  rstd[N, slices] is kept; the backward takes an optional residual gradient that it adds to dx. */
#include "base/simd.h"
#include "cpu/cpu.h"

#include <math.h>

SIMD_CLONES static float slice_rstd(const float *restrict x, int64_t d, float eps) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < d; j++) sum += x[j] * x[j];
    return 1.0f / sqrtf(sum / (float)d + eps);
}

SIMD_CLONES static void scale_slice(float *restrict y, const float *restrict x, const float *restrict w, float rstd,
                                    int64_t d) {
    for (int64_t j = 0; j < d; j++) y[j] = x[j] * rstd * w[j];
}

/* y may be x itself only in the sense of equal buffers never being passed: callers keep both. */
void cpu_rms_norm(float *y, float *rstd, const float *x, const float *w, int64_t rows, int64_t slices, int64_t d,
                  float eps) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows * slices; i++) {
        rstd[i] = slice_rstd(x + i * d, d, eps);
        scale_slice(y + i * d, x + i * d, w, rstd[i], d);
    }
}

void cpu_rstd(float *rstd, const float *x, int64_t n, int64_t D, float eps) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) rstd[i] = slice_rstd(x + i * D, D, eps);
}

void cpu_apply_norm(float *h, const float *x, const float *rstd, const float *w, int64_t n, int64_t D) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) scale_slice(h + i * D, x + i * D, w, rstd[i], D);
}

int64_t cpu_scratch_rms_norm(const graph *g, const graph_op *op) {
    vid w = op->in[2];
    if (op->kind == OP_rms_norm) w = op->in[1];
    return cpu_round(g->values[w].rows * g->values[w].cols);
}

void cpu_op_rms_norm(const kernel_call *call) {
    const tensor *x = &call->in[0], *w = &call->in[1];
    float *scratch = call->scratch;
    const float *weight = cpu_vector(w, &scratch);
    int64_t d = w->rows * w->cols;
    cpu_rms_norm(call->out[0].data, call->out[1].data, x->data, weight, kernel_rows(call), x->cols / d, d,
                 call->op->attr.eps);
}

/* With h = x rstd and g = dy w: dx = rstd (g - h mean(g h)) + dres. */
SIMD_CLONES static void slice_dx(float *restrict dx, const float *restrict dy, const float *restrict x,
                                 const float *restrict w, const float *restrict dres, float rstd, int64_t d) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < d; j++) sum += dy[j] * w[j] * x[j];
    float mean = sum * rstd / (float)d;
    if (dres)
        for (int64_t j = 0; j < d; j++) dx[j] = rstd * (dy[j] * w[j] - x[j] * rstd * mean) + dres[j];
    else
        for (int64_t j = 0; j < d; j++) dx[j] = rstd * (dy[j] * w[j] - x[j] * rstd * mean);
}

/* dw[j] = sum over rows and slices of dy x rstd, in double; a thread owns a strip of the d columns. */
static void norm_dw(const tensor *dw, const float *dy, const float *x, const float *rstd, int64_t n, int64_t d) {
    enum { STRIP = 32 };
    float *out = dw->data;
#pragma omp parallel for schedule(static)
    for (int64_t j0 = 0; j0 < d; j0 += STRIP) {
        int64_t width = d - j0 < STRIP ? d - j0 : STRIP;
        double sum[STRIP] = {0};
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < width; j++) sum[j] += (double)(dy[i * d + j0 + j] * x[i * d + j0 + j] * rstd[i]);
        for (int64_t j = 0; j < width; j++) out[j0 + j] = (float)(sum[j] + (dw->add ? (double)out[j0 + j] : 0));
    }
}

void cpu_op_rms_norm_bwd(const kernel_call *call) {
    const float *dy = call->in[0].data, *x = call->in[1].data, *rstd = call->in[3].data, *dres = call->in[4].data;
    float *dx = call->out[0].data, *scratch = call->scratch;
    const float *w = cpu_vector(&call->in[2], &scratch);
    int64_t d = call->in[2].rows * call->in[2].cols, slices = call->in[1].cols / d, n = kernel_rows(call) * slices;
    if (dx) {
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n; i++)
            slice_dx(dx + i * d, dy + i * d, x + i * d, w, dres ? dres + i * d : NULL, rstd[i], d);
    }
    if (call->out[1].data) norm_dw(&call->out[1], dy, x, rstd, n, d);
}
