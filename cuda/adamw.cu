/* adamw.cu - the optimizer step over all trainable params: norm, clipping, AdamW and the working copies.
 *
 * Three launches whatever the number of params: sums of squares of pieces of all gradients (in double), their sum in a
 * fixed order with the clip factor, and one update over all pieces.  When the norm is not finite the update does
 * nothing.  The host waits once, for the norm.
 * Among ranks that have pieces of the gradients the sum is one over all of them, through the host.
 * A device table of params and pieces is made when its list changes and lives until cuda_adamw_close. */
#include "cuda.cuh"

namespace {
enum { THREADS = 256, V = 4, ROUNDS = 8, PIECE = THREADS * V * ROUNDS, SUM_THREADS = 1024 };

/* Piece i of a param is its elements [i * PIECE, (i + 1) * PIECE). */
struct piece {
    int32_t group, index;
};

struct norm_result {
    double squares, norm;
    float scale; /* of gradients */
    int32_t finite;
};

struct param_table {
    optim_group *host; /* what it was made from */
    int n;
    optim_group *groups; /* device [n] */
    piece *pieces;       /* device [n_pieces] */
    double *squares;     /* device [n_pieces] */
    norm_result *result; /* device */
    int n_pieces;
};

/* Of the step, and of publishing, whose list may be another one. */
param_table for_step, for_publish;

/* Four elements at i, or fewer at the end of a param. */
__device__ __forceinline__ float4 load4(const float *x, int64_t i, int64_t n) {
    if (i + V <= n) return *reinterpret_cast<const float4 *>(x + i);
    return {x[i], i + 1 < n ? x[i + 1] : 0, i + 2 < n ? x[i + 2] : 0, 0};
}
__device__ __forceinline__ void store4(float *x, int64_t i, int64_t n, float4 v) {
    if (i + V <= n) {
        *reinterpret_cast<float4 *>(x + i) = v;
        return;
    }
    x[i] = v.x;
    if (i + 1 < n) x[i + 1] = v.y;
    if (i + 2 < n) x[i + 2] = v.z;
}

/* One block: one piece's sum of squares. Grid: all pieces. Shared: 256 bytes. Reads 4 bytes per element. */
__global__ void __launch_bounds__(THREADS)
    squares_kernel(double *squares, const optim_group *groups, const piece *pieces) {
    __shared__ double shared[32];
    piece p = pieces[blockIdx.x];
    const float *grad = groups[p.group].grad;
    int64_t n = groups[p.group].n, first = (int64_t)p.index * PIECE + threadIdx.x * V;
    float4 g[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        int64_t i = first + r * (THREADS * V);
        g[r] = i < n ? load4(grad, i, n) : float4{0, 0, 0, 0};
    }
    double sum = 0;
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        sum += (double)g[r].x * (double)g[r].x;
        sum += (double)g[r].y * (double)g[r].y;
        sum += (double)g[r].z * (double)g[r].z;
        sum += (double)g[r].w * (double)g[r].w;
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

__host__ __device__ __forceinline__ norm_result clipped(double sum, float max_grad_norm) {
    double norm = sqrt(sum), limit = (double)max_grad_norm;
    return {sum, norm, limit > 0 ? (float)fmin(1.0, limit / (norm + 1e-6)) : 1.0f, isfinite(norm)};
}

/* One block: everything. Shared: 256 bytes. */
__global__ void __launch_bounds__(SUM_THREADS)
    norm_kernel(norm_result *result, const double *squares, int n, float max_grad_norm) {
    __shared__ double shared[32];
    double sum = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < n; i += SUM_THREADS) sum += squares[i];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) *result = clipped(sum, max_grad_norm);
}

/* What depends on the step alone. */
struct adamw_factors {
    float beta1, beta2, add1, add2, step, root, eps;
    float decay; /* of groups that decay */
};

/* Writes x at element i of the param into its working copy, times the column's element of `fold` where there is one.
 * Rows that the copy has not are left out. */
