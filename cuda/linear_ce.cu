/* linear_ce.cu - head and loss in one: logits = x W', nll[t] = log(sum(exp(logits[t]))) - logits[t, target[t]], for the
 * rows that have a target (the others get 0), and its gradient.  The logits never exist as a whole.
 *
 * Label rows are listed and gathered (used where they lie when every row has a target), then go through in chunks: the
 * chunk's logits, the loss kernel over them, for the gradient dlogits in place and the products for dx and dW.  With a
 * weight per row the loss kernel leaves dlogits behind, and the logits are made once; linear_ce_bwd makes them again.
 * They are rounded to the compute type between, as they are when the head is an op of its own. */
#include "cuda.cuh"
#include "product.h"

enum { MOST_ROWS = 8192, LEAST_ROWS = 256 };
static const int64_t CHUNK_BYTES = (int64_t)1 << 28; /* of logits, about: enough rows to fill the card, little memory */

static int64_t chunk_rows(int64_t N, int64_t V, dtype type) {
    int64_t rows = CHUNK_BYTES / (V * (int64_t)dtype_size(type)) / LEAST_ROWS * LEAST_ROWS;
    if (rows > MOST_ROWS) rows = MOST_ROWS;
    if (rows < LEAST_ROWS) rows = LEAST_ROWS;
    return rows < N ? rows : N;
}

/* Rows of a multiple of 16 bytes. */
static int64_t padded(int64_t n) { return (n + 7) / 8 * 8; }

/* The scratch of either op. Per label row its number, target, nll or dnll, lse and weight; the rows of x and dx of a
 * chunk, and its logits. */
typedef struct {
    int32_t *list, *target;
    float *nll, *lse, *weight;
    tensor x, dx, logits;
    int64_t chunk;
} work;

static tensor make_rows(char **scratch, dtype type, int64_t rows, int64_t cols) {
    tensor t = {};
    t.type = type, t.rows = rows, t.cols = cols, t.ld = padded(cols);
    t.data = cuda_take(scratch, (size_t)(rows * t.ld) * dtype_size(type));
    return t;
}

/* Lays the scratch out; with scratch NULL the addresses count its bytes. */
static char *lay_out(work *w, char *scratch, dtype type, int64_t N, int64_t D, int64_t V) {
    w->chunk = chunk_rows(N, V, type);
    w->list = (int32_t *)cuda_take(&scratch, (size_t)N * 4);
    w->target = (int32_t *)cuda_take(&scratch, (size_t)N * 4);
    w->nll = (float *)cuda_take(&scratch, (size_t)N * 4);
    w->lse = (float *)cuda_take(&scratch, (size_t)N * 4);
    w->weight = (float *)cuda_take(&scratch, (size_t)N * 4);
    w->x = make_rows(&scratch, type, w->chunk, D);
    w->dx = make_rows(&scratch, type, w->chunk, D);
    w->logits = make_rows(&scratch, type, w->chunk, V);
    return scratch;
}

static size_t scratch_bytes(const graph *g, vid x, vid W) {
    work w;
    const graph_value *value = &g->values[x];
    return (size_t)(uintptr_t)lay_out(&w, NULL, value->type, value->rows, value->cols, g->values[W].rows);
}

size_t cuda_scratch_linear_ce(const graph *g, const graph_op *op) { return scratch_bytes(g, op->in[0], op->in[1]); }
size_t cuda_scratch_linear_ce_bwd(const graph *g, const graph_op *op) { return scratch_bytes(g, op->in[1], op->in[2]); }

/* list: the rows t < n with target[t] >= 0, in order; target_of: their targets.  One block of 1024 goes through the
 * rows 1024 at a time; a row's place is the number of label rows before it: in its warp by ballot, of the warps by a
 * scan. */
static __global__ void list_kernel(int32_t *list, int32_t *target_of, const int32_t *target, int n, int most) {
    __shared__ int counts[32], before;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) before = 0;
    for (int first = 0; first < n; first += 1024) {
        int t = first + threadIdx.x, value = t < n ? target[t] : -1;
        unsigned votes = __ballot_sync(0xFFFFFFFFu, value >= 0);
        if (lane == 0) counts[warp] = __popc(votes);
        __syncthreads();
        int at = before + __popc(votes & ((1u << lane) - 1));
        for (int w = 0; w < warp; w++) at += counts[w];
        if (value >= 0 && at < most) list[at] = t, target_of[at] = value;
        __syncthreads();
        if (threadIdx.x == 1023) before = at + (value >= 0);
        __syncthreads();
    }
}

