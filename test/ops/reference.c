/* reference.c - every forward op (and qkv_bwd) in double, by its definition: what kernels are held against, and what
 * the backward kernels' finite differences are taken of.  The folded forms' forward ops take the norm of x itself, so
 * that differences go through it. */
#include "base/rng.h"
#include "ops/ops.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DIM(symbol) case_dim(s->c, symbol)
#define V(name)     value_of(s, name)

static void linear(double *y, const double *x, const double *W, const double *bias, int64_t n, int64_t K, int64_t M) {
    for (int64_t t = 0; t < n; t++)
        for (int64_t m = 0; m < M; m++) {
            double sum = bias ? bias[m] : 0;
            for (int64_t k = 0; k < K; k++) sum += x[t * K + k] * W[m * K + k];
            y[t * M + m] = sum;
        }
}

/* s = x A'; y += scale s B' */
static void adapter(double *y, double *s, const double *x, const double *A, const double *B, int64_t n, int64_t K,
                    int64_t M, int64_t R, double scale) {
    if (!A) return;
    linear(s, x, A, NULL, n, K, R);
    for (int64_t t = 0; t < n; t++)
        for (int64_t m = 0; m < M; m++)
            for (int64_t r = 0; r < R; r++) y[t * M + m] += scale * s[t * R + r] * B[m * R + r];
}

static void rms_norm(double *y, double *rstd, const double *x, const double *w, int64_t rows, int64_t d, double eps) {
    for (int64_t i = 0; i < rows; i++) {
        double sum = 0;
        for (int64_t j = 0; j < d; j++) sum += x[i * d + j] * x[i * d + j];
        rstd[i] = 1 / sqrt(sum / (double)d + eps);
        for (int64_t j = 0; j < d; j++) y[i * d + j] = x[i * d + j] * rstd[i] * w[j];
    }
}

static void rope(double *y, const double *x, const double *pos, const double *freq, int64_t n, int64_t heads, int64_t d,
                 bool inverse) {
    for (int64_t t = 0; t < n; t++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t j = 0; j < d / 2; j++) {
                double angle = (double)((float)pos[t] * (float)freq[j]) * (inverse ? -1 : 1);
                int64_t at = (t * heads + h) * d + j;
                double a = x[at], b = x[at + d / 2];
                y[at] = a * cos(angle) - b * sin(angle);
                y[at + d / 2] = b * cos(angle) + a * sin(angle);
            }
}

/* One query row of one head against keys first..last. */
static void attend(double *o, double *lse, const double *q, const double *k, const double *v, int64_t first,
                   int64_t last, int64_t d, int64_t stride, double scale) {
    double sum = 0, max = -INFINITY;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t j = first; j <= last; j++) {
            double score = 0;
            for (int64_t i = 0; i < d; i++) score += q[i] * k[j * stride + i];
            score *= scale;
            if (pass == 0) max = fmax(max, score);
            else sum += exp(score - max);
            for (int64_t i = 0; pass && i < d; i++)
                o[i] = (j == first ? 0 : o[i]) + exp(score - max) * v[j * stride + i];
        }
    for (int64_t i = 0; i < d; i++) o[i] /= sum;
    if (lse) *lse = max + log(sum);
}

static void attention(operand_set *s, const double *k, const double *v, const double *pos) {
    int64_t H = DIM("H"), G = DIM("G"), d = DIM("d"), window = s->c->attr.window;
    double *q = V("q"), *o = V("o"), *lse = V("lse");
    for (int64_t t = 0, doc = 0; t < s->batch.rows; t++) {
        if (t >= s->cu[doc + 1]) doc++;
        int64_t last = pos ? (int64_t)pos[t] : t, first = pos ? 0 : s->cu[doc];
        if (window && last - window + 1 > first) first = last - window + 1;
        for (int64_t h = 0; h < H; h++) {
            int64_t at = (t * H + h) * d, g = h / (H / G) * d;
            attend(o + at, lse ? lse + t * H + h : NULL, q + at, k + g, v + g, first, last, d, G * d,
                   (double)s->c->attr.scale);
        }
    }
}

static void attention_cached(operand_set *s) {
    int64_t width = DIM("G") * DIM("d");
    double *k = V("k"), *v = V("v"), *pos = V("pos"), *kc = V("kcache"), *vc = V("vcache");
    for (int64_t t = 0; t < s->batch.rows; t++) {
        memcpy(kc + (int64_t)pos[t] * width, k + t * width, (size_t)width * sizeof *k);
        memcpy(vc + (int64_t)pos[t] * width, v + t * width, (size_t)width * sizeof *v);
    }
    attention(s, kc, vc, pos);
}

