/* cudnn_attention.cu - attention over packed documents as cuDNN graphs: 20 operations forward, 30 backward.
 *
 * cuDNN recognises the graph as a whole and runs it as one fused kernel (backward: three).  [B, heads, S, d] tensors
 * describe packed rows by their strides and a ragged offset, the element at which each document begins; a padding
 * mask from the lengths hides the rest.  K (and backward V) are described transposed.
 * On Hopper and Blackwell the backward's intermediate results (dq in float32, dk and dv per query head, rowsum of
 * dout o) have ragged layouts too and lie in our workspace, sized by rows; elsewhere cuDNN keeps them B x S big.
 * Engines for several query heads per key head take the offsets of dk and dv times H / G, so strided dk and dv go
 * through contiguous buffers there and are copied.  dq is written at q's offsets, whatever offsets it is given (9.19):
 * its rows must have q's stride. */
#include "cudnn_attention.h"
extern "C" {
#include "base/memory.h"
}
#include "cudnn_graph.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Ids of the tensors in memory. */
enum {
    ID_Q = 1,
    ID_K,
    ID_V,
    ID_O,
    ID_LSE,
    ID_DOUT,
    ID_DQ,
    ID_DK,
    ID_DV, /* ID_Q .. ID_DV: operands with rows; their offsets are OFFSET + id */
    ID_LENGTH_Q,
    ID_LENGTH_K,
    ID_DQ_SUM,
    ID_DK_HEADS,
    ID_DV_HEADS,
    ID_DELTA,
    ID_SCALE,
    ID_ONE,
    ID_HIDDEN,
    ID_WINDOW,
    OFFSET = 100,
};
enum { OPERANDS = ID_DV };

/* What both graphs are built from. */
typedef struct {
    attention_shape shape;
    int64_t ld[OPERANDS + 1]; /* by id: row stride; of lse H */
    int64_t B, S;             /* documents and longest length of the plan */
    bool by_rows;             /* the backward's intermediate results have ragged layouts */
    bool forward_only;        /* no gradients: the layout has no dq */
    bool heads_apart;         /* several query heads per key head: dk and dv exist per query head first */
} sdpa;

typedef struct {
    int64_t B, S;
    cudnn_plan forward, backward;
} plan_pair;

struct cudnn_attention {
    cudnn_api api;
    cudnn_handle handle;
    sdpa base;
    int max_docs;
    bool copy_dk, copy_dv;
    int32_t *table; /* device, [OPERANDS + 1, pitch]: lengths, then each operand's offsets by id */
    int pitch;
    size_t engine; /* most bytes that an engine may want: what the largest pair, the first, wants */
    plan_pair *pairs;
    int count, current;
};

static int64_t round_up(int64_t n, int64_t least) {
    int64_t r = least;
    while (r < n) r *= 2;
    return r;
}

/* ---- graphs ---- */

static cudnn_layout square(const sdpa *s) {
    int64_t H = s->shape.H, S = s->S;
    return {{s->B, H, S, S}, {H * S * S, S * S, S, 1}};
}
/* [B, heads, S, width] in rows of stride ld */
static cudnn_layout in_rows(const sdpa *s, int64_t heads, int64_t width, int64_t ld) {
    return {{s->B, heads, s->S, width}, {s->S * ld, width, ld, 1}};
}
static cudnn_layout dense(const sdpa *s, int64_t heads, int64_t width) {
    return {{s->B, heads, s->S, width}, {heads * s->S * width, s->S * width, width, 1}};
}
static cudnn_layout transposed(cudnn_layout l) {
    return {{l.dim[0], l.dim[1], l.dim[3], l.dim[2]}, {l.stride[0], l.stride[1], l.stride[3], l.stride[2]}};
}

