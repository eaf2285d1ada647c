/* linear_lora.c - a linear with a low-rank adapter: y = x W' + bias + scale (x A') B', and its gradients.
 *
 * s = x A' is kept (unscaled) for dB; ds = scale dy B serves dx and dA. */
#include "cpu/cpu.h"

void cpu_lora(float *y, float *s, const float *x, const tensor *A, const tensor *B, int64_t n, float scale,
              float *scratch) {
    cpu_product_nt(s, x, A, n, 1, 0, scratch);
    cpu_product_nt(y, s, B, n, scale, 1, scratch);
}

/* The products run one after the other and share their scratch. */
int64_t cpu_scratch_linear_lora(const graph *g, const graph_op *op) {
    bool forward = op->kind == OP_linear_lora;
    int64_t most = cpu_linear_scratch(g, op->in[1], forward ? op->in[LORA_BIAS] : 0);
    for (int i = forward ? LORA_A : 2, last = i + 1; i <= last; i++) {
        int64_t one = cpu_product_scratch(g, op->in[i]);
        if (one > most) most = one;
    }
    return most;
}

void cpu_op_linear_lora(const kernel_call *call) {
    const tensor *in = call->in;
    float *y = call->out[0].data, *s = call->out[1].data;
    int64_t n = call->batch->rows;
    cpu_linear(y, in[LORA_X].data, &in[LORA_W], &in[LORA_BIAS], n, call->out[0].add, call->scratch);
    cpu_lora(y, s, in[LORA_X].data, &in[LORA_A], &in[LORA_B], n, call->op->attr.scale, call->scratch);
}

void cpu_op_linear_lora_dx(const kernel_call *call) {
    const tensor *dy = &call->in[0], *W = &call->in[1], *A = &call->in[2], *B = &call->in[3];
    float *dx = call->out[0].data, *ds = call->out[1].data;
    int64_t n = call->batch->rows;
    cpu_product_nn(ds, dy->data, B, n, call->op->attr.scale, 0, call->scratch);
    if (!dx) return;
    cpu_product_nn(dx, dy->data, W, n, 1, call->out[0].add ? 1 : 0, call->scratch);
    cpu_product_nn(dx, ds, A, n, 1, 1, call->scratch);
}

void cpu_op_linear_lora_dab(const kernel_call *call) {
    const tensor *dy = &call->in[0], *x = &call->in[1], *s = &call->in[2], *ds = &call->in[3];
    const tensor *dA = &call->out[0], *dB = &call->out[1];
    int64_t n = call->batch->rows;
    cpu_product_tn(dA->data, ds->data, x->data, n, dA->rows, dA->cols, 1, dA->add ? 1 : 0);
    cpu_product_tn(dB->data, dy->data, s->data, n, dB->rows, dB->cols, call->op->attr.scale, dB->add ? 1 : 0);
}
