/* attention.h - causal softmax attention over packed documents on the GPU, forward and backward, in bfloat16.
 *
 * Row i of a document sees rows max(document start, i - window + 1) .. i.  Operands are column slices: row t of head
 * h begins at data + t * ld + h * d, so that q, k and v may lie in one [N, (H + 2G) d] buffer.  Every pointer must be
 * 16-byte aligned and every ld a multiple of 8.  Rows behind the last document are neither read nor written.
 * Two runs give the same bits.  Launchers enqueue and return; false with a failure set when a shape is not supported
 * or a launch is refused. */
#ifndef CUDA_ATTENTION_H
#define CUDA_ATTENTION_H
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "base/dtype.h"
#include "base/failure.h"

typedef struct {
    int N;          /* rows of all documents together; the buffers may have more */
    int H, G, d;    /* query heads, key heads (G divides H), head width: 64, 128 or 256 */
    int window;     /* 0: none */
    float scale;    /* of q . k */
    float soft_cap; /* 0: none; else scores become cap tanh(score / cap) */
    bool on_mma;    /* on mma.sync on every card: for tests, or on Hopper nothing would reach those kernels */
} attention_shape;

typedef struct {
    void *data; /* bf16 */
    int64_t ld; /* row stride in elements */
} attention_rows;

typedef struct {
    attention_rows q, k, v, o; /* [N, H d], [N, G d], [N, G d], [N, H d] */
    float *lse;                /* [N, H], natural log of the sum of exp(score) */
    attention_rows dout, dq, dk, dv;
    /* Backward: where rope turned q and k, by pos[row] freq[j], dq and dk are those from before it. */
    const int32_t *pos; /* [N]; NULL: they did not turn */
    const float *freq;  /* [d / 2] */
    float *dot;         /* [N], of each row <dq, q> + <dk, k> + <dv, v>; NULL: not wanted. With pos only */
} attention_operands;

/* For each row its document's first row and the row behind its last: int32 bounds[2 N + 1], the last entry N; behind
 * them the order in which kernels walk tiles.  Made once per micro-batch from cu[docs + 1] (device), read by every
 * launch. */
size_t attention_bounds_size(int N);
bool attention_bounds(int32_t *bounds, const int32_t *cu, int docs, int N, cudaStream_t stream, failure *f);

/* Whether this card has the kernels on wgmma for this shape: Hopper, heads of 64 and 128, no soft cap. */
bool attention_on_wgmma(const attention_shape *shape);

bool attention_forward(const attention_shape *shape, const attention_operands *x, const int32_t *bounds,
                       cudaStream_t stream, failure *f);

/* Reads q, k, v, o, lse and dout; overwrites dq, dk, dv and dot.  workspace: attention_workspace() bytes, 16-byte
 * aligned: 8 bytes per row, of which there are a multiple of 64, and query head. */
size_t attention_workspace(const attention_shape *shape);
bool attention_backward(const attention_shape *shape, const attention_operands *x, const int32_t *bounds,
                        void *workspace, cudaStream_t stream, failure *f);

/* What attention_backward() does with pos, by itself, behind another backward: x->dq turned back goes to dq (which may
 * be x->dq), dk stays in its place.  bf16 or float32, any d; nothing needs to be aligned. */
bool attention_turn(const attention_shape *shape, const attention_operands *x, attention_rows dq, dtype type,
                    cudaStream_t stream, failure *f);
#ifdef __cplusplus
}
#endif
#endif
