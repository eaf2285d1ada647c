/* gate_up_glu.c - gate = x Wg', up = x Wu' (each with its optional adapter), y = act(gate) up; gate_up_bwd takes the
 * gradients of gate and up back through the products.  Folded, x is the residual stream: h = x rstd w takes its place
 * in the scratch. */
#include "cpu/cpu.h"

int64_t cpu_scratch_gate_up_glu(const graph *g, const graph_op *op) {
    int64_t most = 0;
    for (int i = GUG_WG; i <= GUG_BU; i++) {
        int64_t one = cpu_product_scratch(g, op->in[i]);
        if (one > most) most = one;
    }
    const graph_value *x = &g->values[op->in[GUG_X]];
    return most + (op->in[GUG_RSTD] ? cpu_round(value_count(x)) + cpu_round(x->cols) : 0);
}

void cpu_op_gate_up_glu(const kernel_call *call) {
    const tensor *in = call->in, *out = call->out;
    const float *x = in[GUG_X].data;
    float *gate = out[GUG_GATE].data, *up = out[GUG_UP].data, scale = call->op->attr.scale, *scratch = call->scratch;
    int64_t n = call->batch->rows;
    if (in[GUG_RSTD].data) {
        float *h = cpu_take(&scratch, n * in[GUG_X].cols);
        const float *w = cpu_vector(&in[GUG_NORM], &scratch);
        cpu_apply_norm(h, x, in[GUG_RSTD].data, w, n, in[GUG_X].cols);
        x = h;
    }
    cpu_linear(gate, x, &in[GUG_WG], NULL, n, false, scratch);
    if (in[GUG_AG].data) cpu_lora(gate, out[GUG_SG].data, x, &in[GUG_AG], &in[GUG_BG], n, scale, scratch);
    cpu_linear(up, x, &in[GUG_WU], NULL, n, false, scratch);
    if (in[GUG_AU].data) cpu_lora(up, out[GUG_SU].data, x, &in[GUG_AU], &in[GUG_BU], n, scale, scratch);
    if (out[GUG_Y].data) cpu_glu(out[GUG_Y].data, gate, up, n, in[GUG_WG].rows, call->op->attr.glu);
}

int64_t cpu_scratch_gate_up_bwd(const graph *g, const graph_op *op) {
    return cpu_lora_scratch(g, op->in[GUB_X], &op->in[GUB_WG], 2) +
           cpu_folded_scratch(g, op->in[GUB_X], op->in[GUB_RSTD], op->in[GUB_NORM]);
}

void cpu_op_gate_up_bwd(const kernel_call *call) {
    const tensor *in = call->in, *out = call->out;
    const float *x = in[GUB_X].data;
    float *dx = out[GUB_DX].data, *scratch = call->scratch;
    int64_t n = call->batch->rows, K = in[GUB_X].cols;
    cpu_folded f = {0};
    if (in[GUB_RSTD].data) {
        f = cpu_folded_open(&in[GUB_RSTD], x, &out[GUB_DX], n, K, &scratch);
        x = f.h, dx = dx ? f.dh : NULL;
    }
    for (int i = 0; i < 2; i++) { /* gate, up */
        cpu_lora_grads to = {dx, i > 0 || out[GUB_DX].add, &out[GUB_DAG + 2 * i], &out[GUB_DBG + 2 * i]};
        cpu_lora_bwd(&to, in[GUB_DGATE + i].data, x, &in[GUB_WG + i], &in[GUB_AG + 2 * i], &in[GUB_BG + 2 * i],
                     in[GUB_SG + i].data, n, call->op->attr.scale, scratch);
    }
    if (f.h) cpu_folded_close(&f, in[GUB_X].data, n, K);
}
