/* test_wgmma_gemm.cu - cuda/wgmma_gemm.cu against sums in double, and its speed against cuBLASLt's.
 *
 *   test_wgmma_gemm           odd and even rows, columns, depths, tails and strides in all forms and kinds: every
 *                             element, and what must not be written; each case runs twice and must give the same bits
 *   test_wgmma_gemm --few     some of the cases, for compute-sanitizer
 *   test_wgmma_gemm --perf [PAUSE [ROWS]]   median times at the shapes of LLaMA-3-8B beside the fastest of cuBLASLt's
 *                             proposals, all taking turns: the tile chosen, then each tile; before that a comparison
 *                             of all elements with cuBLASLt's and of some with doubles
 *   test_wgmma_gemm --fused [PAUSE [ROWS]]   the same for the fused kinds, beside cuBLASLt alone, with the separate
 * kernel behind it, and with the norm before it too
 *
 * PAUSE: microseconds of rest between rounds, or "alone": each contender by itself for a quarter of a second, mean
 * times. In training the card is at its power limit, and then this is what counts: what takes less energy runs at a
 * higher clock, which is shared while contenders take turns. A number behind it: these rows only.
 * Operands are random bf16; what lies between their rows and around them is NaN, so reading it shows. */
#include "cuda.cuh"
#include "gemm.h"
#include "random.cuh"
#include "wgmma_gemm.h"

#include <algorithm>
#include <unistd.h>
#include <vector>

namespace {
enum { GUARD = 4096, SKIPPED = 77, WATCHDOG_SECONDS = 90, POSITIONS = 5000 };
const uint16_t SENTINEL = 0x7FC1; /* a NaN that no sum gives */

__global__ void fill_kernel(uint16_t *x, int64_t n, int64_t rows, int64_t cols, int64_t ld, uint32_t seed) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t at = i - GUARD, row = at / ld;
        bool inside = seed && at >= 0 && row < rows && at % ld < cols;
        bf16 value = __float2bfloat16_rn(random_value((uint64_t)i, seed));
        x[i] = inside ? *reinterpret_cast<uint16_t *>(&value) : SENTINEL;
    }
}

/* Per row: two factors, a position; and the frequencies of heads 128 wide at most. */
__global__ void fill_rows_kernel(float *scale, float *sum_scale, int32_t *pos, float *freq, int64_t rows,
                                 int head_dim) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows; i += (int64_t)gridDim.x * blockDim.x) {
        scale[i] = 0.1f + (random_value((uint64_t)i, 77) + 1) / 8;
        sum_scale[i] = 0.1f + (random_value((uint64_t)i, 79) + 1) / 8;
        pos[i] = (int32_t)(random_bits((uint64_t)i, 78) % POSITIONS);
        if (i < head_dim / 2) freq[i] = powf(500000.0f, -2.0f * (float)i / (float)head_dim);
    }
}

template <typename T> T *device_array(int64_t n) {
    T *p;
    stop_on(cudaMalloc(&p, (size_t)n * sizeof(T)), "cudaMalloc");
    return p;
}

/* A matrix of bf16 on the device between guards; seed 0: all SENTINEL. */
struct buffer {
    int64_t rows, cols, ld, n;
    uint16_t *block;
    buffer(int64_t r, int64_t c, int64_t stride, uint32_t seed) : rows(r), cols(c), ld(stride) {
        n = rows * ld + 2 * GUARD;
        block = device_array<uint16_t>(n);
        fill(seed);
    }
    buffer(const buffer &) = delete;
    ~buffer() { cudaFree(block); }
    bf16 *data() const { return reinterpret_cast<bf16 *>(block + GUARD); }
    void fill(uint32_t seed) { fill_kernel<<<1024, 256, 0, cuda_stream()>>>(block, n, rows, cols, ld, seed); }
};

struct faults {
    unsigned long long count, first; /* first: index into the storage of c */
    double found, expected;
};

enum output { OUT_C, OUT_UP, OUT_Y, OUT_SUMS };

/* The exact sum of one element and the sum of magnitudes. */
__device__ double exact(const wgmma_call &g, bool up, int64_t row, int64_t col, double *size) {
    const bf16 *a = (const bf16 *)g.a + row * g.lda, *a2 = (const bf16 *)g.a2 + row * g.lda2;
    const bf16 *b = (const bf16 *)(up ? g.b_up : g.b), *b2 = (const bf16 *)(up ? g.b2_up : g.b2);
    bool nt = g.form == GEMM_NT;
    const float *scale = g.kind == WGMMA_ROPE || g.kind == WGMMA_GLU ? g.row_scale : g.sum_scale;
    double sum = 0, by = scale ? (double)scale[row] : 1;
    *size = 0;
    for (int64_t k = 0; k < g.depth + g.rank; k++) {
        int64_t j = k - g.depth;
        double x = __bfloat162float(j < 0 ? a[k] : a2[j]);
        double y = __bfloat162float(j < 0 ? b[nt ? col * g.ldb + k : k * g.ldb + col]
                                          : b2[nt ? col * g.ldb2 + j : j * g.ldb2 + col]);
        sum += x * y * by;
        *size += fabs(x * y * by);
    }
    return sum;
}