static void glu(double *y, const double *gate, const double *up, int64_t n, glu_kind kind) {
    for (int64_t i = 0; i < n; i++) {
        double g = gate[i];
        double silu = g / (1 + exp(-g)), gelu = 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
        y[i] = (kind == GLU_SILU ? silu : gelu) * up[i];
    }
}

static void row_loss(double *nll, double *lse, const double *logits, int64_t V, double target) {
    *nll = *lse = 0;
    if (target < 0) return;
    double max = -INFINITY, sum = 0;
    for (int64_t v = 0; v < V; v++) max = fmax(max, logits[v]);
    for (int64_t v = 0; v < V; v++) sum += exp(logits[v] - max);
    *lse = max + log(sum);
    *nll = *lse - logits[(int64_t)target];
}

static void norm_qkv_rope(operand_set *s) {
    static const char *const names[3][9] = {{"Wq", "bq", "Aq", "Bq", "wq", "q", "sq", "q0", "rq"},
                                            {"Wk", "bk", "Ak", "Bk", "wk", "k", "sk", "k0", "rk"},
                                            {"Wv", "bv", "Av", "Bv", "", "v", "sv", "", ""}};
    int64_t n = s->batch.rows, D = DIM("D"), d = DIM("d");
    const double *x = V("a"), *b = V("b");
    for (int64_t i = 0; b && i < n * D; i++) V("sum")[i] = x[i] + b[i];
    if (b) x = V("sum");
    double *folded =
        V("ra") ? calloc((size_t)(n * (D + 1)), sizeof *folded) : NULL; /* its own rstd: of x as it is now */
    double *h = folded ? folded : V("h"), *rstd = folded ? folded + n * D : V("rstd");
    rms_norm(h, rstd, x, V("w"), n, D, (double)s->c->attr.eps);
    for (int p = 0; p < 3; p++) {
        const char *const *at = names[p];
        int64_t heads = DIM(p ? "G" : "H");
        double *y = V(at[5]), *w = V(at[4]), *before = w ? V(at[7]) : y;
        linear(before, h, V(at[0]), V(at[1]), n, D, heads * d);
        adapter(before, V(at[6]), h, V(at[2]), V(at[3]), n, D, heads * d, DIM("R"), (double)s->c->attr.scale);
        if (w) rms_norm(y, V(at[8]), before, w, n * heads, d, (double)s->c->attr.eps);
        if (p < 2) rope(y, y, V("pos"), V("freq"), n, heads, d, false);
    }
    free(folded);
}

static void gate_up_glu(operand_set *s) {
    int64_t n = s->batch.rows, K = DIM("K"), F = DIM("F"), R = DIM("R");
    double scale = (double)s->c->attr.scale;
    double *folded = V("rstd") ? calloc((size_t)(n * (K + 1)), sizeof *folded) : NULL;
    const double *x = folded ? folded : V("x");
    if (folded) rms_norm(folded, folded + n * K, V("x"), V("w"), n, K, (double)s->c->attr.eps);
    linear(V("gate"), x, V("Wg"), NULL, n, K, F);
    adapter(V("gate"), V("sg"), x, V("Ag"), V("Bg"), n, K, F, R, scale);
    linear(V("up"), x, V("Wu"), NULL, n, K, F);
    adapter(V("up"), V("su"), x, V("Au"), V("Bu"), n, K, F, R, scale);
    glu(V("y"), V("gate"), V("up"), n * F, s->c->attr.glu);
    free(folded);
}

static void linear_lora(operand_set *s) {
    int64_t n = s->batch.rows, M = DIM("M");
    double *y = V("y"), *res = V("res"), *rstd = V("rstd");
    linear(y, V("x"), V("W"), V("bias"), n, DIM("K"), M);
    if (V("A")) adapter(y, V("s"), V("x"), V("A"), V("B"), n, DIM("K"), M, DIM("R"), (double)s->c->attr.scale);
    for (int64_t i = 0; res && i < n * M; i++) y[i] += res[i];
    for (int64_t t = 0; rstd && t < n; t++) {
        double sum = 0;
        for (int64_t j = 0; j < M; j++) sum += y[t * M + j] * y[t * M + j];
        rstd[t] = 1 / sqrt(sum / (double)M + (double)s->c->attr.eps);
    }
}

void reference_through_glu(operand_set *to, operand_set *from) {
    const operand *gate = operand_find(from->in, from->n_in, "gate");
    if (gate && from->kind == OP_linear_lora_bwd)
        glu(value_of(to, "x"), gate->value, value_of(from, "up"), gate->real * gate->cols, from->c->attr.glu);
}

