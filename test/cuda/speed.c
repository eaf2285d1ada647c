/* speed.c - test_cuda_ops --perf: times of the ops that are bound by memory, at the shapes of LLaMA-3-8B in bfloat16.
 *
 * Every op has several sets of operands, together larger than L2, and takes them in turn.  A sample is REPEAT launches
 * between two events; µs is the median of SAMPLES.  GB/s counts what the op must read and write, once; the share is of
 * a device copy in the same run. */
#include "cuda_ops.h"

#include <math.h>

enum { N = 8192, L = 2048, D = 4096, F = 14336, V = 128256, H = 32, SAMPLES = 31, REPEAT = 4, MOST_SETS = 6 };
enum { PATTERN = 1 << 23 }; /* elements of random data that fill every operand */

/* T: bfloat16, S: float32 near 1, and integers: ids below V (I), row numbers below N (R), positions (P). */
typedef enum { NONE, T, S, I, R, P } content;
typedef struct {
    content content;
    int64_t rows, cols, ld; /* ld 0: cols */
    bool uncounted;         /* its bytes are in `extra` */
} shape;

typedef struct {
    op_kind kind;
    const char *note;
    shape in[6], out[4];
    op_attr attr;
    double extra; /* bytes */
    bool add;
} speed_case;

#define ROWS                                                                                                           \
    { T, N, D }
#define WIDE                                                                                                           \
    { T, N, F }
#define BESIDE                                                                                                         \
    { T, N, F, 2 * F }
#define LOGITS                                                                                                         \
    { T, L, V }

static const speed_case cases[] = {
    {OP_embed, "", {{I, N, 1}, {T, V, D, 0, true}}, {ROWS}, .extra = 2.0 * N * D},
    {OP_gather, "2048 of 8192 rows", {{T, N, D, 0, true}, {R, L, 1}}, {{T, L, D}}, .extra = 2.0 * L * D},
    {OP_add, "", {ROWS, ROWS}, {ROWS}},
    {OP_scale, "", {ROWS}, {ROWS}, .attr = {.scale = 0.5f}},
    {OP_dropout, "", {ROWS}, {ROWS}, .attr = {.rate = 0.05f}},
    {OP_rms_norm, "", {ROWS, {T, D, 1}}, {ROWS, {S, N, 1}}, .attr = {.eps = 1e-5f}},
    {OP_rms_norm, "32 heads of 128", {ROWS, {T, 128, 1}}, {ROWS, {S, N, H}}, .attr = {.eps = 1e-5f, .head_dim = 128}},
    {OP_add_rms_norm, "", {ROWS, ROWS, {T, D, 1}}, {ROWS, ROWS, {S, N, 1}}, .attr = {.eps = 1e-5f}},
    {OP_add_rms_norm,
     "room of 192",
     {ROWS, ROWS, {T, D, 1}},
     {ROWS, {T, N, D, D + 192}, {S, N, 1}},
     .attr = {.eps = 1e-5f}},
    {OP_rms_norm_bwd, "dres", {ROWS, ROWS, {T, D, 1}, {S, N, 1}, ROWS}, {ROWS}, .attr = {.eps = 1e-5f}},
    {OP_rms_norm_bwd, "dres, dw", {ROWS, ROWS, {T, D, 1}, {S, N, 1}, ROWS}, {ROWS, {S, D, 1}}, .attr = {.eps = 1e-5f}},
    {OP_rms_norm_bwd,
     "32 heads of 128",
     {ROWS, ROWS, {T, 128, 1}, {S, N, H}},
     {ROWS},
     .attr = {.eps = 1e-5f, .head_dim = 128}},
    {OP_rope, "q", {ROWS, {P, N, 1}, {S, 64, 1}}, {ROWS}},
    {OP_rope, "q and k in qkv", {{T, N, 5120, 6144}, {P, N, 1}, {S, 64, 1}}, {{T, N, 5120, 6144}}},
    {OP_glu, "", {WIDE, WIDE}, {WIDE}},
    {OP_glu, "side by side", {BESIDE, BESIDE}, {WIDE}},
    {OP_glu, "gelu", {WIDE, WIDE}, {WIDE}, .attr = {.glu = GLU_GELU_TANH}},
    {OP_glu_bwd, "", {WIDE, WIDE, WIDE}, {WIDE, WIDE}},
    {OP_glu_bwd, "side by side", {WIDE, BESIDE, BESIDE}, {BESIDE, BESIDE}},
    {OP_cross_entropy, "", {LOGITS, {I, L, 1}}, {{S, L, 1}, {S, L, 1}}},
    {OP_cross_entropy_bwd, "", {{S, L, 1}, LOGITS, {I, L, 1}, {S, L, 1}}, {LOGITS}},
    {OP_weighted_sum, "", {{S, N, 1}, {S, N, 1}}, {{S, 1, 1}}},
    {OP_embed_bwd, "", {ROWS, {I, N, 1}}, {{S, V, D, 0, true}}, .extra = 8.0 * N * D, .add = true},
};