/* act(g) / g = sigmoid(x), and the slope of x. */
__device__ double activation(glu_kind kind, double g, double *slope) {
    double two_root = 2 * 0.79788456080286536, x = kind == GLU_SILU ? g : two_root * (g + 0.044715 * g * g * g);
    *slope = kind == GLU_SILU ? 1 : two_root * (1 + 3 * 0.044715 * g * g);
    return 1 / (1 + exp(-x));
}

/* What an output must hold, in doubles, and by how much it may differ: rounding to bf16, and that of the sums. The
 * accumulator cuts off, on average half a unit of its last place, at every step of 16 k: all in one direction. */
__device__ double expected(const wgmma_call &g, output which, const float *freq, int64_t row, int64_t col,
                           double *allowed) {
    double size, other_size, want = exact(g, g.kind == WGMMA_GLU && which == OUT_UP, row, col, &size);
    double in = g.in ? (double)__bfloat162float(((const bf16 *)g.in)[row * g.ld_in + col]) : 0;
    int64_t ld_in_up = g.ld_in_up ? g.ld_in_up : g.ld_in;
    double in_up = g.in_up ? (double)__bfloat162float(((const bf16 *)g.in_up)[row * ld_in_up + col]) : 0;
    if (g.kind == WGMMA_ROPE && col < g.rope.cols) {
        int half = g.rope.head_dim / 2, j = (int)(col % g.rope.head_dim);
        bool low = j < half;
        double other = exact(g, false, row, low ? col + half : col - half, &other_size);
        double angle = (double)((float)g.rope.pos[row] * freq[j % half]);
        want = want * cos(angle) + (low ? -other : other) * sin(angle);
        size += other_size;
    }
    if (which == OUT_Y) { /* of gate and up as they are stored */
        bool made = g.kind == WGMMA_GLU;
        double gate = made ? (double)__bfloat162float(((const bf16 *)g.c)[row * g.ldc + col]) : in, slope;
        double up = made ? (double)__bfloat162float(((const bf16 *)g.c_up)[row * g.ldc + col]) : in_up;
        want = gate * activation(g.glu, gate, &slope) * up;
        *allowed = fabs(want) / 256 + 8e-6 * fabs(want) + 1e-12;
        return want;
    }
    if (g.kind == WGMMA_GLU_BWD) {
        double slope, s = activation(g.glu, in, &slope);
        double by = which == OUT_UP ? in * s : in_up * s * (1 + in * (1 - s) * slope);
        want *= by, size = size * fabs(by) + 8 * fabs(want);
    }
    if (g.kind == WGMMA_ADD || g.kind == WGMMA_NORM_BWD) {
        double more = in_up * (g.row_scale ? (double)g.row_scale[row] : 1);
        want += in + more, size += fabs(in) + fabs(more);
    }
    double steps = (double)(g.depth + g.rank) / 16;
    *allowed = fabs(want) / 256 + fabs(want) * steps / (1 << 24) + 1e-6 * (size + 1);
    return want;
}

/* Every `step`-th element of an output's storage: inside against the exact value, outside against the sentinel. */
__global__ void check_kernel(const wgmma_call g, output which, const float *freq, const uint16_t *block, int64_t n,
                             int64_t ld, int64_t step, faults *out) {
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * step;
    if (i >= n) return;
    int64_t at = i - GUARD, row = at / ld, col = at % ld;
    double want = SENTINEL, found = block[i], allowed = 0;
    if (at >= 0 && row < g.rows && col < g.cols) {
        want = expected(g, which, freq, row, col, &allowed);
        found = __bfloat162float(((const bf16 *)block)[i]);
    }
    if (fabs(found - want) <= allowed) return; /* false for NaN */
    if (atomicAdd(&out->count, 1ull) == 0) out->first = (unsigned long long)i, out->found = found, out->expected = want;
}

