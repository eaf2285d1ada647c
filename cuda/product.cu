/* product.cu - products with weights and their adapters; see product.h and docs/adr/0008.
 *
 * A placed stack has its weights below each other, their A below these and their B beside them:
 *       What = [ W  B ]   rows M + S      forward:  y  = [x | scale s] What[0:M]'   with s  = x A'
 *              [ A  0 ]   columns K + S   backward: dx = [dy | ds] What[:, 0:K]     with ds = scale dy B
 * s is kept unscaled, as the op defines it, and copied with its scale into the strip behind x (S columns, the last of
 * them 0 where the ranks do not fill it).  ds is written into the strip behind dy by its product: B's zeros are What's.
 * dB is one product per adapter: stacked, it would compute what lies off the diagonal.  On Hopper ds and dB come from
 * one pass over dy (thin.h). */
#include "cuda.cuh"
#include "product.h"
#include "thin.h"

void product_nt(matrix y, matrix x, matrix W, int64_t n, int64_t M, int64_t K, float alpha, float beta,
                const tensor *bias) {
    bool has_bias = bias && bias->data;
    assert(x.type == W.type && (!has_bias || bias->type == y.type));
    gemm_call g = {GEMM_NT, n,      M,     K,    x.data,
                   W.data,  y.data, x.ld,  W.ld, y.ld,
                   x.type,  y.type, alpha, beta, has_bias ? bias->data : NULL};
    gemm(&g);
}

void product_nn(matrix dx, matrix dy, matrix W, int64_t n, int64_t M, int64_t K, float alpha, float beta) {
    assert(dy.type == W.type);
    gemm_call g = {GEMM_NN, n, K, M, dy.data, W.data, dx.data, dy.ld, W.ld, dx.ld, dy.type, dx.type, alpha, beta, NULL};
    gemm(&g);
}

void product_tn(matrix dW, matrix dy, matrix x, int64_t n, int64_t M, int64_t K, float alpha, float beta) {
    assert(dy.type == x.type);
    gemm_call g = {GEMM_TN, M, K, n, dy.data, x.data, dW.data, dy.ld, x.ld, dW.ld, dy.type, dW.type, alpha, beta, NULL};
    gemm(&g);
}

/* ---- where things lie ---- */

static const tensor *A_of(const product_stack *p, int i) { return &p->AB[2 * i]; }
static const tensor *B_of(const product_stack *p, int i) { return &p->AB[2 * i + 1]; }
static int64_t rank_of(const product_stack *p, int i) { return product_rank(p, i); }

static bool lies_at(const tensor *t, const tensor *base, int64_t row, int64_t column) {
    return t->ld == base->ld && t->data == matrix_at(base, row, column).data;
}

product_view product_look(const product_stack *p) {
    product_view v = {p->W[0].cols, 0, 0, 0, true, true};
    for (int i = 0; i < p->n; i++) v.M += p->W[i].rows;
    int64_t row = 0;
    for (int i = 0; i < p->n; i++) {
        v.stacked = v.stacked && lies_at(&p->W[i], p->W, row, 0);
        if (rank_of(p, i)) {
            v.placed = v.placed && lies_at(A_of(p, i), p->W, v.M + v.R, 0) && lies_at(B_of(p, i), p->W, row, v.K + v.R);
            v.R += rank_of(p, i);
        }
        row += p->W[i].rows;
    }
    v.S = (v.R + 7) / 8 * 8;
    v.placed = v.placed && v.stacked && p->W[0].ld >= v.K + v.S;
    return v;
}

bool product_beside(const tensor *const list[], int n) {
    const tensor *first = NULL;
    int64_t column = 0;
    for (int i = 0; i < n; i++) {
        if (!list[i]->data) continue;
        if (!first) first = list[i];
        if (!lies_at(list[i], first, 0, column) || list[i]->add != first->add) return false;
        column += list[i]->cols;
    }
    return first && first->ld >= column;
}

/* All biases lie one behind the other, or there are none. */
static bool biases_stacked(const product_stack *p) {
    const char *at = p->bias ? (const char *)p->bias[0].data : NULL;
    for (int i = 0; p->bias && i < p->n; i++) {
        if (p->bias[i].data != at) return false;
        if (at) at += (size_t)p->W[i].rows * dtype_size(p->bias[i].type);
    }
    return true;
}

/* ---- forward ---- */

/* strip[t, 0:S] = scale s[t, 0:R], then zeros.  A thread makes W columns.  Grid: n S / W threads in blocks of 256. */
template <typename T, int W>
static __global__ void strip_kernel(span<T> strip, span<const T> s, int64_t n, int R, int S, float scale) {
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x, row = i / (S / W);
    int column = (int)(i % (S / W)) * W;
    if (row >= n) return;
    float x[W] = {};
    if (column < R) unpack<T, W>(x, load<T, W>(s.data + row * s.ld + column));
#pragma unroll
    for (int k = 0; k < W; k++) x[k] *= scale;
    store<T, W>(strip.data + row * strip.ld + column, packed<T, W>(x));
}

