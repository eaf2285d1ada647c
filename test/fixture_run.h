/* fixture_run.h - a model of test/fixtures/models as a session, and its packed row: for tests. On the CPU, unless a
 * test sets fixture_device.
 *
 * Everything is static: a test is one file.  A failure ends the test with its text.  The micro-batch has more slots
 * than the row fills, and what lies in them is poison: no kernel may read it. */
#ifndef FIXTURE_RUN_H
#define FIXTURE_RUN_H
#include "unit.h"

#include "base/array.h"
#include "base/log.h"
#include "train/trainer.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

typedef enum {
    RUN_LOGITS,      /* forward only; io.logits stays */
    RUN_LORA_LOGITS, /* the same with the fixture's adapter */
    RUN_CACHED,      /* the program that generates: 3 slots, one key/value cache */
    RUN_LORA_CACHED, /* the same with the adapter */
    RUN_LORA,        /* trains the fixture's adapter */
    RUN_NEW_LORA,    /* trains an adapter that the flags describe */
    RUN_FULL,        /* trains every weight */
} run_kind;

typedef struct {
    const char *model;  /* folder below test/fixtures/models */
    const char *folder; /* a variant of it elsewhere: everything but golden.safetensors and adapter/; NULL: none */
    run_kind kind;
    bool fused, fold; /* fold: beside fused */
    recompute_level recompute;
    bool unplanned;
    const char *flags[8]; /* further config keys and values; NULL-terminated */
} fixture_options;

typedef struct {
    fixture_options o;
    arena memory;
    config c;
    session s;
    st_set *golden;
    micro_batch row; /* the packed row; arrays are malloc'ed */
} fixture_run;

enum { FIXTURE_SPARE_SLOTS = 5 };

static const char *fixture_device = "cpu", *fixture_dtype = "float32";

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        failure must_ = {0}, *f = &must_;                                                                              \
        assert_done(call, f);                                                                                          \
    } while (0)

static inline const st_tensor *fixture_golden(const fixture_run *r, const char *name) {
    const st_tensor *t = st_find(r->golden, name);
    if (!t) test_fail("%s/golden.safetensors has no %s", r->o.model, name);
    return t;
}

/* The tensor as malloc'ed floats. */
static inline float *fixture_floats(const st_tensor *t) {
    float *x = xmalloc((size_t)t->count * sizeof *x + 1);
    dtype_to_f32(x, t->data, t->type, (size_t)t->count);
    return x;
}

static inline int32_t *fixture_ints(const fixture_run *r, const char *name) {
    const st_tensor *t = fixture_golden(r, name);
    int32_t *x = xmalloc((size_t)t->count * sizeof *x);
    assert_int_equal(t->type, DTYPE_I32);
    memcpy(x, t->data, (size_t)t->count * sizeof *x);
    return x;
}

/* Counts labels and documents anew, after a test changed the row. */
static inline void fixture_row_count(micro_batch *b) {
    b->info.labels = b->info.longest = 0;
    for (int t = 0; t < b->info.rows; t++) b->info.labels += b->target[t] >= 0;
    for (int d = 0; d < b->info.docs; d++)
        if (b->cu[d + 1] - b->cu[d] > b->info.longest) b->info.longest = b->cu[d + 1] - b->cu[d];
}

static inline void fixture_row_read(fixture_run *r) {
    r->row = (micro_batch){.ids = fixture_ints(r, "input_ids"),
                           .pos = fixture_ints(r, "position_ids"),
                           .cu = fixture_ints(r, "cu_seqlens"),
                           .target = fixture_ints(r, "target")};
    r->row.info = (batch_info){.rows = (int)fixture_golden(r, "input_ids")->count,
                               .docs = (int)fixture_golden(r, "cu_seqlens")->count - 1,
                               .seed = 1};
    fixture_row_count(&r->row);
}

static inline void fixture_config(fixture_run *r) {
    const fixture_options *o = &r->o;
    char *model = arena_printf(&r->memory, "%s/fixtures/models/%s", TEST_DIR, o->model);
    const char *flags[32] = {"--model",
                             o->folder ? o->folder : model,
                             "--device",
                             fixture_device,
                             "--torch_dtype",
                             fixture_dtype,
                             "--use_liger_kernel",
                             o->fused ? "true" : "false",
                             "--tuner_type",
                             o->kind == RUN_FULL ? "full" : "lora"};
    int n = 10;
    if (o->fused) { /* the fused head would take the place of the logits */
        bool logits = o->kind <= RUN_LORA_LOGITS;
        const char *rules = logits ? "linear_lora,norm_qkv_rope,gate_up_glu,add_rms_norm" : "all";
        flags[n++] = "--fuse_rules", flags[n++] = arena_printf(&r->memory, "%s%s", rules, o->fold ? ",fold" : "");
    }
    if (o->kind == RUN_LORA || o->kind == RUN_LORA_LOGITS || o->kind == RUN_LORA_CACHED)
        flags[n++] = "--adapter", flags[n++] = arena_printf(&r->memory, "%s/adapter", model);
    for (int i = 0; o->flags[i]; i++) flags[n++] = o->flags[i];
    char **argv = arena_alloc(&r->memory, sizeof *argv * (size_t)(n + 1));
    for (int i = 0; i < n; i++) argv[i] = arena_strdup(&r->memory, flags[i]);
    MUST(config_read(&r->c, n, argv, &r->memory, f));
}

