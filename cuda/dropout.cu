/* dropout.cu - y = x / (1 - rate) where the element is kept, else 0; its own backward.  y may be x.
 *
 * The mask is base/rng.h's function of (micro-batch seed, salt, row * cols + col), stated again for the device, so that
 * it equals the CPU's whatever the strides.  rng_uniform(key, i) >= rate is asked in integers: the uniform number has
 * 24 bits, so it is at least the rate where these bits are at least ceil(rate * 2^24).
 * Reads 1 and writes 1 element per element of y; about 25 integer instructions each, so bf16 is not quite
 * bound by memory. */
#include "cuda.cuh"

extern "C" {
#include "base/rng.h"
}

namespace {
const uint64_t STEP = 0xD1342543DE82EF95u, START = 0x9E3779B97F4A7C15u; /* counter i of key k: k + i STEP + START */

/* a b + c in one instruction; left to itself the compiler spends two on the middle of a 64-bit product. */
__device__ __forceinline__ uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t r;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

/* The upper half of by (x ^ x >> SHIFT); *low: the lower. */
template <int SHIFT> __device__ __forceinline__ uint32_t mix_step(uint32_t *low, uint32_t high, uint64_t by) {
    uint32_t a = *low ^ __funnelshift_r(*low, high, SHIFT), b = high ^ high >> SHIFT;
    uint64_t product = (uint64_t)a * (uint32_t)by;
    *low = (uint32_t)product;
    return multiply_add(b, (uint32_t)by, multiply_add(a, (uint32_t)(by >> 32), (uint32_t)(product >> 32)));
}

/* The top 32 bits of rng_mix of a counter, whose top 24 bits are those of rng_uniform: the last step of the mixer
 * changes only lower bits. */
__device__ __forceinline__ uint32_t mix_top(uint64_t counter) {
    uint32_t low = (uint32_t)counter, high = (uint32_t)(counter >> 32);
    high = mix_step<30>(&low, high, 0xBF58476D1CE4E5B9u);
    return mix_step<27>(&low, high, 0x94D049BB133111EBu);
}

struct drop {
    uint64_t start; /* the counter of element 0 */
    uint32_t least; /* keep where the top 32 bits are at least this */
    float scale;
    template <int W> __device__ void operator()(float (&y)[1][W], const float (&x)[1][W], uint32_t at) const {
        uint64_t counter = start + (uint64_t)at * (W * STEP);
#pragma unroll
        for (int i = 0; i < W; i++) y[0][i] = mix_top(counter + i * STEP) >= least ? x[0][i] * scale : 0;
    }
};

struct copy {
    template <int W> __device__ void operator()(float (&y)[1][W], const float (&x)[1][W], uint32_t) const {
#pragma unroll
        for (int i = 0; i < W; i++) y[0][i] = x[0][i];
    }
};
} // namespace

extern "C" void cuda_op_dropout(const kernel_call *call) {
    const tensor *const in[] = {&call->in[0]}, *const out[] = {&call->out[0]};
    float rate = call->op->attr.rate;
    if (call->batch->training) {
        uint64_t key = rng_fold(call->batch->seed, call->op->attr.salt);
        drop f = {key + START, (uint32_t)ceilf(rate * 0x1p24f) << 8, 1 / (1 - rate)};
        cuda_map<2>(in, out, kernel_rows(call), f);
    } else {
        cuda_map<4>(in, out, kernel_rows(call), copy{});
    }
    cuda_check_launch(call);
}
