/* cuda_stand_in.c - see cuda_runtime_api.h; and what comm_nccl.c needs of the CUDA backend. */
#include "device.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static stand_in_stream compute;

cudaStream_t cuda_stream(void) { return &compute; }

bool cuda_check(cudaError_t status, const char *text, failure *f) {
    return status == cudaSuccess || fail(f, FAIL_MACHINE, "%s: error %d", text, (int)status);
}

cudaError_t cudaGetLastError(void) { return cudaSuccess; }

cudaError_t cudaMalloc(void **block, size_t bytes) {
    *block = aligned_alloc(256, cuda_round(bytes));
    return *block ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *block) {
    free(block);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *block, int value, size_t bytes, cudaStream_t stream) {
    cudaStreamSynchronize(stream);
    memset(block, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    cudaStreamSynchronize(stream);
    memcpy(to, from, bytes);
    return cudaSuccess;
}

/* A card of its own for every process, unless the test says that all have one. */
cudaError_t cudaGetDevice(int *card) {
    *card = getenv("STAND_IN_ONE_CARD") ? 0 : (int)getpid();
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *bus, int room, int card) {
    snprintf(bus, (size_t)room, "%d", card);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    (void)flags, (void)priority;
    *stream = calloc(1, sizeof **stream);
    return *stream ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    free(stream);
    return cudaSuccess;
}

static bool is_done(const stand_in_stream *s, long count) {
    return __atomic_load_n(&s->done, __ATOMIC_ACQUIRE) >= count;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    while (!is_done(stream, __atomic_load_n(&stream->queued, __ATOMIC_ACQUIRE))) usleep(20);
    return cudaSuccess;
}

/* The waiting stream is the caller itself, or has nothing to wait for: what the caller does is done at once. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    (void)stream, (void)flags;
    while (cudaEventQuery(event) == cudaErrorNotReady) usleep(20);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof **event);
    return *event ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    *event = (stand_in_event){stream, __atomic_load_n(&stream->queued, __ATOMIC_ACQUIRE)};
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return !event->stream || is_done(event->stream, event->count) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
    *ms = (float)(b->count - a->count);
    return cudaSuccess;
}
