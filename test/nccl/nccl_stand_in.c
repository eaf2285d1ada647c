/* nccl_stand_in.c - a libnccl.so.2 for tests: the calls of nccl_api.h between processes of one machine, through a file
 * that all of them map.  It is as slow to start as the real one may be ("in progress"), and as patient: who waits for a
 * rank that does not come waits until it is aborted.
 *
 * Calls are done in order by a thread for each communicator: every rank puts its part into the file, waits for the
 * others, takes what it needs, and waits again before the next call may overwrite it. */
#include "nccl_api.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANKS = 8, ROOM = 8 << 20, QUEUE = 64 };

typedef struct {
    long arrived; /* of all ranks at all meetings so far */
    char part[RANKS][ROOM];
} shared;

typedef enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST } call_kind;
typedef struct {
    call_kind kind;
    const void *from;
    void *to;
    size_t bytes; /* of one rank's part as put into the file; of REDUCE_SCATTER of the result */
    int root;
    stand_in_stream *stream;
} call;

struct nccl_communicator {
    shared *file;
    char path[128];
    int rank, ranks;
    long meetings;
    pthread_t thread;
    call queue[QUEUE];
    long put, taken; /* __atomic */
    int stop;        /* __atomic: aborted or destroyed */
    int asked;       /* how often the state was asked for: it is in progress at first */
};

int ncclGetVersion(int *version);
int ncclGetVersion(int *version) {
    const char *given = getenv("STAND_IN_NCCL_VERSION");
    *version = given ? (int)strtol(given, NULL, 10) : 22703;
    return NCCL_DONE;
}

const char *ncclGetErrorString(int status);
const char *ncclGetErrorString(int status) { return status == 5 ? "invalid usage" : "some error"; }
const char *ncclGetLastError(nccl_handle c);
const char *ncclGetLastError(nccl_handle c) { return c ? "what went before it" : ""; }

int ncclGetUniqueId(nccl_id *id);
int ncclGetUniqueId(nccl_id *id) {
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "/tmp/nccl-stand-in-%ld", (long)getpid());
    int file = open(id->bytes, O_RDWR | O_CREAT | O_TRUNC, 0600);
    int failed = file < 0 || ftruncate(file, sizeof(shared)) != 0;
    if (file >= 0) close(file);
    return failed ? 2 : NCCL_DONE;
}

/* 0: stopped while waiting. */
static int meet(nccl_handle c) {
    long all = ++c->meetings * c->ranks;
    __atomic_add_fetch(&c->file->arrived, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&c->file->arrived, __ATOMIC_ACQUIRE) < all) {
        if (__atomic_load_n(&c->stop, __ATOMIC_ACQUIRE)) return 0;
        usleep(20);
    }
    return 1;
}

static void add_parts(const nccl_handle c, float *to, size_t first, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float sum = 0;
        for (int r = 0; r < c->ranks; r++) sum += ((const float *)(const void *)c->file->part[r])[first + i];
        to[i] = sum;
    }
}

static int do_call(nccl_handle c, const call *k) {
    size_t bytes = k->kind == REDUCE_SCATTER ? k->bytes * (size_t)c->ranks : k->bytes;
    if (k->kind != BROADCAST || c->rank == k->root) memcpy(c->file->part[c->rank], k->from, bytes);
    if (!meet(c)) return 0;
    size_t n = k->bytes / sizeof(float);
    if (k->kind == ALL_REDUCE) add_parts(c, k->to, 0, n);
    if (k->kind == REDUCE_SCATTER) add_parts(c, k->to, (size_t)c->rank * n, n);
    if (k->kind == BROADCAST) memcpy(k->to, c->file->part[k->root], bytes);
    for (int r = 0; k->kind == ALL_GATHER && r < c->ranks; r++)
        memcpy((char *)k->to + (size_t)r * bytes, c->file->part[r], bytes);
    return meet(c);
}

