/* test_attention.cu - attention on the GPU, our own kernels and cuDNN's, against a double-precision reference.
 *
 *   test_attention [--perf | --probe | --repeat TIMES] [--own | --cudnn] [--library PATH] [--case TEXT]
 *                  [--room COLUMNS]
 *
 * Inputs are bf16.  Every buffer lies between guards, and rows behind the last document hold NaN: reading one shows
 * in the results, writing one in the check of what must not change.  Where cuDNN fails only with NaN there, the case
 * is run again with finite values and counted apart.  Our kernels, on wgmma where a card has it and on mma.sync, run
 * twice and must give the same bits; their backward again where rope turned q and k ("turned"): dq and dk from before
 * it, and dot.
 * Prints a line per case, last "N passed, N failed, N skipped"; --perf prints times of Llama-3-8B's shape instead
 * (--room: with o in a buffer that much wider).
 * --repeat runs our kernels so often, cases and Llama-3-8B's shape, and compares the bits of all runs.
 * --probe needs cuDNN and a libcuda.so.1 (CUDA's stub will do) but no GPU: which graphs find an engine on which card.
 */
#include "cudnn_attention.h"
#include "device.h"
#include "test_attention.h"

#include <cuda_bf16.h>
#include <math.h>
#include <stdexcept>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <time.h>
#include <vector>

static void check_cuda(cudaError_t e, const char *what) {
    if (e == cudaSuccess) return;
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(e));
}
#define CUDA(call) check_cuda(call, #call)

/* ---- buffers ---- */

enum { GUARD = 256 };                           /* elements before and after */
static const uint16_t SENTINEL = 0x7fc1;        /* a bf16 NaN */
static const uint32_t SENTINEL32 = 0x7fc1a55au; /* a float NaN */

/* [rows, cols] of T on the device, everything SENTINEL at first; `host` holds what was last read back or is to go up.
 */
template <typename T> struct buffer {
    T *base = NULL;
    int64_t rows = 0, cols = 0;
    std::vector<T> host;
    T sentinel() const { return sizeof(T) == 2 ? (T)SENTINEL : (T)SENTINEL32; }
    void open(int64_t r, int64_t c) {
        rows = r, cols = c;
        host.assign((size_t)(r * c + 2 * GUARD), sentinel());
        CUDA(cudaMalloc(&base, host.size() * sizeof(T)));
        upload();
    }
    void close() { CUDA(cudaFree(base)); }
    T *data() const { return base + GUARD; }
    T &at(int64_t r, int64_t c) { return host[(size_t)(GUARD + r * cols + c)]; }
    void upload() { CUDA(cudaMemcpy(base, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice)); }
    void download() { CUDA(cudaMemcpy(host.data(), base, host.size() * sizeof(T), cudaMemcpyDeviceToHost)); }
    void reset() {
        host.assign(host.size(), sentinel());
        upload();
    }
    /* Elements outside the first `used` rows that are not SENTINEL any more. */
    int64_t touched(int64_t used) const {
        int64_t count = 0;
        for (int64_t i = 0; i < (int64_t)host.size(); i++)
            if ((i < GUARD || i >= GUARD + used * cols) && host[(size_t)i] != sentinel()) count++;
        return count;
    }
};

