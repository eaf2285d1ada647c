/* thin.h - the thin products of an adapter's backward in one pass over dz, on Hopper (compute capability 9.0), bf16:
 *
 *   ds[n,r] = scale dz[n,M] B[M,r]         dB[M,r] (+)= scale dz[n,M]' s[n,r]
 *
 * for up to three adapters side by side.  Each product by itself reads dz from memory, which is all it costs.
 * Any n; M and r multiples of 8, r at most THIN_RANK; bases and strides are multiples of 16 bytes.
 * Every sum has one fixed order that depends on shapes and the card alone: equal calls give equal bits. */
#ifndef CUDA_THIN_H
#define CUDA_THIN_H
#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { THIN_ADAPTERS = 3, THIN_RANK = 64 };

typedef struct {
    int64_t M, r;
    const void *dz, *s, *B; /* bf16 */
    void *ds;               /* bf16; no part of the operands */
    float *dB;
    int64_t ld_dz, ld_s, ld_B, ld_ds, ld_dB;
    bool add; /* to dB */
} thin_adapter;

typedef struct {
    int64_t n;
    float scale;
    int adapters;
    thin_adapter of[THIN_ADAPTERS];
    int chain; /* most slabs whose sums of ds are added one behind the other into one place; 0: the usual */
} thin_call;

/* Whether this card has the kernel, and these operands are served. */
bool thin_serves(const thin_call *c);
/* Enqueues it; scratch: thin_scratch bytes. For a call that is served. */
bool thin_run(const thin_call *c, void *scratch, cudaStream_t stream, failure *f);
/* For calls of up to n rows; 0 where none would be served. M: widths of the adapters, r: their largest rank. */
size_t thin_scratch(int64_t n, const int64_t *M, int adapters, int64_t r);
#ifdef __cplusplus
}
#endif
#endif
