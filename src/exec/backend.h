/* backend.h - a device: memory, one kernel per op, the optimizer step.
 *
 * Which backends exist is decided by the files that are linked (cpu/cpu_backend.c always; cuda/cuda_backend.cu or
 * cuda/none.c).  Addresses are the device's own; only upload and download cross. */
#ifndef EXEC_BACKEND_H
#define EXEC_BACKEND_H
#include "base/failure.h"
#include "exec/kernel.h"

typedef struct {
    float learning_rate, beta1, beta2, eps, weight_decay;
    float grad_scale;               /* clipping factor, multiplied into the gradient */
    float correction1, correction2; /* 1 - beta^t of this step */
} adamw_args;

typedef struct backend {
    const char *name;         /* "cpu", "cuda" */
    dtype compute;            /* type of activations */
    bool host_memory;         /* addresses are host addresses: mapped weights need no copy */
    bool (*open)(failure *f); /* once, before anything else */
    void (*close)(void);
    bool (*alloc)(void **out, size_t bytes, const char *what, failure *f); /* at least 256-byte aligned */
    void (*free)(void *block);
    bool (*upload)(void *to, const void *from, size_t bytes, failure *f);
    bool (*download)(void *to, const void *from, size_t bytes, failure *f); /* waits for all work before it */
    bool (*clear)(void *block, size_t bytes, failure *f);
    size_t (*memory)(void); /* bytes of the device's memory that this process may use; 0: unknown */
    size_t (*scratch)(const graph *g, const graph_op *op); /* bytes a kernel needs beside its operands */
    const kernel *kernels;      /* [OP_COUNT]; NULL: not there, the executor refuses the program */
    bool (*finish)(failure *f); /* waits for all work; reports asynchronous errors */
    /* Sum of squares of n floats, in double, the same bits on every run. */
    bool (*sum_squares)(double *out, const float *x, int64_t n, failure *f);
    /* One AdamW step (decoupled decay, torch.optim.AdamW's order of operations) on n float32 weights. */
    bool (*adamw)(float *w, const float *grad, float *m, float *v, int64_t n, const adamw_args *args, failure *f);
} backend;

/* `name`: "cpu", "cuda" or "auto" (cuda where a usable device is, else cpu). */
bool backend_find(const backend **out, const char *name, failure *f);

extern const backend cpu_backend;
/* Fills *out, or says why there is no CUDA backend (cuda/none.c: this build has none). */
bool cuda_backend_find(const backend **out, failure *f);
#endif
