/* test_thin.cu - cuda/thin.cu against sums in double, and its speed against cuBLASLt's products.
 *
 *   test_thin          odd and even rows, widths, ranks and strides, one to three adapters: every element, and
 *                      what must not be written; each case runs twice and must give the same bits
 *   test_thin --few    some of the cases, for compute-sanitizer
 *   test_thin --perf   microseconds at the shapes of a layer, each contender by itself for a fifth of a second:
 *                      the library's products, and ours as it is and with chains of 1 and 8 slabs; operands walk
 *                      through 6 GiB
 *
 * Operands are random bf16; what lies between and around them is NaN, so reading it shows. */
#include "cuda.cuh"
#include "gemm.h"
#include "random.cuh"
#include "thin.h"

#include <unistd.h>
#include <vector>

namespace {
enum { GUARD = 4096, SKIPPED = 77, WATCHDOG_SECONDS = 60 };

/* Sentinels are NaNs that no sum gives. */
template <typename T> __device__ T sentinel();
template <> __device__ bf16 sentinel<bf16>() { return __ushort_as_bfloat16(0x7FC1); }
template <> __device__ float sentinel<float>() { return __uint_as_float(0x7FC12345u); }

template <typename T>
__global__ void fill_kernel(T *x, int64_t n, int64_t ld, int64_t row, int64_t rows, int64_t col, int64_t cols,
                            uint32_t seed) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t at = i - GUARD, r = at >= 0 ? at / ld - row : -1, c = at >= 0 ? at % ld - col : -1;
        if (!seed) x[i] = sentinel<T>();
        else if (r >= 0 && r < rows && c >= 0 && c < cols) x[i] = from_float<T>(random_value((uint64_t)i, seed));
    }
}

/* A matrix on the device between guards; all sentinels until some of it is filled. */
template <typename T> struct buffer {
    int64_t rows, ld, n;
    T *block;
    buffer(int64_t r, int64_t stride) : rows(r), ld(stride), n(r * stride + 2 * GUARD) {
        stop_on(cudaMalloc(&block, (size_t)n * sizeof(T)), "cudaMalloc");
        fill(0, 0, 0, 0, 0);
    }
    buffer(const buffer &) = delete;
    ~buffer() { cudaFree(block); }
    T *at(int64_t row, int64_t col) const { return block + GUARD + row * ld + col; }
    void fill(int64_t row, int64_t count, int64_t col, int64_t cols, uint32_t seed) {
        fill_kernel<<<1024, 256, 0, cuda_stream()>>>(block, n, ld, row, count, col, cols, seed);
    }
};

struct faults {
    unsigned long long count, first; /* first: index into the storage */
    double found, expected;
};

/* One adapter's ds, or dB: `old` is what dB held before, NULL where it is not added to. */
template <typename T> struct check_args {
    thin_adapter a;
    int64_t n;
    float scale;
    const T *result, *old;
    int64_t ld;
};

template <typename T> __global__ void check_kernel(check_args<T> o, faults *out) {
    bool is_ds = sizeof(T) == 2;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, rows = is_ds ? o.n : o.a.M, depth = is_ds ? o.a.M : o.n;
    int64_t row = i / o.a.r, col = i % o.a.r;
    if (row >= rows) return;
    const bf16 *dz = (const bf16 *)o.a.dz, *s = (const bf16 *)o.a.s, *B = (const bf16 *)o.a.B;
    double want = 0, size = 0;
    for (int64_t k = 0; k < depth; k++) {
        double x = is_ds ? (double)to_float(dz[row * o.a.ld_dz + k]) * (double)to_float(B[k * o.a.ld_B + col])
                         : (double)to_float(dz[k * o.a.ld_dz + row]) * (double)to_float(s[k * o.a.ld_s + col]);
        want += x, size += fabs(x);
    }
    want *= o.scale, size *= o.scale;
    if (o.old) want += to_float(o.old[row * o.ld + col]), size += 1;
    /* rounding to bf16, and that of the sums: the accumulator cuts off at every step of 16 */
    double allowed =
        (is_ds ? fabs(want) / 256 : 0) + size * (2e-6 + (double)(depth < 8192 ? depth : 8192) / 16 / (1 << 25));
    double found = to_float(o.result[row * o.ld + col]);
    if (fabs(found - want) <= allowed) return; /* false for NaN */
    if (atomicAdd(&out->count, 1ull) == 0) out->first = (unsigned long long)i, out->found = found, out->expected = want;
}