/* row_sums against what is stored. */
__global__ void check_sums_kernel(const wgmma_call g, int64_t parts, faults *out) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= g.rows * parts) return;
    int64_t tile = g.kind == WGMMA_GLU_BWD ? WGMMA_GLU_BWD_TILE : WGMMA_ADD_TILE, row = i % g.rows,
            from = i / g.rows * tile;
    double want = 0, size = 0;
    auto value = [&](const void *x, int64_t ld, int64_t col) {
        return (double)__bfloat162float(((const bf16 *)x)[row * ld + col]);
    };
    for (int64_t col = from; col < from + tile && col < g.cols; col++) {
        double c = value(g.c, g.ldc, col), add = c * c;
        if (g.kind == WGMMA_GLU_BWD)
            add = c * value(g.in, g.ld_in, col) + value(g.c_up, g.ldc, col) * value(g.in_up, g.ld_in, col);
        want += add, size += fabs(add);
    }
    double found = g.row_sums[i];
    if (fabs(found - want) <= 2e-5 * size + 1e-6) return; /* false for NaN */
    if (atomicAdd(&out->count, 1ull) == 0)
        out->first = (unsigned long long)(i + GUARD), out->found = found, out->expected = want;
}

/* Elements that differ in their bits (limit 0), or by more than `limit` of the larger and of 1. */
__global__ void differ_kernel(const bf16 *x, const bf16 *y, int64_t n, float limit, faults *out) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float a = __bfloat162float(x[i]), b = __bfloat162float(y[i]);
    bool same = *(const uint16_t *)&x[i] == *(const uint16_t *)&y[i];
    if (same || (limit > 0 && fabsf(a - b) <= limit * fmaxf(1, fmaxf(fabsf(a), fabsf(b))))) return;
    if (atomicAdd(&out->count, 1ull) == 0) out->first = (unsigned long long)i, out->found = a, out->expected = b;
}

void run(const wgmma_call &g) {
    failure f = {};
    if (wgmma_run(&g, cuda_stream(), &f)) return;
    printf("%s\n", f.text);
    fflush(stdout);
    abort();
}

/* ---- one product: operands, and outputs of two runs ---- */

struct problem {
    gemm_form form;
    wgmma_kind kind;
    int64_t rows, cols, depth, rank, gap; /* gap: elements between rows of every matrix */
    int head_dim;
    glu_kind glu;
};

struct outputs {
    buffer c, up, y;
    outputs(const problem &p, bool has_up, bool has_y)
        : c(p.rows, p.cols, p.cols + p.gap, 0), up(has_up ? p.rows : 0, p.cols, p.cols + p.gap, 0),
          y(has_y ? p.rows : 0, p.cols, p.cols + p.gap, 0) {}
    buffer &of(output which) { return which == OUT_C ? c : which == OUT_UP ? up : y; }
    void clear() { c.fill(0), up.fill(0), y.fill(0); }
    void aim(wgmma_call *g) {
        g->c = c.data(), g->c_up = up.data(), g->y = y.rows ? y.data() : NULL;
        g->ldc = c.ld, g->ldy = y.ld;
    }
};

void print_faults(const wgmma_call &g, const char *what, output which, const faults &f, int64_t ld) {
    static const char *const forms[] = {"NT", "NN"}, *const kinds[] = {"plain", "rope",    "glu",
                                                                       "add",   "glu_bwd", "norm_bwd"},
                             *const names[] = {"c", "c_up", "y", "row_sums"};
    int64_t at = (int64_t)f.first - GUARD;
    printf("FAIL %s %s [%lld, %lld] over %lld + %lld, tile %d: %s of %s: %llu elements, first [%lld, %lld] found %.9g, "
           "expected %.9g\n",
           forms[g.form], kinds[g.kind], (long long)g.rows, (long long)g.cols, (long long)g.depth, (long long)g.rank,
           g.tile, what, names[which], f.count, (long long)(at / ld), (long long)(at % ld), f.found, f.expected);
    fflush(stdout);
}

struct product {
    buffer a, b, a2, b2, b_up, b2_up, in, in_up;
    outputs first, second;
    float *scale, *sum_scale, *freq, *table, *sums;
    int32_t *pos;
    faults *result;
    wgmma_call g;