static cudnn_descriptor offsets(cudnn_graph *g, const sdpa *s, int id) {
    const cudnn_layout l = {{s->B + 1, 1, 1, 1}, {1, 1, 1, 1}};
    return cudnn_tensor(g, OFFSET + id, DATA_INT32, l, NULL);
}
static cudnn_descriptor lengths(cudnn_graph *g, const sdpa *s, int id) {
    const cudnn_layout l = {{s->B, 1, 1, 1}, {1, 1, 1, 1}};
    return cudnn_tensor(g, id, DATA_INT32, l, NULL);
}
static cudnn_descriptor operand(cudnn_graph *g, const sdpa *s, int id, int64_t heads, bool transpose,
                                cudnn_descriptor ragged) {
    cudnn_layout l = in_rows(s, heads, s->shape.d, s->ld[id]);
    return cudnn_tensor(g, id, DATA_BF16, transpose ? transposed(l) : l, ragged);
}
static cudnn_descriptor lse_tensor(cudnn_graph *g, const sdpa *s, cudnn_descriptor ragged) {
    const cudnn_layout l = {{s->B, s->shape.H, s->S, 1}, {s->S * s->shape.H, 1, s->shape.H, 1}};
    return cudnn_tensor(g, ID_LSE, DATA_FLOAT, l, ragged);
}

/* y = mode(x, b), a float tensor of scores' shape that stays inside */
static cudnn_descriptor score_op(cudnn_graph *g, const sdpa *s, int mode, cudnn_descriptor x, cudnn_descriptor b) {
    cudnn_descriptor y = cudnn_virtual(g, DATA_FLOAT, square(s), NULL);
    cudnn_pointwise(g, mode, DATA_FLOAT, -1, x, b, NULL, y);
    return y;
}
static cudnn_descriptor compare(cudnn_graph *g, const sdpa *s, int mode, cudnn_descriptor x, cudnn_descriptor b) {
    cudnn_descriptor y = cudnn_virtual(g, DATA_BOOLEAN, square(s), NULL);
    cudnn_pointwise(g, mode, DATA_BOOLEAN, -1, x, b, NULL, y);
    return y;
}
static cudnn_descriptor index_along(cudnn_graph *g, const sdpa *s, int axis, int math, cudnn_descriptor x) {
    cudnn_descriptor y = cudnn_virtual(g, DATA_INT32, square(s), NULL);
    cudnn_pointwise(g, POINTWISE_GEN_INDEX, math, axis, x, NULL, NULL, y);
    return y;
}
static cudnn_descriptor keep_where(cudnn_graph *g, const sdpa *s, cudnn_descriptor x, cudnn_descriptor hidden,
                                   cudnn_descriptor seen) {
    cudnn_descriptor y = cudnn_virtual(g, DATA_FLOAT, square(s), NULL);
    cudnn_pointwise(g, POINTWISE_SELECT, DATA_FLOAT, -1, x, hidden, seen, y);
    return y;
}

/* Scores behind a document's end become -inf. */
static cudnn_descriptor hide_padding(cudnn_graph *g, const sdpa *s, cudnn_descriptor x, cudnn_descriptor hidden,
                                     cudnn_descriptor length_q, cudnn_descriptor length_k) {
    cudnn_descriptor row = index_along(g, s, 2, DATA_INT32, x), column = index_along(g, s, 3, DATA_INT32, x);
    cudnn_descriptor in_row = compare(g, s, POINTWISE_CMP_LT, row, length_q);
    cudnn_descriptor in_column = compare(g, s, POINTWISE_CMP_LT, column, length_k);
    return keep_where(g, s, x, hidden, compare(g, s, POINTWISE_AND, in_row, in_column));
}

/* Scores of keys behind the row, and with a window of keys at or before row - window, become -inf. */
static cudnn_descriptor hide_band(cudnn_graph *g, const sdpa *s, cudnn_descriptor x, cudnn_descriptor hidden) {
    cudnn_descriptor row = index_along(g, s, 2, DATA_FLOAT, x), column = index_along(g, s, 3, DATA_FLOAT, x);
    x = keep_where(g, s, x, hidden, compare(g, s, POINTWISE_CMP_GE, row, column));
    if (!s->shape.window) return x;
    row = index_along(g, s, 2, DATA_FLOAT, x);
    column = index_along(g, s, 3, DATA_FLOAT, x);
    cudnn_descriptor reach = cudnn_virtual(g, DATA_FLOAT, square(s), NULL);
    cudnn_pointwise(g, POINTWISE_ADD, DATA_FLOAT, -1, column, cudnn_scalar(g, ID_WINDOW, DATA_FLOAT), NULL, reach);
    return keep_where(g, s, x, hidden, compare(g, s, POINTWISE_CMP_GT, reach, row));
}

