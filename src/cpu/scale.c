/* scale.c - y = scale x. */
#include "cpu/cpu.h"

void cpu_op_scale(const kernel_call *call) {
    const float *x = call->in[0].data;
    float *y = call->out[0].data;
    int64_t n = kernel_rows(call), D = call->in[0].cols;
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < n; t++) cpu_scale(y + t * D, x + t * D, call->op->attr.scale, D);
}
