/* norm_qkv_rope.cu - the front of an attention block: sum = a + b, h = rms_norm(sum), q, k and v from one product
 * (+ biases) (+ adapters), per-head norms of q and k where the model has them, then rope in place.
 *
 * Without b there is no sum and the norm reads a.  q0 and k0 are q and k before their norm.  qkv_bwd takes the
 * gradients of the three products back to h and the adapters. */
#include "cuda.cuh"
#include "folded.h"
#include "product.h"

static void rope_in_place(const tensor *in, const tensor *q, const tensor *k, int64_t n) {
    const int32_t *pos = (const int32_t *)in[NQR_POS].data;
    tensor both = *q;
    both.cols = q->cols + k->cols;
    if (k->ld == q->ld && k->data == matrix_at(q, 0, q->cols).data) {
        cuda_rope(&both, &both, pos, &in[NQR_FREQ], n, false);
        return;
    }
    cuda_rope(q, q, pos, &in[NQR_FREQ], n, false);
    cuda_rope(k, k, pos, &in[NQR_FREQ], n, false);
}

void cuda_op_norm_qkv_rope(const kernel_call *call) {
    if (call->in[NQR_RA].data) {
        folded_norm_qkv_rope(call);
        return;
    }
    const tensor *in = call->in, *out = call->out, *q = &out[NQR_Q], *k = &out[NQR_K];
    float eps = call->op->attr.eps;
    int64_t n = call->batch->rows;
    bool norms = in[NQR_NORM_Q].data != NULL;
    if (in[NQR_B].data)
        cuda_add_rms_norm(&out[NQR_SUM], &out[NQR_H], &out[NQR_RSTD], &in[NQR_A], &in[NQR_B], &in[NQR_W], n, eps);
    else cuda_rms_norm(&out[NQR_H], &out[NQR_RSTD], &in[NQR_A], &in[NQR_W], n, eps);
    const tensor *const y[] = {norms ? &out[NQR_Q0] : q, norms ? &out[NQR_K0] : k, &out[NQR_V]};
    const tensor *const s[] = {&out[NQR_SQ], &out[NQR_SK], &out[NQR_SV]};
    product_stack p = {3, &in[NQR_WQ], &in[NQR_BIAS_Q], &in[NQR_AQ], call->op->attr.scale};
    product_forward(&p, &out[NQR_H], y, s, n);
    if (norms) {
        cuda_rms_norm(q, &out[NQR_RQ], y[0], &in[NQR_NORM_Q], n, eps);
        cuda_rms_norm(k, &out[NQR_RK], y[1], &in[NQR_NORM_K], n, eps);
    }
    rope_in_place(in, q, k, n);
}

size_t cuda_scratch_qkv_bwd(const graph *g, const graph_op *op) {
    if (op->in[QKV_RSTD]) return folded_scratch_norm_bwd(g, op->in[QKV_X], op->in[QKV_RSTD], &op->in[QKV_AQ], 3);
    return product_scratch(g, op->in[QKV_X], &op->in[QKV_AQ], 3);
}

void cuda_op_qkv_bwd(const kernel_call *call) {
    const tensor *in = call->in, *out = call->out;
    product_stack p = {3, &in[QKV_WQ], NULL, &in[QKV_AQ], call->op->attr.scale};
    if (in[QKV_RSTD].data) {
        folded_norm_bwd(&p, &out[QKV_DX], &out[QKV_DAQ], &in[QKV_DQ], &in[QKV_X], &in[QKV_SQ], &in[QKV_RSTD],
                        call->batch->rows, call->scratch);
        return;
    }
    product_backward(&p, &out[QKV_DX], &out[QKV_DAQ], &in[QKV_DQ], &in[QKV_X], &in[QKV_SQ], call->batch->rows,
                     call->scratch);
}