__device__ uint32_t bits(bf16 x) { return __bfloat16_as_ushort(x); }
__device__ uint32_t bits(float x) { return __float_as_uint(x); }

template <typename T> __global__ void differ_kernel(const T *x, const T *y, int64_t n, faults *out) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || bits(x[i]) == bits(y[i])) return;
    if (atomicAdd(&out->count, 1ull) == 0)
        out->first = (unsigned long long)i, out->found = to_float(x[i]), out->expected = to_float(y[i]);
}

/* Sentinels that are not there any more outside of [rows, cols] at each of the places. */
struct place {
    int64_t row, rows, col, cols;
};
template <typename T>
__global__ void outside_kernel(const T *x, int64_t n, int64_t ld, int count, place a, place b, place c, faults *out) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, at = i - GUARD;
    if (i >= n || bits(x[i]) == bits(sentinel<T>())) return;
    const place all[] = {a, b, c};
    for (int k = 0; k < count && at >= 0; k++) {
        int64_t row = at / ld - all[k].row, col = at % ld - all[k].col;
        if (row >= 0 && row < all[k].rows && col >= 0 && col < all[k].cols) return;
    }
    if (atomicAdd(&out->count, 1ull) == 0) out->first = (unsigned long long)i, out->found = to_float(x[i]);
}

struct problem {
    int64_t n;
    std::vector<int64_t> M, r;
    int64_t gap; /* elements between rows of every matrix */
    bool add;
    int chain;
};

int64_t sum(const std::vector<int64_t> &x) {
    int64_t all = 0;
    for (int64_t y : x) all += y;
    return all;
}

template <typename T> unsigned blocks_for(T n) { return (unsigned)((n + 255) / 256); }

struct test {
    problem p;
    int64_t M, R;
    buffer<bf16> dz, s, B, ds[2];
    buffer<float> old, dB[2];
    faults *found;
    char *scratch;
    thin_call call[2];

    test(const problem &q)
        : p(q), M(sum(q.M)), R(sum(q.r)), dz(q.n, M + q.gap), s(q.n, R + q.gap),
          B(M, R + q.gap), ds{{q.n, R + q.gap}, {q.n, R + q.gap}},
          old(M, 64 + q.gap), dB{{M, 64 + q.gap}, {M, 64 + q.gap}} {
        int64_t row = 0, col = 0, tiles = 0;
        stop_on(cudaMalloc(&found, sizeof *found), "cudaMalloc");
        for (int which = 0; which < 2; which++) call[which] = {}, call[which].n = q.n, call[which].scale = 0.75f;
        dz.fill(0, q.n, 0, M, 1), s.fill(0, q.n, 0, R, 2);
        for (size_t i = 0; i < q.M.size(); i++) {
            B.fill(row, q.M[i], col, q.r[i], 3), old.fill(row, q.M[i], 0, q.r[i], 4);
            for (int which = 0; which < 2; which++) {
                thin_adapter a = {q.M[i],
                                  q.r[i],
                                  dz.at(0, row),
                                  s.at(0, col),
                                  B.at(row, col),
                                  ds[which].at(0, col),
                                  dB[which].at(row, 0),
                                  dz.ld,
                                  s.ld,
                                  B.ld,
                                  ds[which].ld,
                                  dB[which].ld,
                                  q.add};
                call[which].of[i] = a, call[which].adapters = (int)i + 1, call[which].chain = q.chain;
            }
            tiles += ((q.M[i] + 511) / 512) * ((q.n + 127) / 128);
            row += q.M[i], col += q.r[i];
        }
        size_t bytes = q.chain ? (size_t)(tiles + 132 * 4) * 32768 : thin_scratch(q.n, q.M.data(), (int)q.M.size(), 64);
        stop_on(cudaMalloc(&scratch, bytes), "cudaMalloc");
        stop_on(cudaMemsetAsync(scratch, 0xFF, bytes, cuda_stream()), "cudaMemset");
    }
    ~test() { cudaFree(found), cudaFree(scratch); }

