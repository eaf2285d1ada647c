/* cpu.h - what the CPU kernels share: matrix products, loops over one row, and the inner functions that the fused
 * kernels are composed of (so that fused and unfused programs do the same arithmetic in the same order).
 *
 * Activations are float32.  Weights stay in their stored type and are converted in panels that fit the cache.
 * Every sum has a fixed order, whatever thread runs which tile: equal runs give equal bits; so do other thread counts,
 * but for products on processors without AVX-512 (product.c).  Scratch holds a slice per thread, so the thread count
 * (omp_set_num_threads) must not grow between plan_make and a run. */
#ifndef CPU_CPU_H
#define CPU_CPU_H
#include "exec/backend.h"

int cpu_threads(void);
/* Picks OpenBLAS's kernels for this processor, makes each call to it single-threaded, and has it reserve the address
 * space that each thread works in (blas.c). */
bool cpu_blas_open(failure *f);
#define CPU_BLAS_BUFFER ((size_t)128 << 20) /* OpenBLAS's BUFFER_SIZE on x86-64; less elsewhere */

/* ---- scratch: floats are taken from the front, in steps of 256 bytes ---- */
static inline int64_t cpu_round(int64_t floats) { return (floats + 63) / 64 * 64; }
static inline float *cpu_take(float **scratch, int64_t floats) {
    float *out = *scratch;
    *scratch += cpu_round(floats);
    return out;
}

/* ---- products (product.c); all matrices are dense and row-major; n counts token rows ---- */
/* y[n,M] = alpha x[n,K] W[M,K]' + beta y */
void cpu_product_nt(float *y, const float *x, const tensor *W, int64_t n, float alpha, float beta, float *scratch);
/* dx[n,K] = alpha dy[n,M] W[M,K] + beta dx */
void cpu_product_nn(float *dx, const float *dy, const tensor *W, int64_t n, float alpha, float beta, float *scratch);
/* dW[M,K] = alpha dy[n,M]' x[n,K] + beta dW */
void cpu_product_tn(float *dW, const float *dy, const float *x, int64_t n, int64_t M, int64_t K, float alpha,
                    float beta);
int64_t cpu_product_scratch(const graph *g, vid W); /* floats; 0 for an absent W */

/* ---- one row (row.c) ---- */
void cpu_convert(float *out, const void *in, dtype type, int64_t n); /* F32, BF16, F16 to float */
float cpu_dot(const float *a, const float *b, int64_t n);
float cpu_dot_bf16(const float *a, const uint16_t *b, int64_t n);
/* The dot products of a with the rows of b[4, n] */
void cpu_dot4(float *out, const float *a, const float *b, int64_t n);
void cpu_dot4_bf16(float *out, const float *a, const uint16_t *b, int64_t n);
float cpu_max(const float *x, int64_t n);
float cpu_exp_sum(float *y, const float *x, float shift, int64_t n); /* y = exp(x - shift) (y may be x); the sum of y */
float cpu_exp_sum_only(const float *x, float shift, int64_t n);
void cpu_scale(float *y, const float *x, float by, int64_t n);
void cpu_add(float *y, const float *a, const float *b, int64_t n);
/* sin and cos of (float)position * freq[j] */
void cpu_sincos(float *cosine, float *sine, const float *freq, float position, int64_t n);

/* A [D] weight as floats: itself when it is F32, else converted into *scratch (cpu_round(D) floats are taken). */
const float *cpu_vector(const tensor *w, float **scratch);

/* ---- inner functions of the ops ---- */
/* y = x W' + bias; bias may be NULL data; `add`: y += */
void cpu_linear(float *y, const float *x, const tensor *W, const tensor *bias, int64_t n, bool add, float *scratch);
int64_t cpu_linear_scratch(const graph *g, vid W, vid bias);
/* s = x A'; y += scale s B' */
void cpu_lora(float *y, float *s, const float *x, const tensor *A, const tensor *B, int64_t n, float scale,
              float *scratch);
/* The way back: dx (NULL: not wanted) = dy W + ds A with ds = scale dy B; dA += ds' x; dB += scale dy' s. A->data NULL:
 * a product without an adapter. dA, dB may be absent. */
