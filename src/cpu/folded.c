/* folded.c - what the folded forms of ops share (pass/fold.c): h = x rstd w is made from the residual stream where it
 * is needed, and the gradient of the stream from that of h, by the identity <dh, h> = <dz, z> that devices use. */
#include "base/simd.h"
#include "cpu/cpu.h"

SIMD_CLONES static void row_dx(float *restrict dx, const float *restrict dh, const float *restrict x,
                               const float *restrict w, const float *restrict dres, float rstd, float by, int64_t D) {
    if (dres)
        for (int64_t j = 0; j < D; j++) dx[j] = rstd * (dh[j] * w[j]) - by * x[j] + dres[j];
    else
        for (int64_t j = 0; j < D; j++) dx[j] = rstd * (dh[j] * w[j]) - by * x[j];
}

/* dx = rstd (dh w) - (rstd^2 / D) dot x + dres; dres may be NULL */
static void fold_dx(float *dx, const float *dh, const float *x, const float *rstd, const float *w, const float *dot,
                    const float *dres, int64_t n, int64_t D) {
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < n; t++) {
        float by = rstd[t] * rstd[t] * dot[t] / (float)D;
        row_dx(dx + t * D, dh + t * D, x + t * D, w, dres ? dres + t * D : NULL, rstd[t], by, D);
    }
}

void cpu_row_dots(float *dot, const float *a, const float *b, int64_t n, int64_t D, bool add) {
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < n; t++) dot[t] = cpu_dot(a + t * D, b + t * D, D) + (add ? dot[t] : 0);
}

cpu_folded cpu_folded_open(const tensor *rstd_w_dot_dres, const float *x, const tensor *dx, int64_t n, int64_t D,
                           float **scratch) {
    cpu_folded f = {&rstd_w_dot_dres[0], &rstd_w_dot_dres[1], &rstd_w_dot_dres[2], &rstd_w_dot_dres[3], dx->data};
    f.h = cpu_take(scratch, n * D);
    f.dh = cpu_take(scratch, n * D);
    f.weight = cpu_vector(f.w, scratch);
    cpu_apply_norm(f.h, x, f.rstd->data, f.weight, n, D);
    return f;
}

void cpu_folded_close(const cpu_folded *f, const float *x, int64_t n, int64_t D) {
    if (f->dx) fold_dx(f->dx, f->dh, x, f->rstd->data, f->weight, f->dot->data, f->dres->data, n, D);
}

int64_t cpu_folded_scratch(const graph *g, vid x, vid rstd, vid w) {
    const graph_value *v = &g->values[x];
    return rstd ? 2 * cpu_round(v->rows * v->cols) + cpu_round(g->values[w].rows) : 0;
}