/* to[i] = from[list[i]].  Grid: ceil(n / 256). */
static __global__ void gather_floats_kernel(float *to, const float *from, const int32_t *list, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) to[i] = from[list[i]];
}

/* nll[list[i]] (+)= value[i], lse[list[i]] = value2[i].  Grid: ceil(n / 256). */
static __global__ void scatter_floats_kernel(float *nll, const float *value, float *lse, const float *value2,
                                             const int32_t *list, int n, bool add) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    int t = list[i];
    nll[t] = add ? nll[t] + value[i] : value[i];
    lse[t] = value2[i];
}

/* to[list[i]] = from[i], rows of `vectors` vectors of W elements.  Grid: ceil(n vectors / 256). */
template <typename T, int W>
static __global__ void scatter_rows_kernel(span<T> to, span<const T> from, const int32_t *list, int64_t n,
                                           int vectors) {
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x, row = i / vectors;
    int column = (int)(i % vectors) * W;
    if (row < n) store<T, W>(to.data + list[row] * to.ld + column, load<T, W>(from.data + row * from.ld + column));
}

static void scatter_rows(const tensor *to, const tensor *from, const int32_t *list, int64_t n) {
    cuda_with_type(to, [&](auto zero) {
        using T = decltype(zero);
        cuda_with_width<T>(cuda_is_wide<T>(to) && cuda_is_wide<T>(from), [&](auto W) {
            int vectors = (int)(to->cols / W());
            scatter_rows_kernel<T, W()><<<(unsigned)cuda_ceil(n * vectors, 256), 256, 0, cuda_stream()>>>(
                {(T *)to->data, to->ld}, {(const T *)from->data, from->ld}, list, n, vectors);
        });
    });
}

static unsigned blocks(int64_t n) { return (unsigned)cuda_ceil(n, 256); }

/* Rows `c` on of t as a tensor of their own. */
static tensor rows_from(const tensor *t, int64_t c, int64_t rows) {
    tensor part = *t;
    part.data = matrix_at(t, c, 0).data;
    part.rows = rows;
    return part;
}

/* The chunk's rows of x: where they lie, or gathered. */
static tensor open_chunk(const work *w, const tensor *x, int64_t c, int64_t rows, bool all) {
    if (all) return rows_from(x, c, rows);
    tensor part = rows_from(&w->x, 0, rows);
    cuda_gather_rows(&part, x, w->list + c, rows);
    return part;
}

static tensor chunk_logits(const work *w, const tensor *x, const tensor *W, int64_t rows) {
    tensor logits = rows_from(&w->logits, 0, rows);
    product_nt(matrix_at(&logits, 0, 0), matrix_at(x, 0, 0), matrix_at(W, 0, 0), rows, W->rows, W->cols, 1, 0, NULL);
    return logits;
}

static void list_labels(const work *w, const int32_t *target, int64_t n, int64_t labels) {
    list_kernel<<<1, 1024, 0, cuda_stream()>>>(w->list, w->target, target, (int)n, (int)labels);
}

static void gather_floats(float *to, const float *from, const work *w, int64_t labels) {
    if (labels) gather_floats_kernel<<<blocks(labels), 256, 0, cuda_stream()>>>(to, from, w->list, (int)labels);
}

static void clear_rows(const tensor *t, int64_t rows) {
    size_t size = dtype_size(t->type);
    cudaMemset2DAsync(t->data, (size_t)t->ld * size, 0, (size_t)t->cols * size, (size_t)rows, cuda_stream());
}

/* Gradients that are wanted, and W. */
typedef struct {
    const tensor *dx, *dW, *W;
} gradients;

/* Rows that no chunk writes. */
static void begin_gradients(const gradients *to, int64_t n, int64_t labels) {
    if (to->dx->data && labels < n) clear_rows(to->dx, n);
    if (to->dW->data && !to->dW->add && !labels) clear_rows(to->dW, to->dW->rows);
}