static float from_bf16(uint16_t b) {
    uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
/* ---- a case on the device ---- */

/* q, k, v of heads H, G, G: column slices of one buffer when strided, else a buffer each. */
struct triple {
    buffer<uint16_t> part[3];
    bool strided = false;
    attention_rows rows[3];
    int64_t column[3];
    int used(int i) const { return strided ? 0 : i; }
    void open(const problem &p) {
        int64_t width[3] = {(int64_t)p.H * p.d, (int64_t)p.G * p.d, (int64_t)p.G * p.d}, all = width[0] + 2 * width[1];
        strided = p.strided;
        if (strided) part[0].open(p.N, all);
        for (int i = 0; i < 3; i++) {
            if (!strided) part[i].open(p.N, width[i]);
            column[i] = strided ? (i == 0 ? 0 : i == 1 ? width[0] : width[0] + width[1]) : 0;
            rows[i] = {part[used(i)].data() + column[i], part[used(i)].cols};
        }
    }
    void close() {
        for (int i = 0; i < (strided ? 1 : 3); i++) part[i].close();
    }
    void each(void (buffer<uint16_t>::*action)()) {
        for (int i = 0; i < (strided ? 1 : 3); i++) (part[i].*action)();
    }
    uint16_t &at(int i, int64_t row, int64_t c) { return part[used(i)].at(row, column[i] + c); }
};

/* Our own kernels are told of the documents' rows alone, cuDNN of all that the buffers have. */
static attention_shape own_shape(const problem &p) { return {p.rows(), p.H, p.G, p.d, p.window, p.scale, p.cap}; }

struct device_case {
    triple in, grad;
    buffer<uint16_t> o, dout;
    buffer<uint32_t> lse, cu, bounds, workspace, pos, freq, dot;
    attention_operands x;
    attention_shape shape;
    void open(const problem &p, const inputs &host, size_t workspace_bytes, bool nan_padding) {
        in.open(p), grad.open(p);
        o.open(p.N, (int64_t)p.H * p.d), dout.open(p.N, (int64_t)p.H * p.d);
        lse.open(p.N, p.H), cu.open(1, (int64_t)p.cu.size()),
            bounds.open(1, (int64_t)attention_bounds_size(p.rows()) / 4);
        workspace.open(1, (int64_t)(workspace_bytes + 3) / 4);
        int64_t rows = nan_padding ? p.rows() : p.N;
        for (int64_t t = 0; t < rows; t++)
            for (int h = 0; h < p.H * p.d; h++) {
                in.at(0, t, h) = host.q[(size_t)(t * p.H * p.d + h)];
                dout.at(t, h) = host.dout[(size_t)(t * p.H * p.d + h)];
                if (h >= p.G * p.d) continue;
                in.at(1, t, h) = host.k[(size_t)(t * p.G * p.d + h)];
                in.at(2, t, h) = host.v[(size_t)(t * p.G * p.d + h)];
            }
        for (size_t i = 0; i < p.cu.size(); i++) cu.at(0, (int64_t)i) = (uint32_t)p.cu[i];
        in.each(&buffer<uint16_t>::upload), dout.upload(), cu.upload();
        x = {};
        x.q = in.rows[0], x.k = in.rows[1], x.v = in.rows[2], x.o = {o.data(), o.cols}, x.lse = (float *)lse.data();
        x.dout = {dout.data(), dout.cols}, x.dq = grad.rows[0], x.dk = grad.rows[1], x.dv = grad.rows[2];
        shape = own_shape(p);
        open_rope(p);
    }
    void open_rope(const problem &p) {
        pos.open(p.N, 1), freq.open(1, p.d / 2), dot.open(p.N, 1);
        for (int t = 0; t < p.rows(); t++) pos.at(t, 0) = (uint32_t)position_of(p, t);
        for (int j = 0; j < p.d / 2; j++) {
            float f = frequency_of(p, j);
            memcpy(&freq.at(0, j), &f, 4);
        }
        pos.upload(), freq.upload();
    }
    void turn(bool on) {
        x.pos = on ? (const int32_t *)pos.data() : NULL, x.freq = on ? (const float *)freq.data() : NULL;
        x.dot = on ? (float *)dot.data() : NULL;
    }
    void close() {
        in.close(), grad.close(), o.close(), dout.close(), lse.close(), cu.close(), bounds.close(), workspace.close();
        pos.close(), freq.close(), dot.close();
    }
    void reset() { grad.each(&buffer<uint16_t>::reset), o.reset(), lse.reset(), workspace.reset(), dot.reset(); }
    void download() {
        grad.each(&buffer<uint16_t>::download), o.download(), lse.download(), workspace.download(), dot.download();
    }
};

static bool run_own(device_case &c, const problem &p, failure *f) {
    int32_t *bounds = (int32_t *)c.bounds.data();
    return attention_bounds(bounds, (const int32_t *)c.cu.data(), p.docs(), p.rows(), 0, f) &&
           attention_forward(&c.shape, &c.x, bounds, 0, f) &&
           attention_backward(&c.shape, &c.x, bounds, c.workspace.data(), 0, f);
}

static bool run_cudnn(cudnn_attention *a, device_case &c, const problem &p, failure *f) {
    return cudnn_attention_prepare(a, (const int32_t *)c.cu.data(), p.docs(), p.longest(), 0, f) &&
           cudnn_attention_forward(a, &c.x, c.workspace.data(), 0, f) &&
           cudnn_attention_backward(a, &c.x, c.workspace.data(), 0, f);
}

/* ---- comparison ---- */

struct error {
    double nmse, max; /* sum e^2 / sum ref^2; largest |e| / largest |ref| */
};

/* `size`: what errors are measured by, element by element; of a sum its terms may be larger than itself. */
template <typename GET> static error compare(const std::vector<double> &ref, const std::vector<double> &size, GET get) {
    double e2 = 0, r2 = 0, e_max = 0, r_max = 0;
    bool bad = false;
    for (size_t i = 0; i < ref.size(); i++) {
        double e = get(i) - ref[i];
        if (!(fabs(e) < 1e30)) bad = true;
        e2 += e * e, r2 += size[i] * size[i];
        e_max = fmax(e_max, fabs(e)), r_max = fmax(r_max, fabs(size[i]));
    }
    if (bad) return {NAN, NAN};
    return {e2 / fmax(r2, 1e-8 * (double)ref.size()), e_max / fmax(r_max, 1e-4)}; /* zeros are compared as they are */
}

template <typename GET> static error compare(const std::vector<double> &ref, GET get) { return compare(ref, ref, get); }

/* Of a matrix that failed: the first elements that are far off, and how many there are. */
template <typename GET>
static void print_wrong(const char *name, const std::vector<double> &ref, int64_t cols, GET get) {
    double r_max = 1e-4;
    int64_t wrong = 0;
    for (double r : ref) r_max = fmax(r_max, fabs(r));
    for (size_t i = 0; i < ref.size(); i++) {
        if (fabs(get(i) - ref[i]) <= 1.6e-2 * r_max) continue; /* not so of NaN */
        if (wrong++ < 6)
            printf("       %s[%lld, %lld] is %g, expected %g\n", name, (long long)i / cols, (long long)i % cols,
                   (double)get(i), ref[i]);
    }
    if (wrong)
        printf("       %lld of %lld elements of %s are far off\n", (long long)wrong, (long long)ref.size(), name);
}

/* The gradients are compared with those of the o that the forward stored, rounded to bf16: it is an input of the
 * backward. */
static reference stored_reference(const device_case &c, const problem &p, const inputs &host,
                                  const reference &forward) {
    const int64_t size = (int64_t)p.rows() * p.H * p.d;
    std::vector<uint16_t> o(c.o.host.begin() + GUARD, c.o.host.begin() + GUARD + size);
    reference ref = compute_reference(p, host, &o);
    ref.o = forward.o;
    return ref;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Prints the errors; false where one is too large or something outside was written. */
static bool judge(device_case &c, const problem &p, const reference &ref, const char *who) {
    const int64_t q_cols = (int64_t)p.H * p.d, k_cols = (int64_t)p.G * p.d, rows = p.rows();
    auto get_o = [&](size_t i) { return from_bf16(c.o.at((int64_t)i / q_cols, (int64_t)i % q_cols)); };
    auto get_dq = [&](size_t i) { return from_bf16(c.grad.at(0, (int64_t)i / q_cols, (int64_t)i % q_cols)); };
    auto get_dk = [&](size_t i) { return from_bf16(c.grad.at(1, (int64_t)i / k_cols, (int64_t)i % k_cols)); };
    auto get_dv = [&](size_t i) { return from_bf16(c.grad.at(2, (int64_t)i / k_cols, (int64_t)i % k_cols)); };
    auto get_lse = [&](size_t i) { return float_of(c.lse.at((int64_t)i / p.H, (int64_t)i % p.H)); };
    auto get_dot = [&](size_t i) { return float_of(c.dot.at((int64_t)i, 0)); };
    error e[5] = {compare(ref.o, get_o), compare(ref.dq, get_dq), compare(ref.dk, get_dk), compare(ref.dv, get_dv),
                  compare(ref.lse, get_lse)};
    bool good = true;
    for (int i = 0; i < 4; i++) good = good && e[i].nmse <= 1e-4 && e[i].max <= 1.6e-2;
    good = good && e[4].nmse <= 1e-8 && e[4].max <= 1e-4;
    error dot = {0, 0};
    if (c.x.dot) dot = compare(ref.dot, ref.dot_size, get_dot);
    good = good && dot.nmse <= 1e-4 && dot.max <= 1.6e-2;
    int64_t touched = c.o.touched(rows) + c.lse.touched(rows) + c.workspace.touched(1);
    touched += c.dot.touched(c.x.dot ? rows : 0);
    for (int i = 0; i < (c.grad.strided ? 1 : 3); i++) touched += c.grad.part[i].touched(rows);
    printf("%-6s %-13s %-44s nmse o %.1e dq %.1e dk %.1e dv %.1e  max o %.1e dq %.1e dk %.1e dv %.1e lse %.1e",
           good && !touched ? "ok" : "FAILED", who, p.name.c_str(), e[0].nmse, e[1].nmse, e[2].nmse, e[3].nmse,
           e[0].max, e[1].max, e[2].max, e[3].max, e[4].max);
    if (c.x.dot) printf("  dot nmse %.1e max %.1e", dot.nmse, dot.max);
    printf("%s\n", touched ? "  WROTE OUTSIDE" : "");
    if (!good) {
        if (c.x.dot) print_wrong("dot", ref.dot, 1, get_dot);
        print_wrong("o", ref.o, q_cols, get_o), print_wrong("lse", ref.lse, p.H, get_lse);
        print_wrong("dq", ref.dq, q_cols, get_dq), print_wrong("dk", ref.dk, k_cols, get_dk);
        print_wrong("dv", ref.dv, k_cols, get_dv);
    }
    return good && !touched;
}

struct tally {
    int passed, failed, skipped, weak;
};

static bool run_and_read(device_case &c, const problem &p, const char *who) {
    failure f = {};
    c.reset();
    bool good = run_own(c, p, &f);
    if (!good) printf("FAILED %-13s %s: %s\n", who, p.name.c_str(), f.text);
    CUDA(cudaDeviceSynchronize());
    c.download();
    return good;
}

/* On wgmma, or on mma.sync. */
static void test_kernels(const problem &p, const inputs &host, const reference &forward, bool on_mma, tally *t) {
    device_case c;
    attention_shape shape = own_shape(p);
    shape.on_mma = on_mma;
    c.open(p, host, attention_workspace(&shape), true);
    c.shape = shape;
    reference ref;
    for (bool turned : {false, true}) {
        const char *who = on_mma ? (turned ? "mma, turned" : "mma") : turned ? "wgmma, turned" : "wgmma";
        c.turn(turned);
        bool good = run_and_read(c, p, who);
        if (!turned) ref = stored_reference(c, p, host, forward);
        else turn_reference(p, host, &ref);
        good = good && judge(c, p, ref, who);
        std::vector<uint16_t> o = c.o.host, dq = c.grad.part[0].host, dk = c.grad.part[1].host,
                              dv = c.grad.part[2].host;
        std::vector<uint32_t> lse = c.lse.host, dot = c.dot.host;
        good = run_and_read(c, p, who) && good;
        bool same = o == c.o.host && lse == c.lse.host && dq == c.grad.part[0].host && dk == c.grad.part[1].host &&
                    dv == c.grad.part[2].host && dot == c.dot.host;
        if (!same) printf("FAILED %-13s %s: a second run gave other bits\n", who, p.name.c_str());
        if (good && same) t->passed++;
        else t->failed++;
    }
    c.close();
}

static void test_own(const problem &p, const inputs &host, const reference &forward, tally *t) {
    attention_shape shape = own_shape(p);
    if (attention_on_wgmma(&shape)) test_kernels(p, host, forward, false, t);
    test_kernels(p, host, forward, true, t);
}

static bool try_cudnn(cudnn_attention *a, const problem &p, const inputs &host, const reference &ref,
                      bool nan_padding) {
    device_case c;
    failure f = {};
    c.open(p, host, cudnn_attention_workspace(a), nan_padding);
    bool good = run_cudnn(a, c, p, &f);
    if (!good) printf("FAILED cudnn %s: %s\n", p.name.c_str(), f.text);
    CUDA(cudaDeviceSynchronize());
    c.download();
    good = good && judge(c, p, stored_reference(c, p, host, ref), nan_padding ? "cudnn" : "cudnn, finite padding");
    c.close();
    return good;
}

static attention_operands layout_of(const problem &p) {
    int64_t q = (int64_t)p.H * p.d, k = (int64_t)p.G * p.d, all = q + 2 * k;
    attention_operands x = {};
    x.q.ld = x.dq.ld = p.strided ? all : q;
    x.k.ld = x.v.ld = x.dk.ld = x.dv.ld = p.strided ? all : k;
    x.o.ld = x.dout.ld = q;
    return x;
}

static void test_cudnn(const problem &p, const inputs &host, const reference &ref, const char *library, tally *t) {
    cudnn_attention *a;
    failure f = {};
    attention_operands layout = layout_of(p);
    attention_shape shape = {p.N, p.H, p.G, p.d, p.window, p.scale, p.cap};
    if (!cudnn_attention_open(&a, &shape, &layout, p.docs(), library, &f)) {
        printf("skip   cudnn %s: %s\n", p.name.c_str(), f.text);
        t->skipped++;
        return;
    }
    if (try_cudnn(a, p, host, ref, true)) t->passed++;
    else if (p.rows() < p.N && try_cudnn(a, p, host, ref, false)) t->weak++;
    else t->failed++;
    cudnn_attention_close(a);
}

/* ---- many runs of one case ---- */

/* found[0]: words that differ; found[1]: the first of them. */
__global__ void differ_kernel(const uint32_t *x, const uint32_t *kept, int64_t words, unsigned long long *found) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= words || x[i] == kept[i]) return;
    atomicAdd(&found[0], 1ull);
    atomicMin(&found[1], (unsigned long long)i);
}