typedef struct {
    float *dx;
    bool add; /* dx += */
    const tensor *dA, *dB;
} cpu_lora_grads;
void cpu_lora_bwd(const cpu_lora_grads *to, const float *dy, const float *x, const tensor *W, const tensor *A,
                  const tensor *B, const float *s, int64_t n, float scale, float *scratch);
/* ds for the rows of x, and the panels of n weights W followed by n pairs of A and B (0: absent). */
int64_t cpu_lora_scratch(const graph *g, vid x, const vid *weights, int n);
/* rows x slices of width d, each normed apart: y = x rstd w */
void cpu_rms_norm(float *y, float *rstd, const float *x, const float *w, int64_t rows, int64_t slices, int64_t d,
                  float eps);
/* Folded norms, D wide, w floats: h = x rstd w as cpu_rms_norm makes it, from its rstd. */
void cpu_rstd(float *rstd, const float *x, int64_t n, int64_t D, float eps);
void cpu_apply_norm(float *h, const float *x, const float *rstd, const float *w, int64_t n, int64_t D);
/* What the folded forms of gate_up_bwd and qkv_bwd have beside the plain ones. */
typedef struct {
    const tensor *rstd, *w, *dot, *dres;
    float *dx;
    float *h, *dh; /* scratch, [n, D] */
    const float *weight;
} cpu_folded;
/* Takes h, dh and the weight from *scratch, and fills h. */
cpu_folded cpu_folded_open(const tensor *rstd_w_dot_dres, const float *x, const tensor *dx, int64_t n, int64_t D,
                           float **scratch);
/* dx, where it is wanted, of the stream x from dh. */
void cpu_folded_close(const cpu_folded *f, const float *x, int64_t n, int64_t D);
int64_t cpu_folded_scratch(const graph *g, vid x, vid rstd, vid w); /* floats; 0 without an rstd */
/* dot[t] (+)= <a, b> of row t */
void cpu_row_dots(float *dot, const float *a, const float *b, int64_t n, int64_t D, bool add);
/* table[n, d]: d/2 cosines, then d/2 sines of each row's angles */
void cpu_rope_table(float *table, const int32_t *pos, const float *freq, int64_t n, int64_t d);
void cpu_rope(float *y, const float *x, const float *table, int64_t n, int64_t heads, int64_t d, bool inverse);
void cpu_glu(float *y, const float *gate, const float *up, int64_t n, int64_t F, glu_kind kind);
void cpu_glu_bwd(float *dgate, float *dup, const float *dy, const float *gate, const float *up, int64_t n, int64_t F,
                 glu_kind kind);
void cpu_add_rows(float *y, const float *a, const float *b, int64_t n, int64_t D);

/* ---- kernels: cpu_NAME for every op of ops.def ---- */
#define OP(kind, in, out) void cpu_op_##kind(const kernel_call *call);
#include "graph/ops.def"
#undef OP

/* ---- scratch of the ops that need it, in floats ---- */
int64_t cpu_scratch_rms_norm(const graph *g, const graph_op *op); /* also rms_norm_bwd, add_rms_norm */
int64_t cpu_scratch_linear(const graph *g, const graph_op *op);
int64_t cpu_scratch_linear_dx(const graph *g, const graph_op *op);
int64_t cpu_scratch_rope(const graph *g, const graph_op *op);
int64_t cpu_scratch_attention(const graph *g, const graph_op *op);
int64_t cpu_scratch_attention_cached(const graph *g, const graph_op *op);
int64_t cpu_scratch_attention_bwd(const graph *g, const graph_op *op);
int64_t cpu_scratch_linear_lora(const graph *g, const graph_op *op); /* also linear_lora_bwd */
int64_t cpu_scratch_gate_up_glu(const graph *g, const graph_op *op);
int64_t cpu_scratch_gate_up_bwd(const graph *g, const graph_op *op);
int64_t cpu_scratch_qkv_bwd(const graph *g, const graph_op *op);
int64_t cpu_scratch_norm_qkv_rope(const graph *g, const graph_op *op);
int64_t cpu_scratch_linear_ce(const graph *g, const graph_op *op);
int64_t cpu_scratch_linear_ce_bwd(const graph *g, const graph_op *op);
int64_t cpu_scratch_reduce_scatter(const graph *g, const graph_op *op);

/* ---- the optimizer (adamw.c) ---- */
bool cpu_adamw(const optim_group *groups, int n, const adamw_args *args, double *norm, failure *f);
#endif
