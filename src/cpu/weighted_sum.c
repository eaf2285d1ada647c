/* weighted_sum.c - sum[0] = sum over rows of x weight, in double and in row order. */
#include "cpu/cpu.h"

void cpu_op_weighted_sum(const kernel_call *call) {
    const float *x = call->in[0].data, *weight = call->in[1].data;
    float *out = call->out[0].data;
    double sum = 0;
    for (int t = 0; t < call->batch->rows; t++) sum += (double)x[t] * (double)weight[t];
    out[0] = (float)(sum + (call->out[0].add ? (double)out[0] : 0));
}