static void build_forward(cudnn_graph *g, const sdpa *s) {
    const int64_t H = s->shape.H, G = s->shape.G;
    cudnn_descriptor length_q = lengths(g, s, ID_LENGTH_Q), length_k = lengths(g, s, ID_LENGTH_K);
    cudnn_descriptor q = operand(g, s, ID_Q, H, false, offsets(g, s, ID_Q));
    cudnn_descriptor k = operand(g, s, ID_K, G, true, offsets(g, s, ID_K));
    cudnn_descriptor v = operand(g, s, ID_V, G, false, offsets(g, s, ID_V));
    cudnn_descriptor o = operand(g, s, ID_O, H, false, offsets(g, s, ID_O));
    cudnn_descriptor lse = lse_tensor(g, s, offsets(g, s, ID_LSE));
    cudnn_descriptor hidden = cudnn_scalar(g, ID_HIDDEN, DATA_FLOAT);

    cudnn_descriptor x = cudnn_virtual(g, DATA_FLOAT, square(s), NULL);
    cudnn_matmul(g, q, k, x, length_q, length_k, NULL, true);
    x = score_op(g, s, POINTWISE_MUL, x, cudnn_scalar(g, ID_SCALE, DATA_FLOAT));
    x = hide_padding(g, s, x, hidden, length_q, length_k);
    x = hide_band(g, s, x, hidden);

    cudnn_descriptor max = cudnn_virtual(g, DATA_FLOAT, dense(s, H, 1), NULL);
    cudnn_descriptor sum = cudnn_virtual(g, DATA_FLOAT, dense(s, H, 1), NULL);
    cudnn_descriptor log_sum = cudnn_virtual(g, DATA_FLOAT, dense(s, H, 1), NULL);
    cudnn_reduce(g, REDUCE_MAX, x, max);
    cudnn_descriptor e = score_op(g, s, POINTWISE_EXP, score_op(g, s, POINTWISE_SUB, x, max), NULL);
    cudnn_reduce(g, REDUCE_ADD, e, sum);
    cudnn_pointwise(g, POINTWISE_LOG, DATA_FLOAT, -1, sum, NULL, NULL, log_sum);
    cudnn_pointwise(g, POINTWISE_ADD, DATA_FLOAT, -1, max, log_sum, NULL, lse);
    cudnn_descriptor p = cudnn_virtual(g, DATA_BF16, square(s), NULL);
    cudnn_pointwise(g, POINTWISE_DIV, DATA_FLOAT, -1, e, sum, NULL, p);
    cudnn_matmul(g, p, v, o, length_q, NULL, length_k, false);
}

/* out (dk or dv) = x' y, x scores-shaped: summed over the query heads of a key head where they are several. */
static void keys_gradient(cudnn_graph *g, const sdpa *s, cudnn_descriptor x, cudnn_descriptor y, int id, int heads_id,
                          cudnn_descriptor length_q, cudnn_descriptor length_k) {
    const int64_t H = s->shape.H, G = s->shape.G, d = s->shape.d, S = s->S, share = H / G;
    const cudnn_layout flipped = {{s->B, H, S, S}, {H * S * S, S * S, 1, S}};
    cudnn_descriptor xt = cudnn_virtual(g, DATA_BF16, flipped, NULL), ragged = offsets(g, s, id);
    cudnn_reshape(g, x, xt);
    cudnn_descriptor out = operand(g, s, id, G, false, ragged);
    if (!s->heads_apart) {
        cudnn_matmul(g, xt, y, out, length_k, NULL, length_q, false);
        return;
    }
    cudnn_descriptor heads = s->by_rows
                                 ? cudnn_tensor(g, heads_id, DATA_BF16, in_rows(s, H, d, s->ld[id] * share), ragged)
                                 : cudnn_virtual(g, DATA_BF16, dense(s, H, d), NULL);
    cudnn_matmul(g, xt, y, heads, length_k, NULL, length_q, false);
    cudnn_reduce(g, REDUCE_ADD, heads, out);
}

