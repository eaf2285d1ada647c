/* attention_op.cu - the ops attention and attention_bwd: our own kernels on wgmma where there are such, else cuDNN
 * where it is fast and has an engine, else our own on mma.sync (attention.cu), else the simple kernels below, which
 * take any head width and float32.
 *
 * cuDNN's plans are compiled when the scratch of the program is sized (ops are asked for it before a run begins), one
 * handle per shape and set of row strides; a run only looks them up.  A micro-batch of more documents than planned for
 * takes our own kernels.
 *
 * Where rope turned q and k, dq and dk turn back behind every backward (attention_turn()), ours included. */
#include "attention.h"
#include "cuda.cuh"
#include "cudnn_attention.h"
#include "product.h"

#include "base/array.h"
extern "C" {
#include "base/log.h"
}

namespace {
enum { LANES = 32, WIDEST = 256, WARPS = 4, MOST_HANDLES = 32 };
/* Rows of a document, on average, below which our own backward on mma.sync is the faster one: 1.4 x at 135, 0.45 x at
 * 2048. */
enum { SHORT = 256 };
enum { ROWS_Q, ROWS_K, ROWS_V, ROWS_O, ROWS_DO, ROWS_DQ, ROWS_DK, ROWS_DV, ROWS_COUNT };

struct handle {
    attention_shape shape;
    int64_t ld[ROWS_COUNT]; /* row strides; of the last four 0: no backward */
    cudnn_attention *cudnn; /* NULL: cuDNN does not take this shape */
    int most_docs;
};

struct {
    handle handles[MOST_HANDLES];
    int n;
    bool said; /* why there is no cuDNN */
    bool own;  /* cuDNN is not asked */
} state;

/* ---- simple kernels: T float or bf16, any head width up to WIDEST, sums in float ---- */

template <typename T> struct simple_operands {
    span<const T> q, k, v, o, dout;
    span<T> out, dq, dk, dv;
    float *lse;
    const int32_t *bounds;
    int N, H, share, d, window;
    float scale;
};

struct lanes { /* a head's row over a warp: element i * LANES + lane */
    float x[WIDEST / LANES];
};

template <typename T> __device__ lanes load_row(span<const T> rows, int64_t row, int head, int d) {
    lanes r;
    const T *at = rows.data + row * rows.ld + (int64_t)head * d;
#pragma unroll
    for (int i = 0; i < WIDEST / LANES; i++) {
        int j = i * LANES + (int)threadIdx.x;
        r.x[i] = j < d ? to_float(at[j]) : 0;
    }
    return r;
}

template <typename T> __device__ void store_row(span<T> rows, int64_t row, int head, int d, const lanes &r, float by) {
    T *at = rows.data + row * rows.ld + (int64_t)head * d;
#pragma unroll
    for (int i = 0; i < WIDEST / LANES; i++) {
        int j = i * LANES + (int)threadIdx.x;
        if (j < d) at[j] = from_float<T>(r.x[i] * by);
    }
}

__device__ float dot(const lanes &a, const lanes &b) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < WIDEST / LANES; i++) sum += a.x[i] * b.x[i];
    return group_sum(sum, LANES, nullptr);
}

__device__ void add_scaled(lanes &to, const lanes &x, float by) {
#pragma unroll
    for (int i = 0; i < WIDEST / LANES; i++) to.x[i] += by * x.x[i];
}

/* A warp computes one row of o for one head, key by key with a running maximum.  Grid: (ceil(N / WARPS), H), blocks of
 * 32 x WARPS. */
