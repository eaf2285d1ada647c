/* cuda_runtime_api.h - stands in for CUDA's header where comm_nccl.c is tested without a card: the part of it that is
 * used there, on host memory (cuda_stand_in.c).
 *
 * A stream is two counters: pieces of work put on it, and pieces done.  Copies are done at once; what NCCL's stand-in
 * (nccl_stand_in.c) puts on it is done by a thread.  An event is a stream and a count to wait for. */
#ifndef TEST_CUDA_RUNTIME_API_H
#define TEST_CUDA_RUNTIME_API_H
#include <stddef.h>

typedef struct {
    long queued, done; /* __atomic */
} stand_in_stream;
typedef struct {
    stand_in_stream *stream;
    long count;
} stand_in_event;
typedef stand_in_stream *cudaStream_t;
typedef stand_in_event *cudaEvent_t;

typedef enum { cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorNotReady = 600 } cudaError_t;
enum { cudaEventDisableTiming = 2, cudaStreamNonBlocking = 1 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };

cudaError_t cudaGetLastError(void);
cudaError_t cudaMalloc(void **block, size_t bytes);
cudaError_t cudaFree(void *block);
cudaError_t cudaMemsetAsync(void *block, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaGetDevice(int *card);
cudaError_t cudaDeviceGetPCIBusId(char *bus, int room, int card);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b);
#endif
