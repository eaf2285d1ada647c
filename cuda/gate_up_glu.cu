/* gate_up_glu.cu - gate = x Wg', up = x Wu' (each with its optional adapter) as one product, y = act(gate) up;
 * gate_up_bwd takes the gradients of gate and up back through the product. */
#include "cuda.cuh"
#include "folded.h"
#include "product.h"

void cuda_op_gate_up_glu(const kernel_call *call) {
    if (call->in[GUG_RSTD].data) {
        folded_gate_up_glu(call);
        return;
    }
    const tensor *in = call->in, *out = call->out;
    const tensor *const y[] = {&out[GUG_GATE], &out[GUG_UP]}, *const s[] = {&out[GUG_SG], &out[GUG_SU]};
    int64_t n = call->batch->rows;
    product_stack p = {2, &in[GUG_WG], NULL, &in[GUG_AG], call->op->attr.scale};
    product_forward(&p, &in[GUG_X], y, s, n);
    if (out[GUG_Y].data) cuda_glu(&out[GUG_Y], y[0], y[1], n, call->op->attr.glu);
}

size_t cuda_scratch_gate_up_bwd(const graph *g, const graph_op *op) {
    if (op->in[GUB_RSTD]) return folded_scratch_norm_bwd(g, op->in[GUB_X], op->in[GUB_RSTD], &op->in[GUB_AG], 2);
    return product_scratch(g, op->in[GUB_X], &op->in[GUB_AG], 2);
}

void cuda_op_gate_up_bwd(const kernel_call *call) {
    const tensor *in = call->in, *out = call->out;
    product_stack p = {2, &in[GUB_WG], NULL, &in[GUB_AG], call->op->attr.scale};
    if (in[GUB_RSTD].data) {
        folded_norm_bwd(&p, &out[GUB_DX], &out[GUB_DAG], &in[GUB_DGATE], &in[GUB_X], &in[GUB_SG], &in[GUB_RSTD],
                        call->batch->rows, call->scratch);
        return;
    }
    product_backward(&p, &out[GUB_DX], &out[GUB_DAG], &in[GUB_DGATE], &in[GUB_X], &in[GUB_SG], call->batch->rows,
                     call->scratch);
}
