/* embed.c - rows of the embedding table, and their gradient. */
#include "cpu/cpu.h"

#include <assert.h>
#include <string.h>

/* y[t] = W[ids[t]] */
void cpu_op_embed(const kernel_call *call) {
    const int32_t *ids = call->in[0].data;
    const tensor *W = &call->in[1];
    float *y = call->out[0].data;
    int64_t D = W->cols, n = kernel_rows(call);
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < n; t++) {
        assert(ids[t] >= 0 && ids[t] < W->rows);
        cpu_convert(y + t * D, (const char *)W->data + (size_t)(ids[t] * D) * dtype_size(W->type), W->type, D);
    }
}

/* dW[ids[t]] += dy[t]; a thread owns a strip of columns and adds the rows in order, so equal ids need no lock. */
void cpu_op_embed_bwd(const kernel_call *call) {
    enum { STRIP = 64 };
    const float *dy = call->in[0].data;
    const int32_t *ids = call->in[1].data;
    const tensor *dW = &call->out[0];
    float *out = dW->data;
    int64_t D = dW->cols, n = kernel_rows(call);
    if (!dW->add) memset(out, 0, (size_t)(dW->rows * D) * 4);
#pragma omp parallel for schedule(static)
    for (int64_t d0 = 0; d0 < D; d0 += STRIP) {
        int64_t d = D - d0 < STRIP ? D - d0 : STRIP;
        for (int64_t t = 0; t < n; t++) {
            assert(ids[t] >= 0 && ids[t] < dW->rows);
            float *row = out + ids[t] * D + d0;
            cpu_add(row, row, dy + t * D + d0, d);
        }
    }
}