static char *pattern; /* device: PATTERN random bfloat16 numbers */

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Median milliseconds of one call of run(i). */
static double median_ms(void (*run)(void *context, int i), void *context, int repeat) {
    float ms[SAMPLES];
    cudaEvent_t start, stop;
    check_cuda(cudaEventCreate(&start), "event");
    check_cuda(cudaEventCreate(&stop), "event");
    for (int i = 0; i < 2 * MOST_SETS; i++) run(context, i);
    for (int s = 0; s < SAMPLES; s++) {
        check_cuda(cudaEventRecord(start, cuda_stream()), "event");
        for (int r = 0; r < repeat; r++) run(context, s * repeat + r);
        check_cuda(cudaEventRecord(stop, cuda_stream()), "event");
        check_cuda(cudaEventSynchronize(stop), "event");
        check_cuda(cudaEventElapsedTime(&ms[s], start, stop), "event");
    }
    check_cuda(cudaEventDestroy(start), "event");
    check_cuda(cudaEventDestroy(stop), "event");
    qsort(ms, SAMPLES, sizeof *ms, by_value);
    return (double)ms[SAMPLES / 2] / repeat;
}

static void report(const char *op, const char *note, double ms, double bytes, double copy) {
    double rate = bytes / ms * 1e-6;
    printf("%-18s %-20s %9.1f us %8.0f GB/s %6.1f %% of copy\n", op, note, ms * 1e3, rate, 100 * rate / copy);
    fflush(stdout);
}

/* ---- copy ---- */

enum { COPY_BYTES = 1 << 29 };
typedef struct {
    char *from, *to;
} copy_blocks;

static void run_copy(void *context, int i) {
    copy_blocks *b = context;
    size_t at = (size_t)(i % 2) * COPY_BYTES;
    cudaMemcpyAsync(b->to + at, b->from + at, COPY_BYTES, cudaMemcpyDeviceToDevice, cuda_stream());
}

static void *device_alloc(size_t bytes) {
    void *p;
    check_cuda(cudaMalloc(&p, bytes), "cudaMalloc");
    return p;
}

static double copy_rate(void) {
    copy_blocks b = {device_alloc(2 * (size_t)COPY_BYTES), device_alloc(2 * (size_t)COPY_BYTES)};
    double ms = median_ms(run_copy, &b, REPEAT);
    cudaFree(b.from);
    cudaFree(b.to);
    return 2.0 * COPY_BYTES / ms * 1e-6;
}

/* ---- operands ---- */