    explicit product(const problem &p)
        : a(p.rows, p.depth, p.depth + p.gap, 1),
          b(b_rows(p, p.depth), b_cols(p, p.depth), b_cols(p, p.depth) + p.gap, 2),
          a2(p.rows, p.rank, p.rank + p.gap, 3), b2(b_rows(p, p.rank), b_cols(p, p.rank), b_cols(p, p.rank) + p.gap, 4),
          b_up(glu(p) ? p.cols : 0, p.depth, p.depth + p.gap, 5), b2_up(glu(p) ? p.cols : 0, p.rank, p.rank + p.gap, 6),
          in(p.kind >= WGMMA_ADD ? p.rows : 0, p.cols, p.cols + p.gap, 7),
          in_up(p.kind > WGMMA_ADD ? p.rows : 0, p.cols, p.cols + p.gap + (p.kind == WGMMA_NORM_BWD ? 8 : 0), 8),
          first(p, has_up(p), has_y(p)), second(p, has_up(p), has_y(p)) {
        int64_t rows = std::max(p.rows, (int64_t)64);
        scale = device_array<float>(rows), sum_scale = device_array<float>(rows), pos = device_array<int32_t>(rows),
        freq = device_array<float>(64);
        table = device_array<float>((int64_t)POSITIONS * 128), result = device_array<faults>(1);
        sums = device_array<float>(p.rows * wgmma_parts(p.kind, p.cols));
        int head = p.head_dim ? p.head_dim : 128;
        failure f = {};
        fill_rows_kernel<<<64, 256, 0, cuda_stream()>>>(scale, sum_scale, pos, freq, rows, head);
        if (!wgmma_rope_table(table, freq, POSITIONS, head, cuda_stream(), &f)) printf("%s\n", f.text), abort();
        g = {};
        g.form = p.form, g.kind = p.kind, g.rows = p.rows, g.cols = p.cols, g.depth = p.depth, g.rank = p.rank;
        g.a = a.data(), g.b = b.data(), g.lda = a.ld, g.ldb = b.ld;
        g.a2 = a2.data(), g.b2 = b2.data(), g.lda2 = a2.ld, g.ldb2 = b2.ld;
        g.b_up = b_up.data(), g.b2_up = b2_up.data(), g.glu = p.glu;
        if (p.kind != WGMMA_PLAIN && p.kind != WGMMA_ADD) g.row_scale = scale;
        if (p.kind >= WGMMA_ADD) g.in = in.data(), g.ld_in = in.ld;
        if (p.kind > WGMMA_ADD) g.in_up = in_up.data(), g.ld_in_up = in_up.ld;
        if (p.kind == WGMMA_NORM_BWD) g.sum_scale = sum_scale;
        if (p.kind == WGMMA_ADD || p.kind == WGMMA_GLU_BWD) g.row_sums = sums;
        if (p.kind == WGMMA_ROPE) g.rope = {p.cols / head * 3 / 4 * head, head, pos, table};
        first.aim(&g);
    }
    product(const product &) = delete;
    ~product() {
        for (void *p :
             {(void *)scale, (void *)sum_scale, (void *)freq, (void *)table, (void *)sums, (void *)pos, (void *)result})
            cudaFree(p);
    }
    static bool glu(const problem &p) { return p.kind == WGMMA_GLU; }
    static bool has_up(const problem &p) { return glu(p) || p.kind == WGMMA_GLU_BWD; }
    /* Of tails of 8 columns it goes without. */
    static bool has_y(const problem &p) { return (glu(p) || p.kind == WGMMA_GLU_BWD) && p.rank != 8; }
    static int64_t b_rows(const problem &p, int64_t depth) { return p.form == GEMM_NT ? p.cols : depth; }
    static int64_t b_cols(const problem &p, int64_t depth) { return p.form == GEMM_NT ? depth : p.cols; }
};

bool report(product &p, const char *what, output which) {
    faults f;
    stop_on(cudaGetLastError(), "launch");
    stop_on(cudaMemcpyAsync(&f, p.result, sizeof f, cudaMemcpyDeviceToHost, cuda_stream()), "copy back");
    stop_on(cudaStreamSynchronize(cuda_stream()), "product");
    if (f.count) print_faults(p.g, what, which, f, p.first.of(which).ld);
    return f.count != 0;
}

/* Of the first run's outputs; every `step`-th element. */
bool differs_from_exact(product &p, output which, int64_t step) {
    buffer &c = p.first.of(which);
    stop_on(cudaMemsetAsync(p.result, 0, sizeof *p.result, cuda_stream()), "cudaMemset");
    check_kernel<<<(unsigned)((c.n / step + 256) / 256), 256, 0, cuda_stream()>>>(p.g, which, p.freq, c.block, c.n,
                                                                                  c.ld, step, p.result);
    return report(p, "exact values", which);
}

bool outputs_differ(product &p, output which, float limit) {
    buffer &x = p.first.of(which), &y = p.second.of(which);
    stop_on(cudaMemsetAsync(p.result, 0, sizeof *p.result, cuda_stream()), "cudaMemset");
    differ_kernel<<<(unsigned)((x.n + 255) / 256), 256, 0, cuda_stream()>>>((bf16 *)x.block, (bf16 *)y.block, x.n,
                                                                            limit, p.result);
    return report(p, limit > 0 ? "cuBLASLt's values" : "equal bits of two runs", which);
}

bool sums_wrong(product &p) {
    stop_on(cudaMemsetAsync(p.result, 0, sizeof *p.result, cuda_stream()), "cudaMemset");
    int64_t n = p.g.rows * wgmma_parts(p.g.kind, p.g.cols);
    check_sums_kernel<<<(unsigned)((n + 255) / 256), 256, 0, cuda_stream()>>>(p.g, wgmma_parts(p.g.kind, p.g.cols),
                                                                              p.result);
    return report(p, "sums of what is stored", OUT_SUMS);
}