static void *work(void *context) {
    nccl_handle c = context;
    for (;;) {
        long taken = c->taken;
        while (__atomic_load_n(&c->put, __ATOMIC_ACQUIRE) == taken) {
            if (__atomic_load_n(&c->stop, __ATOMIC_ACQUIRE)) return NULL;
            usleep(20);
        }
        const call *k = &c->queue[taken % QUEUE];
        if (!do_call(c, k)) return NULL;
        __atomic_store_n(&c->taken, taken + 1, __ATOMIC_RELEASE);
        __atomic_add_fetch(&k->stream->done, 1, __ATOMIC_RELEASE);
    }
}

int ncclCommInitRankConfig(nccl_handle *out, int ranks, nccl_id id, int rank, nccl_config *config);
int ncclCommInitRankConfig(nccl_handle *out, int ranks, nccl_id id, int rank, nccl_config *config) {
    if (config->magic != (unsigned)NCCL_CONFIG_MAGIC || config->size < 20 || config->blocking != 0) return 4;
    if (getenv("STAND_IN_NCCL_REFUSES") && rank == 1) return 5;
    nccl_handle c = calloc(1, sizeof *c);
    int file = open(id.bytes, O_RDWR);
    if (!c || file < 0) return 2;
    c->file = mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (c->file == MAP_FAILED) return 2;
    memcpy(c->path, id.bytes, sizeof id.bytes);
    c->rank = rank, c->ranks = ranks;
    pthread_create(&c->thread, NULL, work, c);
    *out = c;
    return NCCL_IN_PROGRESS;
}

int ncclCommGetAsyncError(nccl_handle c, int *status);
int ncclCommGetAsyncError(nccl_handle c, int *status) {
    *status = c->asked++ < 5 ? NCCL_IN_PROGRESS : NCCL_DONE;
    return NCCL_DONE;
}

static int end(nccl_handle c) {
    __atomic_store_n(&c->stop, 1, __ATOMIC_RELEASE);
    pthread_join(c->thread, NULL);
    for (; c->taken < c->put; c->taken++) /* kernels of an aborted communicator end */
        __atomic_add_fetch(&c->queue[c->taken % QUEUE].stream->done, 1, __ATOMIC_RELEASE);
    munmap(c->file, sizeof(shared));
    if (c->rank == 0) unlink(c->path);
    free(c);
    return NCCL_DONE;
}

int ncclCommDestroy(nccl_handle c);
int ncclCommDestroy(nccl_handle c) { return end(c); }
int ncclCommAbort(nccl_handle c);
int ncclCommAbort(nccl_handle c) { return end(c); }

static int enqueue(nccl_handle c, call k, size_t all) {
    if (all > ROOM || c->put - c->taken >= QUEUE) return 4;
    c->queue[c->put % QUEUE] = k;
    __atomic_add_fetch(&k.stream->queued, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&c->put, c->put + 1, __ATOMIC_RELEASE);
    return NCCL_DONE;
}

static size_t width(int type) { return type == NCCL_FLOAT32 ? sizeof(float) : 1; }

int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, nccl_handle c, cudaStream_t stream);
int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, nccl_handle c, cudaStream_t stream) {
    if (type != NCCL_FLOAT32 || op != NCCL_SUM) return 4;
    return enqueue(c, (call){ALL_REDUCE, from, to, n * width(type), 0, stream}, n * width(type));
}

int ncclAllGather(const void *from, void *to, size_t n, int type, nccl_handle c, cudaStream_t stream);
int ncclAllGather(const void *from, void *to, size_t n, int type, nccl_handle c, cudaStream_t stream) {
    return enqueue(c, (call){ALL_GATHER, from, to, n * width(type), 0, stream}, n * width(type));
}

int ncclReduceScatter(const void *from, void *to, size_t n, int type, int op, nccl_handle c, cudaStream_t stream);
int ncclReduceScatter(const void *from, void *to, size_t n, int type, int op, nccl_handle c, cudaStream_t stream) {
    if (type != NCCL_FLOAT32 || op != NCCL_SUM) return 4;
    size_t bytes = n * width(type);
    return enqueue(c, (call){REDUCE_SCATTER, from, to, bytes, 0, stream}, bytes * (size_t)c->ranks);
}

int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, nccl_handle c, cudaStream_t stream);
int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, nccl_handle c, cudaStream_t stream) {
    return enqueue(c, (call){BROADCAST, from, to, n * width(type), root, stream}, n * width(type));
}
