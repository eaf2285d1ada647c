/* glu.c - y = act(gate) up, with act silu or tanh-gelu, and its gradients. */
#include "base/simd.h"
#include "cpu/cpu.h"
#include "cpu/exp.h"

static inline float sigmoid(float x) { return 1.0f / (1.0f + cpu_exp(-x)); }

/* gelu(g) = g sigmoid(2u) with u = sqrt(2/pi) (g + 0.044715 g^3), since (1 + tanh u)/2 = sigmoid(2u). */
static inline float gelu_twice_u(float g) { return 1.5957691216057308f * (g + 0.044715f * g * g * g); }

SIMD_CLONES static void silu_row(float *restrict y, const float *restrict gate, const float *restrict up, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

SIMD_CLONES static void gelu_row(float *restrict y, const float *restrict gate, const float *restrict up, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = gate[i] * sigmoid(gelu_twice_u(gate[i])) * up[i];
}

/* silu'(g) = s (1 + g (1 - s)) with s = sigmoid(g) */
SIMD_CLONES static void silu_bwd_row(float *restrict dgate, float *restrict dup, const float *restrict dy,
                                     const float *restrict gate, const float *restrict up, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float g = gate[i], s = sigmoid(g);
        dgate[i] = dy[i] * up[i] * s * (1.0f + g * (1.0f - s));
        dup[i] = dy[i] * g * s;
    }
}

/* gelu'(g) = s (1 + g (1 - s) 2u') with s = sigmoid(2u) */
SIMD_CLONES static void gelu_bwd_row(float *restrict dgate, float *restrict dup, const float *restrict dy,
                                     const float *restrict gate, const float *restrict up, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float g = gate[i], s = sigmoid(gelu_twice_u(g));
        float slope = 1.5957691216057308f * (1.0f + 3.0f * 0.044715f * g * g);
        dgate[i] = dy[i] * up[i] * s * (1.0f + g * (1.0f - s) * slope);
        dup[i] = dy[i] * g * s;
    }
}

void cpu_glu(float *y, const float *gate, const float *up, int64_t n, int64_t F, glu_kind kind) {
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < n; t++) (kind == GLU_SILU ? silu_row : gelu_row)(y + t * F, gate + t * F, up + t * F, F);
}

void cpu_op_glu(const kernel_call *call) {
    cpu_glu(call->out[0].data, call->in[0].data, call->in[1].data, kernel_rows(call), call->in[0].cols,
            call->op->attr.glu);
}

void cpu_glu_bwd(float *dgate, float *dup, const float *dy, const float *gate, const float *up, int64_t n, int64_t F,
                 glu_kind kind) {
    bool silu = kind == GLU_SILU;
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < n; t++) {
        int64_t at = t * F;
        (silu ? silu_bwd_row : gelu_bwd_row)(dgate + at, dup + at, dy + at, gate + at, up + at, F);
    }
}

void cpu_op_glu_bwd(const kernel_call *call) {
    const tensor *in = call->in;
    cpu_glu_bwd(call->out[0].data, call->out[1].data, in[0].data, in[1].data, in[2].data, kernel_rows(call), in[0].cols,
                call->op->attr.glu);
}
