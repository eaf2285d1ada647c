/* folded.cu - the folded forms of ops; see folded.h.
 *
 * With k = rstd, W' and A' the weights as they lie (columns times the norm's weight g), S the ranks rounded up to 8:
 *   forward   strip = scale (x A'); s = k o (x A'); then one product z = k o [x | strip] [W' | B]'
 *   backward  ds = scale dz B; then one product dx = k o ([dz | ds] [W'; A']) + dres - (k^2 / D) dot x
 *             dA = ((k o ds)' x) diag(g), in float32 through the scratch; dB = scale dz' s
 * linear_lora_bwd goes on through the activation, and makes its x again in the same product, for dA.
 * dot comes with the op's operands; linear_lora_bwd sums it up in the epilogue of its product. */
#include "cuda.cuh"
#include "folded.h"
#include "sum_parts.cuh"
#include "wgmma_gemm.h"

namespace {
enum { THREADS = 256 };

unsigned blocks_for(int64_t n) { return (unsigned)cuda_ceil(n, THREADS); }

/* ---- small kernels: a thread to an element, rows of `strip` and its like are dense ---- */

/* strip[t, 0:S] = scale s[t, 0:R], then zeros; then s[t] times rstd[t], where there is one. */
__global__ void strip_kernel(bf16 *strip, span<bf16> s, const float *rstd, int64_t n, int R, int S, float scale) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / S;
    int column = (int)(i % S);
    if (row >= n) return;
    float x = 0;
    if (column < R) {
        bf16 *at = s.data + row * s.ld + column;
        x = to_float(*at);
        if (rstd) *at = from_float<bf16>(x * rstd[row]);
    }
    strip[i] = from_float<bf16>(scale * x);
}

/* scaled[t] = rstd[t] ds[t]; by[t] = -(rstd^2 / D) dot, where dot is there.  S may be 0. */
__global__ void rows_kernel(bf16 *scaled, const bf16 *ds, float *by, const float *rstd, const float *dot, int64_t n,
                            int S, float D) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, width = S ? S : 1, row = i / width;
    if (row >= n) return;
    float k = rstd[row];
    if (S) scaled[i] = from_float<bf16>(k * to_float(ds[i]));
    if (dot && i % width == 0) by[row] = -k * k * dot[row] / D;
}

/* dA[r] (+)= product[r] g, r < rows; g as wide as they. */
__global__ void add_scaled_kernel(span<float> dA, const float *product, const bf16 *g, int64_t rows, int64_t width,
                                  bool add) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / width, column = i % width;
    if (row >= rows) return;
    float *at = dA.data + row * dA.ld + column;
    *at = (add ? *at : 0) + product[i] * to_float(g[column]);
}

/* dot[t] = sum of a row's parts. */
__global__ void sum_parts_kernel(float *dot, const float *parts, int64_t n, int width) {
    int64_t row;
    float sum;
    if (sum_of_parts(parts, n, width, &row, &sum)) dot[row] = sum;
}

/* A table of angles by row: what the product looks up is then the row's number, however large positions are. */
__global__ void angles_kernel(float2 *table, int32_t *number, const int32_t *pos, const float *freq, int64_t n,
                              int half) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / half;
    if (row >= n) return;
    float2 at;
    sincosf((float)pos[row] * freq[i % half], &at.y, &at.x);
    table[i] = at;
    if (i % half == 0) number[row] = (int32_t)row;
}

/* ---- what the forms share ---- */

/* The stack lies as pass_layout places it. */
bool is_placed(const product_view &v, const tensor *const list[], int n, const char *what) {
    if (v.placed && product_beside(list, n)) return true;
    return fail(cuda_failure(), FAIL_MACHINE, "weights, or %s, do not lie as pass_layout places them", what);
}

