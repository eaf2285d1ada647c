/* linear_lora.cu - a linear with a low-rank adapter: y = x W' + bias + scale (x A') B', and its gradients. */
#include "cuda.cuh"
#include "folded.h"
#include "product.h"

void cuda_op_linear_lora(const kernel_call *call) {
    if (call->in[LORA_RES].data) {
        folded_linear_lora(call);
        return;
    }
    const tensor *in = call->in, *y = &call->out[0], *s = &call->out[1];
    product_stack p = {1, &in[LORA_W], &in[LORA_BIAS], &in[LORA_A], call->op->attr.scale};
    product_forward(&p, &in[LORA_X], &y, &s, call->batch->rows);
}

size_t cuda_scratch_linear_lora_bwd(const graph *g, const graph_op *op) {
    if (op->in[LORA_BWD_GATE]) return folded_scratch_linear_lora_bwd(g, op);
    return product_scratch(g, op->in[LORA_BWD_DY], &op->in[LORA_BWD_A], 1);
}

void cuda_op_linear_lora_bwd(const kernel_call *call) {
    if (call->in[LORA_BWD_GATE].data) {
        folded_linear_lora_bwd(call);
        return;
    }
    const tensor *in = call->in, *out = call->out;
    product_stack p = {1, &in[LORA_BWD_W], NULL, &in[LORA_BWD_A], call->op->attr.scale};
    product_backward(&p, &out[0], &out[1], &in[LORA_BWD_DY], &in[LORA_BWD_X], &in[LORA_BWD_S], call->batch->rows,
                     call->scratch);
}