static void make_pattern(void) {
    uint16_t *host = xmalloc(PATTERN * sizeof *host);
    random_seed(1);
    for (int i = 0; i < PATTERN; i++) { /* a sum of four is near enough to normal */
        uint64_t bits = random_bits();
        double x = 0;
        for (int k = 0; k < 4; k++) x += (double)(bits >> 16 * k & 0xFFFF) / 65536 - 0.5;
        dtype_from_f32(&host[i], DTYPE_BF16, &(float){(float)(x * 1.7)}, 1);
    }
    pattern = device_alloc(PATTERN * sizeof *host);
    check_cuda(cudaMemcpy(pattern, host, PATTERN * sizeof *host, cudaMemcpyHostToDevice), "upload");
    free(host);
}

static tensor make_operand(const shape *s) {
    if (s->content == NONE) return (tensor){0};
    int64_t ld = s->ld ? s->ld : s->cols;
    tensor t = {NULL, s->content == T ? DTYPE_BF16 : s->content == S ? DTYPE_F32 : DTYPE_I32, s->rows, s->cols, ld,
                false};
    size_t bytes = (size_t)(s->rows * ld) * dtype_size(t.type), most = PATTERN * 2;
    t.data = device_alloc(bytes);
    if (s->content == T) {
        for (size_t at = 0; at < bytes; at += most)
            check_cuda(cudaMemcpy((char *)t.data + at, pattern, bytes - at < most ? bytes - at : most,
                                  cudaMemcpyDeviceToDevice),
                       "fill");
        return t;
    }
    int32_t *host = xmalloc(bytes);
    for (int64_t i = 0; i < s->rows * ld; i++) {
        float near_one = 0.5f + (float)(random_bits() % 1024) / 1024;
        if (s->content == S && s->rows * ld < N * D) memcpy(&host[i], &near_one, 4);
        else if (s->content == S) host[i] = 0;
        else host[i] = s->content == P ? (int32_t)(i % 2048) : (int32_t)(random_bits() % (s->content == I ? V : N));
    }
    check_cuda(cudaMemcpy(t.data, host, bytes, cudaMemcpyHostToDevice), "fill");
    free(host);
    return t;
}

static double operand_bytes(const shape *s) {
    return s->content == NONE || s->uncounted ? 0 : (double)(s->rows * s->cols) * (s->content == T ? 2 : 4);
}

typedef struct {
    const kernel *kernels;
    kernel_call calls[MOST_SETS];
    int sets;
} timed_op;

static void run_op(void *context, int i) {
    timed_op *t = context;
    kernel_call *call = &t->calls[i % t->sets];
    t->kernels[call->op->kind](call);
}

static void time_case(const speed_case *c, const kernel *kernels, double copy) {
    double bytes = c->extra;
    for (int i = 0; i < 6; i++) bytes += operand_bytes(&c->in[i]);
    for (int i = 0; i < 4; i++) bytes += operand_bytes(&c->out[i]);
    graph_op op = {.kind = c->kind, .attr = c->attr};
    batch_info batch = {.rows = N, .docs = 1, .labels = L, .longest = N, .seed = 7, .training = true};
    timed_op t = {.kernels = kernels, .sets = bytes > 5e8 ? 2 : bytes > 1e8 ? 4 : MOST_SETS};
    void *scratch = device_alloc(1 << 24);
    for (int k = 0; k < t.sets; k++) {
        kernel_call *call = &t.calls[k];
        *call = (kernel_call){.op = &op, .batch = &batch, .scratch = scratch};
        for (int i = 0; i < 6; i++) call->in[i] = make_operand(&c->in[i]);
        for (int i = 0; i < 4; i++) call->out[i] = make_operand(&c->out[i]), call->out[i].add = c->add;
    }
    report(op_name(c->kind), c->note, median_ms(run_op, &t, REPEAT), bytes, copy);
    for (int k = 0; k < t.sets; k++) {
        for (int i = 0; i < 6; i++) cudaFree(t.calls[k].in[i].data);
        for (int i = 0; i < 4; i++) cudaFree(t.calls[k].out[i].data);
    }
    cudaFree(scratch);
}