/* a times the stack: all that a form and a kind share. tail: [n, S], the adapter's columns of a. */
wgmma_call stack_call(gemm_form form, wgmma_kind kind, const product_stack *p, const product_view &v, const tensor *a,
                      const void *tail, int64_t n) {
    wgmma_call g = {};
    bool nt = form == GEMM_NT;
    g.form = form, g.kind = kind, g.rows = n;
    g.cols = nt ? v.M : v.K, g.depth = nt ? v.K : v.M;
    g.a = a->data, g.lda = a->ld;
    g.b = p->W[0].data, g.ldb = p->W[0].ld;
    g.rank = v.S, g.a2 = tail, g.lda2 = v.S;
    g.b2 = nt ? matrix_at(p->W, 0, v.K).data : matrix_at(p->W, v.M, 0).data, g.ldb2 = p->W[0].ld;
    return g;
}

/* s and the strip of x; false: a failure. */
bool shrink(const product_stack *p, const product_view &v, const tensor *x, const tensor *const s[], const float *rstd,
            bf16 *strip, int64_t n) {
    if (!v.R) return true;
    if (!is_placed(v, s, p->n, "what adapters make")) return false;
    int first = 0;
    while (!product_rank(p, first)) first++;
    product_nt(matrix_at(s[first], 0, 0), matrix_at(x, 0, 0), matrix_at(&p->AB[2 * first], 0, 0), n, v.R, v.K, 1, 0,
               NULL);
    strip_kernel<<<blocks_for(n * v.S), THREADS, 0, cuda_stream()>>>(strip, span_of<bf16>(s[first]), rstd, n, (int)v.R,
                                                                     (int)v.S, p->scale);
    return true;
}

bf16 *take_strip(char **scratch, const product_view &v, int64_t n) {
    return (bf16 *)cuda_take(scratch, (size_t)(n * v.S) * sizeof(bf16));
}

size_t larger(size_t a, size_t b) { return a > b ? a : b; }

bool run(const wgmma_call &g) { return wgmma_run(&g, cuda_stream(), cuda_failure()); }

int64_t strip_of(const graph *g, const vid *AB, int n, int64_t *R) {
    *R = 0;
    for (int i = 0; i < n; i++) *R += AB[2 * i] ? g->values[AB[2 * i]].rows : 0;
    return (*R + 7) / 8 * 8;
}
} // namespace

/* ---- forward ---- */

void folded_linear_lora(const kernel_call *call) {
    const tensor *in = call->in, *out = call->out, *x = &in[LORA_X], *y = &out[LORA_Y], *s[] = {&out[LORA_S]};
    int64_t n = call->batch->rows;
    char *scratch = (char *)call->scratch;
    product_stack p = {1, &in[LORA_W], NULL, &in[LORA_A], call->op->attr.scale};
    product_view v = product_look(&p);
    float *rstd = (float *)out[LORA_RSTD].data;
    if (!n || !is_placed(v, &x, 1, "the input")) return;
    bf16 *strip = take_strip(&scratch, v, n);
    if (!shrink(&p, v, x, s, NULL, strip, n)) return;
    wgmma_call g = stack_call(GEMM_NT, WGMMA_ADD, &p, v, x, strip, n);
    g.c = y->data, g.ldc = y->ld, g.in = in[LORA_RES].data, g.ld_in = in[LORA_RES].ld;
    if (rstd) g.row_sums = (float *)cuda_take(&scratch, (size_t)(n * wgmma_parts(WGMMA_ADD, v.M)) * sizeof(float));
    if (!run(g) || !rstd) return;
    wgmma_rstd(rstd, g.row_sums, n, v.M, call->op->attr.eps, cuda_stream(), cuda_failure());
}

void folded_gate_up_glu(const kernel_call *call) {
    const tensor *in = call->in, *out = call->out, *x = &in[GUG_X];
    const tensor *const y[] = {&out[GUG_GATE], &out[GUG_UP]}, *const s[] = {&out[GUG_SG], &out[GUG_SU]};
    int64_t n = call->batch->rows;
    char *scratch = (char *)call->scratch;
    product_stack p = {2, &in[GUG_WG], NULL, &in[GUG_AG], call->op->attr.scale};
    product_view v = product_look(&p);
    const float *rstd = (const float *)in[GUG_RSTD].data;
    if (!n || !is_placed(v, y, 2, "gate and up")) return;
    bf16 *strip = take_strip(&scratch, v, n);
    if (!shrink(&p, v, x, s, rstd, strip, n)) return;
    wgmma_call g = stack_call(GEMM_NT, WGMMA_GLU, &p, v, x, strip, n);
    g.cols = p.W[0].rows, g.glu = call->op->attr.glu, g.row_scale = rstd;
    g.b_up = p.W[1].data, g.b2_up = matrix_at(&p.W[1], 0, v.K).data;
    g.c = y[0]->data, g.c_up = y[1]->data, g.ldc = y[0]->ld;
    g.y = out[GUG_Y].data, g.ldy = out[GUG_Y].ld;
    run(g);
}