/* Builds and starts the program; `edit` (may be NULL) changes the model's config before that. */
static inline fixture_run *fixture_open_edited(fixture_options o, void (*edit)(model_config *m)) {
    fixture_run *r = xcalloc(1, sizeof *r);
    r->o = o;
    log_quiet(true);
    omp_set_num_threads(1); /* the models are tiny: threads would only wait for each other */
    fixture_config(r);
    MUST(session_open_model(&r->s, &r->c, f));
    if (edit) edit(&r->s.model);
    char *path = arena_printf(&r->memory, "%s/fixtures/models/%s/golden.safetensors", TEST_DIR, o.model);
    MUST(st_open_file(&r->golden, path, f));
    fixture_row_read(r);
    MUST(session_open_weights(&r->s, f));
    bool cached = o.kind == RUN_CACHED || o.kind == RUN_LORA_CACHED;
    session_kind kind = cached ? SESSION_GENERATE : o.kind <= RUN_LORA_LOGITS ? SESSION_EVAL : SESSION_TRAIN;
    r->s.n_context = r->row.info.longest;
    int slots = cached ? 3 : r->row.info.rows + FIXTURE_SPARE_SLOTS;
    MUST(session_build(&r->s, kind, slots, o.recompute, f));
    MUST(session_start(&r->s, !o.unplanned, f));
    return r;
}

static inline fixture_run *fixture_open(fixture_options o) { return fixture_open_edited(o, NULL); }

static inline void fixture_close(fixture_run *r) {
    session_close(&r->s);
    st_close(r->golden);
    free(r->row.ids);
    free(r->row.pos);
    free(r->row.cu);
    free(r->row.target);
    arena_free(&r->memory);
    free(r);
}

static inline void fixture_poison(fixture_run *r, vid v) {
    int64_t n = value_count(&r->s.g.values[v]);
    int32_t *poison = xmalloc((size_t)n * sizeof *poison);
    for (int64_t i = 0; i < n; i++) poison[i] = r->s.g.values[v].type == DTYPE_I32 ? 1 << 30 : -1; /* -1: a NaN */
    MUST(executor_upload(r->s.x, v, poison, n, f));
    free(poison);
}

/* Runs the row through the program; with `backward` the gradients are those of the mean over its labels. */
static inline void fixture_run_row(fixture_run *r, bool backward) {
    const model_io *io = &r->s.io;
    const vid inputs[] = {io->ids, io->pos, io->cu, io->target, io->weight};
    for (int i = 0; i < 5; i++) fixture_poison(r, inputs[i]);
    MUST(executor_clear(r->s.x, ROLE_OUTPUT, f));
    MUST(executor_clear(r->s.x, ROLE_GRAD, f));
    MUST(train_micro_batch(&r->s, &r->row, 1 / (float)r->row.info.labels, backward, f));
}

/* The first n elements of v as malloc'ed floats. */
static inline float *fixture_download(const fixture_run *r, vid v, int64_t n) {
    float *x = xmalloc((size_t)n * sizeof *x + 1);
    void *stored = xmalloc((size_t)n * sizeof *x + 1);
    MUST(executor_download(r->s.x, v, stored, n, f));
    dtype_to_f32(x, stored, r->s.g.values[v].type, (size_t)n);
    free(stored);
    return x;
}

/* All gradients one after the other (stb_ds). */
static inline float *fixture_gradients(const fixture_run *r) {
    float *all = NULL;
    for (vid v = 1; v < arrlen(r->s.g.values); v++) {
        const graph_value *value = &r->s.g.values[v];
        if (value->role != ROLE_PARAM || !value->trainable) continue;
        size_t n = (size_t)value_count(value);
        float *grad = fixture_download(r, value->grad, (int64_t)n);
        memcpy(arraddnptr(all, n), grad, n * sizeof *grad);
        free(grad);
    }
    return all;
}

static inline float fixture_loss(const fixture_run *r) {
    float loss;
    MUST(executor_download(r->s.x, r->s.io.loss, &loss, 1, f));
    return loss;
}
#endif
