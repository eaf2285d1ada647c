/* add_rms_norm.c - sum = a + b, y = rms_norm(sum). */
#include "cpu/cpu.h"

void cpu_op_add_rms_norm(const kernel_call *call) {
    const tensor *a = &call->in[0], *b = &call->in[1], *w = &call->in[2];
    float *sum = call->out[0].data, *scratch = call->scratch;
    const float *weight = cpu_vector(w, &scratch);
    int64_t n = kernel_rows(call), D = a->cols;
    cpu_add_rows(sum, a->data, b->data, n, D);
    cpu_rms_norm(call->out[1].data, call->out[2].data, sum, weight, n, 1, D, call->op->attr.eps);
}
