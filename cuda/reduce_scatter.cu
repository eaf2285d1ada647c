/* reduce_scatter.cu - this rank's piece of a gradient's sum over the ranks, behind every micro-batch; see
 * pass/shard_gradients.c.
 *
 * The sum takes the place of the piece in x. Over NCCL it goes on beside the backward half: the plan leaves x alone
 * until the next one sets out, and an op that then comes to its memory waits (cuda_backend.cu). Without NCCL through
 * host memory, here and now. */
#include "cuda.cuh"
#include "device.h"

extern "C" {
#include "base/clock.h"
}

namespace {
const int64_t PIECE = (int64_t)4 << 20; /* floats of each rank that go at once */

/* One thread an element; reads and writes 4 bytes each, 4 more with `add`. */
__global__ void put_kernel(float *to, const float *x, int64_t n, bool add) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = add ? to[i] + x[i] : x[i];
}

/* data: the piece, a tensor. */
void put(cudaStream_t stream, const float *sum, void *data) {
    const tensor *part = (const tensor *)data;
    const int threads = 256;
    int64_t n = part->rows * part->cols;
    put_kernel<<<(unsigned)cuda_ceil(n, threads), threads, 0, stream>>>((float *)part->data, sum, n, part->add);
}

/* Of the n floats of each rank in x the run of `part` from `at` on; host: [ranks + 1, part]. */
bool piece_through_host(comm *ranks, float *x, int64_t n, int64_t at, int64_t part, float *host, failure *f) {
    size_t bytes = (size_t)part * sizeof *x;
    int size = comm_size(ranks);
    for (int r = 0; r < size; r++) TRY(transfer_down(host + r * part, x + r * n + at, bytes, f));
    float *sum = host + size * part;
    return comm_reduce_scatter(ranks, host, sum, part, "the sum of gradients", f) &&
           transfer_up(x + comm_rank(ranks) * n + at, bytes, sum, bytes, 1, f);
}

bool through_host(comm *ranks, float *x, int64_t n, failure *f) {
    double started = clock_seconds();
    float *host = (float *)xmalloc((size_t)((n < PIECE ? n : PIECE) * (comm_size(ranks) + 1)) * sizeof *host);
    bool ok = true;
    for (int64_t at = 0; at < n && ok; at += PIECE)
        ok = piece_through_host(ranks, x, n, at, n - at < PIECE ? n - at : PIECE, host, f);
    free(host);
    comm_times times = {};
    times.busy = times.waited = clock_seconds() - started;
    times.bytes = n * comm_size(ranks) * (int64_t)sizeof *x;
    times.calls = 1;
    comm_add_times(ranks, &times);
    return ok;
}
} // namespace

extern "C" void cuda_op_reduce_scatter(const kernel_call *call) {
    const tensor *part = &call->out[0];
    float *x = (float *)call->in[0].data;
    int64_t n = part->rows * part->cols;
    assert(call->in[0].ld == call->in[0].cols && part->ld == part->cols);
    assert(call->in[0].type == DTYPE_F32 && part->type == DTYPE_F32);
    if (!call->batch->training) return; /* x was not made */
    tensor to = *part;
    if (call->ranks && nccl_is_open()) {
        nccl_reduce_scatter(x, n, put, &to, cuda_failure());
        return;
    }
    if (call->ranks && !through_host(call->ranks, x, n, cuda_failure())) return;
    put(cuda_stream(), x + n * comm_rank(call->ranks), &to);
}