static void lay_strip(matrix strip, matrix s, int64_t n, int64_t R, int64_t S, float scale) {
    tensor like = {};
    like.type = strip.type;
    cuda_with_type(&like, [&](auto zero) {
        using T = decltype(zero);
        uintptr_t bits =
            (uintptr_t)strip.data | (uintptr_t)s.data | (uintptr_t)((strip.ld | s.ld | R) * (int64_t)sizeof(T));
        cuda_with_width<T>(bits % 16 == 0, [&](auto W) {
            unsigned blocks = (unsigned)cuda_ceil(n * (S / W()), 256);
            strip_kernel<T, W()><<<blocks, 256, 0, cuda_stream()>>>(
                {(T *)strip.data, strip.ld}, {(const T *)s.data, s.ld}, n, (int)R, (int)S, scale);
        });
    });
}

/* s_i = x A_i', in one product where they lie together; returns the first s. */
static matrix shrink(const product_stack *p, const product_view *v, const tensor *x, const tensor *const s[], int64_t n,
                     bool together) {
    matrix first = {};
    bool done = false;
    for (int i = 0; i < p->n; i++) {
        if (!rank_of(p, i)) continue;
        matrix to = matrix_at(s[i], 0, 0);
        if (!first.data) first = to;
        if (!done)
            product_nt(to, matrix_at(x, 0, 0), matrix_at(A_of(p, i), 0, 0), n, together ? v->R : rank_of(p, i), v->K, 1,
                       0, NULL);
        done = together;
    }
    return first;
}

void product_forward(const product_stack *p, const tensor *x, const tensor *const y[], const tensor *const s[],
                     int64_t n) {
    if (!n) return;
    product_view v = product_look(p);
    bool one = v.stacked && product_beside(y, p->n) && biases_stacked(p);
    bool s_together = v.R && v.placed && product_beside(s, p->n);
    bool ride = one && s_together && x->room >= v.S;
    matrix from = matrix_at(x, 0, 0);
    matrix s0 = v.R ? shrink(p, &v, x, s, n, s_together) : from;
    if (ride) lay_strip(matrix_at(x, 0, v.K), s0, n, v.R, v.S, p->scale);
    if (one)
        product_nt(matrix_at(y[0], 0, 0), from, matrix_at(p->W, 0, 0), n, v.M, ride ? v.K + v.S : v.K, 1, y[0]->add,
                   p->bias);
    for (int i = 0; i < p->n; i++) {
        matrix to = matrix_at(y[i], 0, 0);
        if (!one)
            product_nt(to, from, matrix_at(&p->W[i], 0, 0), n, p->W[i].rows, v.K, 1, y[i]->add,
                       p->bias ? &p->bias[i] : NULL);
        if (!ride && rank_of(p, i))
            product_nt(to, matrix_at(s[i], 0, 0), matrix_at(B_of(p, i), 0, 0), n, p->W[i].rows, rank_of(p, i), p->scale,
                       1, NULL);
    }
}

/* ---- backward ---- */

static size_t scratch_ds(const graph *g, vid x, const vid *AB, int n) {
    int64_t R = 0;
    for (int i = 0; i < n; i++) R += AB[2 * i] ? g->values[AB[2 * i]].rows : 0;
    return (size_t)(g->values[x].rows * ((R + 7) / 8 * 8)) * dtype_size(g->values[x].type);
}

size_t product_scratch_ds_dB(const graph *g, vid x, const vid *AB, int n) {
    int64_t M[PRODUCT_STACK], widest = 0;
    int adapters = 0;
    for (int i = 0; i < n; i++) {
        if (!AB[2 * i]) continue;
        M[adapters++] = g->values[AB[2 * i + 1]].rows;
        if (g->values[AB[2 * i]].rows > widest) widest = g->values[AB[2 * i]].rows;
    }
    return g->values[x].type == DTYPE_BF16 ? thin_scratch(g->values[x].rows, M, adapters, widest) : 0;
}

size_t product_scratch(const graph *g, vid x, const vid *AB, int n) {
    return cuda_round(scratch_ds(g, x, AB, n)) + product_scratch_ds_dB(g, x, AB, n);
}

static matrix behind(matrix m, int64_t columns) {
    m.data += (size_t)columns * dtype_size(m.type);
    return m;
}

