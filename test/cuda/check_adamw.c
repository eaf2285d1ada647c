/* check_adamw.c - backend.adamw and backend.publish against the CPU's step: several params with working copies of every
 * kind, of some of their rows too, clipping on and off, a norm that is not finite, guards and the gaps of strided
 * copies. */
#include "cuda_ops.h"

#include <math.h>

enum { WEIGHT, M, VAR, GRAD, WORKING, FOLD, ROOM, GROUPS = 15, STEPS = 4 };

typedef struct {
    int64_t rows, cols, ld; /* ld 0: no working copy */
    dtype type;
    bool decays, fold;   /* fold: the copy's columns are times a vector */
    int64_t first, kept; /* rows of the copy; kept 0: all */
} param;

static int64_t kept_rows_of(const param *p) { return p->kept ? p->kept : p->rows; }

static const param params[GROUPS] = {
    {1, 3, 3, DTYPE_BF16, true},
    {64, 100, 148, DTYPE_BF16, true},
    {300, 16, 80, DTYPE_BF16, false},
    {33, 7, 12, DTYPE_BF16, true},
    {4096, 1, 1, DTYPE_BF16, false},
    {100, 1000, 0, DTYPE_F32, true},
    {50, 64, 72, DTYPE_F32, true},
    {16, 72, 104, DTYPE_BF16, true, true},
    {9, 37, 37, DTYPE_BF16, true, true},
    {50, 64, 64, DTYPE_F32, true, true},
    {64, 100, 148, DTYPE_BF16, true, false, 10, 20},
    {33, 7, 12, DTYPE_BF16, true, false, 30, 3},
    {16, 72, 104, DTYPE_BF16, true, true, 0, 5},
    {50, 64, 64, DTYPE_F32, true, true, 49, 1},
    {1, 8193, 8193, DTYPE_F32, false},
};

typedef struct {
    optim_group device[GROUPS], host[GROUPS];
    block blocks[GROUPS][ROOM];
} state;

static void make(state *s) {
    for (int k = 0; k < GROUPS; k++) {
        const param *p = &params[k];
        int64_t n = p->rows * p->cols;
        float *at[WORKING];
        for (int i = 0; i < WORKING; i++) {
            block *b = &s->blocks[k][i];
            block_make(b, (size_t)n * 4, 0);
            at[i] = (float *)(void *)block_at(b, 0); /* the host's numbers; `after` has the device's */
            for (int64_t j = 0; j < n && i != M; j++) {
                double x = random_normal();
                at[i][j] = (float)(i == VAR ? 0.1 * x * x : x);
            }
            block_upload(b);
        }
        block *w = &s->blocks[k][WORKING];
        block_make(w, (size_t)(kept_rows_of(p) * p->ld) * dtype_size(p->type), 0x3C);
        block_upload(w);
        for (int64_t r = 0; p->ld && r < kept_rows_of(p); r++)
            block_allow(w, (size_t)(r * p->ld) * dtype_size(p->type), (size_t)p->cols * dtype_size(p->type));
        block *fold = &s->blocks[k][FOLD];
        block_make(fold, (size_t)p->cols * dtype_size(p->type), 0);
        for (int64_t c = 0; c < p->cols; c++)
            store_value(block_at(fold, (size_t)c * dtype_size(p->type)), p->type, 1 + 0.3 * random_normal());
        block_upload(fold);
        for (int i = 0; i < GRAD; i++) block_allow(&s->blocks[k][i], 0, (size_t)n * 4);
        s->host[k] = (optim_group){at[WEIGHT], at[M], at[VAR], at[GRAD], n, p->decays};
        s->device[k] = (optim_group){
            .weight = block_device(&s->blocks[k][WEIGHT], 0),
            .m = block_device(&s->blocks[k][M], 0),
            .v = block_device(&s->blocks[k][VAR], 0),
            .grad = block_device(&s->blocks[k][GRAD], 0),
            .n = n,
            .decays = p->decays,
            .working = {.type = p->type, .rows = kept_rows_of(p), .cols = p->cols, .ld = p->ld},
            .first = p->first,
            .fold = {.type = p->type, .rows = p->cols, .cols = 1, .ld = 1},
        };
        s->device[k].fold.data = p->fold ? block_device(fold, 0) : NULL;
        s->device[k].working.data = p->ld ? block_device(w, 0) : NULL;
    }
}

static void download(state *s) {
    for (int k = 0; k < GROUPS; k++)
        for (int i = 0; i < ROOM; i++) block_download(&s->blocks[k][i]);
}

/* Working copies are the device's own weights, times what they are folded with, rounded. */
static bool check_working(const state *s, int k) {
    const param *p = &params[k];
    const float *weight = (const void *)(s->blocks[k][WEIGHT].after + GUARD);
    int64_t begin = p->first * p->cols, end = begin + kept_rows_of(p) * p->cols;
    for (int64_t i = begin; p->ld && i < end; i++) {
        size_t at = (size_t)((i / p->cols - p->first) * p->ld + i % p->cols) * dtype_size(p->type);
        double got = stored_value(s->blocks[k][WORKING].after + GUARD + at, p->type);
        const unsigned char *by = s->blocks[k][FOLD].after + GUARD + (size_t)(i % p->cols) * dtype_size(p->type);
        float want = weight[i] * (p->fold ? (float)stored_value(by, p->type) : 1);
        if (got == round_to(p->type, (double)want)) continue;
        printf("FAIL adamw: param %d, element %lld of the working copy: %g of %g\n", k, (long long)i, got,
               (double)want);
        return false;
    }
    return true;
}

