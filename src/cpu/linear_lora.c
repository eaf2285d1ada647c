/* linear_lora.c - a linear with a low-rank adapter: y = x W' + bias + scale (x A') B', and its gradients.
 *
 * With a residual: y += res, and rstd of the rows of that sum.  With gate and up, x = act(gate) up is made again, and
 * its gradient goes on to these, with dot = <dgate, gate> + <dup, up> by row.  Both may lack the adapter. s = x A' is
 * kept (unscaled) for dB; ds = scale dy B serves dx = dy W + ds A and dA = ds' x. */
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
    if (op->kind == OP_linear_lora_bwd) {
        int64_t lora = cpu_lora_scratch(g, op->in[LORA_BWD_DY], &op->in[LORA_BWD_W], 1);
        vid gate = op->in[LORA_BWD_GATE]; /* x and dx are in the scratch */
        return lora + (gate ? 2 * cpu_round(value_count(&g->values[gate])) : 0);
    }
    int64_t most = cpu_linear_scratch(g, op->in[LORA_W], op->in[LORA_BIAS]);
    for (int i = LORA_A; i <= LORA_B; i++) most = larger(most, cpu_product_scratch(g, op->in[i]));
    return most;
}

void cpu_op_linear_lora(const kernel_call *call) {
    const tensor *in = call->in, *out = call->out;
    float *y = out[LORA_Y].data;
    int64_t n = kernel_rows(call), M = out[LORA_Y].cols;
    cpu_linear(y, in[LORA_X].data, &in[LORA_W], &in[LORA_BIAS], n, out[LORA_Y].add, call->scratch);
    if (in[LORA_A].data)
        cpu_lora(y, out[LORA_S].data, in[LORA_X].data, &in[LORA_A], &in[LORA_B], n, call->op->attr.scale,
                 call->scratch);
    if (in[LORA_RES].data) cpu_add_rows(y, in[LORA_RES].data, y, n, M);
    if (out[LORA_RSTD].data) cpu_rstd(out[LORA_RSTD].data, y, n, M, call->op->attr.eps);
}

/* dx on to gate and up. */
static void through_glu(const kernel_call *call, const float *dx, int64_t n) {
    const tensor *gate = &call->in[LORA_BWD_GATE], *up = &call->in[LORA_BWD_UP];
    float *dgate = call->out[LORA_BWD_DGATE].data, *dup = call->out[LORA_BWD_DUP].data;
    float *dot = call->out[LORA_BWD_DOT].data;
    cpu_glu_bwd(dgate, dup, dx, gate->data, up->data, n, gate->cols, call->op->attr.glu);
    if (!dot) return;
    cpu_row_dots(dot, dgate, gate->data, n, gate->cols, false);
    cpu_row_dots(dot, dup, up->data, n, up->cols, true);
}

void cpu_op_linear_lora_bwd(const kernel_call *call) {
    const tensor *in = call->in, *out = call->out, *gate = &in[LORA_BWD_GATE];
    float *scratch = call->scratch, *dx = out[LORA_BWD_DX].data, *again = NULL;
    int64_t n = kernel_rows(call);
    if (gate->data) {
        dx = cpu_take(&scratch, gate->rows * gate->cols);
        again = cpu_take(&scratch, gate->rows * gate->cols);
        cpu_glu(again, gate->data, in[LORA_BWD_UP].data, n, gate->cols, call->op->attr.glu);
    }
    cpu_lora_grads to = {dx, out[LORA_BWD_DX].add, &out[LORA_BWD_DA], &out[LORA_BWD_DB]};
    cpu_lora_bwd(&to, in[LORA_BWD_DY].data, again ? again : in[LORA_BWD_X].data, &in[LORA_BWD_W], &in[LORA_BWD_A],
                 &in[LORA_BWD_B], in[LORA_BWD_S].data, n, call->op->attr.scale, scratch);
    if (gate->data) through_glu(call, dx, n);
}