void folded_norm_qkv_rope(const kernel_call *call) {
    const tensor *in = call->in, *out = call->out, *x = &in[NQR_A], *freq = &in[NQR_FREQ];
    const tensor *const y[] = {&out[NQR_Q], &out[NQR_K], &out[NQR_V]};
    const tensor *const s[] = {&out[NQR_SQ], &out[NQR_SK], &out[NQR_SV]};
    int64_t n = call->batch->rows, half = freq->rows * freq->cols;
    char *scratch = (char *)call->scratch;
    product_stack p = {3, &in[NQR_WQ], NULL, &in[NQR_AQ], call->op->attr.scale};
    product_view v = product_look(&p);
    const float *rstd = (const float *)in[NQR_RA].data;
    if (!n || !is_placed(v, y, 3, "q, k and v")) return;
    bf16 *strip = take_strip(&scratch, v, n);
    float2 *table = (float2 *)cuda_take(&scratch, (size_t)(n * half) * sizeof *table);
    int32_t *number = (int32_t *)cuda_take(&scratch, (size_t)n * sizeof *number);
    if (!shrink(&p, v, x, s, rstd, strip, n)) return;
    angles_kernel<<<blocks_for(n * half), THREADS, 0, cuda_stream()>>>(table, number, (const int32_t *)in[NQR_POS].data,
                                                                       (const float *)freq->data, n, (int)half);
    wgmma_call g = stack_call(GEMM_NT, WGMMA_ROPE, &p, v, x, strip, n);
    g.row_scale = rstd, g.c = y[0]->data, g.ldc = y[0]->ld;
    g.rope = {y[0]->cols + y[1]->cols, (int)half * 2, number, (const float *)table};
    run(g);
}

size_t folded_scratch_forward(const graph *g, const graph_op *op) {
    int64_t N = g->values[op->in[0]].rows, R;
    switch ((int)op->kind) {
    case OP_linear_lora: {
        if (!op->in[LORA_RES]) return 0;
        size_t strip = (size_t)(N * strip_of(g, &op->in[LORA_A], 1, &R)) * sizeof(bf16);
        return cuda_round(strip) +
               (size_t)(N * wgmma_parts(WGMMA_ADD, g->values[op->out[LORA_Y]].cols)) * sizeof(float);
    }
    case OP_gate_up_glu: return op->in[GUG_RSTD] ? (size_t)(N * strip_of(g, &op->in[GUG_AG], 2, &R)) * sizeof(bf16) : 0;
    case OP_norm_qkv_rope: {
        if (!op->in[NQR_RA]) return 0;
        const graph_value *freq = &g->values[op->in[NQR_FREQ]];
        size_t strip = (size_t)(N * strip_of(g, &op->in[NQR_AQ], 3, &R)) * sizeof(bf16);
        size_t table = (size_t)(N * value_count(freq)) * sizeof(float2);
        return cuda_round(strip) + cuda_round(table) + (size_t)N * sizeof(int32_t);
    }
    default: return 0;
    }
}

/* ---- backward ---- */