    int report(const char *what) {
        faults f;
        stop_on(cudaGetLastError(), "launch");
        stop_on(cudaMemcpyAsync(&f, found, sizeof f, cudaMemcpyDeviceToHost, cuda_stream()), "copy back");
        stop_on(cudaStreamSynchronize(cuda_stream()), "thin products");
        if (!f.count) return 0;
        printf("FAIL n %lld, M", (long long)p.n);
        for (int64_t m : p.M) printf(" %lld", (long long)m);
        printf(", r");
        for (int64_t r : p.r) printf(" %lld", (long long)r);
        printf(", gap %lld, add %d, chain %d: %s: %llu elements, first %llu found %.9g, expected %.9g\n",
               (long long)p.gap, p.add, p.chain, what, f.count, f.first, f.found, f.expected);
        return 1;
    }
    void clear() { stop_on(cudaMemsetAsync(found, 0, sizeof *found, cuda_stream()), "cudaMemset"); }
    template <typename T> int outside(const char *what, const buffer<T> &x, const place (&at)[3]) {
        clear();
        outside_kernel<T><<<blocks_for(x.n), 256, 0, cuda_stream()>>>(x.block, x.n, x.ld, (int)p.M.size(), at[0], at[1],
                                                                      at[2], found);
        return report(what);
    }
    template <typename T> int same(const char *what, const buffer<T> &x, const buffer<T> &y) {
        clear();
        differ_kernel<T><<<blocks_for(x.n), 256, 0, cuda_stream()>>>(x.block, y.block, x.n, found);
        return report(what);
    }
    int run();
};

/* Both runs; 1: something is wrong. */
int test::run() {
    int bad = 0;
    failure f = {};
    if (!thin_serves(&call[0])) return printf("FAIL n %lld, M %lld is not served\n", (long long)p.n, (long long)M), 1;
    for (int which = 0; which < 2; which++) {
        if (p.add)
            stop_on(
                cudaMemcpyAsync(dB[which].block, old.block, (size_t)old.n * 4, cudaMemcpyDeviceToDevice, cuda_stream()),
                "copy");
        if (!thin_run(&call[which], scratch, cuda_stream(), &f)) return printf("FAIL %s\n", f.text), 1;
    }
    place at_ds[3] = {}, at_dB[3] = {};
    int64_t row = 0, col = 0;
    for (size_t i = 0; i < p.M.size(); i++) {
        const thin_adapter &a = call[0].of[i];
        clear();
        check_args<bf16> d = {a, p.n, call[0].scale, (const bf16 *)a.ds, NULL, a.ld_ds};
        check_kernel<bf16><<<blocks_for(p.n * a.r), 256, 0, cuda_stream()>>>(d, found);
        bad += report("ds");
        clear();
        check_args<float> b = {a, p.n, call[0].scale, a.dB, p.add ? old.at(row, 0) : NULL, a.ld_dB};
        check_kernel<float><<<blocks_for(a.M * a.r), 256, 0, cuda_stream()>>>(b, found);
        bad += report("dB");
        at_ds[i] = {0, p.n, col, a.r}, at_dB[i] = {row, a.M, 0, a.r};
        row += a.M, col += a.r;
    }
    bad += outside("around ds", ds[0], at_ds) + outside("around dB", dB[0], at_dB);
    bad += same("ds of two runs", ds[0], ds[1]) + same("dB of two runs", dB[0], dB[1]);
    return bad != 0;
}

int run_cases(bool few) {
    static const int64_t rows[] = {129, 1, 128, 1000, 8191, 2047};
    static const std::vector<int64_t> widths[] = {{136, 520, 8}, {1024}, {4096, 1024, 1024}, {1280, 1280}, {8}, {8192}};
    int bad = 0, n = 0;
    for (int w = 0; w < (few ? 3 : 6); w++)
        for (int m = 0; m < (few ? 2 : 6); m++)
            for (int k = 0; k < (few ? 1 : 4); k++) {
                static const int64_t ranks[][3] = {{64, 64, 64}, {8, 64, 24}, {56, 16, 64}, {16, 8, 8}};
                static const int chains[] = {0, 1, 100, 3};
                if (rows[m] > 1000 && k % 2 == 1) continue; /* quick */
                problem p = {rows[m],
                             widths[w],
                             {ranks[k], ranks[k] + widths[w].size()},
                             (m + w + k) % 3 * 8,
                             (m + w + k) % 2 == 1,
                             chains[(k + m) % 4]};
                bad += test(p).run(), n++;
                if (bad > 30) return printf("too many failures after %d\n", n), bad;
            }
    /* The same bits again and again, with all of the card in use. */
    test big({few ? 512 : 8192, {14336, 14336}, {64, 64}, 0, false, 0});
    for (int i = 0; i < (few ? 1 : 20); i++, n++) {
        failure f = {};
        if (!i) bad += big.run();
        else if (!thin_run(&big.call[1], big.scratch, cuda_stream(), &f)) bad++;
        else bad += big.same("ds again", big.ds[0], big.ds[1]) || big.same("dB again", big.dB[0], big.dB[1]);
    }
    printf("%d passed, %d failed\n", n - bad, bad);
    return bad;
}

