/* gate_up_glu.c - gate = x Wg', up = x Wu' (each with its optional adapter), y = act(gate) up; gate_up_bwd takes the
 * gradients of gate and up back through the products. */
#include "cpu/cpu.h"

int64_t cpu_scratch_gate_up_glu(const graph *g, const graph_op *op) {
    int64_t most = 0;
    for (int i = GUG_WG; i <= GUG_BU; i++) {
        int64_t one = cpu_product_scratch(g, op->in[i]);
        if (one > most) most = one;
    }
    return most;
}

void cpu_op_gate_up_glu(const kernel_call *call) {
    const tensor *in = call->in, *out = call->out;
    const float *x = in[GUG_X].data;
    float *gate = out[GUG_GATE].data, *up = out[GUG_UP].data, scale = call->op->attr.scale, *scratch = call->scratch;
    int64_t n = call->batch->rows;
    cpu_linear(gate, x, &in[GUG_WG], NULL, n, false, scratch);
    if (in[GUG_AG].data) cpu_lora(gate, out[GUG_SG].data, x, &in[GUG_AG], &in[GUG_BG], n, scale, scratch);
    cpu_linear(up, x, &in[GUG_WU], NULL, n, false, scratch);
    if (in[GUG_AU].data) cpu_lora(up, out[GUG_SU].data, x, &in[GUG_AU], &in[GUG_BU], n, scale, scratch);
    cpu_glu(out[GUG_Y].data, gate, up, n, in[GUG_WG].rows, call->op->attr.glu);
}

int64_t cpu_scratch_gate_up_bwd(const graph *g, const graph_op *op) {
    return cpu_lora_scratch(g, op->in[GUB_X], &op->in[GUB_WG], 2);
}

void cpu_op_gate_up_bwd(const kernel_call *call) {
    const tensor *in = call->in, *out = call->out;
    for (int i = 0; i < 2; i++) { /* gate, up */
        cpu_lora_grads to = {out[GUB_DX].data, i > 0 || out[GUB_DX].add, &out[GUB_DAG + 2 * i], &out[GUB_DBG + 2 * i]};
        cpu_lora_bwd(&to, in[GUB_DGATE + i].data, in[GUB_X].data, &in[GUB_WG + i], &in[GUB_AG + 2 * i],
                     &in[GUB_BG + 2 * i], in[GUB_SG + i].data, call->batch->rows, call->op->attr.scale, call->scratch);
    }
}
