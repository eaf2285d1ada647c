/* wgmma_gemm.h - our own matrix products on Hopper (compute capability 9.0), bf16 with float32 sums.
 *
 *   GEMM_NT   c[rows,cols] = a[rows,depth] b[cols,depth]'   y = x W'
 *   GEMM_NN   c[rows,cols] = a[rows,depth] b[depth,cols]    dx = dy W
 *
 * with an optional tail of `rank` more columns of a and b from matrices of their own (an adapter: a2 = scale s, b2 = B
 * forward; a2 = ds, b2 = A backward), summed into the same accumulators.  All matrices are row-major with a stride.
 * Any number of rows; cols, depth and rank are multiples of 8; bases and strides are multiples of 16 bytes.
 * Every sum has one fixed order that depends on shapes alone: equal calls give equal bits.
 *
 * What happens to the sums before they are rounded to bf16 is the call's `kind`.  The algebra by which norms dissolve
 * into their neighbours, with the norm's weight folded into the weights behind it (k = rstd of a row, h its input):
 *   forward   z = k o (h W')            WGMMA_ROPE, WGMMA_GLU with row_scale = k
 *             h = a W' + h, sum of h^2  WGMMA_ADD; wgmma_rstd makes k of it
 *   backward  with <dz, z> by row: dh = k o (dz W') + dh - (k^2 / D) <dz, z> h   WGMMA_NORM_BWD with sum_scale = k
 * Weights keep Hugging Face's order of rows in all of them. */
#ifndef CUDA_WGMMA_GEMM_H
#define CUDA_WGMMA_GEMM_H
#include "gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    WGMMA_PLAIN,
    /* NT: rows times row_scale; the first rope.cols columns, heads side by side, turn by their row's position as
     * cuda_rope does */
    WGMMA_ROPE,
    /* NT: rows times row_scale; c and c_up are gate = a b' and up = a b_up'; y = act(gate) up of these, as stored */
    WGMMA_GLU,
    /* NT: c = a b' + in; row_sums: of c^2 */
    WGMMA_ADD,
    /* NN: with dy = a b, in = gate and in_up = up: c = dgate, c_up = dup; row_sums: of dgate gate + dup up; y again */
    WGMMA_GLU_BWD,
    /* NN: c = sum_scale a b + in + row_scale in_up */
    WGMMA_NORM_BWD,
} wgmma_kind;

typedef struct {
    int64_t cols;       /* a multiple of head_dim */
    int head_dim;       /* 64 or 128 */
    const int32_t *pos; /* [rows] */
    const float *table; /* wgmma_rope_table's; positions are below its number of rows */
} wgmma_rope;

typedef struct {
    gemm_form form; /* GEMM_NT or GEMM_NN */
    wgmma_kind kind;
    int64_t rows, cols, depth;
    const void *a, *b; /* bf16 */
    void *c;           /* bf16 */
    int64_t lda, ldb, ldc;
    int64_t rank;        /* 0: no tail */
    const void *a2, *b2; /* a2[rows,rank]; b2[cols,rank] for GEMM_NT, [rank,cols] for GEMM_NN */
    int64_t lda2, ldb2;
    const float *row_scale, *sum_scale; /* [rows], of the kinds that name them; NULL: 1 */
    wgmma_rope rope;
    glu_kind glu;
    const void *b_up, *b2_up; /* WGMMA_GLU: as b and b2, with their strides */
    void *c_up;               /* as c, with its stride */
    void *y;                  /* [rows,cols], WGMMA_GLU and WGMMA_GLU_BWD; NULL: not wanted */
    int64_t ldy;
    const void *in, *in_up;  /* [rows,cols], of the kinds that name them; may be c and c_up */
    int64_t ld_in, ld_in_up; /* ld_in_up 0: ld_in */
    float *row_sums; /* [wgmma_parts(kind,cols),rows], each over a tile's columns of what is stored; NULL: not wanted */
    int tile;        /* of WGMMA_PLAIN: columns of a tile, 128, 192 or 256; 0: chosen by shape, or by kind */
    int group;       /* rows of tiles that are walked together, for the L2; 0: the usual */
} wgmma_call;

/* Whether this card and this build have these products at all; where not, *why says so (a constant text). */
bool wgmma_here(const char **why);
/* Whether this card and these operands are served. Where not, *why says so (a constant text). */
bool wgmma_serves(const wgmma_call *g, const char **why);
/* Enqueues the product on `stream`. Operands that are not served are a failure. */
bool wgmma_run(const wgmma_call *g, cudaStream_t stream, failure *f);

/* Columns of a tile of the kinds that have row_sums. */
enum { WGMMA_ADD_TILE = 256, WGMMA_GLU_BWD_TILE = 192 };
/* Parts of a row in row_sums. */
static inline int64_t wgmma_parts(wgmma_kind kind, int64_t cols) {
    int64_t tile = kind == WGMMA_GLU_BWD ? WGMMA_GLU_BWD_TILE : WGMMA_ADD_TILE;
    return (cols + tile - 1) / tile;
}
/* rstd[rows] = 1 / sqrt(sum of a row's parts / width + eps); enqueued. */
bool wgmma_rstd(float *rstd, const float *row_sums, int64_t rows, int64_t width, float eps, cudaStream_t stream,
                failure *f);
/* table[positions, head_dim/2, 2] = cosine and sine of (float)position * freq[head_dim/2], on the device; enqueued. */
bool wgmma_rope_table(float *table, const float *freq, int64_t positions, int head_dim, cudaStream_t stream,
                      failure *f);
#ifdef __cplusplus
}
#endif
#endif