/* What thin_serves must refuse. */
int run_refusals() {
    test t({256, {64}, {64}, 0, false, 0});
    int bad = 0;
    auto refused = [&](const char *name, thin_call c) {
        if (!thin_serves(&c)) return;
        printf("FAIL %s is not refused\n", name);
        bad++;
    };
    thin_call c = t.call[0];
    c.n = 0, refused("no rows", c);
    c = t.call[0], c.adapters = 0, refused("no adapters", c);
    c = t.call[0], c.of[0].r = 72, refused("rank 72", c);
    c = t.call[0], c.of[0].r = 12, refused("rank 12", c);
    c = t.call[0], c.of[0].M = 60, refused("width 60", c);
    c = t.call[0], c.of[0].M = 1 << 20, refused("more slabs than multiprocessors", c);
    c = t.call[0], c.of[0].ld_dz = 68, refused("stride 68", c);
    c = t.call[0], c.of[0].dB++, refused("an odd base", c);
    c = t.call[0], c.of[0].dB = NULL, refused("no dB", c);
    return bad;
}

/* ---- speed ---- */

template <typename F> float time_alone(F start_it) {
    enum { BATCH = 20 };
    cudaEvent_t from, to;
    float passed = 0;
    int runs = 0;
    cudaEventCreate(&from), cudaEventCreate(&to);
    for (int phase = 0; phase < 2; phase++) {
        passed = 0, runs = 0;
        cudaEventRecord(from, cuda_stream());
        while (passed < (phase ? 200 : 60)) {
            for (int i = 0; i < BATCH; i++) start_it(runs + i);
            runs += BATCH;
            cudaEventRecord(to, cuda_stream());
            stop_on(cudaEventSynchronize(to), "products");
            cudaEventElapsedTime(&passed, from, to);
        }
    }
    cudaEventDestroy(from), cudaEventDestroy(to);
    return passed * 1000 / (float)runs;
}

void product(gemm_form form, int64_t rows, int64_t cols, int64_t depth, const void *a, int64_t lda, const void *b,
             int64_t ldb, void *c, int64_t ldc, dtype out) {
    gemm_call g = {form, rows, cols, depth, a, b, c, lda, ldb, ldc, DTYPE_BF16, out, 0.75f, 0, NULL};
    failure f = {};
    if (!gemm_run(&g, &f)) printf("%s\n", f.text), abort();
}

struct shape {
    const char *name;
    int64_t n;
    std::vector<int64_t> M;
    int64_t r;
    int in_layer; /* how often a layer of LLaMA-3-8B at 8192 rows has it */
};

const shape shapes[] = {{"8B q k v", 8192, {4096, 1024, 1024}, 64, 1},
                        {"8B o, down", 8192, {4096}, 64, 2},
                        {"8B gate up", 8192, {14336, 14336}, 64, 1},
                        {"8B gate up", 8192, {14336, 14336}, 16, 0},
                        {"8B q k v", 8192, {4096, 1024, 1024}, 16, 0},
                        {"8B gate up", 2048, {14336, 14336}, 64, 0},
                        {"8B q k v", 2048, {4096, 1024, 1024}, 64, 0},
                        {"8B o", 2048, {4096}, 64, 0},
                        {"8B o", 512, {4096}, 64, 0},
                        {"8B gate up", 512, {14336, 14336}, 64, 0},
                        {"1B q k v", 16384, {2048, 512, 512}, 64, 0},
                        {"1B o, down", 16384, {2048}, 64, 0},
                        {"1B gate up", 16384, {8192, 8192}, 64, 0}};

