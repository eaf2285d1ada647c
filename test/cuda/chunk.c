/* chunk.c - cuda_ce_chunk with a gradient in place, against the CPU's cross_entropy and cross_entropy_bwd. */
#include "cuda_ops.h"

#include <math.h>

enum { LOGITS, TARGET, WEIGHT, NLL, LSE, ROOM, N = 7 };

typedef struct {
    int64_t V, ld;
    dtype type;
    bool add;
    float *logits, nll[N], lse[N], *gradient; /* what the CPU says */
    float weight[N];
    int32_t target[N];
    block blocks[ROOM];
} chunk;

static void run_cpu(chunk *c) {
    batch_info batch = {.rows = N};
    tensor logits = {c->logits, DTYPE_F32, N, c->V, c->V, false}, target = {c->target, DTYPE_I32, N, 1, 1, false};
    tensor nll = {c->nll, DTYPE_F32, N, 1, 1, c->add}, lse = {c->lse, DTYPE_F32, N, 1, 1, false};
    tensor weight = {c->weight, DTYPE_F32, N, 1, 1, false}, out = {c->gradient, DTYPE_F32, N, c->V, c->V, false};
    kernel_call forward = {.in = {logits, target}, .out = {nll, lse}, .batch = &batch};
    kernel_call backward = {.in = {weight, logits, target, lse}, .out = {out}, .batch = &batch};
    cpu_backend.kernels[OP_cross_entropy](&forward);
    cpu_backend.kernels[OP_cross_entropy_bwd](&backward);
}

static void make(chunk *c) {
    size_t size = dtype_size(c->type);
    c->logits = xmalloc((size_t)(N * c->V) * 4);
    c->gradient = xmalloc((size_t)(N * c->V) * 4);
    size_t bytes[ROOM] = {(size_t)(N * c->ld) * size, N * 4, N * 4, N * 4, N * 4};
    for (int i = 0; i < ROOM; i++) block_make(&c->blocks[i], bytes[i], 0xFF);
    for (int t = 0; t < N; t++) {
        c->target[t] = t == 2 ? -100 : t == 3 ? (int32_t)c->V - 1 : (int32_t)(random_bits() % (uint64_t)c->V);
        c->weight[t] = (float)random_normal();
        c->nll[t] = (float)t;
        for (int64_t v = 0; v < c->V; v++) {
            double x = round_to(c->type, 3 * random_normal() + (t == 4 ? 80 : 0));
            c->logits[t * c->V + v] = (float)x;
            store_value(block_at(&c->blocks[LOGITS], (size_t)(t * c->ld + v) * size), c->type, x);
        }
        block_allow(&c->blocks[LOGITS], (size_t)(t * c->ld) * size, (size_t)c->V * size);
    }
    memcpy(block_at(&c->blocks[TARGET], 0), c->target, sizeof c->target);
    memcpy(block_at(&c->blocks[WEIGHT], 0), c->weight, sizeof c->weight);
    if (c->add) memcpy(block_at(&c->blocks[NLL], 0), c->nll, sizeof c->nll);
    block_allow(&c->blocks[NLL], 0, sizeof c->nll);
    block_allow(&c->blocks[LSE], 0, sizeof c->lse);
}

static const char *compare(const chunk *c) {
    static char text[128];
    double exact = 1e-5, loose = c->type == DTYPE_BF16 ? 8e-3 : 2e-5;
    const float *nll = (const void *)(c->blocks[NLL].after + GUARD),
                *lse = (const void *)(c->blocks[LSE].after + GUARD);
    for (int i = 0; i < ROOM; i++) {
        const char *damage = block_damage(&c->blocks[i]);
        if (damage) return damage;
    }
    for (int t = 0; t < N; t++) {
        snprintf(text, sizeof text, "row %d: nll %g lse %g, expected %g %g", t, (double)nll[t], (double)lse[t],
                 (double)c->nll[t], (double)c->lse[t]);
        if (!(fabsf(nll[t] - c->nll[t]) <= exact * (5 + fabs((double)c->lse[t])))) return text;
        if (!(fabsf(lse[t] - c->lse[t]) <= exact * (5 + fabs((double)c->lse[t])))) return text;
        for (int64_t v = 0; v < c->V; v++) {
            size_t at = (size_t)(t * c->ld + v) * dtype_size(c->type);
            double got = stored_value(c->blocks[LOGITS].after + GUARD + at, c->type);
            double want = (double)c->gradient[t * c->V + v];
            double by = fabs((double)c->weight[t]);
            snprintf(text, sizeof text, "row %d, logit %lld: gradient %g, expected %g", t, (long long)v, got, want);
            if (!(fabs(got - want) <= loose * fabs(want) + 1e-6 * by)) return text;
        }
    }
    return NULL;
}

static void check(tally *count, int64_t V, int64_t ld, dtype type, bool add) {
    chunk c = {.V = V, .ld = ld, .type = type, .add = add};
    make(&c);
    run_cpu(&c);
    for (int i = 0; i < ROOM; i++) block_upload(&c.blocks[i]);
    tensor logits = {block_device(&c.blocks[LOGITS], 0), type, N, V, ld, false};
    cuda_ce_chunk(&logits, block_device(&c.blocks[TARGET], 0), block_device(&c.blocks[NLL], 0),
                  block_device(&c.blocks[LSE], 0), add, block_device(&c.blocks[WEIGHT], 0), N);
    check_cuda(cudaGetLastError(), "cuda_ce_chunk");
    check_cuda(cudaDeviceSynchronize(), "cuda_ce_chunk");
    for (int i = 0; i < ROOM; i++) block_download(&c.blocks[i]);
    const char *what = compare(&c);
    if (what)
        printf("FAIL cuda_ce_chunk (V %lld, ld %lld, %s): %s\n", (long long)V, (long long)ld, dtype_name(type), what);
    count->failed += what != NULL;
    count->passed += what == NULL;
    for (int i = 0; i < ROOM; i++) block_free(&c.blocks[i]);
    free(c.logits);
    free(c.gradient);
}

void check_chunk(tally *t) {
    static const int64_t widths[] = {9, 64, 1003, 32000, 128256};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int k = 0; k < 4; k++) {
            int64_t V = widths[i], gap = k / 2 == 0 ? 0 : V % 8 == 0 ? 16 : 3;
            check(t, V, V + gap, k % 2 ? DTYPE_BF16 : DTYPE_F32, k == 2);
        }
}