void folded_linear_lora_bwd(const kernel_call *call) {
    const tensor *in = call->in, *out = call->out, *dy = &in[LORA_BWD_DY], *dgate = &out[LORA_BWD_DGATE];
    const tensor *gate = &in[LORA_BWD_GATE], *up = &in[LORA_BWD_UP], *dup = &out[LORA_BWD_DUP];
    int64_t n = call->batch->rows;
    char *scratch = (char *)call->scratch;
    product_stack p = {1, &in[LORA_BWD_W], NULL, &in[LORA_BWD_A], call->op->attr.scale};
    product_view v = product_look(&p);
    float *dot = (float *)out[LORA_BWD_DOT].data;
    if (!n || !is_placed(v, &dy, 1, "the gradient")) return;
    if (gate->ld != up->ld || dgate->ld != dup->ld) {
        fail(cuda_failure(), FAIL_MACHINE, "gate and up, or their gradients, have different strides");
        return;
    }
    bf16 *ds = take_strip(&scratch, v, n);
    matrix adapters = {(char *)ds, v.S, DTYPE_BF16};
    if (v.R) product_ds_dB(&p, &out[LORA_BWD_DA], adapters, dy, &in[LORA_BWD_S], n, scratch);
    wgmma_call g = stack_call(GEMM_NN, WGMMA_GLU_BWD, &p, v, dy, ds, n);
    g.glu = call->op->attr.glu;
    g.in = gate->data, g.in_up = up->data, g.ld_in = gate->ld;
    g.c = dgate->data, g.c_up = dup->data, g.ldc = dgate->ld;
    tensor x = *gate; /* y of the activation, for dA */
    x.data = v.R ? cuda_take(&scratch, (size_t)(n * v.K) * sizeof(bf16)) : NULL, x.ld = v.K;
    g.y = x.data, g.ldy = x.ld;
    int parts = (int)wgmma_parts(WGMMA_GLU_BWD, v.K);
    if (dot) g.row_sums = (float *)cuda_take(&scratch, (size_t)(n * parts) * sizeof(float));
    if (!run(g)) return;
    if (dot)
        sum_parts_kernel<<<(unsigned)cuda_ceil(n, PARTS_ROWS), PARTS_THREADS, 0, cuda_stream()>>>(dot, g.row_sums, n,
                                                                                                  parts);
    if (v.R) product_grad_A(&p, &out[LORA_BWD_DA], adapters, &x, n);
}

size_t folded_scratch_linear_lora_bwd(const graph *g, const graph_op *op) {
    if (!op->in[LORA_BWD_GATE]) return 0;
    int64_t N = g->values[op->in[LORA_BWD_DY]].rows, R, S = strip_of(g, &op->in[LORA_BWD_A], 1, &R);
    int64_t K = g->values[op->in[LORA_BWD_GATE]].cols;
    size_t x = R ? cuda_round((size_t)(N * K) * sizeof(bf16)) : 0;
    size_t parts = (size_t)(N * wgmma_parts(WGMMA_GLU_BWD, K)) * sizeof(float);
    size_t sums = product_scratch_ds_dB(g, op->in[LORA_BWD_DY], &op->in[LORA_BWD_A], 1); /* used before x and parts */
    return cuda_round((size_t)(N * S) * sizeof(bf16)) + larger(x + parts, sums);
}

/* dA of each adapter: all in one product, then each into its own. */
static void grad_A(const product_stack *p, const product_view &v, const tensor *dAB, const bf16 *scaled,
                   const tensor *x, const tensor *norm, float *product, int64_t n) {
    matrix to = {(char *)product, v.K, DTYPE_F32}, ds = {(char *)(uintptr_t)scaled, v.S, DTYPE_BF16};
    product_tn(to, ds, matrix_at(x, 0, 0), n, v.R, v.K, 1, 0);
    for (int i = 0; i < p->n; i++) {
        const tensor *dA = &dAB[2 * i];
        if (dA->data)
            add_scaled_kernel<<<blocks_for(dA->rows * v.K), THREADS, 0, cuda_stream()>>>(
                span_of<float>(dA), product, (const bf16 *)norm->data, dA->rows, v.K, dA->add);
        product += product_rank(p, i) * v.K;
    }
}