/* ---- the chunk of linear_ce and the optimizer ---- */

typedef struct {
    tensor logits[2];
    int32_t *target;
    float *rows; /* weight, nll, lse */
} timed_chunk;

static void run_chunk(void *context, int i) {
    timed_chunk *c = context;
    cuda_ce_chunk(&c->logits[i % 2], c->target, c->rows + L, c->rows + 2 * L, false, c->rows, L);
}

static void time_chunk(double copy) {
    const shape logits = LOGITS, target = {I, L, 1, 0, false}, rows = {S, 3 * L, 1, 0, false};
    timed_chunk c = {
        {make_operand(&logits), make_operand(&logits)}, make_operand(&target).data, make_operand(&rows).data};
    double bytes = 2 * operand_bytes(&logits);
    report("linear_ce chunk", "gradient in place", median_ms(run_chunk, &c, REPEAT), bytes, copy);
    for (int i = 0; i < 2; i++) cudaFree(c.logits[i].data);
    cudaFree(c.target);
    cudaFree(c.rows);
}

enum { LINEARS = 224, RANK = 64, ROOM = 192 };
typedef struct {
    optim_group groups[2 * LINEARS];
    const backend *b;
} timed_step;

static void run_step(void *context, int i) {
    timed_step *s = context;
    adamw_args args = {1e-4f, 0.9f, 0.999f, 1e-8f, 0, 1, 0.5f, 0.5f};
    double norm;
    failure f;
    (void)i;
    if (!s->b->adamw(s->groups, 2 * LINEARS, &args, &norm, &f)) printf("FAIL adamw: %s\n", f.text);
}

/* A [RANK, D] and B [D, RANK] of 224 linears, with working copies inside [W B; A 0] matrices. */
static void time_step(const backend *b, double copy) {
    static timed_step s;
    int64_t n = RANK * D, ld = D + ROOM;
    char *numbers = device_alloc((size_t)(2 * LINEARS * 4 * n) * 4);
    char *working = device_alloc((size_t)(LINEARS * (D + RANK) * ld) * 2);
    check_cuda(cudaMemset(numbers, 0, (size_t)(2 * LINEARS * 4 * n) * 4), "clear");
    s.b = b;
    for (int k = 0; k < 2 * LINEARS; k++) {
        float *at = (float *)(void *)numbers + k * 4 * n;
        char *matrix = working + (size_t)(k / 2 * (D + RANK) * ld) * 2;
        tensor A = {matrix + (size_t)(D * ld) * 2, DTYPE_BF16, RANK, D, ld, false};
        tensor B = {matrix + (size_t)D * 2, DTYPE_BF16, D, RANK, ld, false};
        s.groups[k] = (optim_group){at, at + n, at + 2 * n, at + 3 * n, n, false, k % 2 ? B : A};
    }
    double ms = median_ms(run_step, &s, 1);
    report("adamw", "117 M params, waits", ms, 2.0 * LINEARS * (double)n * (4 + 16 + 12 + 2), copy);
    cudaFree(numbers);
    cudaFree(working);
}

void run_cuda_perf(const kernel *cuda_kernels, const backend *b, const char *only) {
    make_pattern();
    double copy = copy_rate();
    printf("device copy: %.0f GB/s read and written\n", copy);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *name = op_name(cases[i].kind);
        if (only && strcmp(only, name) != 0) continue;
        if (cuda_kernels[cases[i].kind]) time_case(&cases[i], cuda_kernels, copy);
        else printf("skip: %s: no kernel\n", name);
    }
    if (!only || strcmp(only, "cross_entropy") == 0) time_chunk(copy);
    if ((!only || strcmp(only, "adamw") == 0) && b->adamw) time_step(b, copy);
    check_cuda(cudaDeviceSynchronize(), "speed");
    printf("device copy again: %.0f GB/s\n", copy_rate());
    cudaFree(pattern);
}
