/* add.cu - y = a + b.  Any of them may be the same place. Reads 2 and writes 1 element per element of y. */
#include "cuda.cuh"

namespace {
struct add_two {
    template <int W> __device__ void operator()(float (&y)[1][W], const float (&x)[2][W], uint32_t) const {
#pragma unroll
        for (int i = 0; i < W; i++) y[0][i] = x[0][i] + x[1][i];
    }
};
} // namespace

extern "C" void cuda_op_add(const kernel_call *call) {
    const tensor *const in[] = {&call->in[0], &call->in[1]}, *const out[] = {&call->out[0]};
    cuda_map<2>(in, out, kernel_rows(call), add_two{});
    cuda_check_launch(call);
}
