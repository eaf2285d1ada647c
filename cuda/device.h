/* device.h - what the CUDA backend (cuda_backend.cu) offers to the kernels of this folder.
 *
 * Everything runs on one stream.  cuda_op_NAME enqueues and returns.  The backend's table wraps each of them: it asks
 * for launch errors behind every op and keeps the first with the op's name and shapes, so kernels need not ask.  What
 * else goes wrong is put into cuda_failure(); the op then returns, and finish() ends the run with it. */
#ifndef CUDA_DEVICE_H
#define CUDA_DEVICE_H
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "exec/backend.h"

cudaStream_t cuda_stream(void);
int cuda_arch(void);         /* 90: sm_90 */
int cuda_code(void);         /* of its kernels: below cuda_arch() where the driver compiled them on */
int cuda_processors(void);   /* multiprocessors */
failure *cuda_failure(void); /* of the op that runs; only the first of a run is kept */
/* "text: out of memory" for status != cudaSuccess */
bool cuda_check(cudaError_t status, const char *text, failure *f);

/* ---- scratch of the ops that need it, in bytes; pieces are taken from the front in steps of 256 bytes ---- */
static inline size_t cuda_round(size_t bytes) { return (bytes + 255) / 256 * 256; }
static inline void *cuda_take(char **scratch, size_t bytes) {
    void *out = *scratch;
    *scratch += cuda_round(bytes);
    return out;
}

/* ---- transfers (transfer.c): through pinned memory, in the order of the stream ---- */
/* rows of row_bytes, dense in host memory, to_pitch bytes apart on the device. Returns when `from` may be reused. */
bool transfer_up(void *to, size_t to_pitch, const void *from, size_t row_bytes, int64_t rows, failure *f);
bool transfer_down(void *to, const void *from, size_t bytes, failure *f); /* waits */
void transfer_close(void);

/* ---- sampling for exec/device_stats.h (nvml.c); bus: the card's PCI id. Without NVML nothing is sampled ---- */
void device_stats_open(const char *bus); /* before the card is used */
void device_stats_close(void);

/* true: own kernels only, whose bits do not depend on what ran before. Before a program is planned. */
void cuda_attention_set_own(bool own);
/* ---- between the ranks' cards (comm_nccl.c; opened by comm_nccl_open of dist/comm.h) ---- */
bool nccl_is_open(void);
bool nccl_all_reduce(float *x, int64_t n, failure *f); /* behind what is on cuda_stream(), beside what comes on it */
bool nccl_broadcast(void *data, size_t bytes, int root, failure *f); /* so too, and the next two */
bool nccl_all_gather(const void *mine, size_t bytes, void *all, failure *f);
/* Of x[ranks * n] the n of this rank become their sum, in their place; then, in order, what `behind` enqueues. */
bool nccl_reduce_scatter(float *x, int64_t n, void (*behind)(cudaStream_t stream, const float *sum, void *data),
                         void *data, failure *f);
/* What comes on cuda_stream() waits for gathers and scatters that have to do with this memory. */
bool nccl_wait_for(const void *at, size_t bytes, failure *f);
bool nccl_join(failure *f); /* waits for all of these, if there are any, within the ranks' limit */
void nccl_close(void);

/* ---- copies to and from host memory beside the kernels (to_host.cu) ---- */
bool offload_under_way(void); /* there are some that an op may have to wait for */
/* What comes on cuda_stream() waits for those that have to do with this memory: all, or if it only reads there, those
 * that write. */
bool offload_wait_for(const void *at, size_t bytes, bool writes, failure *f);
bool offload_join(failure *f); /* ... for all */
void offload_close(void);

/* The pieces of all ranks, over NCCL or through host memory (all_gather.cu): backend.all_gather. */
bool cuda_all_gather(comm *ranks, const void *mine, size_t bytes, void *all, failure *f);

void cuda_attention_close(void);
#ifdef __cplusplus
}
#endif
#endif