template <typename T> __global__ void simple_forward(simple_operands<T> a) {
    int row = (int)(blockIdx.x * WARPS + threadIdx.y), h = (int)blockIdx.y, g = h / a.share;
    if (row >= a.bounds[2 * a.N]) return;
    int first = a.bounds[row];
    if (a.window && row - a.window + 1 > first) first = row - a.window + 1;
    lanes q = load_row(a.q, row, h, a.d), o = {};
    float max = -INFINITY, sum = 0;
    for (int j = first; j <= row; j++) {
        float s = a.scale * dot(q, load_row(a.k, j, g, a.d)), larger = fmaxf(max, s);
        float shrink = expf(max - larger), p = expf(s - larger);
#pragma unroll
        for (int i = 0; i < WIDEST / LANES; i++) o.x[i] *= shrink;
        add_scaled(o, load_row(a.v, j, g, a.d), p);
        sum = sum * shrink + p;
        max = larger;
    }
    store_row(a.out, row, h, a.d, o, 1 / sum);
    if (threadIdx.x == 0) a.lse[(int64_t)row * a.H + h] = max + logf(sum);
}

/* p and ds of one query row and key row. */
__device__ void gradient_of_score(float *p, float *ds, const lanes &q, const lanes &k, const lanes &v,
                                  const lanes &dout, float delta, float lse, float scale) {
    *p = expf(scale * dot(q, k) - lse);
    *ds = *p * (dot(dout, v) - delta) * scale;
}

/* A warp computes one row of dq for one head.  Grid as simple_forward. */
template <typename T> __global__ void simple_dq(simple_operands<T> a) {
    int row = (int)(blockIdx.x * WARPS + threadIdx.y), h = (int)blockIdx.y, g = h / a.share;
    if (row >= a.bounds[2 * a.N]) return;
    int first = a.bounds[row];
    if (a.window && row - a.window + 1 > first) first = row - a.window + 1;
    lanes q = load_row(a.q, row, h, a.d), dout = load_row(a.dout, row, h, a.d), dq = {};
    float delta = dot(dout, load_row(a.o, row, h, a.d)), lse = a.lse[(int64_t)row * a.H + h];
    for (int j = first; j <= row; j++) {
        float p, ds;
        lanes k = load_row(a.k, j, g, a.d);
        gradient_of_score(&p, &ds, q, k, load_row(a.v, j, g, a.d), dout, delta, lse, a.scale);
        add_scaled(dq, k, ds);
    }
    store_row(a.dq, row, h, a.d, dq, 1);
}

/* A warp computes one row of dk and dv for one key head: over its query heads and the rows that see it, in order.
 * Grid: (ceil(N / WARPS), G). */
template <typename T> __global__ void simple_dkv(simple_operands<T> a) {
    int row = (int)(blockIdx.x * WARPS + threadIdx.y), g = (int)blockIdx.y;
    if (row >= a.bounds[2 * a.N]) return;
    int end = a.bounds[a.N + row];
    if (a.window && row + a.window < end) end = row + a.window;
    lanes k = load_row(a.k, row, g, a.d), v = load_row(a.v, row, g, a.d), dk = {}, dv = {};
    for (int h = g * a.share; h < (g + 1) * a.share; h++)
        for (int i = row; i < end; i++) {
            float p, ds;
            lanes q = load_row(a.q, i, h, a.d), dout = load_row(a.dout, i, h, a.d);
            float delta = dot(dout, load_row(a.o, i, h, a.d));
            gradient_of_score(&p, &ds, q, k, v, dout, delta, a.lse[(int64_t)i * a.H + h], a.scale);
            add_scaled(dv, dout, p);
            add_scaled(dk, q, ds);
        }
    store_row(a.dk, row, g, a.d, dk, 1);
    store_row(a.dv, row, g, a.d, dv, 1);
}

template <typename T> span<const T> read_span(const attention_rows *r) { return {(const T *)r->data, r->ld}; }
template <typename T> span<T> write_span(const attention_rows *r) { return {(T *)r->data, r->ld}; }

