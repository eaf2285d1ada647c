/* reduce_scatter.cu - the piece of a gradient that one rank has: all of it.
 *
 * Among several ranks gradients are not in pieces on a card (train/trainer.c refuses it), see
 * docs/adr/0011-the-base-in-pieces.md. */
#include "cuda.cuh"
#include "device.h"

namespace {
/* One thread an element; reads and writes 4 bytes each, 4 more with `add`. */
__global__ void put(float *to, const float *x, int64_t n, bool add) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = add ? to[i] + x[i] : x[i];
}
} // namespace

extern "C" void cuda_op_reduce_scatter(const kernel_call *call) {
    const tensor *x = &call->in[0], *part = &call->out[0];
    const int threads = 256;
    assert(!call->ranks && x->ld == x->cols && part->ld == part->cols);
    assert(x->type == DTYPE_F32 && part->type == DTYPE_F32);
    if (!call->batch->training) return;
    int64_t n = part->rows * part->cols;
    put<<<(unsigned)((n + threads - 1) / threads), threads, 0, cuda_stream()>>>((float *)part->data,
                                                                                (const float *)x->data, n, part->add);
}
