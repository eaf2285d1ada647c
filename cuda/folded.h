/* folded.h - the folded forms of ops (pass/fold.c, docs/adr/0010) on Hopper: one product of our own (wgmma_gemm.h) with
 * everything around it in its epilogue, and small kernels for what is as thin as an adapter.
 *
 * The weights of a stack are placed by pass_layout, W and A with the norm's weight in their columns where the op has a
 * norm.  What the op needs beside its operands is in its scratch; operands need no room.  What cannot be served
 * ends the run through cuda_failure(); folded_serves says before whether it will be. */
#ifndef CUDA_FOLDED_H
#define CUDA_FOLDED_H
#include "product.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- forward ---- */

/* linear_lora with a residual: y = x W' + scale s B' + res, s = x A'; rstd of y's rows where it has data. */
void folded_linear_lora(const kernel_call *call);
/* gate_up_glu with an rstd, norm_qkv_rope with an ra: x is the residual stream. */
void folded_gate_up_glu(const kernel_call *call);
void folded_norm_qkv_rope(const kernel_call *call);

/* ---- backward ---- */

/* linear_lora_bwd with gate and up: dgate, dup and dot by row, dA, dB */
void folded_linear_lora_bwd(const kernel_call *call);
/* gate_up_bwd and qkv_bwd with an rstd: dx of the residual stream (or not wanted), dA, dB.
 * in_out: x, s and dy as product_backward has them; rstd_norm_dot_dres: these four operands in a row. */
void folded_norm_bwd(const product_stack *p, const tensor *dx, const tensor *dAB, const tensor *dy, const tensor *x,
                     const tensor *s, const tensor *rstd_norm_dot_dres, int64_t n, void *scratch);

/* ---- scratch in bytes; 0 for other forms than the folded ---- */
size_t folded_scratch_forward(const graph *g, const graph_op *op);
size_t folded_scratch_linear_lora_bwd(const graph *g, const graph_op *op);
size_t folded_scratch_norm_bwd(const graph *g, vid x, vid rstd, const vid *AB, int n);

/* backend.serves */
bool folded_serves(const graph *g, const graph_op *op, const char **why);
#ifdef __cplusplus
}
#endif
#endif