/* From the dlogits of chunk rows c on: dx where its rows lie, and dW. x: the chunk's rows. */
static void add_gradients(const gradients *to, const work *w, const tensor *dlogits, const tensor *x, int64_t c,
                          bool all) {
    const tensor *W = to->W, *dW = to->dW;
    int64_t rows = dlogits->rows;
    if (to->dx->data) {
        tensor part = all ? rows_from(to->dx, c, rows) : rows_from(&w->dx, 0, rows);
        product_nn(matrix_at(&part, 0, 0), matrix_at(dlogits, 0, 0), matrix_at(W, 0, 0), rows, W->rows, W->cols, 1, 0);
        if (!all) scatter_rows(to->dx, &part, w->list + c, rows);
    }
    if (dW->data)
        product_tn(matrix_at(dW, 0, 0), matrix_at(dlogits, 0, 0), matrix_at(x, 0, 0), rows, W->rows, W->cols, 1,
                   dW->add || c > 0);
}

void cuda_op_linear_ce(const kernel_call *call) {
    const tensor *in = call->in, *x = &in[0], *W = &in[1], *out = call->out;
    const int32_t *target = (const int32_t *)in[2].data;
    const float *weight = call->batch->training ? (const float *)in[3].data : NULL;
    float *nll = (float *)out[0].data, *lse = (float *)out[1].data, *to_nll = nll, *to_lse = lse;
    int64_t n = call->batch->rows, labels = call->batch->labels;
    bool all = labels == n, add = out[0].add;
    gradients to = {&out[2], &out[3], W};
    work w;
    lay_out(&w, (char *)call->scratch, x->type, x->rows, x->cols, W->rows);
    if (weight) begin_gradients(&to, n, labels);
    if (!all) {
        cudaMemsetAsync(lse, 0, (size_t)n * 4, cuda_stream());
        if (!add) cudaMemsetAsync(nll, 0, (size_t)n * 4, cuda_stream());
        list_labels(&w, target, n, labels);
        if (weight) gather_floats(w.weight, weight, &w, labels), weight = w.weight;
        target = w.target, to_nll = w.nll, to_lse = w.lse;
    }
    for (int64_t c = 0; c < labels; c += w.chunk) {
        int64_t rows = labels - c < w.chunk ? labels - c : w.chunk;
        tensor part = open_chunk(&w, x, c, rows, all), logits = chunk_logits(&w, &part, W, rows);
        cuda_ce_chunk(&logits, target + c, to_nll + c, to_lse + c, all && add, weight ? weight + c : NULL, rows);
        if (weight) add_gradients(&to, &w, &logits, &part, c, all);
    }
    if (!all && labels)
        scatter_floats_kernel<<<blocks(labels), 256, 0, cuda_stream()>>>(nll, w.nll, lse, w.lse, w.list, (int)labels,
                                                                         add);
}

void cuda_op_linear_ce_bwd(const kernel_call *call) {
    const tensor *in = call->in, *x = &in[1], *W = &in[2];
    const int32_t *target = (const int32_t *)in[3].data;
    const float *dnll = (const float *)in[0].data, *lse = (const float *)in[4].data;
    int64_t n = call->batch->rows, labels = call->batch->labels;
    bool all = labels == n;
    gradients to = {&call->out[0], &call->out[1], W};
    work w;
    lay_out(&w, (char *)call->scratch, x->type, x->rows, x->cols, W->rows);
    begin_gradients(&to, n, labels);
    if (!all) {
        list_labels(&w, target, n, labels);
        gather_floats(w.nll, dnll, &w, labels);
        gather_floats(w.lse, lse, &w, labels);
        target = w.target, dnll = w.nll, lse = w.lse;
    }
    for (int64_t c = 0; c < labels; c += w.chunk) {
        int64_t rows = labels - c < w.chunk ? labels - c : w.chunk;
        tensor part = open_chunk(&w, x, c, rows, all), logits = chunk_logits(&w, &part, W, rows);
        cuda_ce_bwd(&logits, &logits, target + c, lse + c, dnll + c, rows);
        add_gradients(&to, &w, &logits, &part, c, all);
    }
}