/* An output, as the first run left it, and how later ones differ. */
struct watched {
    const char *name;
    uint32_t *data, *kept;
    int64_t words, row; /* 32-bit words, of all and of a row */
    unsigned long long *found;
    template <typename T> watched(const char *called, const buffer<T> &b, int64_t rows) {
        name = called, data = (uint32_t *)b.data();
        row = b.cols * (int64_t)sizeof(T) / 4, words = rows * row;
        CUDA(cudaMalloc(&kept, (size_t)words * 4 + 4));
        CUDA(cudaMallocManaged(&found, 2 * sizeof *found));
        found[0] = 0, found[1] = ~0ull;
    }
    void clear() { CUDA(cudaMemsetAsync(data, 0xff, (size_t)words * 4, 0)); }
    void keep() { CUDA(cudaMemcpyAsync(kept, data, (size_t)words * 4, cudaMemcpyDeviceToDevice, 0)); }
    void compare() { differ_kernel<<<(unsigned)((words + 255) / 256), 256>>>(data, kept, words, found); }
    bool same() {
        if (found[0])
            printf("       %s: %llu words in all differ from the first run's, the first in row %llu\n", name, found[0],
                   found[1] / (unsigned long long)row);
        return found[0] == 0;
    }
};

/* Our kernels give the same bits `times` times, also where other programs take turns on the card. */
static bool repeat_case(const problem &p, int times) {
    device_case c;
    inputs host = make_inputs(p);
    attention_shape shape = own_shape(p);
    failure f = {};
    c.open(p, host, attention_workspace(&shape), true);
    c.turn(true);
    std::vector<watched> list = {watched("o", c.o, p.rows()), watched("lse", c.lse, p.rows()),
                                 watched("dot", c.dot, p.rows())};
    const char *const names[] = {c.grad.strided ? "dq, dk, dv" : "dq", "dk", "dv"};
    for (int i = 0; i < (c.grad.strided ? 1 : 3); i++) list.push_back(watched(names[i], c.grad.part[i], p.rows()));
    for (int run = 0; run < times; run++) {
        for (watched &w : list) w.clear();
        if (!run_own(c, p, &f)) throw std::runtime_error(f.text);
        for (watched &w : list) run ? w.compare() : w.keep();
    }
    CUDA(cudaDeviceSynchronize());
    bool good = true;
    for (watched &w : list) good = w.same() && good;
    printf("%-6s %d runs of %s\n", good ? "ok" : "FAILED", times, p.name.c_str());
    for (watched &w : list) {
        CUDA(cudaFree(w.kept));
        CUDA(cudaFree(w.found));
    }
    c.close();
    return good;
}