void copy(const buffer &to, const buffer &from) {
    stop_on(cudaMemcpyAsync(to.block, from.block, (size_t)to.n * 2, cudaMemcpyDeviceToDevice, cuda_stream()), "copy");
}

/* Runs twice, the second time in place where that is allowed; every `step`-th element against the exact value, all
 * against each other. 1: something is wrong. */
int check(product &p, int64_t step) {
    bool up = p.g.kind == WGMMA_GLU || p.g.kind == WGMMA_GLU_BWD;
    p.first.clear(), p.second.clear();
    wgmma_call again = p.g;
    p.second.aim(&again);
    if (p.g.in) copy(p.second.c, p.in), again.in = again.c;
    if (p.g.in && up) copy(p.second.up, p.in_up), again.in_up = again.c_up;
    run(again);
    if (p.g.row_sums)
        stop_on(cudaMemsetAsync(p.sums, 0xFF, (size_t)(p.g.rows * wgmma_parts(p.g.kind, p.g.cols)) * 4, cuda_stream()),
                "cudaMemset");
    run(p.g);
    for (output which : {OUT_C, OUT_UP, OUT_Y}) {
        if ((which == OUT_UP && !up) || (which == OUT_Y && !p.g.y)) continue;
        if (differs_from_exact(p, which, step) || outputs_differ(p, which, 0)) return 1;
    }
    return p.g.row_sums && sums_wrong(p);
}

/* Every tile of one problem; returns the number of failures. */
int run_problem(const problem &p, int *n) {
    product one(p);
    int bad = 0;
    for (int tile : {0, 128, 192, 256}) {
        if ((p.kind == WGMMA_PLAIN) != (tile > 0)) continue;
        one.g.tile = tile, one.g.group = *n % 5;
        bad += check(one, 1);
        ++*n;
    }
    return bad;
}

struct kind_case {
    gemm_form form;
    wgmma_kind kind;
};
const kind_case kinds[] = {{GEMM_NT, WGMMA_PLAIN},   {GEMM_NN, WGMMA_PLAIN}, {GEMM_NT, WGMMA_ROPE},
                           {GEMM_NT, WGMMA_GLU},     {GEMM_NT, WGMMA_ADD},   {GEMM_NN, WGMMA_GLU_BWD},
                           {GEMM_NN, WGMMA_NORM_BWD}};

int run_cases(bool few) {
    static const int64_t rows[] = {1, 129, 127, 128, 255, 385, 2047, 8191}, depths[] = {200, 8, 1024};
    static const int64_t cols[][4] = {{136, 776, 8, 256}, {384, 896, 128, 512}}, ranks[] = {0, 8, 192};
    int bad = 0, n = 0, last = few ? 2 : 8;
    for (auto &k : kinds)
        for (int m = 0; m < last; m++)
            for (int w = 0; w < (few ? 2 : 4); w++)
                for (int d = 0; d < (few ? 1 : 3); d++)
                    for (int r = 0; r < (few ? 2 : 3); r++) {
                        if (rows[m] > 1000 && (w == 3 || ranks[r] == 8)) continue; /* quick */
                        problem p = {k.form,
                                     k.kind,
                                     rows[m],
                                     cols[k.kind == WGMMA_ROPE][w],
                                     depths[d],
                                     ranks[r],
                                     (m + w + d) % 3 * 8,
                                     (w + d + r) % 2 ? 64 : 128,
                                     (m + d + r) % 2 ? GLU_GELU_TANH : GLU_SILU};
                        bad += run_problem(p, &n);
                        if (bad > 60) return printf("too many failures after %d\n", n), bad;
                    }
    printf("%d passed, %d failed\n", n - bad, bad);
    return bad;
}

/* What wgmma_serves must refuse. */
int run_refusals() {
    product p({GEMM_NT, WGMMA_ROPE, 16, 128, 16, 8, 0, 128, GLU_SILU});
    int bad = 0;
    auto refused = [&](const char *name, wgmma_call g) {
        const char *why;
        if (!wgmma_serves(&g, &why) && why) return;
        printf("FAIL %s is not refused\n", name);
        bad++;
    };
    wgmma_call g = p.g;
    g.cols = 12, refused("12 columns", g);
    g = p.g, g.depth = 12, refused("depth 12", g);
    g = p.g, g.depth = 0, refused("depth 0", g);
    g = p.g, g.rank = 4, refused("rank 4", g);
    g = p.g, g.lda = 20, refused("stride 20", g);
    g = p.g, g.a = p.a.data() + 1, refused("an odd base", g);
    g = p.g, g.b2 = p.b2.data() + 4, refused("a tail off by 8 bytes", g);
    g = p.g, g.form = GEMM_TN, refused("TN", g);
    g = p.g, g.form = GEMM_NN, refused("rope of NN", g);
    g = p.g, g.rope.head_dim = 96, refused("heads of 96", g);
    g = p.g, g.rope.cols = 64, refused("half a head", g);
    g = p.g, g.tile = 256, refused("rope in tiles of 256", g);
    return bad;
}

