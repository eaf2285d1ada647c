/* rope.c - rotary positions in Hugging Face's layout: element j of a head turns with element j + d/2 by the angle
 * (float)pos * freq[j].  The inverse rotation is its own backward.  Sines are computed once per row, not per head. */
#include "base/simd.h"
#include "cpu/cpu.h"

void cpu_rope_table(float *table, const int32_t *pos, const float *freq, int64_t n, int64_t d) {
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < n; t++) cpu_sincos(table + t * d, table + t * d + d / 2, freq, (float)pos[t], d / 2);
}

/* y may be x. */
SIMD_CLONES static void rotate(float *y, const float *x, const float *restrict cosine, const float *restrict sine,
                               float sign, int64_t half) {
#pragma omp simd
    for (int64_t j = 0; j < half; j++) {
        float a = x[j], b = x[j + half], s = sign * sine[j];
        y[j] = a * cosine[j] - b * s;
        y[j + half] = b * cosine[j] + a * s;
    }
}

void cpu_rope(float *y, const float *x, const float *table, int64_t n, int64_t heads, int64_t d, bool inverse) {
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < n; t++) {
        const float *cosine = table + t * d, *sine = cosine + d / 2;
        for (int64_t h = 0; h < heads; h++) {
            int64_t at = (t * heads + h) * d;
            rotate(y + at, x + at, cosine, sine, inverse ? -1.0f : 1.0f, d / 2);
        }
    }
}

int64_t cpu_scratch_rope(const graph *g, const graph_op *op) {
    const graph_value *freq = &g->values[op->in[2]];
    return cpu_round(g->values[op->in[0]].rows * freq->rows * freq->cols * 2);
}

void cpu_op_rope(const kernel_call *call) {
    const tensor *x = &call->in[0], *freq = &call->in[2];
    int64_t n = kernel_rows(call), d = freq->rows * freq->cols * 2;
    cpu_rope_table(call->scratch, call->in[1].data, freq->data, n, d);
    cpu_rope(call->out[0].data, x->data, call->scratch, n, x->cols / d, d, call->op->attr.inverse);
}