/* ---- speed ---- */

static double seconds() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Microseconds of a launch among others of its kind: for a third of a second, of which the last two thirds count, as
 * the card's clock follows its power. */
template <typename LAUNCH> static double steady_us(LAUNCH launch) {
    const double wanted = 0.35;
    cudaEvent_t begin, end;
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    launch();
    CUDA(cudaDeviceSynchronize());
    double once = seconds();
    for (int i = 0; i < 4; i++) launch();
    CUDA(cudaDeviceSynchronize());
    once = (seconds() - once) / 4;
    const int runs = 3 + (int)(wanted / once), before = runs / 3;
    for (int i = 0; i < runs; i++) {
        if (i == before) CUDA(cudaEventRecord(begin));
        launch();
    }
    CUDA(cudaEventRecord(end));
    CUDA(cudaEventSynchronize(end));
    float ms;
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    return 1e3 * ms / (runs - before);
}

static void must(bool done, const failure *f) {
    if (!done) throw std::runtime_error(f->text);
}

static void print_speed(const char *who, const problem &p, double forward, double backward) {
    double pairs = 0; /* that the mask lets through */
    for (int i = 0; i < p.docs(); i++)
        for (int64_t r = 0; r < p.cu[i + 1] - p.cu[i]; r++) pairs += p.window && r + 1 > p.window ? p.window : r + 1;
    double work = 4.0 * p.d * p.H * pairs;
    printf("%-6s %-44s forward %9.1f us %6.1f TFLOP/s   backward %9.1f us %6.1f TFLOP/s\n", who, p.name.c_str(),
           forward, work / forward * 1e-6, backward, 2.5 * work / backward * 1e-6);
}