int run_perf() {
    const int64_t all = 3ll << 30; /* elements */
    bf16 *big, *B, *s, *ds;
    float *dB;
    char *scratch;
    stop_on(cudaMalloc(&big, all * 2), "cudaMalloc");
    stop_on(cudaMalloc(&B, 64 << 20), "cudaMalloc");
    stop_on(cudaMalloc(&s, 64 << 20), "cudaMalloc");
    stop_on(cudaMalloc(&ds, 64 << 20), "cudaMalloc");
    stop_on(cudaMalloc(&dB, 64 << 20), "cudaMalloc");
    stop_on(cudaMalloc(&scratch, 512 << 20), "cudaMalloc");
    fill_kernel<<<2048, 256, 0, cuda_stream()>>>(big, all, all, 0, 1, -GUARD, all, 1);
    fill_kernel<<<2048, 256, 0, cuda_stream()>>>(B, 32 << 20, 32 << 20, 0, 1, -GUARD, 32 << 20, 2);
    fill_kernel<<<2048, 256, 0, cuda_stream()>>>(s, 32 << 20, 32 << 20, 0, 1, -GUARD, 32 << 20, 3);
    double layer[2] = {};
    gemm_set_timed(true);
    printf("%-11s %6s %3s %9s %8s %8s %8s %8s %8s %7s   us; floor: dz at 4.2 TB/s\n", "", "rows", "r", "lib ds",
           "lib dB", "ours", "chain 1", "chain 8", "floor", "ratio");
    for (auto &sh : shapes) {
        int64_t M = sum(sh.M), S = sh.r * (int64_t)sh.M.size(), n = sh.n, places = all / (n * M);
        auto dz = [&](int i) { return big + (i % places) * n * M; };
        float lib_ds = time_alone([&](int i) { product(GEMM_NN, n, S, M, dz(i), M, B, 4096 + S, ds, S, DTYPE_BF16); });
        float lib_dB = time_alone([&](int i) {
            int64_t at = 0, k = 0;
            for (int64_t m : sh.M) {
                product(GEMM_TN, m, sh.r, n, dz(i) + at, M, s + k, S, dB + at * sh.r, sh.r, DTYPE_F32);
                at += m, k += sh.r;
            }
        });
        float ours[3];
        for (int which = 0; which < 3; which++) {
            thin_call c = {};
            c.n = n, c.scale = 0.75f, c.adapters = (int)sh.M.size(), c.chain = which == 0 ? 0 : which == 1 ? 1 : 8;
            ours[which] = time_alone([&](int i) {
                int64_t at = 0, k = 0;
                for (int j = 0; j < c.adapters; j++) {
                    c.of[j] = {sh.M[j],  sh.r, dz(i) + at, s + k, B + at * (4096 + S) + k, ds + k, dB + at * sh.r, M, S,
                               4096 + S, S,    sh.r,       false};
                    at += sh.M[j], k += sh.r;
                }
                failure f = {};
                if (!thin_run(&c, scratch, cuda_stream(), &f)) printf("%s\n", f.text), abort();
            });
        }
        printf("%-11s %6lld %3lld %9.1f %8.1f %8.1f %8.1f %8.1f %8.1f %7.3f\n", sh.name, (long long)n, (long long)sh.r,
               lib_ds, lib_dB, ours[0], ours[1], ours[2], 2e-6 * (double)(n * M) / 4.2, (lib_ds + lib_dB) / ours[0]);
        fflush(stdout);
        layer[0] += sh.in_layer * (lib_ds + lib_dB), layer[1] += sh.in_layer * ours[0];
    }
    printf("a layer of 8B at 8192 rows: library %.1f us, ours %.1f us\n", layer[0], layer[1]);
    return 0;
}
} // namespace

int main(int argc, char **argv) {
    const backend *b;
    failure f = {};
    const char *mode = argc > 1 ? argv[1] : "";
    alarm(WATCHDOG_SECONDS); /* a turn that never comes ends the test */
    if (!cuda_backend_find(&b, 0, &f)) return printf("skip: %s\n", f.text), SKIPPED;
    if (!b->open(&f)) return printf("%s\n", f.text), 3;
    int64_t M = 64;
    if (!thin_scratch(64, &M, 1, 64)) return printf("skip: the card is not of compute capability 9.0\n"), SKIPPED;
    int bad = strcmp(mode, "--perf") == 0 ? run_perf() : run_cases(strcmp(mode, "--few") == 0) + run_refusals();
    b->close();
    return bad != 0;
}