template <typename T>
void simple(const attention_shape *s, const attention_operands *x, const int32_t *bounds, bool back) {
    simple_operands<T> a = {read_span<T>(&x->q),
                            read_span<T>(&x->k),
                            read_span<T>(&x->v),
                            read_span<T>(&x->o),
                            read_span<T>(&x->dout),
                            write_span<T>(&x->o),
                            write_span<T>(&x->dq),
                            write_span<T>(&x->dk),
                            write_span<T>(&x->dv),
                            x->lse,
                            bounds,
                            s->N,
                            s->H,
                            s->H / s->G,
                            s->d,
                            s->window,
                            s->scale};
    dim3 block(LANES, WARPS), grid((unsigned)cuda_ceil(s->N, WARPS), (unsigned)s->H);
    if (!back) {
        simple_forward<T><<<grid, block, 0, cuda_stream()>>>(a);
        return;
    }
    simple_dq<T><<<grid, block, 0, cuda_stream()>>>(a);
    grid.y = (unsigned)s->G;
    simple_dkv<T><<<grid, block, 0, cuda_stream()>>>(a);
}

/* ---- cuDNN ---- */

bool same_shape(const attention_shape *a, const attention_shape *b) {
    return a->N == b->N && a->H == b->H && a->G == b->G && a->d == b->d && a->window == b->window &&
           a->scale == b->scale;
}

/* Forward asks for the first four strides only. */
handle *find_handle(const attention_shape *shape, const int64_t *ld, int n) {
    for (int i = 0; i < state.n; i++) {
        handle *h = &state.handles[i];
        if (same_shape(&h->shape, shape) && memcmp(h->ld, ld, (size_t)n * sizeof *ld) == 0) return h;
    }
    return NULL;
}

attention_shape shape_of(int64_t N, int64_t width, int64_t kv_width, const op_attr *attr) {
    attention_shape s = {};
    s.N = (int)N, s.d = attr->head_dim, s.window = attr->window, s.scale = attr->scale;
    s.H = (int)(width / s.d), s.G = (int)(kv_width / s.d);
    return s;
}

bool strides_fit(const int64_t *ld) {
    for (int i = 0; i < ROWS_COUNT; i++)
        if (ld[i] % 8) return false;
    return true;
}

/* cuDNN's kernels are faster than those on mma.sync on these cards, and there its work space does not grow with
 * documents x rows; those on wgmma are the fastest. A program of few rows does not earn back the compilation of cuDNN's
 * plans. */
bool cudnn_pays(const attention_shape *s, const int64_t *ld) {
    if (state.own || (attention_on_wgmma(s) && strides_fit(ld))) return false;
    return (cuda_arch() / 10 == 9 || cuda_arch() / 10 == 10) && s->N >= 256 && s->d % 8 == 0;
}

void open_handle(handle *h) {
    attention_operands x = {};
    attention_rows *rows[ROWS_COUNT] = {&x.q, &x.k, &x.v, &x.o, &x.dout, &x.dq, &x.dk, &x.dv};
    for (int i = 0; i < ROWS_COUNT; i++) rows[i]->ld = h->ld[i];
    if (h->ld[ROWS_DQ] != h->ld[ROWS_Q]) x.dq.ld = 0; /* cuDNN's backward has one row stride for both */
    failure why = {};
    h->most_docs = h->shape.N / 16 > 64 ? h->shape.N / 16 : h->shape.N < 64 ? h->shape.N : 64;
    if (!cudnn_attention_open(&h->cudnn, &h->shape, &x, h->most_docs, NULL, &why) && !state.said) {
        state.said = true;
        log_info("attention by own kernels: %s", why.text);
    }
}

/* Row strides of a forward or backward op; of a forward op those of the gradients come from the first backward op of
 * its kind in the program. */
void strides_of(int64_t *ld, const graph *g, const graph_op *op) {
    bool back = op->kind == OP_attention_bwd;
    for (int i = 0; i < 3; i++) ld[ROWS_Q + i] = value_ld(g, op->in[(back ? ATB_Q : 0) + i]);
    ld[ROWS_O] = value_ld(g, back ? op->in[ATB_O] : op->out[0]);
    const graph_op *grad = back ? op : NULL, *end = g->ops + arrlen(g->ops);
    for (const graph_op *o = g->ops; !grad && o < end; o++)
        if (o->kind == OP_attention_bwd && o->attr.window == op->attr.window) grad = o;
    ld[ROWS_DO] = grad ? value_ld(g, grad->in[ATB_DO]) : ld[ROWS_O];
    for (int i = 0; i < 3; i++) ld[ROWS_DQ + i] = grad ? value_ld(g, grad->out[ATB_DQ + i]) : ld[ROWS_Q + i];
    if (grad && grad->in[ATB_POS]) ld[ROWS_DQ] = ld[ROWS_Q]; /* apart_bytes() */
}