/* room: columns behind the rows of o. */
static void time_case(const problem &p, const char *library, bool own, bool cudnn, int room) {
    inputs host = make_inputs(p);
    attention_shape shape = {p.N, p.H, p.G, p.d, p.window, p.scale, p.cap};
    attention_operands layout = layout_of(p);
    layout.o.ld += room;
    cudnn_attention *a = NULL;
    failure f = {};
    double opened = seconds();
    if (cudnn && !cudnn_attention_open(&a, &shape, &layout, p.docs(), library, &f))
        printf("skip   cudnn %s: %s\n", p.name.c_str(), f.text);
    opened = seconds() - opened;
    device_case c;
    size_t bytes = attention_workspace(&shape), cudnn_bytes = a ? cudnn_attention_workspace(a) : 0;
    c.open(p, host, bytes > cudnn_bytes ? bytes : cudnn_bytes, true);
    buffer<uint16_t> o;
    o.open(p.N, layout.o.ld);
    c.x.o = {o.data(), o.cols};
    if (own) {
        must(run_own(c, p, &f), &f);
        const int32_t *bounds = (const int32_t *)c.bounds.data();
        double forward = steady_us([&] { must(attention_forward(&shape, &c.x, bounds, 0, &f), &f); });
        double backward =
            steady_us([&] { must(attention_backward(&shape, &c.x, bounds, c.workspace.data(), 0, &f), &f); });
        print_speed("own", p, forward, backward);
        c.turn(true);
        double turned =
            steady_us([&] { must(attention_backward(&shape, &c.x, bounds, c.workspace.data(), 0, &f), &f); });
        double behind = steady_us([&] { must(attention_turn(&shape, &c.x, c.x.dq, DTYPE_BF16, 0, &f), &f); });
        c.turn(false);
        printf("       with rope's way back and dot: backward %9.1f us; as a kernel of its own these take %.1f us\n",
               turned, behind);
    }
    if (a) {
        double prepared = seconds();
        must(cudnn_attention_prepare(a, (const int32_t *)c.cu.data(), p.docs(), p.longest(), 0, &f), &f);
        prepared = seconds() - prepared;
        must(run_cudnn(a, c, p, &f), &f);
        double forward = steady_us([&] { must(cudnn_attention_forward(a, &c.x, c.workspace.data(), 0, &f), &f); });
        double backward = steady_us([&] { must(cudnn_attention_backward(a, &c.x, c.workspace.data(), 0, &f), &f); });
        print_speed("cudnn", p, forward, backward);
        printf("       cudnn %d, workspace %.1f MiB, opened in %.0f ms, prepared in %.0f ms\n",
               cudnn_attention_version(a), (double)cudnn_bytes / 1048576, 1e3 * opened, 1e3 * prepared);
    }
    cudnn_attention_close(a);
    o.close(), c.close();
}

