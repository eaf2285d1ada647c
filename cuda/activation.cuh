/* activation.cuh - y = act(gate) up for the kernels that make it: the same bits wherever it is made (pass_recompute
 * makes y again by another kernel than the product that made it first). */
#ifndef CUDA_ACTIVATION_CUH
#define CUDA_ACTIVATION_CUH
#include "exec/kernel.h"

/* act(g) = g sigmoid(g (one + three g g)).  gelu(g) = g sigmoid(2 u) with u = sqrt(2/pi) (g + 0.044715 g^3), since
 * (1 + tanh u)/2 = sigmoid(2u). */
struct activation {
    float one, three;
};
static inline activation activation_of(glu_kind kind) {
    const float twice_root = 1.5957691216057308f;
    return kind == GLU_SILU ? activation{1.0f, 0.0f} : activation{twice_root, twice_root * 0.044715f};
}

/* Exponential and division of the special function unit: together within 3 units in the last place where |x| < 10.
 * Each rounding is named, so that no compiler joins two operations in one place and not in another. */
static __device__ __forceinline__ float activated(float gate, float up, float one, float three) {
    float x = __fmul_rn(gate, __fmaf_rn(__fmul_rn(three, gate), gate, one));
    float sigmoid = __fdividef(1.0f, __fadd_rn(1.0f, __expf(-x)));
    return __fmul_rn(__fmul_rn(gate, sigmoid), up);
}
#endif