template <typename T>
__device__ __forceinline__ void publish4(const tensor &w, const tensor &fold, int64_t skip, int64_t i, int64_t n,
                                         float4 x) {
    T *data = (T *)w.data;
    const T *by = (const T *)fold.data;
    bool dense = w.ld == w.cols && !by && !skip && n <= w.rows * w.cols;
    int64_t row = dense ? 0 : n <= UINT32_MAX ? (uint32_t)i / (uint32_t)w.cols : i / w.cols, col = i - row * w.cols;
    float v[V] = {x.x, x.y, x.z, x.w};
    if (by) {
        int64_t at = col;
#pragma unroll
        for (int e = 0; e < V; e++) {
            v[e] *= to_float(by[at]);
            at = at + 1 == w.cols ? 0 : at + 1;
        }
    }
    row -= skip;
    T *to = data + row * w.ld + col;
    bool there = dense || (row >= 0 && row < w.rows);
    bool in_row = there && (dense || col + V <= w.cols) && (uintptr_t)to % (V * sizeof(T)) == 0;
    if (in_row && i + V <= n) {
        store<T, V>(to, packed<T, V>(v));
        return;
    }
#pragma unroll
    for (int e = 0; e < V; e++) {
        if (i + e >= n) return;
        if (dense || (row >= 0 && row < w.rows)) data[row * w.ld + col] = from_float<T>(v[e]);
        if (++col == w.cols && !dense) col = 0, row++;
    }
}

__device__ __forceinline__ void publish(const optim_group &group, int64_t i, float4 x) {
    const tensor &w = group.working;
    if (!w.data) return;
    if (w.type == DTYPE_BF16) publish4<bf16>(w, group.fold, group.first, i, group.n, x);
    else publish4<float>(w, group.fold, group.first, i, group.n, x);
}

__device__ __forceinline__ float adamw(float &w, float g, float &m, float &v, const adamw_factors &a, float decay) {
    m = a.beta1 * m + a.add1 * g;
    v = a.beta2 * v + a.add2 * g * g;
    w = w * decay - a.step * m / (sqrtf(v) / a.root + a.eps);
    return w;
}

/* One block: one piece. Grid: all pieces. torch.optim.AdamW: decay first, then the moments, then
 * w -= lr/c1 m / (sqrt(v)/sqrt(c2) + eps). Reads 16 bytes per element, writes 12 and the working copy. */
__global__ void __launch_bounds__(THREADS)
    update_kernel(const optim_group *groups, const piece *pieces, const norm_result *result, adamw_factors a) {
    if (!result->finite) return;
    piece p = pieces[blockIdx.x];
    const optim_group &group = groups[p.group];
    if (!group.m) return; /* another rank's */
    int64_t n = group.n, first = (int64_t)p.index * PIECE + threadIdx.x * V;
    float scale = result->scale, decay = group.decays ? a.decay : 1;
#pragma unroll 2
    for (int r = 0; r < ROUNDS; r++) {
        int64_t i = first + r * (THREADS * V);
        if (i >= n) break;
        float4 g = load4(group.grad, i, n), w = load4(group.weight, i, n), m = load4(group.m, i, n),
               v = load4(group.v, i, n);
        adamw(w.x, g.x * scale, m.x, v.x, a, decay);
        adamw(w.y, g.y * scale, m.y, v.y, a, decay);
        adamw(w.z, g.z * scale, m.z, v.z, a, decay);
        adamw(w.w, g.w * scale, m.w, v.w, a, decay);
        store4(group.weight, i, n, w);
        store4(group.m, i, n, m);
        store4(group.v, i, n, v);
        publish(group, i, w);
    }
}

/* One block: one piece. Grid: all pieces. Reads 4 bytes per element, writes the working copy. */
__global__ void __launch_bounds__(THREADS) publish_kernel(const optim_group *groups, const piece *pieces) {
    piece p = pieces[blockIdx.x];
    const optim_group &group = groups[p.group];
    int64_t first = (int64_t)p.index * PIECE + threadIdx.x * V;
    for (int r = 0; r < ROUNDS; r++) {
        int64_t i = first + r * (THREADS * V);
        if (i < group.n) publish(group, i, load4(group.weight, i, group.n));
    }
}

bool check(cudaError_t error, const char *what, failure *f) {
    if (error == cudaSuccess) return true;
    return fail(f, FAIL_MACHINE, "optimizer step: %s: %s", what, cudaGetErrorString(error));
}

bool upload(void **to, const void *from, size_t bytes, failure *f) {
    TRY(check(cudaMalloc(to, bytes), "the table of params", f));
    return !from || check(cudaMemcpy(*to, from, bytes, cudaMemcpyHostToDevice), "the table of params", f);
}

void check_group(const optim_group *g) {
    assert((uintptr_t)g->weight % 16 == 0 && (uintptr_t)g->grad % 16 == 0);
    assert((uintptr_t)g->m % 16 == 0 && (uintptr_t)g->v % 16 == 0);
    const tensor *w = &g->working;
    assert(!w->data || w->type == DTYPE_BF16 || w->type == DTYPE_F32);
    assert(!w->data || g->n % w->cols == 0);
    assert(!g->fold.data || (g->fold.type == w->type && g->fold.rows * g->fold.cols == w->cols));
}

