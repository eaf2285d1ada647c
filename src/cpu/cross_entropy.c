/* cross_entropy.c - nll[t] = log(sum(exp(logits[t]))) - logits[t, target[t]], 0 where the target is negative, and
 * its gradient.  Works on whole logits; linear_ce.c never holds them. */
#include "base/simd.h"
#include "cpu/cpu.h"
#include "cpu/exp.h"

#include <assert.h>
#include <math.h>
#include <string.h>

void cpu_op_cross_entropy(const kernel_call *call) {
    const float *logits = call->in[0].data;
    const int32_t *target = call->in[1].data;
    float *nll = call->out[0].data, *lse = call->out[1].data;
    int64_t n = call->batch->rows, V = call->in[0].cols;
    bool add = call->out[0].add;
#pragma omp parallel for schedule(dynamic, 8)
    for (int64_t t = 0; t < n; t++) {
        float loss = 0;
        lse[t] = 0;
        if (target[t] >= 0) {
            const float *row = logits + t * V;
            assert(target[t] < V);
            float max = cpu_max(row, V);
            lse[t] = max + logf(cpu_exp_sum_only(row, max, V));
            loss = lse[t] - row[target[t]];
        }
        nll[t] = add ? nll[t] + loss : loss;
    }
}

SIMD_CLONES static void softmax_bwd(float *restrict out, const float *restrict logits, float lse, float by, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = by * cpu_exp(logits[i] - lse);
}

/* dlogits = dnll (softmax - onehot); rows without a target are zero. */
void cpu_op_cross_entropy_bwd(const kernel_call *call) {
    const float *dnll = call->in[0].data, *logits = call->in[1].data, *lse = call->in[3].data;
    const int32_t *target = call->in[2].data;
    float *dlogits = call->out[0].data;
    int64_t n = call->batch->rows, V = call->in[1].cols;
#pragma omp parallel for schedule(dynamic, 8)
    for (int64_t t = 0; t < n; t++) {
        float *row = dlogits + t * V;
        if (target[t] < 0) {
            memset(row, 0, (size_t)V * 4);
            continue;
        }
        softmax_bwd(row, logits + t * V, lse[t], dnll[t], V);
        row[target[t]] -= dnll[t];
    }
}
