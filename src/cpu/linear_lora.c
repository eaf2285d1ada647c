/* linear_lora.c - a linear with a low-rank adapter: y = x W' + bias + scale (x A') B', and its gradients.
 *
 * s = x A' is kept (unscaled) for dB; ds = scale dy B serves dx = dy W + ds A and dA = ds' x. */
#include "cpu/cpu.h"

void cpu_lora(float *y, float *s, const float *x, const tensor *A, const tensor *B, int64_t n, float scale,
              float *scratch) {
    cpu_product_nt(s, x, A, n, 1, 0, scratch);
    cpu_product_nt(y, s, B, n, scale, 1, scratch);
}

void cpu_lora_bwd(const cpu_lora_grads *to, const float *dy, const float *x, const tensor *W, const tensor *A,
                  const tensor *B, const float *s, int64_t n, float scale, float *scratch) {
    float *ds = cpu_take(&scratch, n * A->rows);
    if (to->dx) cpu_product_nn(to->dx, dy, W, n, 1, to->add ? 1 : 0, scratch);
    if (!A->data) return;
    cpu_product_nn(ds, dy, B, n, scale, 0, scratch);
    if (to->dx) cpu_product_nn(to->dx, ds, A, n, 1, 1, scratch);
    const tensor *dA = to->dA, *dB = to->dB;
    if (dA->data) cpu_product_tn(dA->data, ds, x, n, dA->rows, dA->cols, 1, dA->add ? 1 : 0);
    if (dB->data) cpu_product_tn(dB->data, dy, s, n, dB->rows, dB->cols, scale, dB->add ? 1 : 0);
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

int64_t cpu_lora_scratch(const graph *g, vid x, const vid *weights, int n) {
    int64_t most = 0, rank = 0;
    for (int i = 0; i < 3 * n; i++) most = larger(most, cpu_product_scratch(g, weights[i]));
    for (int i = 0; i < n; i++) {
        vid A = weights[n + 2 * i];
        if (A) rank = larger(rank, g->values[A].rows);
    }
    return cpu_round(g->values[x].rows * rank) + most;
}

/* The products run one after the other and share their scratch. */
int64_t cpu_scratch_linear_lora(const graph *g, const graph_op *op) {
    if (op->kind == OP_linear_lora_bwd) return cpu_lora_scratch(g, op->in[LORA_BWD_DY], &op->in[LORA_BWD_W], 1);
    int64_t most = cpu_linear_scratch(g, op->in[LORA_W], op->in[LORA_BIAS]);
    for (int i = LORA_A; i <= LORA_B; i++) most = larger(most, cpu_product_scratch(g, op->in[i]));
    return most;
}

void cpu_op_linear_lora(const kernel_call *call) {
    const tensor *in = call->in;
    float *y = call->out[0].data, *s = call->out[1].data;
    int64_t n = kernel_rows(call);
    cpu_linear(y, in[LORA_X].data, &in[LORA_W], &in[LORA_BIAS], n, call->out[0].add, call->scratch);
    cpu_lora(y, s, in[LORA_X].data, &in[LORA_A], &in[LORA_B], n, call->op->attr.scale, call->scratch);
}

void cpu_op_linear_lora_bwd(const kernel_call *call) {
    const tensor *in = call->in, *out = call->out;
    cpu_lora_grads to = {out[0].data, out[0].add, &out[1], &out[2]};
    cpu_lora_bwd(&to, in[LORA_BWD_DY].data, in[LORA_BWD_X].data, &in[LORA_BWD_W], &in[LORA_BWD_A], &in[LORA_BWD_B],
                 in[LORA_BWD_S].data, kernel_rows(call), call->op->attr.scale, call->scratch);
}