void close_table(param_table *t) {
    cudaFree(t->groups);
    cudaFree(t->pieces);
    cudaFree(t->squares);
    cudaFree(t->result);
    free(t->host);
    *t = {};
}

/* Device memory of a table, its list of pieces included. */
bool fill_table(param_table *t, const optim_group *groups, const piece *pieces, failure *f) {
    size_t n_pieces = (size_t)t->n_pieces;
    return upload((void **)&t->groups, groups, (size_t)t->n * sizeof *groups, f) &&
           upload((void **)&t->pieces, pieces, n_pieces * sizeof *pieces, f) &&
           upload((void **)&t->squares, nullptr, n_pieces * sizeof *t->squares, f) &&
           upload((void **)&t->result, nullptr, sizeof *t->result, f);
}

bool make_table(param_table *t, const optim_group *groups, int n, failure *f) {
    size_t bytes = (size_t)n * sizeof *groups;
    if (t->host && t->n == n && memcmp(t->host, groups, bytes) == 0) return true;
    close_table(t);
    int64_t n_pieces = 0;
    for (int k = 0; k < n; k++) check_group(&groups[k]), n_pieces += cuda_ceil(groups[k].n, PIECE);
    assert(n_pieces < INT32_MAX);
    piece *pieces = (piece *)xmalloc((size_t)n_pieces * sizeof *pieces + 1);
    int64_t at = 0;
    for (int k = 0; k < n; k++)
        for (int64_t i = 0; i < cuda_ceil(groups[k].n, PIECE); i++) pieces[at++] = {k, (int32_t)i};
    t->n = n;
    t->n_pieces = (int)n_pieces;
    bool ok = fill_table(t, groups, pieces, f);
    free(pieces);
    if (!ok) {
        close_table(t);
        return false;
    }
    t->host = (optim_group *)xmalloc(bytes);
    memcpy(t->host, groups, bytes);
    return true;
}

/* The result becomes that of all ranks' pieces. */
bool sum_over_ranks(const param_table *t, const adamw_args *args, failure *f) {
    cudaStream_t stream = cuda_stream();
    norm_result r;
    TRY(check(cudaMemcpyAsync(&r, t->result, sizeof r, cudaMemcpyDeviceToHost, stream), "norm", f));
    TRY(check(cudaStreamSynchronize(stream), "kernels before or in the step", f));
    TRY(comm_sum(args->ranks, &r.squares, 1, "the norm of gradients", f));
    r = clipped(r.squares, args->max_grad_norm);
    return check(cudaMemcpyAsync(t->result, &r, sizeof r, cudaMemcpyHostToDevice, stream), "norm", f);
}
} // namespace

extern "C" void cuda_adamw_close(void) {
    close_table(&for_step);
    close_table(&for_publish);
}

extern "C" bool cuda_adamw(const optim_group *groups, int n, const adamw_args *args, double *norm, failure *f) {
    param_table *t = &for_step;
    *norm = 0;
    if (!n) return true;
    TRY(make_table(t, groups, n, f));
    cudaStream_t stream = cuda_stream();
    unsigned blocks = (unsigned)t->n_pieces; /* none: this rank has no element of any param */
    adamw_factors a = {args->beta1,
                       args->beta2,
                       1 - args->beta1,
                       1 - args->beta2,
                       args->learning_rate / args->correction1,
                       sqrtf(args->correction2),
                       args->eps,
                       1 - args->learning_rate * args->weight_decay};
    if (blocks) squares_kernel<<<blocks, THREADS, 0, stream>>>(t->squares, t->groups, t->pieces);
    norm_kernel<<<1, SUM_THREADS, 0, stream>>>(t->result, t->squares, t->n_pieces, args->max_grad_norm);
    if (args->ranks) TRY(sum_over_ranks(t, args, f));
    if (blocks) update_kernel<<<blocks, THREADS, 0, stream>>>(t->groups, t->pieces, t->result, a);
    TRY(check(cudaGetLastError(), "launch", f));
    TRY(check(cudaMemcpyAsync(norm, &t->result->norm, sizeof *norm, cudaMemcpyDeviceToHost, stream), "norm", f));
    return check(cudaStreamSynchronize(stream), "kernels before or in the step", f);
}

extern "C" bool cuda_publish(const optim_group *groups, int n, failure *f) {
    param_table *t = &for_publish;
    if (!n) return true;
    TRY(make_table(t, groups, n, f));
    if (t->n_pieces) publish_kernel<<<(unsigned)t->n_pieces, THREADS, 0, cuda_stream()>>>(t->groups, t->pieces);
    return check(cudaGetLastError(), "launch", f);
}
