/* all_gather.cu - the pieces that the ranks keep of a weight, brought together; see pass/shard_weights.c.
 *
 * Over NCCL on its own stream: an op that reads the weight waits for it (cuda_backend.cu).  Without NCCL through host
 * memory, here and now.  A piece is a run of the storage that `whole` lies in, so nothing is moved behind it. */
#include "cuda.cuh"
#include "device.h"

extern "C" {
#include "base/clock.h"
}

namespace {
const size_t PIECE = (size_t)16 << 20; /* bytes of each rank that go at once */

bool piece_through_host(comm *ranks, const char *mine, size_t bytes, char *all, size_t apart, char *host, failure *f) {
    int n = comm_size(ranks), rank = comm_rank(ranks);
    TRY(transfer_down(host + (size_t)rank * bytes, mine, bytes, f) &&
        comm_all_gather(ranks, host + (size_t)rank * bytes, bytes, host, "weights", f));
    for (int r = 0; r < n; r++) TRY(transfer_up(all + (size_t)r * apart, bytes, host + (size_t)r * bytes, bytes, 1, f));
    return true;
}

bool through_host(comm *ranks, const char *mine, size_t bytes, char *all, failure *f) {
    double started = clock_seconds();
    char *host = (char *)xmalloc((bytes < PIECE ? bytes : PIECE) * (size_t)comm_size(ranks));
    bool ok = true;
    for (size_t at = 0; at < bytes && ok; at += PIECE)
        ok = piece_through_host(ranks, mine + at, bytes - at < PIECE ? bytes - at : PIECE, all + at, bytes, host, f);
    free(host);
    comm_times times = {};
    times.gathering = times.awaited = clock_seconds() - started;
    times.gathered = (int64_t)bytes * comm_size(ranks);
    times.gathers = 1;
    comm_add_times(ranks, &times);
    return ok;
}
} // namespace

extern "C" bool cuda_all_gather(comm *ranks, const void *mine, size_t bytes, void *all, failure *f) {
    if (nccl_is_open()) return nccl_all_gather(mine, bytes, all, f);
    return through_host(ranks, (const char *)mine, bytes, (char *)all, f);
}

extern "C" void cuda_op_all_gather(const kernel_call *call) {
    const tensor *part = &call->in[0], *whole = &call->out[0];
    size_t size = dtype_size(part->type);
    assert(part->type == whole->type);
    if (call->ranks) {
        cuda_all_gather(call->ranks, part->data, (size_t)(part->rows * part->cols) * size, whole->data, cuda_failure());
        return;
    }
    assert(part->rows == whole->rows && part->cols == whole->cols); /* all of it */
    cuda_check(cudaMemcpy2DAsync(whole->data, (size_t)whole->ld * size, part->data, (size_t)part->ld * size,
                                 (size_t)part->cols * size, (size_t)part->rows, cudaMemcpyDeviceToDevice,
                                 cuda_stream()),
               "copy", cuda_failure());
}