static void build_backward(cudnn_graph *g, const sdpa *s) {
    const int64_t H = s->shape.H, G = s->shape.G, d = s->shape.d;
    cudnn_descriptor length_q = lengths(g, s, ID_LENGTH_Q), length_k = lengths(g, s, ID_LENGTH_K);
    cudnn_descriptor key_offsets = offsets(g, s, ID_K), lse_offsets = offsets(g, s, ID_LSE);
    cudnn_descriptor q = operand(g, s, ID_Q, H, false, offsets(g, s, ID_Q));
    cudnn_descriptor kt = operand(g, s, ID_K, G, true, key_offsets);
    cudnn_descriptor vt = operand(g, s, ID_V, G, true, offsets(g, s, ID_V));
    cudnn_descriptor o = operand(g, s, ID_O, H, false, offsets(g, s, ID_O));
    cudnn_descriptor dout = operand(g, s, ID_DOUT, H, false, offsets(g, s, ID_DOUT));
    cudnn_descriptor lse = lse_tensor(g, s, lse_offsets);
    cudnn_descriptor hidden = cudnn_scalar(g, ID_HIDDEN, DATA_FLOAT), scale = cudnn_scalar(g, ID_SCALE, DATA_FLOAT);

    /* delta = rowsum(dout o) */
    const cudnn_layout product = {{s->B, H, s->S, d}, {H * s->S * d, s->S * d, H * d, 1}};
    cudnn_descriptor both = cudnn_virtual(g, DATA_FLOAT, product, NULL);
    cudnn_descriptor row_sum = cudnn_virtual(g, DATA_FLOAT, dense(s, H, 1), NULL);
    cudnn_layout delta_rows = {{s->B, H, s->S, 1}, {s->S * H, 1, H, 1}};
    cudnn_descriptor delta = cudnn_tensor(g, ID_DELTA, DATA_FLOAT, s->by_rows ? delta_rows : dense(s, H, 1),
                                          s->by_rows ? lse_offsets : NULL);
    cudnn_pointwise(g, POINTWISE_MUL, DATA_FLOAT, -1, dout, o, NULL, both);
    cudnn_reduce(g, REDUCE_ADD, both, row_sum);
    cudnn_pointwise(g, POINTWISE_MUL, DATA_FLOAT, -1, row_sum, cudnn_scalar(g, ID_ONE, DATA_FLOAT), NULL, delta);

    /* P, and dv = P' dout */
    cudnn_descriptor x = cudnn_virtual(g, DATA_FLOAT, square(s), NULL);
    cudnn_matmul(g, q, kt, x, length_q, length_k, NULL, false);
    x = score_op(g, s, POINTWISE_MUL, x, scale);
    x = score_op(g, s, POINTWISE_SUB, x, lse);
    x = hide_padding(g, s, x, hidden, length_q, length_k);
    cudnn_descriptor p = score_op(g, s, POINTWISE_EXP, hide_band(g, s, x, hidden), NULL);
    keys_gradient(g, s, p, dout, ID_DV, ID_DV_HEADS, length_q, length_k);

    /* dS, and dk = dS' q */
    cudnn_descriptor ds = cudnn_virtual(g, DATA_FLOAT, square(s), NULL);
    cudnn_matmul(g, dout, vt, ds, length_q, length_k, NULL, false);
    ds = score_op(g, s, POINTWISE_SUB, ds, delta);
    ds = score_op(g, s, POINTWISE_MUL, ds, p);
    ds = score_op(g, s, POINTWISE_MUL, ds, scale);
    keys_gradient(g, s, ds, q, ID_DK, ID_DK_HEADS, length_q, length_k);

    /* dq = dS k */
    cudnn_descriptor k = cudnn_virtual(g, DATA_BF16, in_rows(s, G, d, s->ld[ID_K]), key_offsets);
    cudnn_descriptor dq_offsets = offsets(g, s, ID_DQ), dq = operand(g, s, ID_DQ, H, false, dq_offsets);
    cudnn_descriptor sum =
        cudnn_tensor(g, ID_DQ_SUM, DATA_FLOAT, s->by_rows ? in_rows(s, H, d, s->ld[ID_DQ]) : dense(s, H, d),
                     s->by_rows ? dq_offsets : NULL);
    cudnn_reshape(g, kt, k);
    cudnn_matmul(g, ds, k, sum, length_q, NULL, length_k, false);
    cudnn_pointwise(g, POINTWISE_IDENTITY, DATA_FLOAT, -1, sum, NULL, NULL, dq);
}

