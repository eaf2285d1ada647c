/* glu.cu - y = act(gate) up, with act silu or tanh-gelu, and its gradients.
 *
 * y may be gate or up; dgate and dup may be gate and up, or dy.  Forward: reads 2, writes 1 element per element of y;
 * backward: reads 3, writes 2. */
#include "activation.cuh"
#include "cuda.cuh"

namespace {
/* 2u of activation.cuh */
__device__ __forceinline__ float gelu_twice_u(float g) { return 1.5957691216057308f * (g + 0.044715f * g * g * g); }

struct glu {
    activation act;
    template <int W> __device__ void operator()(float (&y)[1][W], const float (&x)[2][W], uint32_t) const {
#pragma unroll
        for (int i = 0; i < W; i++) y[0][i] = activated(x[0][i], x[1][i], sigmoid_of(x[0][i], act.one, act.three));
    }
};

/* silu'(g) = s (1 + g (1 - s)) with s = sigmoid(g);  gelu'(g) = s (1 + g (1 - s) 2u') with s = sigmoid(2u) */
template <bool GELU> struct glu_bwd {
    template <int W> __device__ void operator()(float (&y)[2][W], const float (&x)[3][W], uint32_t) const {
#pragma unroll
        for (int i = 0; i < W; i++) {
            float dy = x[0][i], g = x[1][i], up = x[2][i], s = sigmoid(GELU ? gelu_twice_u(g) : g);
            float slope = GELU ? 1.5957691216057308f * (1.0f + 3.0f * 0.044715f * g * g) : 1.0f;
            y[0][i] = dgate_of(dy, g, up, s, slope);
            y[1][i] = dup_of(dy, g, s);
        }
    }
};
} // namespace

extern "C" void cuda_glu(const tensor *y, const tensor *gate, const tensor *up, int64_t n, glu_kind kind) {
    const tensor *const in[] = {gate, up}, *const out[] = {y};
    cuda_map<2>(in, out, n, glu{activation_of(kind)});
}

extern "C" void cuda_op_glu(const kernel_call *call) {
    cuda_glu(&call->out[0], &call->in[0], &call->in[1], kernel_rows(call), call->op->attr.glu);
    cuda_check_launch(call);
}

extern "C" void cuda_op_glu_bwd(const kernel_call *call) {
    const tensor *const in[] = {&call->in[0], &call->in[1], &call->in[2]};
    const tensor *const out[] = {&call->out[0], &call->out[1]};
    if (call->op->attr.glu == GLU_SILU) cuda_map<2>(in, out, kernel_rows(call), glu_bwd<false>{});
    else cuda_map<2>(in, out, kernel_rows(call), glu_bwd<true>{});
    cuda_check_launch(call);
}
