/* all_reduce.c - the sum of x over the ranks, behind a step's last micro-batch; see pass/shard.c. */
#include "base/clock.h"
#include "cpu/cpu.h"

#include <string.h>

void cpu_op_all_reduce(const kernel_call *call) {
    const tensor *x = &call->in[0], *sum = &call->out[0];
    if (sum->data != x->data) memcpy(sum->data, x->data, (size_t)x->rows * sizeof(float));
    if (!call->ranks || !call->batch->last) return;
    double started = clock_seconds();
    comm_all_reduce(call->ranks, sum->data, sum->rows, "the sum of gradients", call->f);
    double seconds = clock_seconds() - started;
    int64_t bytes = sum->rows * (int64_t)sizeof(float);
    comm_add_times(call->ranks, &(comm_times){.busy = seconds, .waited = seconds, .bytes = bytes, .calls = 1});
}
