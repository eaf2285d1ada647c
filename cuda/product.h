/* product.h - products of token rows with weights, and stacks of up to three that share an input, with their adapters.
 *
 * A stack that pass_layout placed (docs/adr/0008) runs as one product per direction, base and adapter together; one
 * that it did not place, or whose input has no room, as separate products.  Which of them is seen from addresses. */
#ifndef CUDA_PRODUCT_H
#define CUDA_PRODUCT_H
#include "device.h"
#include "gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A place in a row-major matrix. */
typedef struct {
    char *data;
    int64_t ld;
    dtype type;
} matrix;

static inline matrix matrix_at(const tensor *t, int64_t row, int64_t column) {
    matrix m = {(char *)t->data + (row * t->ld + column) * (int64_t)dtype_size(t->type), t->ld, t->type};
    return m;
}

/* y[n,M] = alpha x[n,K] W[M,K]' + beta y + bias; bias NULL or without data: none */
void product_nt(matrix y, matrix x, matrix W, int64_t n, int64_t M, int64_t K, float alpha, float beta,
                const tensor *bias);
/* dx[n,K] = alpha dy[n,M] W[M,K] + beta dx */
void product_nn(matrix dx, matrix dy, matrix W, int64_t n, int64_t M, int64_t K, float alpha, float beta);
/* dW[M,K] = alpha dy[n,M]' x[n,K] + beta dW */
void product_tn(matrix dW, matrix dy, matrix x, int64_t n, int64_t M, int64_t K, float alpha, float beta);

enum { PRODUCT_STACK = 3 };
typedef struct {
    int n;
    const tensor *W;    /* [n] in a row, as the ops have them */
    const tensor *bias; /* [n] in a row; NULL: none */
    const tensor *AB;   /* A and B of each in turn; data NULL: no adapter */
    float scale;
} product_stack;

/* How a stack lies (docs/adr/0008). */
typedef struct {
    int64_t K, M, R, S; /* input width, rows of all weights, sum of the ranks, that rounded up to 8 */
    bool stacked;       /* the weights lie below each other */
    bool placed;        /* and all A below them, all B beside them */
} product_view;
product_view product_look(const product_stack *p);
/* The rank of adapter i; 0: none. */
static inline int64_t product_rank(const product_stack *p, int i) { return p->AB[2 * i].data ? p->AB[2 * i].rows : 0; }
/* The tensors that are there lie side by side, in order. (A single row's may do so by chance; then the stride tells.)
 */
bool product_beside(const tensor *const list[], int n);

/* y_i = x W_i' + bias_i + scale s_i B_i' with s_i = x A_i' */
void product_forward(const product_stack *p, const tensor *x, const tensor *const y[], const tensor *const s[],
                     int64_t n);

/* dx = sum of dy_i W_i + ds_i A_i with ds_i = scale dy_i B_i; dA_i += ds_i' x; dB_i += scale dy_i' s_i. What has no
 * data is not wanted. dAB: dA and dB of each in turn; dy, s: [n] in a row. scratch: product_scratch bytes. */
void product_backward(const product_stack *p, const tensor *dx, const tensor *dAB, const tensor *dy, const tensor *x,
                      const tensor *s, int64_t n, void *scratch);
/* Its parts by themselves; the ds_i lie side by side. dB and ds: one pass over dy where thin.h serves that, else
 * products of the library. scratch: product_scratch_ds_dB bytes. */
void product_ds_dB(const product_stack *p, const tensor *dAB, matrix ds, const tensor *dy, const tensor *s, int64_t n,
                   void *scratch);
void product_grad_A(const product_stack *p, const tensor *dAB, matrix ds, const tensor *x, int64_t n);
/* `AB`: the stack's adapters as the op has them. */
size_t product_scratch(const graph *g, vid x, const vid *AB, int n);
size_t product_scratch_ds_dB(const graph *g, vid x, const vid *AB, int n);

/* ---- scratch in bytes of the ops made of products ---- */
size_t cuda_scratch_linear_lora_bwd(const graph *g, const graph_op *op);
size_t cuda_scratch_gate_up_bwd(const graph *g, const graph_op *op);
size_t cuda_scratch_qkv_bwd(const graph *g, const graph_op *op);
size_t cuda_scratch_linear_ce(const graph *g, const graph_op *op);
size_t cuda_scratch_linear_ce_bwd(const graph *g, const graph_op *op);
size_t cuda_scratch_attention(const graph *g, const graph_op *op);
size_t cuda_scratch_attention_bwd(const graph *g, const graph_op *op);
#ifdef __cplusplus
}
#endif
#endif