static bool build_plan(const cudnn_api *api, cudnn_handle handle, const char *profile, const sdpa *s, bool backward,
                       cudnn_plan *plan, failure *f) {
    cudnn_graph g;
    cudnn_graph_begin(&g, api, f);
    if (backward) build_backward(&g, s);
    else build_forward(&g, s);
    if (cudnn_graph_finish(&g, handle, profile, plan)) return true;
    return fail_in(f, "attention %s, %lld documents of up to %lld rows, %d heads on %d, head_dim %d, window %d",
                   backward ? "backward" : "forward", (long long)s->B, (long long)s->S, s->shape.H, s->shape.G,
                   s->shape.d, s->shape.window);
}

/* ---- the workspace of the backward ---- */

typedef struct {
    size_t dq_sum, dk_heads, dv_heads, delta, dk, dv, engine, bytes; /* offsets */
} workspace_map;

static workspace_map map_workspace(const sdpa *s, bool copy_dk, bool copy_dv, size_t engine) {
    if (s->forward_only) return {0, 0, 0, 0, 0, 0, 0, (engine + 255) / 256 * 256};
    const size_t N = (size_t)s->shape.N, H = (size_t)s->shape.H, d = (size_t)s->shape.d, share = H / (size_t)s->shape.G;
    const size_t padded = s->by_rows ? N : (size_t)(s->B * s->S); /* rows of dq_sum and delta */
    const size_t dq_ld = s->by_rows ? (size_t)s->ld[ID_DQ] : H * d;
    workspace_map m;
    size_t at = 0;
    auto take = [&at](size_t bytes) {
        size_t from = at;
        at += (bytes + 255) / 256 * 256;
        return from;
    };
    bool heads = s->heads_apart && s->by_rows;
    m.dq_sum = take(padded * dq_ld * 4);
    m.dk_heads = take(heads ? N * (size_t)s->ld[ID_DK] * share * 2 : 0);
    m.dv_heads = take(heads ? N * (size_t)s->ld[ID_DV] * share * 2 : 0);
    m.delta = take(padded * H * 4);
    m.dk = take(copy_dk ? N * (size_t)s->ld[ID_DK] * 2 : 0);
    m.dv = take(copy_dv ? N * (size_t)s->ld[ID_DV] * 2 : 0);
    m.engine = take(engine);
    m.bytes = at;
    return m;
}

/* ---- device side ---- */

/* table[0][i]: length of document i; table[id][i]: cu[i] * row stride of operand id.  Documents at or beyond `docs`
 * have length 0 and begin at the end.  Grid: ceil((B + 1) / 256) blocks of 256 threads. */
typedef struct {
    int64_t of[OPERANDS + 1];
} operand_strides;
static __global__ void fill_kernel(int32_t *table, int pitch, operand_strides ld, const int32_t *cu, int docs, int B) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i > B) return;
    int start = cu[min(i, docs)];
    table[i] = i < docs ? cu[i + 1] - start : 0;
    for (int id = 1; id <= OPERANDS; id++) table[id * pitch + i] = (int32_t)(start * ld.of[id]);
}

/* to[row, 0 .. 8 width) = from[row, ...] for rows that belong to a document, 16 bytes a thread; *end is the element
 * behind the last one in `from`.  Grid: enough blocks of 256 threads for N width. */
static __global__ void copy_rows_kernel(uint4 *to, int64_t to_ld, const uint4 *from, int width, const int32_t *end) {
    int64_t at = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (at < *end / 8) to[at / width * to_ld + at % width] = from[at];
}