/* ds and dB in one pass; false: not served. */
static bool one_pass(const product_stack *p, const tensor *dAB, matrix ds, const tensor *dy, const tensor *s, int64_t n,
                     void *scratch) {
    thin_call c = {};
    c.n = n, c.scale = p->scale;
    if (dy->type != DTYPE_BF16) return false;
    for (int i = 0; i < p->n; i++) {
        int64_t r = rank_of(p, i);
        if (!r) continue;
        const tensor *B = B_of(p, i), *dB = &dAB[2 * i + 1];
        c.of[c.adapters++] = {B->rows,  r,       dy[i].data, s[i].data, B->data, ds.data, (float *)dB->data,
                              dy[i].ld, s[i].ld, B->ld,      ds.ld,     dB->ld,  dB->add};
        ds = behind(ds, r);
    }
    if (!thin_serves(&c)) return false;
    thin_run(&c, scratch, cuda_stream(), cuda_failure());
    return true;
}

void product_ds_dB(const product_stack *p, const tensor *dAB, matrix ds, const tensor *dy, const tensor *s, int64_t n,
                   void *scratch) {
    product_view v = product_look(p);
    const tensor *list[PRODUCT_STACK];
    for (int i = 0; i < p->n; i++) list[i] = &dy[i];
    if (one_pass(p, dAB, ds, dy, s, n, scratch)) return;
    bool together = v.placed && product_beside(list, p->n);
    if (together) product_nn(ds, matrix_at(dy, 0, 0), matrix_at(p->W, 0, v.K), n, v.M, v.S, p->scale, 0);
    for (int i = 0; i < p->n; i++) {
        const tensor *dB = &dAB[2 * i + 1];
        int64_t r = rank_of(p, i);
        if (!r) continue;
        matrix dz = matrix_at(&dy[i], 0, 0);
        if (!together) product_nn(ds, dz, matrix_at(B_of(p, i), 0, 0), n, p->W[i].rows, r, p->scale, 0);
        if (dB->data) product_tn(matrix_at(dB, 0, 0), dz, matrix_at(&s[i], 0, 0), n, dB->rows, r, p->scale, dB->add);
        ds = behind(ds, r);
    }
}

static void backward_x(const product_stack *p, const product_view *v, const tensor *dx, const tensor *dy, matrix ds,
                       int64_t n, bool one, bool ride) {
    matrix to = matrix_at(dx, 0, 0);
    float beta = dx->add ? 1 : 0;
    if (one) product_nn(to, matrix_at(dy, 0, 0), matrix_at(p->W, 0, 0), n, ride ? v->M + v->S : v->M, v->K, 1, beta);
    for (int i = 0; i < p->n; i++) {
        if (!one) product_nn(to, matrix_at(&dy[i], 0, 0), matrix_at(&p->W[i], 0, 0), n, p->W[i].rows, v->K, 1, beta);
        beta = 1;
        if (ride || !rank_of(p, i)) continue;
        product_nn(to, ds, matrix_at(A_of(p, i), 0, 0), n, rank_of(p, i), v->K, 1, 1);
        ds = behind(ds, rank_of(p, i));
    }
}

/* The gradients of all A lie below each other, in order. */
static bool dA_stacked(const product_stack *p, const tensor *dAB) {
    const tensor *first = NULL;
    int64_t row = 0;
    for (int i = 0; i < p->n; i++) {
        if (!rank_of(p, i)) continue;
        const tensor *dA = &dAB[2 * i];
        if (!first) first = dA;
        if (!dA->data || !lies_at(dA, first, row, 0) || dA->add != first->add) return false;
        row += dA->rows;
    }
    return first != NULL;
}

void product_grad_A(const product_stack *p, const tensor *dAB, matrix ds, const tensor *x, int64_t n) {
    product_view v = product_look(p);
    bool together = dA_stacked(p, dAB), done = false;
    for (int i = 0; i < p->n; i++) {
        if (!rank_of(p, i)) continue;
        const tensor *dA = &dAB[2 * i];
        if (dA->data && !done)
            product_tn(matrix_at(dA, 0, 0), ds, matrix_at(x, 0, 0), n, together ? v.R : dA->rows, v.K, 1, dA->add);
        done = together;
        ds = behind(ds, rank_of(p, i));
    }
}

void product_backward(const product_stack *p, const tensor *dx, const tensor *dAB, const tensor *dy, const tensor *x,
                      const tensor *s, int64_t n, void *scratch) {
    product_view v = product_look(p);
    const tensor *list[PRODUCT_STACK];
    for (int i = 0; i < p->n; i++) list[i] = &dy[i];
    bool one = v.stacked && product_beside(list, p->n), ride = one && v.R && v.placed && dy[p->n - 1].room >= v.S;
    char *rest = (char *)scratch;
    matrix ds = {(char *)cuda_take(&rest, (size_t)(n * v.S) * dtype_size(dy->type)), v.S, dy->type};
    if (ride) ds = matrix_at(dy, 0, v.M);
    if (v.R) product_ds_dB(p, dAB, ds, dy, s, n, rest);
    if (dx->data) backward_x(p, &v, dx, dy, ds, n, one, ride);
    if (v.R) product_grad_A(p, dAB, ds, x, n);
}
