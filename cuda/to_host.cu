/* to_host.cu - to_host and from_host: copies on a stream of their own, beside the kernels; see pass/offload.c.
 *
 * A copy sets out when what is enqueued so far is done.  Until it is there, its device memory is remembered: an op that
 * touches what a copy writes, or writes what a copy reads, waits for it (cuda_backend.cu asks before each).  Copies
 * follow each other, so the host's side needs no more.  The bus moves a layer's input (64 MiB for 8192 rows of 4096)
 * in a fraction of the layer's time. */
#include "cuda.cuh"
#include "device.h"

namespace {
enum { MOST = 4 }; /* remembered at a time; a fifth waits for the oldest */

typedef struct {
    const char *at; /* NULL: nobody has to wait any more */
    size_t bytes;
    bool written; /* by the copy */
    cudaEvent_t done;
} copying;

struct {
    cudaStream_t stream; /* made by the first copy */
    cudaEvent_t ready;   /* what the next copy waits for */
    copying list[MOST];
    int next; /* the oldest */
} state;

bool open_stream(failure *f) {
    if (state.stream) return true;
    cudaStream_t stream;
    TRY(cuda_check(cudaEventCreateWithFlags(&state.ready, cudaEventDisableTiming), "event", f));
    for (copying &c : state.list)
        TRY(cuda_check(cudaEventCreateWithFlags(&c.done, cudaEventDisableTiming), "event", f));
    TRY(cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream", f));
    state.stream = stream;
    return true;
}

/* What comes on the backend's stream waits for it. */
bool wait_for(copying *c, failure *f) {
    if (!c->at) return true;
    c->at = NULL;
    return cuda_check(cudaStreamWaitEvent(cuda_stream(), c->done, 0), "event", f);
}

/* The rows of the micro-batch; `device`: the side that is remembered. */
bool copy(const kernel_call *call, const tensor *device, bool written, failure *f) {
    const tensor *from = &call->in[0], *to = &call->out[0];
    size_t size = dtype_size(from->type), width = (size_t)from->cols * size, rows = (size_t)kernel_rows(call);
    TRY(open_stream(f));
    copying *c = &state.list[state.next];
    TRY(wait_for(c, f));
    TRY(cuda_check(cudaEventRecord(state.ready, cuda_stream()), "event", f));
    TRY(cuda_check(cudaStreamWaitEvent(state.stream, state.ready, 0), "event", f));
    TRY(cuda_check(cudaMemcpy2DAsync(to->data, (size_t)to->ld * size, from->data, (size_t)from->ld * size, width, rows,
                                     cudaMemcpyDefault, state.stream),
                   "copy between the card and host memory", f));
    TRY(cuda_check(cudaEventRecord(c->done, state.stream), "event", f));
    c->at = (const char *)device->data;
    c->bytes = (size_t)(device->rows * device->ld) * size;
    c->written = written;
    state.next = (state.next + 1) % MOST;
    return true;
}
} // namespace

extern "C" bool offload_wait_for(const void *at, size_t bytes, bool writes, failure *f) {
    const char *from = (const char *)at, *to = from + bytes;
    for (copying &c : state.list) {
        if (!c.at || c.at >= to || c.at + c.bytes <= from || (!writes && !c.written)) continue;
        TRY(wait_for(&c, f));
    }
    return true;
}

extern "C" bool offload_under_way(void) {
    for (const copying &c : state.list)
        if (c.at) return true;
    return false;
}

extern "C" bool offload_join(failure *f) {
    for (copying &c : state.list) TRY(wait_for(&c, f));
    return true;
}

extern "C" void offload_close(void) {
    if (state.stream) {
        cudaStreamSynchronize(state.stream);
        cudaStreamDestroy(state.stream);
    }
    if (state.ready) cudaEventDestroy(state.ready);
    for (copying &c : state.list)
        if (c.done) cudaEventDestroy(c.done);
    state = {};
}

extern "C" void cuda_op_to_host(const kernel_call *call) { copy(call, &call->in[0], false, cuda_failure()); }
extern "C" void cuda_op_from_host(const kernel_call *call) { copy(call, &call->out[0], true, cuda_failure()); }