void folded_norm_bwd(const product_stack *p, const tensor *dx, const tensor *dAB, const tensor *dy, const tensor *x,
                     const tensor *s, const tensor *rstd_norm_dot_dres, int64_t n, void *scratch_start) {
    const tensor *rstd = rstd_norm_dot_dres, *norm = rstd + 1, *dot = rstd + 2, *dres = rstd + 3;
    const tensor *list[PRODUCT_STACK];
    char *scratch = (char *)scratch_start;
    product_view v = product_look(p);
    for (int i = 0; i < p->n; i++) list[i] = &dy[i];
    if (!n || !is_placed(v, list, p->n, "the gradients")) return;
    bf16 *ds = take_strip(&scratch, v, n), *scaled = take_strip(&scratch, v, n);
    float *by = (float *)cuda_take(&scratch, (size_t)n * sizeof *by);
    matrix adapters = {(char *)ds, v.S, DTYPE_BF16};
    if (v.R) product_ds_dB(p, dAB, adapters, dy, s, n, scratch);
    rows_kernel<<<blocks_for(n * (v.S ? v.S : 1)), THREADS, 0, cuda_stream()>>>(
        scaled, ds, by, (const float *)rstd->data, (const float *)dot->data, n, (int)v.S, (float)v.K);
    if (dx->data) {
        wgmma_call g = stack_call(GEMM_NN, WGMMA_NORM_BWD, p, v, dy, ds, n);
        g.sum_scale = (const float *)rstd->data, g.row_scale = by;
        g.in = dres->data, g.ld_in = dres->ld, g.in_up = x->data, g.ld_in_up = x->ld;
        g.c = dx->data, g.ldc = dx->ld;
        if (!run(g)) return;
    }
    if (v.R) grad_A(p, v, dAB, scaled, x, norm, (float *)(void *)scratch, n);
}

size_t folded_scratch_norm_bwd(const graph *g, vid x, vid rstd, const vid *AB, int n) {
    if (!rstd) return 0;
    int64_t N = g->values[x].rows, R, S = strip_of(g, AB, n, &R);
    size_t sums = product_scratch_ds_dB(g, x, AB, n), product = (size_t)(R * g->values[x].cols) * sizeof(float);
    return 2 * cuda_round((size_t)(N * S) * sizeof(bf16)) + cuda_round((size_t)N * sizeof(float)) +
           larger(sums, product); /* one behind the other */
}

/* ---- what is served ---- */

/* All widths are multiples of 8. */
static bool even(const graph *g, const vid *weights, int n) {
    bool ok = true;
    for (int i = 0; i < n; i++) ok = ok && g->values[weights[i]].rows % 8 == 0 && g->values[weights[i]].cols % 8 == 0;
    return ok;
}

bool folded_serves(const graph *g, const graph_op *op, const char **why) {
    const vid *in = op->in;
    const char *uneven = "a weight's sizes are no multiples of 8";
    bool ok = true;
    if (!wgmma_here(why)) return false;
    *why = "torch_dtype is not bfloat16";
    if (g->compute != DTYPE_BF16) return false;
    switch ((int)op->kind) {
    case OP_linear_lora: /* also for its way back */
        *why = "o_proj or down_proj has a bias";
        if (in[LORA_BIAS]) return false;
        *why = uneven, ok = even(g, &in[LORA_W], 1);
        break;
    case OP_linear_lora_bwd: *why = uneven, ok = even(g, &in[LORA_BWD_W], 1); break;
    case OP_gate_up_glu: *why = uneven, ok = even(g, &in[GUG_WG], 2); break;
    case OP_gate_up_bwd:
        *why = "there is no gradient of the residual stream to add", ok = !op->out[GUB_DX] || in[GUB_DRES];
        if (ok) *why = uneven, ok = even(g, &in[GUB_WG], 2);
        break;
    case OP_norm_qkv_rope:
        *why = "heads are neither 64 nor 128 wide", ok = op->attr.head_dim == 64 || op->attr.head_dim == 128;
        if (ok) *why = uneven, ok = even(g, &in[NQR_WQ], 3);
        break;
    case OP_qkv_bwd:
        *why = "there is no gradient of the residual stream to add", ok = !op->out[QKV_DX] || in[QKV_DRES];
        if (ok) *why = uneven, ok = even(g, &in[QKV_WQ], 3);
        break;
    default: break;
    }
    return ok;
}