/* ---- speed ---- */

struct shape {
    const char *name;
    gemm_form form;
    int64_t cols, depth;
};
const shape shapes[] = {
    {"qkv", GEMM_NT, 6144, 4096},          {"o", GEMM_NT, 4096, 4096},           {"gate+up", GEMM_NT, 28672, 4096},
    {"down", GEMM_NT, 4096, 14336},        {"lm_head", GEMM_NT, 128256, 4096},   {"qkv dx", GEMM_NN, 4096, 6144},
    {"o dx", GEMM_NN, 4096, 4096},         {"gate+up dx", GEMM_NN, 4096, 28672}, {"down dx", GEMM_NN, 14336, 4096},
    {"lm_head dx", GEMM_NN, 4096, 128256},
};

float median(std::vector<float> &x) {
    std::nth_element(x.begin(), x.begin() + x.size() / 2, x.end());
    return x[x.size() / 2];
}

int64_t only_rows; /* 0: all sizes */
int pause_us;      /* between rounds, so that the card is not at its power limit */

void start_cublas(const wgmma_call &g, int64_t cols) {
    gemm_call other = {g.form, g.rows, cols,       g.depth,    g.a, g.b, g.c, g.lda,
                       g.ldb,  g.ldc,  DTYPE_BF16, DTYPE_BF16, 1,   0,   NULL};
    failure f = {};
    if (!gemm_run(&other, &f)) printf("%s\n", f.text), abort();
}

bool alone; /* each contender by itself, long enough for the card to settle at the clock that its power allows */

/* Mean microseconds of one contender over `ms`. */
template <typename F> float time_alone(F start_it, float ms) {
    enum { BATCH = 10 };
    cudaEvent_t from, to;
    float passed = 0;
    int runs = 0;
    cudaEventCreate(&from), cudaEventCreate(&to);
    cudaEventRecord(from, cuda_stream());
    while (passed < ms) {
        for (int i = 0; i < BATCH; i++) start_it();
        runs += BATCH;
        cudaEventRecord(to, cuda_stream());
        stop_on(cudaEventSynchronize(to), "product");
        cudaEventElapsedTime(&passed, from, to);
    }
    cudaEventDestroy(from), cudaEventDestroy(to);
    return passed * 1000 / (float)runs;
}

/* Microseconds of each of n contenders: the median while they take turns, in another order every time, so that all of
 * them see the same clock; or the mean of each alone. */
template <typename F> std::vector<float> time_all(size_t n, F start_one) {
    enum { RUNS = 31, WARM_UP = 3 };
    std::vector<float> us;
    for (size_t k = 0; k < n && alone; k++) {
        time_alone([&] { start_one(k); }, 150);
        us.push_back(time_alone([&] { start_one(k); }, 250));
    }
    if (alone) return us;
    std::vector<std::vector<float>> times(n);
    std::vector<cudaEvent_t> events(n + 1);
    for (auto &e : events) cudaEventCreate(&e);
    for (int i = -WARM_UP; i < RUNS; i++) {
        size_t from = (size_t)(i + WARM_UP) % n;
        for (size_t k = 0; k < n; k++) {
            cudaEventRecord(events[k], cuda_stream());
            start_one((from + k) % n);
        }
        cudaEventRecord(events[n], cuda_stream());
        stop_on(cudaStreamSynchronize(cuda_stream()), "product");
        for (size_t k = 0; k < n && i >= 0; k++) {
            float ms;
            cudaEventElapsedTime(&ms, events[k], events[k + 1]);
            times[(from + k) % n].push_back(ms * 1000);
        }
        if (pause_us) usleep((unsigned)pause_us);
    }
    for (auto &e : events) cudaEventDestroy(e);
    for (auto &t : times) us.push_back(median(t));
    return us;
}

/* tile < 0: cuBLASLt */
void start(const wgmma_call &g, int tile) {
    if (tile < 0) return start_cublas(g, g.cols);
    wgmma_call mine = g;
    mine.tile = tile;
    run(mine);
}

/* Ratios to cuBLASLt's speed over all shapes. */
struct ratios {
    double logs = 0, least = 1e30;
    int n = 0;
    void add(double ratio) { logs += log(ratio), least = std::min(least, ratio), n++; }
};

const int tiles[] = {-1, 0, 128, 192, 256};
enum { CONTENDERS = sizeof tiles / sizeof *tiles };

