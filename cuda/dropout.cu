/* dropout.cu - y = x / (1 - rate) where the element is kept, else 0; its own backward.  y may be x.
 *
 * The mask is base/rng.h's function of (micro-batch seed, salt, row * cols + col), stated again for the device, so that
 * it equals the CPU's whatever the strides.  rng_uniform(key, i) >= rate is asked in integers: the uniform number has
 * 24 bits, so it is at least the rate where these bits are at least ceil(rate * 2^24).
 * Reads 1 and writes 1 element per element of y; about 20 integer instructions each, so bf16 is not quite bound by
 * memory. */
#include "cuda.cuh"

extern "C" {
#include "base/rng.h"
}

namespace {
/* The top 32 bits of rng_mix(x), whose top 24 bits are those of rng_uniform: the last step of the mixer changes only
 * lower bits. */
__device__ __forceinline__ uint32_t mix_top(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)(x >> 32);
}

struct drop {
    uint64_t key;
    uint32_t threshold; /* keep where the 24 bits are at least this */
    float scale;
    uint64_t cols;
    template <int W>
    __device__ void operator()(float (&y)[1][W], const float (&x)[1][W], uint32_t row, uint32_t col) const {
        const uint64_t step = 0xD1342543DE82EF95u;
        uint64_t counter = key + (row * cols + col) * step;
#pragma unroll
        for (int i = 0; i < W; i++) {
            y[0][i] = mix_top(counter) >> 8 >= threshold ? x[0][i] * scale : 0;
            counter += step;
        }
    }
};

struct copy {
    template <int W> __device__ void operator()(float (&y)[1][W], const float (&x)[1][W], uint32_t, uint32_t) const {
#pragma unroll
        for (int i = 0; i < W; i++) y[0][i] = x[0][i];
    }
};
} // namespace

extern "C" void cuda_op_dropout(const kernel_call *call) {
    const tensor *const in[] = {&call->in[0]}, *const out[] = {&call->out[0]};
    float rate = call->op->attr.rate;
    if (call->batch->training) {
        drop f = {rng_fold(call->batch->seed, call->op->attr.salt), (uint32_t)ceilf(rate * 0x1p24f), 1 / (1 - rate),
                  (uint64_t)call->in[0].cols};
        cuda_map<2>(in, out, kernel_rows(call), f);
    } else {
        cuda_map<4>(in, out, kernel_rows(call), copy{});
    }
    cuda_check_launch(call);
}
