/* launch.h - the entry points of the CUDA kernels, for C and C++: one per op, and the launchers that fused ops are
 * composed of.  All of them enqueue on cuda_stream() and return. */
#ifndef CUDA_LAUNCH_H
#define CUDA_LAUNCH_H
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "exec/backend.h"

/* ---- cuda_backend.cu ---- */
cudaStream_t cuda_stream(void); /* every kernel is launched on it */
/* After the launches of an op: remembers the first error with the op's name and shapes, for backend.finish. */
void cuda_check_launch(const kernel_call *call);

/* ---- kernels: cuda_op_NAME for every op of ops.def ---- */
#define OP(kind, in, out) void cuda_op_##kind(const kernel_call *call);
#include "graph/ops.def"
#undef OP

/* ---- scratch in bytes of the ops that need it ---- */
size_t cuda_scratch_rms_norm_bwd(const graph *g, const graph_op *op); /* 0 without dw */

/* ---- launchers, for ops that are composed of several; n counts token rows ---- */
/* Each w-wide slice of a row of x is normed apart; rstd [n, slices]. */
void cuda_rms_norm(const tensor *y, const tensor *rstd, const tensor *x, const tensor *w, int64_t n, float eps);
/* sum = a + b, rounded to T, then y = rms_norm(sum). */
void cuda_add_rms_norm(const tensor *sum, const tensor *y, const tensor *rstd, const tensor *a, const tensor *b,
                       const tensor *w, int64_t n, float eps);
/* y may be x; freq [d/2] gives the head width d. q and k side by side in one matrix are one x of H + G heads. */
void cuda_rope(const tensor *y, const tensor *x, const int32_t *pos, const tensor *freq, int64_t n, bool inverse);
void cuda_glu(const tensor *y, const tensor *gate, const tensor *up, int64_t n, glu_kind kind);
/* y[i] = x[index[i]] for i < n; an index outside x stops the program. */
void cuda_gather_rows(const tensor *y, const tensor *x, const int32_t *index, int64_t n);

/* A chunk of logits [n, V] of linear_ce, all pointers at the chunk's first row. nll and lse as cross_entropy writes
 * them (`add`: nll is added to). With `weight` (one per row) the logits are then overwritten by their gradient
 * weight (softmax - onehot), which is 0 in rows without a target. One launch: reads twice (the second time mostly
 * from L2) and writes once. */
void cuda_ce_chunk(const tensor *logits, const int32_t *target, float *nll, float *lse, bool add, const float *weight,
                   int64_t n);
/* dlogits = dnll (exp(logits - lse) - onehot); dlogits may be logits. */
void cuda_ce_bwd(const tensor *dlogits, const tensor *logits, const int32_t *target, const float *lse,
                 const float *dnll, int64_t n);

/* ---- the optimizer (adamw.cu): backend.adamw and backend.publish ---- */
bool cuda_adamw(const optim_group *groups, int n, const adamw_args *args, double *norm, failure *f);
bool cuda_publish(const optim_group *groups, int n, failure *f);
void cuda_adamw_close(void); /* gives back the device tables */
#ifdef __cplusplus
}
#endif
#endif