/* C[m,k] = scale * sum over t of a[t,m] b[t,k] */
static void outer(double *C, const double *a, const double *b, int64_t n, int64_t M, int64_t K, double scale) {
    for (int64_t m = 0; m < M; m++)
        for (int64_t k = 0; k < K; k++) {
            double sum = 0;
            for (int64_t t = 0; t < n; t++) sum += a[t * M + m] * b[t * K + k];
            C[m * K + k] = scale * sum;
        }
}

/* One product of qkv_bwd: dh += dy W + ds A, dA = ds' h, dB = scale dy' s with ds = scale dy B. */
static void product_bwd(operand_set *s, const char *q, int64_t M) {
    char names[7][8];
    static const char *const before[7] = {"d", "W", "A", "B", "s", "dA", "dB"};
    for (int i = 0; i < 7; i++) snprintf(names[i], sizeof names[i], "%s%s", before[i], q);
    int64_t n = s->batch.rows, D = DIM("D"), R = DIM("R");
    const double *dy = V(names[0]), *W = V(names[1]), *A = V(names[2]), *B = V(names[3]);
    double scale = (double)s->c->attr.scale, *ds = calloc((size_t)(n * R), sizeof *ds), *dh = V("dx");
    for (int64_t t = 0; B && t < n; t++)
        for (int64_t m = 0; m < M; m++)
            for (int64_t r = 0; r < R; r++) ds[t * R + r] += scale * dy[t * M + m] * B[m * R + r];
    for (int64_t t = 0; dh && t < n; t++)
        for (int64_t k = 0; k < D; k++) {
            for (int64_t m = 0; m < M; m++) dh[t * D + k] += dy[t * M + m] * W[m * D + k];
            for (int64_t r = 0; A && r < R; r++) dh[t * D + k] += ds[t * R + r] * A[r * D + k];
        }
    if (A) outer(V(names[5]), ds, V("x"), n, R, D, 1);
    if (B) outer(V(names[6]), dy, V(names[4]), n, M, R, scale);
    free(ds);
}

static void qkv_bwd(operand_set *s) {
    int64_t H = DIM("H") * DIM("d"), G = DIM("G") * DIM("d");
    double *dh = V("dx");
    if (dh) memset(dh, 0, (size_t)(s->batch.rows * DIM("D")) * sizeof *dh);
    product_bwd(s, "q", H);
    product_bwd(s, "k", G);
    product_bwd(s, "v", G);
}

/* Of one row, for dnll = weight: dx = dlogits W, dW += dlogits' x, with dlogits in the place of the logits. */
static void row_gradient(operand_set *s, int64_t t, double *logits) {
    int64_t D = DIM("D"), vocabulary = DIM("V"), label = (int64_t)V("target")[t];
    double *dx = V("dx"), *dW = V("dW");
    for (int64_t j = 0; dx && j < D; j++) dx[t * D + j] = 0;
    for (int64_t v = 0; label >= 0 && v < vocabulary; v++) {
        double d = V("weight")[t] * (exp(logits[v] - V("lse")[t]) - (v == label));
        for (int64_t j = 0; dx && j < D; j++) dx[t * D + j] += d * V("W")[v * D + j];
        for (int64_t j = 0; dW && j < D; j++) dW[v * D + j] += d * V("x")[t * D + j];
    }
}

static void linear_ce(operand_set *s) {
    int64_t D = DIM("D"), vocabulary = DIM("V");
    double *logits = xmalloc((size_t)vocabulary * sizeof *logits);
    if (V("dW")) memset(V("dW"), 0, (size_t)(vocabulary * D) * sizeof(double));
    for (int64_t t = 0; t < s->batch.rows; t++) {
        linear(logits, V("x") + t * D, V("W"), NULL, 1, D, vocabulary);
        row_loss(V("nll") + t, V("lse") + t, logits, vocabulary, V("target")[t]);
        if (V("weight")) row_gradient(s, t, logits);
    }
    free(logits);
}

static void dropout(operand_set *s) {
    int64_t n = s->batch.rows * DIM("D");
    uint64_t key = rng_fold(s->batch.seed, s->c->attr.salt);
    for (int64_t i = 0; i < n; i++) {
        bool keep = rng_uniform(key, (uint64_t)i) >= s->c->attr.rate;
        V("y")[i] = !s->batch.training ? V("x")[i] : keep ? V("x")[i] / (1 - (double)s->c->attr.rate) : 0;
    }
}

