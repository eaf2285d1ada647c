/* gemm.h - matrix products by cuBLASLt; all matrices are row-major with a stride between rows.
 *
 * For each shape the algorithms that cuBLASLt proposes are timed when the shape is first met, on the operands
 * themselves, and the fastest is kept: in memory and in a file of the user's cache folder, by card and version of
 * cuBLASLt.  The number of token rows changes from one micro-batch to the next: shapes are kept by it rounded up.  Sums
 * are float32 in a fixed order; equal calls with equal algorithms give equal bits. */
#ifndef CUDA_GEMM_H
#define CUDA_GEMM_H
#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    GEMM_NT, /* c[rows,cols] = a[rows,depth] b[cols,depth]':  y = x W' */
    GEMM_NN, /* c[rows,cols] = a[rows,depth] b[depth,cols]:   dx = dy W */
    GEMM_TN, /* c[rows,cols] = a[depth,rows]' b[depth,cols]:  dW = dy' x */
} gemm_form;

typedef struct {
    gemm_form form;
    int64_t rows, cols, depth;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc; /* elements from one row to the next */
    dtype in, out;         /* of a and b; of c and bias. Float32 in: no TF32 */
    float alpha, beta;     /* c = alpha (a b) + beta c + bias */
    const void *bias;      /* [cols], added to every row; NULL: none */
} gemm_call;

/* cache: folder for the file of timed algorithms, NULL: none is kept. */
bool gemm_open(const char *cache, failure *f);
void gemm_close(void);
/* The card and cuBLASLt's version, fit for a file's name. */
const char *gemm_platform(void);
/* false: nothing is timed and nothing of the file counts; cuBLASLt's first proposal is taken, for token rows that are
 * rounded up to one of few shapes. So a product's bits depend on its operands, the card and the library alone. */
void gemm_set_timed(bool timed);
bool gemm_run(const gemm_call *g, failure *f);

/* gemm_run for kernels: a failure goes to cuda_failure(). No rows: only beta happens. */
void gemm(const gemm_call *g);
#ifdef __cplusplus
}
#endif
#endif