/* cuDNN writes dq with q's row stride. Where the op's has another and is to be turned back, it is written into the
 * scratch, and from there turned into its place. */
size_t apart_bytes(const handle *h, bool turned, int64_t q_ld, int64_t dq_ld) {
    if (!h || !h->cudnn || !turned || dq_ld == q_ld) return 0;
    return cuda_round((size_t)(h->shape.N * q_ld) * sizeof(bf16));
}

size_t scratch_bytes(const graph *g, const graph_op *op) {
    bool back = op->kind == OP_attention_bwd;
    const graph_value *q = &g->values[op->in[back ? ATB_Q : 0]], *k = &g->values[op->in[back ? ATB_K : 1]];
    attention_shape shape = shape_of(q->rows, q->cols, k->cols, &op->attr);
    int64_t ld[ROWS_COUNT];
    strides_of(ld, g, op);
    handle *h = find_handle(&shape, ld, ROWS_COUNT);
    if (!h && q->type == DTYPE_BF16 && cudnn_pays(&shape, ld) && state.n < MOST_HANDLES) {
        h = &state.handles[state.n++];
        *h = {};
        h->shape = shape;
        memcpy(h->ld, ld, sizeof ld);
        open_handle(h);
    }
    size_t most = 0; /* of all: a forward op may find a handle that another program's strides were opened for */
    for (int i = 0; i < state.n; i++) {
        size_t bytes = state.handles[i].cudnn ? cudnn_attention_workspace(state.handles[i].cudnn) : 0;
        if (bytes > most) most = bytes;
    }
    bool own = back && (shape.d == 64 || shape.d == 128 || shape.d == 256);
    bool turned = back && op->in[ATB_POS];
    if (own && attention_workspace(&shape) > most) most = attention_workspace(&shape);
    size_t dq = apart_bytes(h, turned, ld[ROWS_Q], value_ld(g, op->out[ATB_DQ]));
    return cuda_round(attention_bounds_size(shape.N)) + dq + most;
}

/* ---- the choice ---- */

attention_rows rows_at(const tensor *t) { return {t->data, t->ld}; }

/* false, nothing done: cuDNN cannot take this micro-batch. An error in running goes to f. */
bool by_cudnn(handle *h, const batch_info *b, const attention_operands *x, const int32_t *cu, void *workspace,
              bool back, failure *f) {
    failure why = {};
    if (!h || !h->cudnn || b->docs > h->most_docs) return false;
    if (back && (x->dq.ld != x->q.ld || b->rows < (int64_t)SHORT * b->docs)) return false;
    if (!cudnn_attention_prepare(h->cudnn, cu, b->docs, b->longest, cuda_stream(), &why)) {
        log_warning("attention by own kernels from here on: %s", why.text);
        h->most_docs = 0;
        return false;
    }
    (void)(back ? cudnn_attention_backward(h->cudnn, x, workspace, cuda_stream(), f)
                : cudnn_attention_forward(h->cudnn, x, workspace, cuda_stream(), f));
    return true;
}

/* Own tensor-core kernels take 16-byte rows and three head widths. */
bool own_takes(const attention_shape *s, const attention_operands *x, bool back) {
    const attention_rows *rows[ROWS_COUNT] = {&x->q, &x->k, &x->v, &x->o, &x->dout, &x->dq, &x->dk, &x->dv};
    if (s->d != 64 && s->d != 128 && s->d != 256) return false;
    for (int i = 0; i < (back ? ROWS_COUNT : ROWS_DO); i++)
        if ((uintptr_t)rows[i]->data % 16 || rows[i]->ld % 8) return false;
    return true;
}