/* ---- real sizes: cuDNN beside our own kernels, whose errors the cases above bound ---- */

/* NMSE of `width` columns of two buffers' rows, and the elements that are apart by more than rounding explains: cuDNN
 * rounds dk and dv of every query head to bf16 before it adds up a group. */
struct distance {
    double nmse;
    int64_t wrong;
};
static distance distance_of(const std::vector<uint16_t> &a, const std::vector<uint16_t> &b, int64_t rows, int64_t ld,
                            int64_t from, int64_t width) {
    double e2 = 0, r2 = 0;
    distance x = {0, 0};
    for (int64_t t = 0; t < rows; t++)
        for (int64_t i = GUARD + t * ld + from, end = i + width; i < end; i++) {
            double u = from_bf16(a[(size_t)i]), e = from_bf16(b[(size_t)i]) - u;
            if (!(fabs(e) <= 0.02 + 0.05 * fabs(u))) x.wrong++;
            else e2 += e * e, r2 += u * u;
        }
    x.nmse = e2 / r2;
    return x;
}

/* As in a program: o with room behind its rows, plans for more documents than there are. */
static bool compare_case(const problem &p, const char *library) {
    enum { ROOM = 64, MOST_DOCS = 512 };
    inputs host = make_inputs(p);
    attention_shape shape = {p.N, p.H, p.G, p.d, p.window, p.scale, p.cap};
    attention_operands layout = layout_of(p);
    layout.o.ld += ROOM;
    cudnn_attention *a = NULL;
    failure f = {};
    if (!cudnn_attention_open(&a, &shape, &layout, MOST_DOCS, library, &f))
        return printf("skip   cudnn %s: %s\n", p.name.c_str(), f.text), true;
    device_case c;
    size_t bytes = attention_workspace(&shape), cudnn_bytes = cudnn_attention_workspace(a);
    c.open(p, host, bytes > cudnn_bytes ? bytes : cudnn_bytes, true);
    buffer<uint16_t> o;
    o.open(p.N, layout.o.ld);
    c.x.o = {o.data(), o.cols};
    int32_t *bounds = (int32_t *)c.bounds.data(), *cu = (int32_t *)c.cu.data();
    must(cudnn_attention_prepare(a, cu, p.docs(), p.longest(), 0, &f), &f);
    must(cudnn_attention_forward(a, &c.x, c.workspace.data(), 0, &f), &f);
    must(attention_bounds(bounds, cu, p.docs(), p.rows(), 0, &f), &f);
    must(attention_backward(&c.shape, &c.x, bounds, c.workspace.data(), 0, &f), &f);
    CUDA(cudaDeviceSynchronize());
    c.download();
    std::vector<uint16_t> own[3];
    for (int i = 0; i < 3; i++) own[i] = c.grad.part[c.grad.used(i)].host;
    c.grad.each(&buffer<uint16_t>::reset), c.workspace.reset();
    must(cudnn_attention_backward(a, &c.x, c.workspace.data(), 0, &f), &f);
    CUDA(cudaDeviceSynchronize());
    c.download();
    bool good = c.workspace.touched(1) == 0;
    distance x[3];
    for (int i = 0; i < 3; i++) {
        int64_t width = (int64_t)(i ? p.G : p.H) * p.d;
        x[i] = distance_of(own[i], c.grad.part[c.grad.used(i)].host, p.rows(), c.grad.part[c.grad.used(i)].cols,
                           c.grad.column[i], width);
        good = good && x[i].nmse <= 1e-4 && x[i].wrong == 0;
    }
    printf("%-6s both  %-44s nmse dq %.1e dk %.1e dv %.1e  far apart %lld, %lld, %lld\n", good ? "ok" : "FAILED",
           p.name.c_str(), x[0].nmse, x[1].nmse, x[2].nmse, (long long)x[0].wrong, (long long)x[1].wrong,
           (long long)x[2].wrong);
    o.close(), c.close();
    cudnn_attention_close(a);
    return good;
}

