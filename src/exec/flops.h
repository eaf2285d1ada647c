/* flops.h - floating-point operations that a program must do, for MFU (model FLOPs utilisation). */
#ifndef EXEC_FLOPS_H
#define EXEC_FLOPS_H
#include "exec/kernel.h"

/* Operations of one run of the whole program: products and attention, two for each multiply-add; the head on label rows
 * only; nothing for repeats (pass_recompute) or element-wise work. `pairs`: query-key pairs that attention may look at,
 * summed over documents (batch_pairs). */
double graph_flops(const graph *g, const batch_info *b, double pairs);
/* The same of one op. */
double op_flops(const graph *g, const graph_op *o, const batch_info *b, double pairs);
/* Causal pairs of the documents cu[0..docs]. */
double batch_pairs(const int32_t *cu, int docs);
#endif