static bool cuda_done(const char *what, cudaError_t e, failure *f) {
    return e == cudaSuccess || fail(f, FAIL_MACHINE, "cuDNN attention, %s: %s", what, cudaGetErrorString(e));
}

/* ---- plans ---- */

static bool describe(sdpa *s, const attention_shape *shape, const attention_operands *layout, int major, failure *f) {
    const attention_rows *rows[OPERANDS + 1] = {NULL};
    rows[ID_Q] = &layout->q, rows[ID_K] = &layout->k, rows[ID_V] = &layout->v, rows[ID_O] = &layout->o;
    rows[ID_DOUT] = &layout->dout, rows[ID_DQ] = &layout->dq, rows[ID_DK] = &layout->dk, rows[ID_DV] = &layout->dv;
    if (shape->soft_cap > 0) return fail(f, FAIL_MACHINE, "cuDNN attention: no soft cap");
    if (shape->N < 1 || shape->G < 1 || shape->H % shape->G || shape->d % 16)
        return fail(f, FAIL_MACHINE, "cuDNN attention: %d rows, %d heads on %d, head_dim %d", shape->N, shape->H,
                    shape->G, shape->d);
    memset(s, 0, sizeof *s);
    s->shape = *shape;
    s->by_rows = major == 9 || major == 10; /* elsewhere ragged intermediate results are known to go wrong */
    s->heads_apart = shape->H != shape->G;
    s->forward_only = layout->dq.ld == 0;
    for (int id = ID_Q; id <= OPERANDS; id++) {
        s->ld[id] = rows[id] ? rows[id]->ld : shape->H;
        if (s->forward_only && id >= ID_DOUT) s->ld[id] = s->ld[ID_Q]; /* not used */
        if (s->heads_apart && (id == ID_DK || id == ID_DV)) s->ld[id] = (int64_t)shape->G * shape->d;
        if (s->ld[id] < 1 || s->ld[id] > INT32_MAX / shape->N)
            return fail(f, FAIL_MACHINE, "cuDNN attention: %d rows of stride %lld, expected below 2^31 elements",
                        shape->N, (long long)s->ld[id]);
    }
    if (s->ld[ID_DQ] != s->ld[ID_Q])
        return fail(f, FAIL_MACHINE,
                    "cuDNN attention backward: rows of dq have stride %lld, expected that of q's, %lld",
                    (long long)s->ld[ID_DQ], (long long)s->ld[ID_Q]);
    return true;
}

static bool build_pair(cudnn_attention *a, int docs, int longest, failure *f) {
    sdpa s = a->base;
    s.B = round_up(docs, 1);
    s.S = round_up(longest, 128);
    for (int i = 0; i < a->count; i++) {
        if (a->pairs[i].B != s.B || a->pairs[i].S != s.S) continue;
        a->current = i;
        return true;
    }
    plan_pair pair = {s.B, s.S, {}, {}};
    TRY(build_plan(&a->api, a->handle, NULL, &s, false, &pair.forward, f));
    if (!s.forward_only && !build_plan(&a->api, a->handle, NULL, &s, true, &pair.backward, f)) {
        cudnn_plan_free(&a->api, &pair.forward);
        return false;
    }
    size_t engine =
        (size_t)(pair.forward.workspace > pair.backward.workspace ? pair.forward.workspace : pair.backward.workspace);
    if (a->count > 0 && engine > a->engine) {
        cudnn_plan_free(&a->api, &pair.forward);
        cudnn_plan_free(&a->api, &pair.backward);
        return fail(f, FAIL_MACHINE, "cuDNN attention: %d documents of up to %d rows need %zu bytes, planned were %zu",
                    docs, longest, engine, a->engine);
    }
    if (a->count == 0) a->engine = engine;
    a->pairs = (plan_pair *)xrealloc(a->pairs, (size_t)(a->count + 1) * sizeof pair);
    a->current = a->count++;
    a->pairs[a->current] = pair;
    return true;
}

