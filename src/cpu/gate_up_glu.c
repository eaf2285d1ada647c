/* gate_up_glu.c - gate = x Wg', up = x Wu' (each with its optional adapter), y = act(gate) up. */
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
