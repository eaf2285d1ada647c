/* all_gather.c - the pieces that the ranks keep of a weight, brought together; see pass/shard_weights.c. */
#include "base/clock.h"
#include "cpu/cpu.h"

void cpu_op_all_gather(const kernel_call *call) {
    const tensor *part = &call->in[0], *whole = &call->out[0];
    size_t bytes = (size_t)(part->rows * part->cols) * dtype_size(part->type);
    double started = clock_seconds();
    comm_all_gather(call->ranks, part->data, bytes, whole->data, "weights", call->f);
    if (!call->ranks) return;
    comm_times times = {.gathering = clock_seconds() - started, .gathers = 1};
    times.awaited = times.gathering;
    times.gathered = (int64_t)bytes * comm_size(call->ranks);
    comm_add_times(call->ranks, &times);
}
