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
static double group_squares(const float *x, int64_t n) {
    double parts[PIECES], sum = 0;
#pragma omp parallel for schedule(static)
    for (int i = 0; i < PIECES; i++) {
        int64_t from = n * i / PIECES, to = n * (i + 1) / PIECES;
        parts[i] = sum_squares(x + from, to - from);
    }
    for (int i = 0; i < PIECES; i++) sum += parts[i];
    return sum;
}

/* torch.optim.AdamW: decay first, then the moments, then w -= lr/c1 m / (sqrt(v)/sqrt(c2) + eps). */
SIMD_CLONES static void adamw_piece(float *restrict w, const float *restrict grad, float *restrict m, float *restrict v,
                                    int64_t n, adamw_args a, float grad_scale) {
    float decay = 1 - a.learning_rate * a.weight_decay, step = a.learning_rate / a.correction1;
    float root = sqrtf(a.correction2), keep1 = a.beta1, add1 = 1 - a.beta1, keep2 = a.beta2, add2 = 1 - a.beta2;
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * grad_scale;
        m[i] = keep1 * m[i] + add1 * g;
        v[i] = keep2 * v[i] + add2 * g * g;
        w[i] = w[i] * decay - step * m[i] / (__builtin_sqrtf(v[i]) / root + a.eps);
    }
}

bool cpu_adamw(const optim_group *groups, int n, const adamw_args *args, double *norm, failure *f) {
    double sum = 0;
    for (int k = 0; k < n; k++) sum += group_squares(groups[k].grad, groups[k].n);
    TRY(comm_sum(args->ranks, &sum, 1, "the norm of gradients", f));
    *norm = sqrt(sum);
    if (!isfinite(*norm)) return true;
    double limit = (double)args->max_grad_norm;
    float scale = limit > 0 ? (float)fmin(1, limit / (*norm + 1e-6)) : 1;
    for (int k = 0; k < n; k++) {
        const optim_group *g = &groups[k];
        adamw_args a = *args;
        if (!g->decays) a.weight_decay = 0;
        if (!g->m) continue;
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < g->n; i += PIECE)
            adamw_piece(g->weight + i, g->grad + i, g->m + i, g->v + i, g->n - i < PIECE ? g->n - i : PIECE, a, scale);
    }
    return true;
}
