/* reduce_scatter.c - this rank's piece of a gradient's sum over the ranks, behind every micro-batch; see
 * pass/shard_gradients.c. */
#include "base/clock.h"
#include "cpu/cpu.h"

int64_t cpu_scratch_reduce_scatter(const graph *g, const graph_op *op) { return value_part(&g->values[op->out[0]]); }

void cpu_op_reduce_scatter(const kernel_call *call) {
    const tensor *x = &call->in[0], *part = &call->out[0];
    int64_t n = part->rows * part->cols;
    float *to = part->data;
    const float *sum = x->data;
    if (!call->batch->training) return; /* x was not made */
    if (call->ranks) {
        double started = clock_seconds();
        sum = call->scratch;
        if (!comm_reduce_scatter(call->ranks, x->data, call->scratch, n, "the sum of gradients", call->f)) return;
        double seconds = clock_seconds() - started;
        int64_t bytes = n * comm_size(call->ranks) * (int64_t)sizeof(float);
        comm_add_times(call->ranks, &(comm_times){.busy = seconds, .waited = seconds, .bytes = bytes, .calls = 1});
    }
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) to[i] = part->add ? to[i] + sum[i] : sum[i];
}
