/* test_gemm.cu - cuda/gemm.c against sums in double.
 *
 *   test_gemm           odd and even shapes, strides, beta, bias, bf16 and float32: every element, and what must not be
 *                       written; each case runs three times (chosen by timing, found again, not timed)
 *   test_gemm --perf    TFLOP/s at the shapes of LLaMA-3-8B with rank 64: cuBLASLt's first proposal and the timed
 * choice
 *
 * Inputs are exact in bf16, so the reference differs by rounding of sums and of the result alone; TF32 would show. */
#include "cuda.cuh"
#include "gemm.h"
#include "random.cuh"

#include <vector>

namespace {
enum { GUARD = 256, SKIPPED = 77 };

uint64_t random_state = 1;
/* Exact in bf16: -1 to 1 in steps of 1/64 */
float random_value() {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return ((float)(random_state >> 57) - 64) / 64;
}

/* A matrix on host and device, with guards before and behind; the gaps between rows are guards too. */
struct buffer {
    int64_t rows, cols, ld;
    dtype type;
    std::vector<float> value; /* [rows, ld] */
    std::vector<char> bytes;  /* as on the device, guards included */
    char *block;

    buffer(int64_t r, int64_t c, int64_t stride, dtype t) : rows(r), cols(c), ld(stride), type(t), value(r * stride) {
        bytes.assign(size() + 2 * GUARD, (char)0xA5);
        for (int64_t i = 0; i < rows * ld; i++) {
            if (i % ld >= cols) continue;
            value[i] = random_value();
            dtype_from_f32(at(i), type, &value[i], 1);
        }
        stop_on(cudaMalloc(&block, bytes.size()), "cudaMalloc");
        write();
    }
    buffer(const buffer &) = delete;
    ~buffer() { cudaFree(block); }
    size_t size() const { return (size_t)(rows * ld) * dtype_size(type); }
    void *at(int64_t i) { return &bytes[GUARD + (size_t)i * dtype_size(type)]; }
    void *device() { return block + GUARD; }
    void write() { stop_on(cudaMemcpy(block, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "copy"); }
};

struct gemm_case {
    gemm_form form;
    int64_t rows, cols, depth, gap; /* gap: elements between rows of every matrix */
    dtype in, out;
    float alpha, beta;
    bool bias;
};

const char *const forms[] = {"NT", "NN", "TN"};

/* Compares c as it is on the device with what it should hold; returns the number of faults. */
int compare(const gemm_case *t, buffer *a, buffer *b, buffer *c, const std::vector<float> &bias) {
    std::vector<char> got(c->bytes.size());
    stop_on(cudaMemcpy(got.data(), c->block, got.size(), cudaMemcpyDeviceToHost), "copy back");
    size_t size = dtype_size(c->type);
    for (size_t i = 0; i < got.size(); i++) {
        bool inside = i >= GUARD && i < GUARD + c->size() && (int64_t)((i - GUARD) / size) % c->ld < c->cols;
        if (!inside && got[i] != c->bytes[i]) return printf("  byte %zu outside of c was written\n", i), 1;
    }
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t k = 0; k < t->cols; k++) {
            double sum = 0, size_of_sum = 0;
            for (int64_t i = 0; i < t->depth; i++) {
                double x = t->form == GEMM_TN ? a->value[i * a->ld + r] : a->value[r * a->ld + i];
                double y = t->form == GEMM_NT ? b->value[k * b->ld + i] : b->value[i * b->ld + k];
                sum += x * y;
                size_of_sum += fabs(x * y);
            }
            double want = t->alpha * sum + t->beta * c->value[r * c->ld + k] + (t->bias ? bias[k] : 0);
            float found;
            dtype_to_f32(&found, &got[GUARD + (size_t)(r * c->ld + k) * size], c->type, 1);
            double allowed = 1e-6 * (size_of_sum + fabs(want) + 1);
            if (c->type == DTYPE_BF16) allowed += fabs(want) / 256;
            /* some of cuBLASLt's kernels round the product to the type of c before they add c or the bias */
            if (c->type == DTYPE_BF16 && (t->beta != 0 || t->bias)) allowed += fabs(t->alpha * sum) / 256;
            if (fabs(found - want) <= allowed) continue; /* false for NaN */
            return printf("  [%lld, %lld]: found %.9g, expected %.9g\n", (long long)r, (long long)k, found, want), 1;
        }
    return 0;
}

int run_case(const gemm_case *t) {
    bool tn = t->form == GEMM_TN, nt = t->form == GEMM_NT;
    int64_t a_cols = tn ? t->rows : t->depth, b_cols = nt ? t->depth : t->cols;
    buffer a(tn ? t->depth : t->rows, a_cols, a_cols + t->gap, t->in);
    buffer b(nt ? t->cols : t->depth, b_cols, b_cols + t->gap, t->in);
    buffer c(t->rows, t->cols, t->cols + t->gap, t->out), bias(1, t->cols, t->cols, t->out);
    gemm_call g = {t->form,    t->rows,    t->cols,  t->depth, a.device(),
                   b.device(), c.device(), a.ld,     b.ld,     c.ld,
                   t->in,      t->out,     t->alpha, t->beta,  t->bias ? bias.device() : NULL};
    int bad = 0;
    for (int i = 0; i < 3 && !bad; i++) {
        failure f = {};
        c.write();
        gemm_set_timed(i < 2);
        if (!gemm_run(&g, &f)) bad = printf("  %s\n", f.text);
        stop_on(cudaStreamSynchronize(cuda_stream()), "product");
        if (!bad) bad = compare(t, &a, &b, &c, bias.value);
    }
    if (bad)
        printf("FAIL %s [%lld, %lld] over %lld, gap %lld, %s to %s, alpha %g, beta %g%s\n", forms[t->form],
               (long long)t->rows, (long long)t->cols, (long long)t->depth, (long long)t->gap, dtype_name(t->in),
               dtype_name(t->out), t->alpha, t->beta, t->bias ? ", bias" : "");
    return bad != 0;
}

int run_cases() {
    static const int64_t shapes[][3] = {{1, 8, 8},      {1, 64, 200},    {3, 5, 7},     {17, 33, 65},
                                        {127, 64, 192}, {128, 128, 128}, {129, 72, 64}, {200, 192, 320}};
    static const dtype types[][2] = {{DTYPE_BF16, DTYPE_BF16}, {DTYPE_BF16, DTYPE_F32}, {DTYPE_F32, DTYPE_F32}};
    int bad = 0, n = 0;
    for (auto &s : shapes)
        for (int form = GEMM_NT; form <= GEMM_TN; form++)
            for (auto &type : types)
                for (int64_t gap : {0, 8, 3})
                    for (int variant = 0; variant < 4; variant++) {
                        bool bias = variant == 3;
                        gemm_case t = {(gemm_form)form,
                                       s[0],
                                       s[1],
                                       s[2],
                                       gap,
                                       type[0],
                                       type[1],
                                       variant == 1 ? 0.25f : 1.0f,
                                       variant == 0 || bias ? 0.0f : 1.0f,
                                       bias};
                        bad += run_case(&t);
                        n++;
                    }
    printf("%d passed, %d failed\n", n - bad, bad);
    return bad;
}

/* ---- speed ---- */

struct perf_shape {
    const char *name;
    gemm_form form;
    int64_t rows, cols, depth, lda, ldb, ldc;
    dtype out;
};

const perf_shape perf_shapes[] = {
    {"qkv     s = x A'", GEMM_NT, 8192, 192, 4096, 4288, 4288, 192, DTYPE_BF16},
    {"qkv     y = [x s] W'", GEMM_NT, 8192, 6144, 4288, 4288, 4288, 6144, DTYPE_BF16},
    {"qkv     ds = dy B", GEMM_NN, 8192, 192, 6144, 6336, 4288, 6336, DTYPE_BF16},
    {"qkv     dx = [dy ds] W", GEMM_NN, 8192, 4096, 6336, 6336, 4288, 4096, DTYPE_BF16},
    {"qkv     dA = ds' x", GEMM_TN, 192, 4096, 8192, 6336, 4288, 4096, DTYPE_F32},
    {"q       dB = dy' s", GEMM_TN, 4096, 64, 8192, 6336, 192, 64, DTYPE_F32},
    {"k, v    dB = dy' s", GEMM_TN, 1024, 64, 8192, 6336, 192, 64, DTYPE_F32},
    {"o       s = x A'", GEMM_NT, 8192, 64, 4096, 4160, 4160, 64, DTYPE_BF16},
    {"o       y = [x s] W'", GEMM_NT, 8192, 4096, 4160, 4160, 4160, 4096, DTYPE_BF16},
    {"o       dx = [dy ds] W", GEMM_NN, 8192, 4096, 4160, 4160, 4160, 4096, DTYPE_BF16},
    {"gate up s = x A'", GEMM_NT, 8192, 128, 4096, 4224, 4224, 128, DTYPE_BF16},
    {"gate up y = [x s] W'", GEMM_NT, 8192, 28672, 4224, 4224, 4224, 28672, DTYPE_BF16},
    {"gate up ds = dy B", GEMM_NN, 8192, 128, 28672, 28800, 4224, 28800, DTYPE_BF16},
    {"gate up dx = [dy ds] W", GEMM_NN, 8192, 4096, 28800, 28800, 4224, 4096, DTYPE_BF16},
    {"gate up dA = ds' x", GEMM_TN, 128, 4096, 8192, 28800, 4224, 4096, DTYPE_F32},
    {"gate    dB = dy' s", GEMM_TN, 14336, 64, 8192, 28800, 128, 64, DTYPE_F32},
    {"down    s = x A'", GEMM_NT, 8192, 64, 14336, 14400, 14400, 64, DTYPE_BF16},
    {"down    y = [x s] W'", GEMM_NT, 8192, 4096, 14400, 14400, 14400, 4096, DTYPE_BF16},
    {"down    dx = [dy ds] W", GEMM_NN, 8192, 14336, 4160, 4160, 14400, 14336, DTYPE_BF16},
    {"down    dA = ds' x", GEMM_TN, 64, 14336, 8192, 4160, 14400, 14336, DTYPE_F32},
    {"head    logits", GEMM_NT, 4096, 128256, 4096, 4096, 4096, 128256, DTYPE_BF16},
    {"head    dx", GEMM_NN, 4096, 4096, 128256, 128256, 4096, 4096, DTYPE_BF16},
    {"square  8192", GEMM_NT, 8192, 8192, 8192, 8192, 8192, 8192, DTYPE_BF16},
};

__global__ void fill_kernel(bf16 *x, size_t n, uint32_t seed) {
    size_t i = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    uint32_t h = (uint32_t)i * 2654435761u ^ seed;
    h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
    x[i] = __float2bfloat16_rn(((float)(h >> 8) / (float)(1 << 24) - 0.5f) * 2);
}

char *filled(int64_t rows, int64_t ld, size_t size, uint32_t seed) {
    char *block;
    size_t n = (size_t)(rows * ld) * size / 2;
    stop_on(cudaMalloc(&block, n * 2), "cudaMalloc");
    fill_kernel<<<(unsigned)((n + 255) / 256), 256, 0, cuda_stream()>>>((bf16 *)block, n, seed);
    return block;
}

/* Median of 10 runs in microseconds. */
float time_call(const gemm_call *g) {
    enum { RUNS = 10 };
    float us[RUNS];
    cudaEvent_t from, to;
    cudaEventCreate(&from), cudaEventCreate(&to);
    for (int i = -2; i < RUNS; i++) {
        failure f = {};
        cudaEventRecord(from, cuda_stream());
        if (!gemm_run(g, &f)) printf("%s\n", f.text), abort();
        cudaEventRecord(to, cuda_stream());
        stop_on(cudaEventSynchronize(to), "product");
        float ms;
        cudaEventElapsedTime(&ms, from, to);
        if (i < 0) continue;
        int at = i;
        for (; at > 0 && us[at - 1] > ms * 1000; at--) us[at] = us[at - 1];
        us[at] = ms * 1000;
    }
    cudaEventDestroy(from), cudaEventDestroy(to);
    return us[RUNS / 2];
}

void run_perf() {
    printf("%-24s %7s %7s %7s   %9s %9s   %7s %7s\n", "product", "rows", "cols", "depth", "first us", "timed us",
           "TFLOP/s", "TFLOP/s");
    for (auto &s : perf_shapes) {
        bool tn = s.form == GEMM_TN, nt = s.form == GEMM_NT;
        size_t out = dtype_size(s.out);
        char *a = filled(tn ? s.depth : s.rows, s.lda, 2, 1), *w = filled(nt ? s.cols : s.depth, s.ldb, 2, 2);
        char *c = filled(s.rows, s.ldc, out, 3);
        gemm_call g = {s.form,     s.rows, s.cols, s.depth,        a,   w, c, s.lda, s.ldb, s.ldc,
                       DTYPE_BF16, s.out,  1,      tn ? 1.f : 0.f, NULL};
        float us[2];
        for (int timed = 0; timed < 2; timed++) {
            failure f = {};
            gemm_close(); /* forgets the choice */
            if (!gemm_open(NULL, &f)) printf("%s\n", f.text), abort();
            gemm_set_timed(timed);
            us[timed] = time_call(&g);
        }
        double flop = 2e-6 * (double)s.rows * (double)s.cols * (double)s.depth;
        printf("%-24s %7lld %7lld %7lld   %9.1f %9.1f   %7.1f %7.1f\n", s.name, (long long)s.rows, (long long)s.cols,
               (long long)s.depth, us[0], us[1], flop / us[0], flop / us[1]);
        cudaFree(a), cudaFree(w), cudaFree(c);
    }
}
} // namespace

int main(int argc, char **argv) {
    const backend *b;
    failure f = {};
    if (!cuda_backend_find(&b, 0, &f)) return printf("skip: %s\n", f.text), SKIPPED;
    if (!b->open(&f)) return printf("%s\n", f.text), 3;
    gemm_close();
    if (!gemm_open(NULL, &f)) return printf("%s\n", f.text), 3; /* no file: every shape is timed here */
    int bad = 0;
    if (argc > 1 && strcmp(argv[1], "--perf") == 0) run_perf();
    else bad = run_cases();
    b->close();
    return bad != 0;
}
