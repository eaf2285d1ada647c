/* nccl_api.h - the part of NCCL's interface that we call, declared here so that neither its headers nor its library are
 * needed to build; opened at run time by comm_nccl.c.  Numbers are those of NCCL's public header nccl.h; they are part
 * of its binary interface.  Every function returns its status, 0: done. */
#ifndef CUDA_NCCL_API_H
#define CUDA_NCCL_API_H
#include <cuda_runtime_api.h>
#include <stddef.h>

typedef struct nccl_communicator *nccl_handle;

typedef struct {
    char bytes[128];
} nccl_id;

/* As it was in NCCL 2.14: a newer library looks at `size` and `version` and takes its own defaults for the rest. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking;
} nccl_config;

enum { NCCL_OLDEST = 21400, NCCL_CONFIG_MAGIC = (int)0xCAFEBEEF };
enum nccl_status { NCCL_DONE = 0, NCCL_IN_PROGRESS = 7 };
enum nccl_type { NCCL_UINT8 = 1, NCCL_FLOAT32 = 7 };
enum nccl_op { NCCL_SUM = 0 };

/* The functions, under their names without "nccl". Counts are elements; of AllGather those of one rank's part, of
 * ReduceScatter those of the result. */
typedef struct {
    void *library;
    int (*GetVersion)(int *version); /* 22703: 2.27.3 */
    const char *(*GetErrorString)(int status);
    const char *(*GetLastError)(nccl_handle c);
    int (*GetUniqueId)(nccl_id *id);
    int (*CommInitRankConfig)(nccl_handle *c, int ranks, nccl_id id, int rank, nccl_config *config);
    int (*CommGetAsyncError)(nccl_handle c, int *status);
    int (*CommDestroy)(nccl_handle c);
    int (*CommAbort)(nccl_handle c);
    int (*AllReduce)(const void *from, void *to, size_t n, int type, int op, nccl_handle c, cudaStream_t stream);
    int (*AllGather)(const void *from, void *to, size_t n, int type, nccl_handle c, cudaStream_t stream);
    int (*ReduceScatter)(const void *from, void *to, size_t n, int type, int op, nccl_handle c, cudaStream_t stream);
    int (*Broadcast)(const void *from, void *to, size_t n, int type, int root, nccl_handle c, cudaStream_t stream);
} nccl_api;
#endif