static bool open_all(cudnn_attention *a, const attention_shape *shape, const attention_operands *layout, int max_docs,
                     const char *library, failure *f) {
    int device = 0, major = 0;
    TRY(cuda_done("device", cudaGetDevice(&device), f));
    TRY(cuda_done("device", cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), f));
    TRY(describe(&a->base, shape, layout, major, f));
    a->copy_dk = layout->dk.ld != a->base.ld[ID_DK];
    a->copy_dv = layout->dv.ld != a->base.ld[ID_DV];
    a->max_docs = max_docs;
    a->pitch = (int)(round_up(max_docs, 1) + 4) / 4 * 4; /* B + 1 entries, 16-byte aligned */
    TRY(cudnn_api_open(&a->api, library, f));
    int status = a->api.Create(&a->handle);
    if (status) return fail(f, FAIL_MACHINE, "cuDNN %zu: %s", a->api.version, a->api.GetErrorString(status));
    TRY(cuda_done("tables", cudaMalloc((void **)&a->table, (OPERANDS + 1) * sizeof(int32_t) * (size_t)a->pitch), f));
    return build_pair(a, max_docs, shape->N, f);
}

bool cudnn_attention_open(cudnn_attention **out, const attention_shape *shape, const attention_operands *layout,
                          int max_docs, const char *library, failure *f) {
    *out = NULL;
    if (max_docs < 1) return fail(f, FAIL_MACHINE, "cuDNN attention: room for %d documents", max_docs);
    cudnn_attention *a = (cudnn_attention *)xcalloc(1, sizeof *a);
    if (!open_all(a, shape, layout, max_docs, library, f)) {
        cudnn_attention_close(a);
        return false;
    }
    *out = a;
    return true;
}

void cudnn_attention_close(cudnn_attention *a) {
    if (!a) return;
    for (int i = 0; i < a->count; i++) {
        cudnn_plan_free(&a->api, &a->pairs[i].forward);
        cudnn_plan_free(&a->api, &a->pairs[i].backward);
    }
    free(a->pairs);
    if (a->handle) a->api.Destroy(a->handle);
    cudaFree(a->table);
    cudnn_api_close(&a->api);
    free(a);
}

int cudnn_attention_version(const cudnn_attention *a) { return (int)a->api.version; }

/* The map of the largest pair, the first one; smaller pairs use the same places. */
static workspace_map workspace_of(const cudnn_attention *a) {
    sdpa s = a->base;
    s.B = a->pairs[0].B;
    s.S = a->pairs[0].S;
    return map_workspace(&s, a->copy_dk, a->copy_dv, a->engine);
}
size_t cudnn_attention_workspace(const cudnn_attention *a) { return workspace_of(a).bytes; }

bool cudnn_attention_prepare(cudnn_attention *a, const int32_t *cu, int docs, int longest, cudaStream_t stream,
                             failure *f) {
    if (docs < 1 || docs > a->max_docs || longest < 1 || longest > a->base.shape.N)
        return fail(f, FAIL_MACHINE, "cuDNN attention: %d documents of up to %d rows, opened for %d of %d", docs,
                    longest, a->max_docs, a->base.shape.N);
    TRY(build_pair(a, docs, longest, f));
    operand_strides ld;
    memcpy(ld.of, a->base.ld, sizeof ld.of);
    int B = (int)a->pairs[a->current].B;
    fill_kernel<<<(unsigned)(B + 256) / 256, 256, 0, stream>>>(a->table, a->pitch, ld, cu, docs, B);
    return cuda_done("lengths", cudaGetLastError(), f);
}

/* ---- execution ---- */

typedef struct {
    int count;
    int64_t ids[48];
    void *pointers[48];
    float scale, one, hidden, window;
} bindings;

static void bind(bindings *b, int64_t id, const void *pointer) {
    b->ids[b->count] = id;
    b->pointers[b->count++] = (void *)pointer;
}
/* An operand and its offsets */
static void bind_rows(bindings *b, const cudnn_attention *a, int id, const void *pointer) {
    bind(b, id, pointer);
    bind(b, OFFSET + id, a->table + id * a->pitch);
}
static void bind_common(bindings *b, const cudnn_attention *a, const attention_operands *x) {
    b->scale = a->base.shape.scale;
    b->one = 1;
    b->hidden = -INFINITY;
    b->window = (float)a->base.shape.window;
    bind_rows(b, a, ID_Q, x->q.data);
    bind_rows(b, a, ID_K, x->k.data);
    bind_rows(b, a, ID_V, x->v.data);
    bind_rows(b, a, ID_O, x->o.data);
    bind_rows(b, a, ID_LSE, x->lse);
    bind(b, ID_LENGTH_Q, a->table);
    bind(b, ID_LENGTH_K, a->table);
    bind(b, ID_SCALE, &b->scale);
    bind(b, ID_HIDDEN, &b->hidden);
    if (a->base.shape.window) bind(b, ID_WINDOW, &b->window);
}