static void compare_all(const char *library, const char *only, tally *t) {
    for (const problem &speed : speed_problems())
        for (int strided = 0; strided < 2; strided++) {
            problem p = speed;
            p.strided = strided;
            p.name += strided ? " strided" : " apart";
            if (p.N != 8192 || p.window || p.docs() == 1 || p.name.find(only) == std::string::npos) continue;
            if (compare_case(p, library)) t->passed++;
            else t->failed++;
        }
}

/* ---- without a GPU: which graphs does cuDNN have an engine for? ---- */

static int probe(const char *library) {
    const struct {
        int sm, count, shared, blocks, threads;
    } cards[] = {{800, 108, 166912, 32, 2048}, {860, 84, 101376, 16, 1536},   {890, 142, 101376, 24, 1536},
                 {900, 132, 232448, 32, 2048}, {1000, 148, 232448, 32, 2048}, {1200, 188, 101376, 24, 1536}};
    int on_hopper = 0, wanted = 0;
    for (const auto &card : cards) {
        char profile[1024];
        snprintf(profile, sizeof profile,
                 "{\"deviceVer\":%d,\"deviceName\":\"profile\",\"multiProcessorCount\":%d,"
                 "\"maxSharedMemoryPerBlockOptin\":%d,\"maxCtasPerSM\":%d,\"maxThreadsPerSM\":%d,"
                 "\"l2CacheSize\":52428800,\"totalGlobalMem\":80000000000,\"cudaDeviceId\":0,\"driverVer\":13000,"
                 "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"
                 "\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,\"reservedSharedMemoryPerBlock\":1024,"
                 "\"maxRegistersPerSM\":65536,\"maxThreadsPerBlock\":1024,\"pciDeviceId\":0,\"isTccDriver\":0,"
                 "\"supportCoopLaunch\":1,\"memClockRateKHz\":3200000,\"smClockRateKHz\":1900000}",
                 card.sm, card.count, card.shared, card.blocks, card.threads);
        for (const problem &p : probe_problems()) {
            attention_shape shape = {p.N, p.H, p.G, p.d, p.window, p.scale, p.cap};
            attention_operands layout = layout_of(p);
            int64_t bytes[2] = {0, 0};
            failure f = {};
            bool good = cudnn_attention_probe(&shape, &layout, p.docs(), p.longest(), card.sm / 100, library, profile,
                                              bytes, &f);
            printf("sm_%-3d %-32s %s", card.sm / 10, p.name.c_str(), good ? "" : f.text);
            if (good) printf("engines found, workspace %lld and %lld bytes", (long long)bytes[0], (long long)bytes[1]);
            printf("\n");
            if (card.sm == 900) on_hopper += good, wanted++;
        }
    }
    printf("on sm_90 %d of %d\n", on_hopper, wanted);
    return on_hopper == wanted ? 0 : 1;
}

