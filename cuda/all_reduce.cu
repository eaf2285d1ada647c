/* all_reduce.cu - the sum of x over the ranks, behind a step's last micro-batch; see pass/shard.c.
 *
 * Over NCCL it is put on NCCL's stream and goes on beside the backward half; finish() waits.  Without NCCL (ranks that
 * share a card, or ddp_backend mpi) it goes through host memory here and now. */
#include "cuda.cuh"
#include "device.h"

extern "C" {
#include "base/clock.h"
}

namespace {
const int64_t PIECE = (int64_t)8 << 20; /* floats */

bool through_host(comm *ranks, float *x, int64_t n, failure *f) {
    double started = clock_seconds();
    float *host = (float *)xmalloc((size_t)(n < PIECE ? n : PIECE) * sizeof *host);
    bool ok = true;
    for (int64_t at = 0; at < n && ok; at += PIECE) {
        int64_t part = n - at < PIECE ? n - at : PIECE;
        size_t bytes = (size_t)part * sizeof *host;
        ok = transfer_down(host, x + at, bytes, f) && comm_all_reduce(ranks, host, part, "the sum of gradients", f) &&
             transfer_up(x + at, bytes, host, bytes, 1, f);
    }
    free(host);
    double seconds = clock_seconds() - started;
    comm_times times = {seconds, seconds, n * (int64_t)sizeof *host, 1};
    comm_add_times(ranks, &times);
    return ok;
}
} // namespace

extern "C" void cuda_op_all_reduce(const kernel_call *call) {
    const tensor *x = &call->in[0], *sum = &call->out[0];
    assert(x->type == sum->type && (x->type == DTYPE_F32 || !call->ranks));
    size_t bytes = (size_t)x->rows * dtype_size(x->type);
    if (sum->data != x->data)
        cuda_check(cudaMemcpyAsync(sum->data, x->data, bytes, cudaMemcpyDeviceToDevice, cuda_stream()), "copy",
                   cuda_failure());
    if (!call->ranks || !call->batch->last) return;
    if (nccl_is_open()) nccl_all_reduce((float *)sum->data, sum->rows, cuda_failure());
    else through_host(call->ranks, (float *)sum->data, sum->rows, cuda_failure());
}