static void rows_op(operand_set *s) { /* embed, gather, add, scale */
    const char *list = s->kind == OP_embed ? "ids" : "index", *from = s->kind == OP_embed ? "W" : "x";
    int64_t D = DIM("D"), rows = s->out[0].real;
    for (int64_t t = 0; t < rows; t++)
        for (int64_t j = 0; j < D; j++) {
            double *y = V("y") + t * D + j;
            if (s->kind == OP_add) *y = V("a")[t * D + j] + V("b")[t * D + j];
            else if (s->kind == OP_scale) *y = V("x")[t * D + j] * (double)s->c->attr.scale;
            else *y = V(from)[(int64_t)V(list)[t] * D + j];
        }
}

op_kind forward_of(op_kind kind) {
    switch ((int)kind) {
    case OP_embed_bwd: return OP_embed;
    case OP_rms_norm_bwd: return OP_rms_norm;
    case OP_linear_dx:
    case OP_linear_dw: return OP_linear;
    case OP_attention_bwd: return OP_attention;
    case OP_glu_bwd: return OP_glu;
    case OP_cross_entropy_bwd: return OP_cross_entropy;
    case OP_linear_lora_bwd: return OP_linear_lora;
    case OP_gate_up_bwd: return OP_gate_up_glu;
    case OP_qkv_bwd: return OP_norm_qkv_rope; /* its folded form; without rope: run.c */
    case OP_linear_ce_bwd: return OP_linear_ce;
    default: return OP_COUNT;
    }
}

bool reference_has(const op_case *c) {
    op_kind kind = c->kind;
    return kind < OP_embed_bwd || kind == OP_add_rms_norm || kind == OP_linear_lora || kind == OP_gate_up_glu ||
           kind == OP_norm_qkv_rope || (kind == OP_qkv_bwd && !c->folded) || kind == OP_linear_ce ||
           kind == OP_all_reduce || kind == OP_all_gather || kind == OP_reduce_scatter || kind == OP_to_host ||
           kind == OP_from_host;
}

static void norms(operand_set *s) {
    int64_t D = DIM("D"), d = s->c->attr.head_dim ? DIM("d") : D, n = s->batch.rows;
    const double *x = V("x");
    for (int64_t i = 0; s->kind == OP_add_rms_norm && i < n * D; i++) V("sum")[i] = V("a")[i] + V("b")[i];
    if (s->kind == OP_add_rms_norm) x = V("sum");
    rms_norm(V("y"), V("rstd"), x, V("w"), n * D / d, d, (double)s->c->attr.eps);
}

void reference_run(operand_set *s) {
    int64_t n = s->batch.rows;
    switch ((int)s->kind) {
    case OP_embed:
    case OP_gather:
    case OP_add:
    case OP_scale: rows_op(s); break;
    case OP_rms_norm:
    case OP_add_rms_norm: norms(s); break;
    case OP_linear: linear(V("y"), V("x"), V("W"), V("bias"), n, DIM("K"), DIM("M")); break;
    case OP_linear_lora: linear_lora(s); break;
    case OP_rope: rope(V("y"), V("x"), V("pos"), V("freq"), n, DIM("H"), DIM("d"), s->c->attr.inverse); break;
    case OP_attention: attention(s, V("k"), V("v"), NULL); break;
    case OP_attention_cached: attention_cached(s); break;
    case OP_dropout: dropout(s); break;
    case OP_glu: glu(V("y"), V("gate"), V("up"), n * DIM("F"), s->c->attr.glu); break;
    case OP_gate_up_glu: gate_up_glu(s); break;
    case OP_norm_qkv_rope: norm_qkv_rope(s); break;
    case OP_qkv_bwd: qkv_bwd(s); break;
    case OP_linear_ce: linear_ce(s); break;
    case OP_cross_entropy:
        for (int64_t t = 0; t < n; t++)
            row_loss(V("nll") + t, V("lse") + t, V("logits") + t * DIM("V"), DIM("V"), V("target")[t]);
        break;
    case OP_weighted_sum:
        V("sum")[0] = 0;
        for (int64_t t = 0; t < n; t++) V("sum")[0] += V("x")[t] * V("weight")[t];
        break;
    case OP_to_host: memcpy(V("kept"), V("x"), (size_t)(n * DIM("D")) * sizeof(double)); break;
    case OP_from_host: memcpy(V("x"), V("kept"), (size_t)(n * DIM("D")) * sizeof(double)); break;
    case OP_reduce_scatter: /* one rank */
        memcpy(V("part"), V("x"), (size_t)(DIM("M") * DIM("K")) * sizeof(double));
        break;
    case OP_all_gather: /* one rank */
        memcpy(V("whole"), V("part"), (size_t)(DIM("M") * DIM("K")) * sizeof(double));
        break;
    case OP_all_reduce: /* one rank */ memcpy(V("sum"), V("x"), (size_t)DIM("B") * sizeof(double)); break;
    default: assert(!"a forward op");
    }
}
