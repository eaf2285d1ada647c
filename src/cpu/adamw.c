/* adamw.c - the optimizer step and the norm of the gradient, on float32 masters. */
#include "base/simd.h"
#include "cpu/cpu.h"

#include <math.h>

enum { PIECE = 1 << 16, PIECES = 64 };

SIMD_CLONES static double sum_squares(const float *x, int64_t n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

/* Cut by n alone and added up in order: the same bits whatever the threads. */
bool cpu_sum_squares(double *out, const float *x, int64_t n, failure *f) {
    (void)f;
    double parts[PIECES];
#pragma omp parallel for schedule(static)
    for (int i = 0; i < PIECES; i++) {
        int64_t from = n * i / PIECES, to = n * (i + 1) / PIECES;
        parts[i] = sum_squares(x + from, to - from);
    }
    *out = 0;
    for (int i = 0; i < PIECES; i++) *out += parts[i];
    return true;
}

/* torch.optim.AdamW: decay first, then the moments, then w -= lr/c1 m / (sqrt(v)/sqrt(c2) + eps). */
SIMD_CLONES static void adamw_piece(float *restrict w, const float *restrict grad, float *restrict m, float *restrict v,
                                    int64_t n, adamw_args a) {
    float decay = 1 - a.learning_rate * a.weight_decay, step = a.learning_rate / a.correction1;
    float root = sqrtf(a.correction2), keep1 = a.beta1, add1 = 1 - a.beta1, keep2 = a.beta2, add2 = 1 - a.beta2;
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * a.grad_scale;
        m[i] = keep1 * m[i] + add1 * g;
        v[i] = keep2 * v[i] + add2 * g * g;
        w[i] = w[i] * decay - step * m[i] / (__builtin_sqrtf(v[i]) / root + a.eps);
    }
}

bool cpu_adamw(float *w, const float *grad, float *m, float *v, int64_t n, const adamw_args *args, failure *f) {
    (void)f;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += PIECE)
        adamw_piece(w + i, grad + i, m + i, v + i, n - i < PIECE ? n - i : PIECE, *args);
    return true;
}