void run(const kernel_call *call, const attention_operands *x, const tensor *q, const tensor *k, const int32_t *cu,
         bool back) {
    failure *f = cuda_failure();
    const batch_info *b = call->batch;
    attention_shape shape = shape_of(q->rows, q->cols, k->cols, &call->op->attr);
    attention_operands cudnn = *x;
    if (x->pos) cudnn.dq.ld = x->q.ld;
    const int64_t ld[ROWS_COUNT] = {x->q.ld, x->k.ld, x->v.ld, x->o.ld, x->dout.ld, cudnn.dq.ld, x->dk.ld, x->dv.ld};
    char *scratch = (char *)call->scratch;
    int32_t *bounds = (int32_t *)cuda_take(&scratch, attention_bounds_size(shape.N));
    handle *h = q->type == DTYPE_BF16 ? find_handle(&shape, ld, back ? ROWS_COUNT : ROWS_DO) : NULL;
    if (f->kind != FAIL_NONE) return;
    size_t apart = apart_bytes(h, x->pos, x->q.ld, x->dq.ld);
    if (apart) cudnn.dq.data = cuda_take(&scratch, apart);
    shape.N = b->rows;
    if (by_cudnn(h, b, &cudnn, cu, scratch, back, f)) {
        if (x->pos && f->kind == FAIL_NONE) attention_turn(&shape, &cudnn, x->dq, DTYPE_BF16, cuda_stream(), f);
        return;
    }
    if (!attention_bounds(bounds, cu, b->docs, shape.N, cuda_stream(), f)) return;
    if (q->type == DTYPE_BF16 && own_takes(&shape, x, back)) {
        (void)(back ? attention_backward(&shape, x, bounds, scratch, cuda_stream(), f)
                    : attention_forward(&shape, x, bounds, cuda_stream(), f));
        return;
    }
    if (q->type == DTYPE_BF16) simple<bf16>(&shape, x, bounds, back);
    else simple<float>(&shape, x, bounds, back);
    if (x->pos) attention_turn(&shape, x, x->dq, q->type, cuda_stream(), f);
}
} // namespace

size_t cuda_scratch_attention(const graph *g, const graph_op *op) { return scratch_bytes(g, op); }
size_t cuda_scratch_attention_bwd(const graph *g, const graph_op *op) { return scratch_bytes(g, op); }

void cuda_op_attention(const kernel_call *call) {
    const tensor *in = call->in, *out = call->out;
    assert(call->op->attr.head_dim <= WIDEST);
    attention_operands x = {};
    x.q = rows_at(&in[0]), x.k = rows_at(&in[1]), x.v = rows_at(&in[2]), x.o = rows_at(&out[0]);
    x.lse = (float *)out[1].data;
    run(call, &x, &in[0], &in[1], (const int32_t *)in[3].data, false);
}

void cuda_op_attention_bwd(const kernel_call *call) {
    const tensor *in = call->in, *out = call->out;
    assert(call->op->attr.head_dim <= WIDEST);
    attention_operands x = {};
    x.q = rows_at(&in[ATB_Q]), x.k = rows_at(&in[ATB_K]), x.v = rows_at(&in[ATB_V]), x.o = rows_at(&in[ATB_O]);
    x.lse = (float *)in[ATB_LSE].data;
    x.dout = rows_at(&in[ATB_DO]);
    x.dq = rows_at(&out[ATB_DQ]), x.dk = rows_at(&out[ATB_DK]), x.dv = rows_at(&out[ATB_DV]);
    x.pos = (const int32_t *)in[ATB_POS].data, x.freq = (const float *)in[ATB_FREQ].data;
    x.dot = (float *)out[ATB_DOT].data;
    run(call, &x, &in[ATB_Q], &in[ATB_K], (const int32_t *)in[ATB_CU].data, true);
}

extern "C" void cuda_attention_set_own(bool own) {
    assert(!state.n); /* before a program's scratch is sized */
    state.own = own;
}

extern "C" void cuda_attention_close(void) {
    for (int i = 0; i < state.n; i++) cudnn_attention_close(state.handles[i].cudnn);
    state = {};
}
