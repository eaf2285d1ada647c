/* norm_qkv_rope.c - the front of an attention block: sum = a + b, h = rms_norm(sum), then for q, k and v
 * product (+ bias) (+ adapter), for q and k per-head norm where the model has one, then rope.
 *
 * Without b there is no sum and the norm reads a.  q0 and k0 are q and k before their norm.  Every step is the inner
 * function of the op it stands for.  qkv_bwd takes the gradients of the three products back to x = h and the adapters.
 * Folded, a is the residual stream with the rstd ra: h = a ra w is made in the scratch, and qkv_bwd gives the gradient
 * of the stream. Rope's way back is attention_bwd's. */
#include "cpu/cpu.h"

typedef struct {
    int W, bias, A, B, norm; /* positions in op.in; norm 0: none */
    int y, s, before, rstd;  /* positions in op.out */
} projection;

static const projection projections[] = {
    {NQR_WQ, NQR_BIAS_Q, NQR_AQ, NQR_BQ, NQR_NORM_Q, NQR_Q, NQR_SQ, NQR_Q0, NQR_RQ},
    {NQR_WK, NQR_BIAS_K, NQR_AK, NQR_BK, NQR_NORM_K, NQR_K, NQR_SK, NQR_K0, NQR_RK},
    {NQR_WV, NQR_BIAS_V, NQR_AV, NQR_BV, 0, NQR_V, NQR_SV, 0, 0},
};

static int64_t vector_floats(const graph *g, vid v) { return v ? cpu_round(g->values[v].rows * g->values[v].cols) : 0; }

int64_t cpu_scratch_norm_qkv_rope(const graph *g, const graph_op *op) {
    int64_t most = 0, fixed = vector_floats(g, op->in[NQR_W]);
    for (int p = 0; p < 3; p++) {
        const projection *at = &projections[p];
        int64_t sizes[] = {cpu_linear_scratch(g, op->in[at->W], op->in[at->bias]),
                           cpu_product_scratch(g, op->in[at->A]), cpu_product_scratch(g, op->in[at->B])};
        for (int i = 0; i < 3; i++) most = sizes[i] > most ? sizes[i] : most;
        if (at->norm) fixed += vector_floats(g, op->in[at->norm]);
    }
    const graph_value *freq = &g->values[op->in[NQR_FREQ]];
    int64_t table = cpu_round(g->values[op->in[NQR_A]].rows * freq->rows * freq->cols * 2);
    if (op->in[NQR_RA]) fixed += cpu_round(value_count(&g->values[op->in[NQR_A]]));
    return fixed + table + most;
}

static void project(const kernel_call *call, const projection *at, const float *h, float *scratch) {
    const tensor *in = call->in, *out = call->out;
    const op_attr *attr = &call->op->attr;
    int64_t n = call->batch->rows, d = attr->head_dim;
    const float *w = at->norm && in[at->norm].data ? cpu_vector(&in[at->norm], &scratch) : NULL;
    float *y = w ? out[at->before].data : out[at->y].data;
    cpu_linear(y, h, &in[at->W], &in[at->bias], n, false, scratch);
    if (in[at->A].data) cpu_lora(y, out[at->s].data, h, &in[at->A], &in[at->B], n, attr->scale, scratch);
    if (w) cpu_rms_norm(out[at->y].data, out[at->rstd].data, y, w, n, in[at->W].rows / d, d, attr->eps);
}

void cpu_op_norm_qkv_rope(const kernel_call *call) {
    const tensor *in = call->in, *out = call->out;
    float *scratch = call->scratch;
    int64_t n = call->batch->rows, D = in[NQR_A].cols, d = call->op->attr.head_dim;
    const float *x = in[NQR_A].data, *w = cpu_vector(&in[NQR_W], &scratch);
    float *table = cpu_take(&scratch, n * d), *h = in[NQR_RA].data ? cpu_take(&scratch, n * D) : out[NQR_H].data;
    if (in[NQR_B].data) {
        cpu_add_rows(out[NQR_SUM].data, x, in[NQR_B].data, n, D);
        x = out[NQR_SUM].data;
    }
    if (in[NQR_RA].data) cpu_apply_norm(h, x, in[NQR_RA].data, w, n, D);
    else cpu_rms_norm(h, out[NQR_RSTD].data, x, w, n, 1, D, call->op->attr.eps);
    cpu_rope_table(table, in[NQR_POS].data, in[NQR_FREQ].data, n, d);
    for (int p = 0; p < 3; p++) {
        project(call, &projections[p], h, scratch);
        float *y = out[projections[p].y].data;
        if (p < 2) cpu_rope(y, y, table, n, in[projections[p].W].rows / d, d, false);
    }
}

int64_t cpu_scratch_qkv_bwd(const graph *g, const graph_op *op) {
    return cpu_lora_scratch(g, op->in[QKV_X], &op->in[QKV_WQ], 3) +
           cpu_folded_scratch(g, op->in[QKV_X], op->in[QKV_RSTD], op->in[QKV_NORM]);
}

void cpu_op_qkv_bwd(const kernel_call *call) {
    const tensor *in = call->in, *out = call->out;
    const float *x = in[QKV_X].data;
    float *dx = out[QKV_DX].data, *scratch = call->scratch;
    int64_t n = call->batch->rows, D = in[QKV_X].cols;
    cpu_folded f = {0};
    if (in[QKV_RSTD].data) {
        f = cpu_folded_open(&in[QKV_RSTD], x, &out[QKV_DX], n, D, &scratch);
        x = f.h, dx = dx ? f.dh : NULL;
    }
    for (int i = 0; i < 3; i++) {
        cpu_lora_grads to = {dx, i > 0 || out[QKV_DX].add, &out[QKV_DAQ + 2 * i], &out[QKV_DBQ + 2 * i]};
        cpu_lora_bwd(&to, in[QKV_DQ + i].data, x, &in[QKV_WQ + i], &in[QKV_AQ + 2 * i], &in[QKV_BQ + 2 * i],
                     in[QKV_SQ + i].data, n, call->op->attr.scale, scratch);
    }
    if (f.h) cpu_folded_close(&f, in[QKV_X].data, n, D);
}
