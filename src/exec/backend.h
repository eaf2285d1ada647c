/* backend.h - a device: memory, one kernel per op, the optimizer step.
 *
 * Which backends exist is decided by the files that are linked (cpu/cpu_backend.c always; cuda/cuda_backend.cu or
 * cuda/none.c).  Addresses are the device's own; only upload and download cross. */
#ifndef EXEC_BACKEND_H
#define EXEC_BACKEND_H
#include "base/failure.h"
#include "exec/kernel.h"

/* One trainable param, or the piece of it that this rank updates, with what the optimizer keeps of it; all device
 * addresses, float32, n elements each. */
typedef struct {
    float *weight, *m, *v; /* m, v NULL: counts in the norm, and another rank updates it */
    const float *grad;
    int64_t n;
    bool decays;
    tensor working; /* copy in the compute type, refreshed by the step; data NULL: none. Rows of it, or elements where
                       it has one column, may be missing at both ends, ... */
    int64_t first;  /* ... in front as many */
    tensor fold;    /* [cols], of the compute type: the copy's columns are times it (pass_fold); data NULL: are not */
} optim_group;

typedef struct {
    float learning_rate, beta1, beta2, eps, weight_decay;
    float max_grad_norm;            /* 0: no limit */
    float correction1, correction2; /* 1 - beta^t of this step */
    comm *ranks; /* gradients are in pieces, and the norm is that of all ranks' pieces; NULL: they are whole */
} adamw_args;

typedef struct backend {
    const char *name;         /* "cpu", "cuda" */
    dtype compute;            /* type of activations */
    bool host_memory;         /* addresses are host addresses: mapped weights need no copy */
    bool (*open)(failure *f); /* once, before anything else */
    void (*close)(void);
    bool (*alloc)(void **out, size_t bytes, const char *what, failure *f); /* at least 256-byte aligned */
    void (*free)(void *block);
    /* Memory of the host that the device copies by itself. NULL where all memory is the host's: alloc and free. */
    bool (*alloc_host)(void **out, size_t bytes, const char *what, failure *f);
    void (*free_host)(void *block);
    bool (*upload)(void *to, const void *from, size_t bytes, failure *f);
    bool (*download)(void *to, const void *from, size_t bytes, failure *f); /* waits for all work before it */
    bool (*clear)(void *block, size_t bytes, failure *f);
    size_t (*memory)(void);   /* bytes of the device's memory that this process may use; 0: unknown */
    size_t (*overhead)(void); /* bytes that it holds for us beside what alloc gave, once running; NULL: none */
    double (*peak_flops)(dtype compute); /* known peak of the device's products; NULL or 0: not known */
    size_t (*scratch)(const graph *g, const graph_op *op); /* bytes a kernel needs beside its operands */
    const kernel *kernels;      /* [OP_COUNT]; NULL: not there, the executor refuses the program */
    bool (*finish)(failure *f); /* errors of launches so far; download waits for the work itself */
    /* Rows of row_bytes, to_pitch bytes apart at the device and dense in host memory. NULL where pass_layout never
     * runs. */
    bool (*upload_rows)(void *to, size_t to_pitch, const void *from, size_t row_bytes, int64_t rows, failure *f);
    /* One AdamW step over all groups (decoupled decay, torch.optim.AdamW's order of operations), with gradients scaled
     * by min(1, max_grad_norm / (norm + 1e-6)) as torch's clip_grad_norm_. *norm: the global L2 norm before clipping.
     * When it is not finite nothing is changed. The same bits on every run. */
    bool (*adamw)(const optim_group *groups, int n, const adamw_args *args, double *norm, failure *f);
    /* Refreshes the working copies from the weights. NULL where there are none. */
    bool (*publish)(const optim_group *groups, int n, failure *f);
    /* Behind open, before a program is planned: true gives equal runs equal bits, also across processes, for some
     * speed. NULL where they have them always. */
    void (*set_deterministic)(bool on);
    /* Device memory of rank `root` to all ranks, behind the work so far; done after finish. */
    bool (*broadcast)(comm *ranks, void *data, size_t bytes, int root, failure *f);
    /* The card and the library of its products, as a part of a file's name, for what is timed once and kept. NULL:
     * there is nothing to choose by time. */
    const char *(*platform)(void);
    /* Begin: kernels from here to the end are not run; *n then says how many launches they are. NULL: one for an op. */
    bool (*count_launches)(bool begin, int *n, failure *f);
    /* pass_fuse's question about the ops that pass_fold makes (op_served in pass/pass.h). NULL: all are served. */
    bool (*serves)(const graph *g, const graph_op *op, const char **why);
    /* The pieces of all ranks into `all`, in which `mine` may lie at its place; where params can be in pieces
     * (pass_shard_weights, pass_shard_gradients), else NULL. */
    bool (*all_gather)(comm *ranks, const void *mine, size_t bytes, void *all, failure *f);
} backend;

/* `name`: "cpu", "cuda" or "auto" (cuda where a usable device is, else cpu). local_rank: of this process among those on
 * this machine; of the cards, as many as there are, it takes the one with that number. */
bool backend_find(const backend **out, const char *name, int local_rank, failure *f);

extern const backend cpu_backend;
/* Fills *out, or says why there is no CUDA backend (cuda/none.c: this build has none). */
bool cuda_backend_find(const backend **out, int local_rank, failure *f);
#endif
