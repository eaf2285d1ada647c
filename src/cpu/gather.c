/* gather.c - y[l] = x[index[l]] for the label rows of the micro-batch. */
#include "cpu/cpu.h"

#include <assert.h>
#include <string.h>

void cpu_op_gather(const kernel_call *call) {
    const tensor *x = &call->in[0], *y = &call->out[0];
    const int32_t *index = call->in[1].data;
    int64_t D = x->cols;
    for (int64_t l = 0; l < call->batch->labels && l < y->rows; l++) {
        assert(index[l] >= 0 && index[l] < x->rows);
        memcpy((float *)y->data + l * D, (const float *)x->data + index[l] * D, (size_t)D * 4);
    }
}
