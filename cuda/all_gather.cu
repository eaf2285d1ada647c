/* all_gather.cu - a frozen weight out of the pieces of one rank, which are all of it.
 *
 * Among several ranks the base is not spread on a card (train/trainer.c refuses it): it lies in one matrix with the
 * adapter there, see docs/adr/0011-the-base-in-pieces.md. */
#include "cuda.cuh"
#include "device.h"

extern "C" void cuda_op_all_gather(const kernel_call *call) {
    const tensor *part = &call->in[0], *whole = &call->out[0];
    assert(!call->ranks && part->type == whole->type && part->cols == whole->cols);
    size_t size = dtype_size(part->type);
    cuda_check(cudaMemcpy2DAsync(whole->data, (size_t)whole->ld * size, part->data, (size_t)part->ld * size,
                                 (size_t)part->cols * size, (size_t)part->rows, cudaMemcpyDeviceToDevice,
                                 cuda_stream()),
               "copy", cuda_failure());
}