static int run(int argc, char **argv) {
    bool perf = false, own = true, cudnn = true, probing = false;
    const char *library = NULL, *only = "";
    int room = 0, times = 0;
    for (int i = 1; i < argc; i++) {
        std::string arg = argv[i];
        if (arg == "--perf") perf = true;
        else if (arg == "--own") cudnn = false;
        else if (arg == "--cudnn") own = false;
        else if (arg == "--probe") probing = true;
        else if (arg == "--library" && i + 1 < argc) library = argv[++i];
        else if (arg == "--case" && i + 1 < argc) only = argv[++i];
        else if (arg == "--room" && i + 1 < argc) room = (int)strtol(argv[++i], NULL, 10);
        else if (arg == "--repeat" && i + 1 < argc) times = (int)strtol(argv[++i], NULL, 10);
        else
            return printf("test_attention [--perf | --probe | --repeat TIMES] [--own | --cudnn] [--library PATH] "
                          "[--case TEXT] [--room COLUMNS]\n"),
                   2;
    }
    if (probing) return probe(library);
    const backend *card;
    failure f = {};
    if (!cuda_backend_find(&card, 0, &f)) return printf("skip: %s\n", f.text), 77;
    cudaDeviceProp prop;
    CUDA(cudaGetDeviceProperties(&prop, 0));
    printf("%s, sm_%d%d, %d multiprocessors\n", prop.name, prop.major, prop.minor, prop.multiProcessorCount);
    tally t = {};
    for (const problem &p : perf ? speed_problems() : test_problems()) {
        if (p.name.find(only) == std::string::npos) continue;
        if (times) {
            repeat_case(p, times) ? t.passed++ : t.failed++;
            continue;
        }
        if (perf) {
            time_case(p, library, own, cudnn, room);
            continue;
        }
        inputs host = make_inputs(p);
        reference ref = compute_reference(p, host, NULL);
        if (own) test_own(p, host, ref, &t);
        if (cudnn) test_cudnn(p, host, ref, library, &t);
        fflush(stdout);
    }
    if (perf && !times) return 0;
    if (own && cudnn && !times) compare_all(library, only, &t);
    if (t.weak) printf("%d of cuDNN's only with finite values behind the pack\n", t.weak);
    printf("%d passed, %d failed, %d skipped\n", t.passed + t.weak, t.failed, t.skipped);
    return t.failed || t.passed + t.weak + t.skipped == 0; /* a name that no case has is a mistake */
}

int main(int argc, char **argv) {
    try {
        return run(argc, argv);
    } catch (const std::runtime_error &e) { return printf("error: %s\n", e.what()), 3; }
}
