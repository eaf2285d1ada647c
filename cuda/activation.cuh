/* activation.cuh - y = act(gate) up and its gradients.  y has the same bits wherever it is made: pass_recompute, and
 * the way back through a folded down_proj, make it again by other kernels than the product that made it first. */
#ifndef CUDA_ACTIVATION_CUH
#define CUDA_ACTIVATION_CUH
#include "exec/kernel.h"
#include "exp2.cuh"

/* act(g) = g sigmoid(g (one + three g g)).  gelu(g) = g sigmoid(2 u) with u = sqrt(2/pi) (g + 0.044715 g^3), since
 * (1 + tanh u)/2 = sigmoid(2u). */
struct activation {
    float one, three;
};
static inline activation activation_of(glu_kind kind) {
    const float twice_root = 1.5957691216057308f;
    return kind == GLU_SILU ? activation{1.0f, 0.0f} : activation{twice_root, twice_root * 0.044715f};
}

/* sigmoid(x) by the special function unit: within 3 units in the last place where |x| < 10, 0 below 2^-126. */
static __device__ __forceinline__ float sigmoid(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(__fadd_rn(1.0f, exp2_fast(__fmul_rn(x, -LOG2E)))));
    return y;
}

/* y = (gate s) up with s = sigmoid_of(gate).  Each rounding is named, so that no compiler joins two operations in one
 * place and not in another. */
static __device__ __forceinline__ float sigmoid_of(float gate, float one, float three) {
    return sigmoid(__fmul_rn(gate, __fmaf_rn(__fmul_rn(three, gate), gate, one)));
}
static __device__ __forceinline__ float activated(float gate, float up, float s) {
    return __fmul_rn(__fmul_rn(gate, s), up);
}

/* dgate and dup of dy, with s = sigmoid(x) of gate and slope = x': act' = s (1 + gate (1 - s) x'). */
static __device__ __forceinline__ float dgate_of(float dy, float gate, float up, float s, float slope) {
    return dy * up * s * (1.0f + gate * (1.0f - s) * slope);
}
static __device__ __forceinline__ float dup_of(float dy, float gate, float s) { return dy * gate * s; }
#endif