static bool execute(cudnn_attention *a, const cudnn_plan *plan, const bindings *b, void *workspace, cudaStream_t stream,
                    failure *f) {
    int status = a->api.SetStream(a->handle, stream);
    if (status) return fail(f, FAIL_MACHINE, "cuDNN, stream: %s", a->api.GetErrorString(status));
    return cudnn_plan_run(&a->api, a->handle, plan, b->count, b->ids, b->pointers, workspace, f);
}

bool cudnn_attention_forward(cudnn_attention *a, const attention_operands *x, void *workspace, cudaStream_t stream,
                             failure *f) {
    bindings b = {};
    bind_common(&b, a, x);
    return execute(a, &a->pairs[a->current].forward, &b, workspace, stream, f);
}

static bool copy_rows(const cudnn_attention *a, const attention_rows *to, const void *from, int id, cudaStream_t stream,
                      failure *f) {
    const int docs = (int)a->pairs[a->current].B; /* the offset behind the last document: all that follow are equal */
    const int64_t width = a->base.ld[id] / 8, chunks = a->base.shape.N * width;
    copy_rows_kernel<<<(unsigned)((chunks + 255) / 256), 256, 0, stream>>>(
        (uint4 *)to->data, to->ld / 8, (const uint4 *)from, (int)width, a->table + id * a->pitch + docs);
    return cuda_done("copy of dk or dv", cudaGetLastError(), f);
}

bool cudnn_attention_backward(cudnn_attention *a, const attention_operands *x, void *workspace, cudaStream_t stream,
                              failure *f) {
    const workspace_map m = workspace_of(a);
    char *w = (char *)workspace;
    bindings b = {};
    bind_common(&b, a, x);
    bind_rows(&b, a, ID_DOUT, x->dout.data);
    bind_rows(&b, a, ID_DQ, x->dq.data);
    bind_rows(&b, a, ID_DK, a->copy_dk ? w + m.dk : x->dk.data);
    bind_rows(&b, a, ID_DV, a->copy_dv ? w + m.dv : x->dv.data);
    bind(&b, ID_DQ_SUM, w + m.dq_sum);
    bind(&b, ID_DELTA, w + m.delta);
    bind(&b, ID_ONE, &b.one);
    if (a->base.heads_apart && a->base.by_rows) {
        bind(&b, ID_DK_HEADS, w + m.dk_heads);
        bind(&b, ID_DV_HEADS, w + m.dv_heads);
    }
    TRY(execute(a, &a->pairs[a->current].backward, &b, w + m.engine, stream, f));
    if (a->copy_dk) TRY(copy_rows(a, &x->dk, w + m.dk, ID_DK, stream, f));
    if (a->copy_dv) TRY(copy_rows(a, &x->dv, w + m.dv, ID_DV, stream, f));
    return true;
}

bool cudnn_attention_probe(const attention_shape *shape, const attention_operands *layout, int docs, int longest,
                           int major, const char *library, const char *profile, int64_t workspace[2], failure *f) {
    sdpa s;
    cudnn_api api;
    TRY(describe(&s, shape, layout, major, f));
    s.B = round_up(docs, 1);
    s.S = round_up(longest, 128);
    TRY(cudnn_api_open(&api, library, f));
    bool done = true;
    for (int i = 0; i < 2 && done; i++) {
        cudnn_plan plan;
        done = build_plan(&api, NULL, profile, &s, i == 1, &plan, f);
        workspace[i] = plan.workspace;
        if (done) cudnn_plan_free(&api, &plan);
    }
    cudnn_api_close(&api);
    return done;
}