static bool check_group(const state *s, int k, double tolerance) {
    static const char *const names[] = {"weight", "m", "v", "grad", "working copy", "fold"};
    for (int i = 0; i < ROOM; i++) {
        const char *damage = block_damage(&s->blocks[k][i]);
        if (damage) {
            printf("FAIL adamw: param %d, %s: %s was written\n", k, names[i], damage);
            return false;
        }
    }
    for (int i = 0; i < GRAD; i++)
        for (int64_t j = 0; j < s->host[k].n; j++) {
            float want = ((const float *)(const void *)(s->blocks[k][i].before + GUARD))[j];
            float got = ((const float *)(const void *)(s->blocks[k][i].after + GUARD))[j];
            if (fabs((double)got - (double)want) <= tolerance * (fabs((double)want) + 0.05)) continue;
            printf("FAIL adamw: param %d, element %lld of %s: %.9g, expected %.9g\n", k, (long long)j, names[i],
                   (double)got, (double)want);
            return false;
        }
    return check_working(s, k);
}

static bool check_all(state *s, double tolerance) {
    download(s);
    for (int k = 0; k < GROUPS; k++)
        if (!check_group(s, k, tolerance)) return false;
    return true;
}

static bool check_step(state *s, const backend *b, int step, float limit) {
    adamw_args args = {
        1e-2f, 0.9f, 0.999f, 1e-8f, 0.1f, limit, 1 - powf(0.9f, (float)step), 1 - powf(0.999f, (float)step)};
    double norm, want;
    failure f;
    if (!b->adamw(s->device, GROUPS, &args, &norm, &f)) {
        printf("FAIL adamw: %s\n", f.text);
        return false;
    }
    cpu_backend.adamw(s->host, GROUPS, &args, &want, &f);
    if (!(fabs(norm - want) <= 1e-7 * want)) {
        printf("FAIL adamw: norm %.17g, expected %.17g\n", norm, want);
        return false;
    }
    return check_all(s, 2e-6 * step);
}

/* One gradient is NaN or infinite: nothing changes. */
static bool check_broken(state *s, const backend *b, float bad) {
    adamw_args args = {1e-2f, 0.9f, 0.999f, 1e-8f, 0.1f, 1, 0.5f, 0.5f};
    double norm;
    failure f;
    block *grad = &s->blocks[GROUPS - 1][GRAD];
    download(s);
    for (int k = 0; k < GROUPS; k++)
        for (int i = 0; i < ROOM; i++) {
            block *x = &s->blocks[k][i];
            memcpy(x->before + GUARD, x->after + GUARD, x->bytes);
        }
    float kept;
    memcpy(&kept, block_at(grad, 8190 * 4), 4);
    memcpy(block_at(grad, 8190 * 4), &bad, 4);
    block_upload(grad);
    bool ok = b->adamw(s->device, GROUPS, &args, &norm, &f) && !isfinite(norm) && check_all(s, 0);
    if (!ok) printf("FAIL adamw: a norm of %g changed something\n", norm);
    memcpy(block_at(grad, 8190 * 4), &kept, 4);
    block_upload(grad);
    return ok;
}

static bool check_publish(state *s, const backend *b) {
    failure f;
    for (int k = 0; k < GROUPS; k++) {
        float *w = s->host[k].weight;
        for (int64_t j = 0; j < s->host[k].n; j++) w[j] = (float)random_normal();
        block_upload(&s->blocks[k][WEIGHT]);
    }
    if (b->publish(s->device, GROUPS, &f)) {
        check_cuda(cudaDeviceSynchronize(), "publish");
        return check_all(s, 2e-6 * (STEPS + 2)); /* the moments are as the steps before left them */
    }
    printf("FAIL publish: %s\n", f.text);
    return false;
}

void check_adamw(tally *t, const backend *b) {
    if (!b->adamw || !b->publish) {
        printf("skip: adamw: not there\n");
        t->skipped++;
        return;
    }
    static state s;
    random_seed(99);
    make(&s);
    bool ok = true;
    for (int step = 1; step <= STEPS && ok; step++) ok = check_step(&s, b, step, step % 2 ? 1.0f : 0);
    ok = ok && check_broken(&s, b, NAN) && check_broken(&s, b, INFINITY) && check_step(&s, b, STEPS + 1, 1e9f);
    ok = ok && check_publish(&s, b);
    for (int k = 0; k < GROUPS; k++)
        for (int i = 0; i < ROOM; i++) block_free(&s.blocks[k][i]);
    t->passed += ok;
    t->failed += !ok;
}