int time_shape(const shape &s, int64_t rows, ratios (&all)[CONTENDERS]) {
    product p({s.form, WGMMA_PLAIN, rows, s.cols, s.depth, 0, 0, 0, GLU_SILU});
    wgmma_call theirs = p.g;
    int bad = 0;
    p.second.aim(&theirs);
    start(theirs, -1); /* chooses its algorithm now */
    for (int i = 1; i < CONTENDERS; i++) {
        p.first.clear();
        p.g.tile = tiles[i];
        run(p.g);
        bad += outputs_differ(p, OUT_C, 1.0f / 64) || (i == 1 && differs_from_exact(p, OUT_C, p.first.c.n / 20000));
    }
    std::vector<float> us = time_all(CONTENDERS, [&](size_t i) { start(p.g, tiles[i]); });
    double flop = 2e-6 * (double)rows * (double)s.cols * (double)s.depth;
    printf("%-11s %6lld %7lld %7lld %9.1f %7.1f %9.1f %7.1f %7.3f  ", s.name, (long long)rows, (long long)s.cols,
           (long long)s.depth, us[0], flop / us[0], us[1], flop / us[1], us[0] / us[1]);
    for (int i = 1; i < CONTENDERS; i++) {
        all[i].add(us[0] / us[i]);
        if (i > 1) printf(" %7.1f", flop / us[i]);
    }
    printf("\n");
    fflush(stdout);
    return bad;
}

int run_perf() {
    ratios all[CONTENDERS];
    int bad = 0;
    printf("%-11s %6s %7s %7s %9s %7s %9s %7s %7s   TFLOP/s of tiles of 128, 192, 256\n", "product", "rows", "cols",
           "depth", "cuBLASLt", "TFLOP/s", "ours us", "TFLOP/s", "ratio");
    for (int64_t rows : {8192, 16384})
        for (auto &s : shapes)
            if (!only_rows || rows == only_rows) bad += time_shape(s, rows, all);
    for (int i = 1; i < CONTENDERS; i++)
        printf("tile %d: mean ratio %.3f, least %.3f\n", tiles[i], exp(all[i].logs / all[i].n), all[i].least);
    return bad;
}

tensor as_tensor(void *data, int64_t rows, int64_t cols, int64_t ld, dtype type) {
    tensor t = {};
    t.data = data, t.rows = rows, t.cols = cols, t.ld = ld, t.type = type;
    return t;
}

struct fused_shape {
    const char *name;
    gemm_form form;
    wgmma_kind kind;
    int64_t cols, depth;
};
const fused_shape fused_shapes[] = {
    {"norm, q k v, rope", GEMM_NT, WGMMA_ROPE, 6144, 4096},
    {"norm, gate up, glu", GEMM_NT, WGMMA_GLU, 14336, 4096},
    {"o, add", GEMM_NT, WGMMA_ADD, 4096, 4096},
    {"down, add", GEMM_NT, WGMMA_ADD, 4096, 14336},
    {"down dx, glu", GEMM_NN, WGMMA_GLU_BWD, 14336, 4096},
    {"gate up dx, norm", GEMM_NN, WGMMA_NORM_BWD, 4096, 28672},
    {"q k v dx, norm", GEMM_NN, WGMMA_NORM_BWD, 4096, 6144},
};

/* A fused kind, and the same work by separate kernels. */
struct chain {
    bool before; /* a norm */
    int64_t rows, cols, depth;
    product p;
    buffer weight, between, normed, stacked;
    wgmma_call theirs; /* the plain product */

