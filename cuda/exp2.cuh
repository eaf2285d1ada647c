/* exp2.cuh - powers of two from the special function unit, for sums of exponentials: exp(x - max) is
 * exp2_fast(x LOG2E - max LOG2E), one multiply-add and one instruction. */
#ifndef CUDA_EXP2_CUH
#define CUDA_EXP2_CUH

constexpr float LOG2E = 1.4426950408889634f;

/* Within 2 units in the last place; results below 2^-126 are 0. */
__device__ inline float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif
