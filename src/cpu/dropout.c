/* dropout.c - y = x / (1 - rate) where the element is kept, else 0; its own backward.
 *
 * The mask is a pure function of (micro-batch seed, salt, element index), so the backward draws the same one. */
#include "base/rng.h"
#include "base/simd.h"
#include "cpu/cpu.h"

#include <string.h>

/* Elements first, first + 1, ... of the tensor. */
SIMD_CLONES static void drop(float *restrict y, const float *restrict x, int64_t n, uint64_t key, uint64_t first,
                             float rate, float scale) {
    for (int64_t i = 0; i < n; i++) {
        float kept = x[i] * scale;
        y[i] = rng_uniform(key, first + (uint64_t)i) >= rate ? kept : 0;
    }
}

void cpu_op_dropout(const kernel_call *call) {
    const float *x = call->in[0].data;
    float *y = call->out[0].data, rate = call->op->attr.rate, scale = 1 / (1 - rate);
    int64_t n = kernel_rows(call), D = call->in[0].cols;
    uint64_t key = rng_fold(call->batch->seed, call->op->attr.salt);
    bool training = call->batch->training;
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < n; t++) {
        if (training) drop(y + t * D, x + t * D, D, key, (uint64_t)(t * D), rate, scale);
        else memcpy(y + t * D, x + t * D, (size_t)D * 4);
    }
}