    chain(const fused_shape &s, int64_t n)
        : before(s.kind == WGMMA_ROPE || s.kind == WGMMA_GLU), rows(n), cols(s.cols), depth(s.depth),
          p({s.form, s.kind, n, s.cols, s.depth, 0, 0, 128, GLU_SILU}), weight(1, 4096, 4096, 10),
          between(n, wide(), wide(), 11), normed(n, 4096, 4096, 9),
          stacked(s.kind == WGMMA_GLU ? wide() : 0, depth, depth, 12) {
        if (s.kind == WGMMA_ROPE) p.g.rope.cols = 5120;
        theirs = p.g;
        theirs.kind = WGMMA_PLAIN, theirs.cols = theirs.ldc = wide(), theirs.c = between.data();
        if (before) theirs.a = normed.data();
        if (s.kind == WGMMA_GLU) theirs.b = stacked.data();
    }
    int64_t wide() const { return p.g.kind == WGMMA_GLU ? 2 * cols : cols; }
    tensor of(const void *data, int64_t width, int64_t ld) {
        return as_tensor((void *)(uintptr_t)data, rows, width, ld, DTYPE_BF16);
    }
    tensor rstd() { return as_tensor(p.scale, rows, 1, 1, DTYPE_F32); }
    tensor norm_weight() { return as_tensor(weight.data(), 1, 4096, 4096, DTYPE_BF16); }
    void norm() {
        tensor x = of(p.g.a, depth, depth), h = of(normed.data(), depth, depth), r = rstd(), w = norm_weight();
        cuda_rms_norm(&h, &r, &x, &w, rows, 1e-5f);
    }
    void behind() {
        wgmma_kind kind = p.g.kind;
        tensor y = of(between.data(), cols, wide()), up = of(between.data() + cols, cols, wide()), r = rstd();
        tensor c = of(p.second.c.data(), cols, cols), in = of(p.g.in, cols, cols),
               in_up = of(p.g.in_up, cols, p.g.ld_in_up);
        tensor h = of(normed.data(), cols, cols), w = norm_weight(), freq = as_tensor(p.freq, 1, 64, 64, DTYPE_F32);
        tensor act = of(p.second.y.data(), cols, cols), dup = of(p.second.up.data(), cols, cols);
        graph_op op = {};
        batch_info batch = {};
        kernel_call call = {};
        batch.rows = (int)rows, call.op = &op, call.batch = &batch, call.in[0] = y;
        if (kind == WGMMA_ROPE) y.cols = p.g.rope.cols, cuda_rope(&y, &y, p.pos, &freq, rows, false);
        if (kind == WGMMA_GLU) cuda_glu(&act, &y, &up, rows, GLU_SILU);
        if (kind == WGMMA_ADD) cuda_add_rms_norm(&c, &h, &r, &y, &in, &w, rows, 1e-5f);
        if (kind == WGMMA_GLU_BWD) {
            call.in[1] = in, call.in[2] = in_up, call.out[0] = c, call.out[1] = dup;
            cuda_op_glu_bwd(&call);
        }
        if (kind == WGMMA_NORM_BWD) {
            call.in[1] = in_up, call.in[2] = w, call.in[3] = r, call.in[4] = in, call.out[0] = c;
            cuda_op_rms_norm_bwd(&call);
        }
    }
    /* 0: fused; 1: our plain product; cuBLASLt 2: alone, 3: with the kernel behind it, 4: with a norm before it too */
    void start_one(size_t which) {
        failure f = {};
        if (which == 1) return run(theirs);
        if (which == 0) {
            run(p.g);
            if (p.g.kind == WGMMA_ADD && !wgmma_rstd(p.scale, p.sums, rows, cols, 1e-5f, cuda_stream(), &f)) abort();
            return;
        }
        if (which == 4) norm();
        start_cublas(theirs, theirs.cols);
        if (which > 2) behind();
    }
};

int run_fused() {
    int bad = 0;
    printf("%-19s %6s %9s %9s %9s %9s %9s   speed of fused against the last three\n", "", "rows", "fused us",
           "plain us", "cuBLASLt", "+ behind", "+ norm");
    for (int64_t rows : {8192, 16384})
        for (auto &s : fused_shapes) {
            if (only_rows && rows != only_rows) continue;
            chain c(s, rows);
            bad += check(c.p, c.p.first.c.n / 20000);
            std::vector<float> us = time_all(c.before ? 5 : 4, [&](size_t i) { c.start_one(i); });
            printf("%-19s %6lld", s.name, (long long)rows);
            for (float t : us) printf(" %9.1f", t);
            printf(c.before ? "  " : "            ");
            for (size_t i = 2; i < us.size(); i++) printf(" %.3f", us[i] / us[0]);
            printf("\n");
            fflush(stdout);
        }
    return bad;
}
} // namespace

int main(int argc, char **argv) {
    const backend *b;
    failure f = {};
    const char *mode = argc > 1 ? argv[1] : "";
    alarm(WATCHDOG_SECONDS); /* a barrier that is never met ends the test */
    if (!cuda_backend_find(&b, 0, &f)) return printf("skip: %s\n", f.text), SKIPPED;
    if (!b->open(&f)) return printf("%s\n", f.text), 3;
    gemm_close();
    if (!gemm_open(NULL, &f)) return printf("%s\n", f.text), 3;
    int bad;
    const char *why;
    {
        product tiny({GEMM_NT, WGMMA_PLAIN, 8, 8, 8, 0, 0, 0, GLU_SILU});
        if (!wgmma_serves(&tiny.g, &why)) return printf("skip: %s\n", why), SKIPPED;
    }
    alone = argc > 2 && strcmp(argv[2], "alone") == 0;
    if (argc > 2) pause_us = (int)strtol(argv[2], NULL, 10);
    if (argc > 3) only_rows = strtol(argv[3], NULL, 10);
    if (strcmp(mode, "--perf") == 0) bad = run_perf();
    else if (strcmp(mode, "--fused") == 0) bad = run_fused();
    else bad = run_cases(strcmp(mode, "--few") == 0) + run_refusals();
    b->close();
    return bad != 0;
}
