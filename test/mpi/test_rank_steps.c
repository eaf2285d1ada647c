/* test_rank_steps.c - training steps among as many ranks as mpirun started, against the same steps in one process, and
 * with a base in pieces against a whole one: L01, O03, X02, X03. Every rank also runs the lone steps and compares. Each
 * gradient is a bucket of its own, or all are one.
 */
#include "base/array.h"
#include "base/log.h"
#include "base/rng.h"
#include "mpi/ranks_test.h"
#include "train/skipped.h"
#include "train/trainer.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#define LLAMA TEST_DIR "/fixtures/models/llama"
enum { STEPS = 10, TOGETHER = 12, VOCABULARY = 67 }; /* together: micro-batches of a step, of all ranks */

typedef struct {
    double loss[STEPS], norm[STEPS];
    bool skipped[STEPS];
    int64_t tokens, labels, slots;
    int steps, buckets;
    float *weights;                 /* stb_ds */
    int64_t moments, params, grads; /* bytes planned */
    int gathers;
    int64_t planned, held; /* bytes: the plan's total; what was allocated, and frozen weights used in their files */
    double evaluated;      /* loss of the rows behind the last step */
    double head;           /* norm of the weights of the head's adapter B */
} outcome;

typedef struct {
    const char *const *flags;
    bool small_buckets;
    bool spoilt; /* the last rank's loss at step 3 is not finite */
    bool base;   /* spread, as the flags say */
} setting;

static void add_row(dataset *d, uint64_t key, int n, int labels) {
    rng r = {key, 0};
    if (!d->start) arrput(d->start, 0);
    for (int i = 0; i < n; i++) {
        arrput(d->tokens, (int32_t)rng_below(&r, VOCABULARY));
        arrput(d->labels, i > 0 && i >= n - labels);
    }
    arrput(d->start, arrlen(d->tokens));
}

/* 13 or 19 rows of uneven answers, one without a label: a step of 12 micro-batches leaves one for the next, so that
 * ranks have none, or 7, which no number of ranks divides. */
static dataset make_rows(int n) {
    static const int labels[19] = {1, 25, 2, 0, 17, 1, 5, 9, 3, 3, 12, 1, 8, 4, 21, 2, 30, 7, 1};
    dataset d = {0};
    for (int i = 0; i < n; i++) add_row(&d, 70 + (uint64_t)i, labels[i] + 3, labels[i]);
    return d;
}

static void read_outcome(const session *s, comm *c, outcome *out) {
    failure f = {0};
    for (vid v = 1; v < arrlen(s->g.values); v++) {
        const graph_value *value = &s->g.values[v];
        if (value->role != ROLE_PARAM || !value->trainable) continue;
        size_t n = (size_t)value_count(value);
        const float *w = executor_data(s->x, v);
        float *all = NULL;
        if (value->parts > 1) {
            size_t bytes = (size_t)value_part(value) * sizeof *all;
            all = xmalloc(bytes * (size_t)value->parts);
            DONE(c, comm_all_gather(s->ranks, w, bytes, all, "weights", &f), &f);
            w = all;
        }
        memcpy(arraddnptr(out->weights, n), w, n * sizeof *w);
        for (size_t i = 0; strstr(value->name, "lm_head.lora_B") && i < n; i++) out->head += fabs((double)w[i]);
        free(all);
    }
    for (int i = 0; i < arrlen(s->g.ops); i++) out->buckets += s->g.ops[i].kind == OP_all_reduce;
    for (int i = 0; i < arrlen(s->g.ops); i++) out->gathers += s->g.ops[i].kind == OP_all_gather;
}

/* What makes a rank's loss a NaN, or no more: the angles of the rotation. */
static void spoil(session *s, comm *c, bool spoilt) {
    failure f = {0};
    int n = s->model.head_dim / 2;
    float *freq = xmalloc((size_t)n * sizeof *freq);
    model_rope_frequencies(&s->model, freq);
    for (int i = 0; i < n && spoilt; i++) freq[i] = NAN;
    DONE(c, executor_upload(s->x, s->io.freq, freq, n, &f), &f);
    free(freq);
}

/* The last rank finds all its rows bad, each by itself, and takes more forward halves for it than the others. */
static void look_for_bad_rows(session *s, comm *c, const micro_batch *batches, int n) {
    failure f = {0};
    int32_t *bad = NULL;
    int tried;
    bool last = s->ranks && comm_rank(c) == comm_size(c) - 1;
    if (last) spoil(s, c, true);
    DONE(c, skipped_find(s, batches, n, &bad, &tried, &f), &f);
    if (last) spoil(s, c, false);
    RIGHT(c, last == (arrlen(bad) > 0) && tried == arrlen(bad));
    arrfree(bad);
}

static void run_steps(session *s, comm *c, comm *ranks, const setting *how, const dataset *d, outcome *out) {
    failure f = {0};
    optimizer *o;
    loader *l;
    int size = comm_size(ranks), own = TOGETHER / size;
    loader_options options = {.batch_size = 1,
                              .max_length = 40,
                              .grad_accumulation = own,
                              .max_steps = STEPS,
                              .seed = 3,
                              .rank = comm_rank(ranks),
                              .ranks = size};
    DONE(c, optimizer_open(&o, s, &f) && loader_open(&l, d, &options, &f), &f);
    micro_batch *batches = xcalloc((size_t)own, sizeof *batches);
    for (int i = 0; i < own; i++) micro_batch_init(&batches[i], train_slots(s->c));
    for (int n; loader_next(l, batches, &n); out->steps++) {
        step_metrics m = {0};
        bool spoilt = how->spoilt && out->steps == 2 && comm_rank(ranks) == size - 1;
        if (spoilt) spoil(s, c, true);
        DONE(c, train_step(s, o, batches, n, 0.1, &m, &out->skipped[out->steps], &f), &f);
        if (spoilt) spoil(s, c, false);
        out->loss[out->steps] = m.loss, out->norm[out->steps] = m.grad_norm;
        out->tokens += m.tokens, out->labels += m.label_tokens, out->slots += m.slots;
    }
    eval_result e;
    DONE(c, train_evaluate(s, d, &e, &f), &f);
    out->evaluated = e.loss;
    look_for_bad_rows(s, c, batches, own);
    read_outcome(s, c, out);
    for (int i = 0; i < own; i++) micro_batch_free(&batches[i]);
    free(batches);
    loader_close(l);
    optimizer_close(o);
}

/* What the CPU allocates; one session at a time. */
static struct {
    backend cpu;
    int64_t bytes;
    void **blocks; /* stb_ds */
} counted;

static bool counting_alloc(void **out, size_t bytes, const char *what, failure *f) {
    TRY(cpu_backend.alloc(out, bytes, what, f));
    counted.bytes += (int64_t)bytes;
    arrput(counted.blocks, *out);
    return true;
}

/* Beside what was allocated: frozen weights where their files have them. */
static int64_t held_bytes(const session *s) {
    int64_t bytes = counted.bytes;
    for (vid v = 1; v < arrlen(s->g.values); v++) {
        bool own = s->g.values[v].role != ROLE_PARAM;
        for (int i = 0; !own && i < arrlen(counted.blocks); i++) own = counted.blocks[i] == executor_data(s->x, v);
        if (!own) bytes += value_storage(&s->g, v);
    }
    return bytes;
}

static outcome run(comm *c, comm *ranks, const setting *how) {
    const char *flags[32] = {"--model", LLAMA, "--device", "cpu", "--max_length", "40", "--adam_epsilon", "1"};
    int n = 8;
    for (int i = 0; how->flags[i]; i++) flags[n++] = how->flags[i];
    arena a = {0};
    char **argv = arena_alloc(&a, sizeof *argv * (size_t)(n + 1));
    for (int i = 0; i < n; i++) argv[i] = arena_strdup(&a, flags[i]);
    failure f = {0};
    config settings;
    session s = {0};
    outcome out = {0};
    DONE(c, config_read(&settings, n, argv, &a, &f), &f);
    if (how->small_buckets) settings.ddp_bucket_cap_mb = 0;
    DONE(c, session_open_model(&s, &settings, &f), &f);
    s.ranks = ranks;
    counted.cpu = cpu_backend, counted.cpu.alloc = counting_alloc, counted.bytes = 0;
    arrsetlen(counted.blocks, 0);
    DONE(c, session_open_backend(&s, &f), &f);
    s.b = &counted.cpu;
    DONE(c, session_open_weights(&s, &f) && train_build(&s, &f) && session_start(&s, true, &f), &f);
    out.moments = s.p.moments, out.params = s.p.params, out.grads = s.p.grads;
    dataset d = make_rows(how->small_buckets ? 13 : 19);
    run_steps(&s, c, ranks, how, &d, &out);
    dataset_free(&d);
    out.planned = s.p.total, out.held = held_bytes(&s);
    session_close(&s);
    arena_free(&a);
    return out;
}

static bool close_to(double a, double b) { return fabs(a - b) <= 1e-6 * fabs(b); }

/* Largest difference over the largest value. */
static double difference(const float *a, const float *b) {
    double most = 0, top = 0;
    for (int64_t i = 0; i < arrlen(a); i++) {
        if (!isfinite(a[i])) return INFINITY;
        most = fmax(most, fabs((double)a[i] - (double)b[i])), top = fmax(top, fabs((double)b[i]));
    }
    return most / top;
}

/* All ranks have rank 0's bits. */
static bool same_everywhere(comm *c, const float *weights) {
    failure f = {0};
    size_t bytes = (size_t)arrlen(weights) * sizeof *weights;
    float *first = xmalloc(bytes);
    memcpy(first, weights, bytes);
    DONE(c, comm_broadcast(c, first, bytes, 0, "weights", &f), &f);
    bool same = memcmp(first, weights, bytes) == 0;
    free(first);
    return same;
}

/* The plan counts in steps of 256 bytes. */
static bool as_planned(const outcome *o) { return o->held <= o->planned + 8 && o->held > o->planned - 256 * 200; }

/* The base spread over the ranks, if there is only one too: gathered bits are those of the files, so everything is as
 * with a whole base. */
static void compare_bases(comm *c, const setting *how) {
    int n = 0;
    const char *flags[32];
    for (; how->flags[n]; n++) flags[n] = how->flags[n];
    flags[n] = "--shard_base", flags[n + 1] = "true", flags[n + 2] = NULL;
    setting spread = *how;
    spread.flags = flags;
    outcome whole = run(c, c, how), parts = run(c, c, &spread);
    bool many = comm_size(c) > 1;
    RIGHT(c, whole.gathers == 0 && parts.gathers > 0);
    RIGHT(c, whole.steps == STEPS && parts.steps == STEPS && whole.buckets == parts.buckets);
    for (int i = 0; i < STEPS; i++) {
        RIGHT(c, parts.skipped[i] == whole.skipped[i]);
        if (whole.skipped[i]) continue;
        RIGHT(c, parts.loss[i] == whole.loss[i] && parts.norm[i] == whole.norm[i]);
    }
    RIGHT(c, parts.evaluated == whole.evaluated && parts.head == whole.head);
    RIGHT(c, arrlen(parts.weights) == arrlen(whole.weights));
    RIGHT(c, memcmp(parts.weights, whole.weights, (size_t)arrlen(whole.weights) * sizeof(float)) == 0);
    RIGHT(c, as_planned(&parts) && as_planned(&whole));
    RIGHT(c, many == (parts.params < whole.params));
    arrfree(whole.weights);
    arrfree(parts.weights);
}

/* The zero_stage of the flags among so many ranks. */
static int stage_of(const setting *how, int size) {
    int stage = 0;
    for (int i = 0; how->flags[i]; i++)
        if (strcmp(how->flags[i], "--zero_stage") == 0) stage = how->flags[i + 1][0] - '0';
    return size > 1 || stage > 1 ? stage : 0;
}

static void compare(comm *c, const setting *how) {
    outcome lone = run(c, NULL, how), many = run(c, c, how);
    RIGHT(c, lone.steps == STEPS && many.steps == STEPS && lone.buckets == 0);
    if (stage_of(how, comm_size(c)) >= 2) RIGHT(c, many.buckets == 0);
    else RIGHT(c, how->small_buckets ? many.buckets > 5 : many.buckets == 1);
    RIGHT(c, lone.tokens == many.tokens && lone.labels == many.labels && lone.slots == many.slots);
    RIGHT(c, isfinite(lone.evaluated) && fabs(many.evaluated - lone.evaluated) <= 1e-5 * lone.evaluated);
    RIGHT(c, close_to(many.loss[0], lone.loss[0]) && close_to(many.norm[0], lone.norm[0]));
    for (int i = 0; i < STEPS; i++) {
        RIGHT(c, many.skipped[i] == lone.skipped[i] && many.skipped[i] == (how->spoilt && i == 2));
        RIGHT(c, isfinite(many.norm[i]) == !many.skipped[i]);
    }
    RIGHT(c, arrlen(lone.weights) == arrlen(many.weights));
    RIGHT(c, difference(many.weights, lone.weights) <= 1e-6);
    RIGHT(c, same_everywhere(c, many.weights));
    failure f;
    double planned = (double)many.moments;
    int size = comm_size(c), stage = stage_of(how, size);
    DONE(c, comm_sum(c, &planned, 1, "moments", &f), &f);
    if (stage < 2) RIGHT(c, planned == (double)lone.moments * (stage ? 1 : size));
    RIGHT(c, (many.moments < lone.moments) == (stage > 0 && size > 1));
    RIGHT(c, (many.grads < lone.grads) == (stage > 1 && size > 1));
    RIGHT(c, (many.gathers > 0) == (stage > 2 || how->base));
    RIGHT(c, (many.params < lone.params) == (many.gathers > 0 && size > 1));
    RIGHT(c, as_planned(&lone) && as_planned(&many));
    RIGHT(c, (lone.head > 0) == (strcmp(how->flags[0], "--target_modules") == 0));
    RIGHT(c, lone.head == many.head || close_to(many.head, lone.head));
    arrfree(lone.weights);
    arrfree(many.weights);
}

#define FLAGS(...) ((const char *const[]){__VA_ARGS__, NULL})

int main(void) {
    comm *c = ranks_test_open(60);
    log_quiet(true);
    log_rank(comm_rank(c), NULL);
    omp_set_num_threads(1);
    for (int small = 0; small < 2; small++) {
        const setting all[] = {
            {FLAGS("--adapter", LLAMA "/adapter"), small},
            {FLAGS("--tuner_type", "full"), small},
            {FLAGS("--tuner_type", "full", "--use_liger_kernel", "false"), small},
            {FLAGS("--tuner_type", "full", "--zero_stage", "1"), small},
            {FLAGS("--adapter", LLAMA "/adapter", "--zero_stage", "1"), small},
            {FLAGS("--adapter", LLAMA "/adapter", "--zero_stage", "1"), small, true},
            {FLAGS("--adapter", LLAMA "/adapter", "--max_grad_norm", "0"), small},
            {FLAGS("--adapter", LLAMA "/adapter", "--max_grad_norm", "0.1"), small},
            {FLAGS("--adapter", LLAMA "/adapter", "--gradient_checkpointing", "full"), small},
            {FLAGS("--target_modules", "q_proj,lm_head", "--lora_dropout", "0.3"), small}, /* X02 */
            {FLAGS("--adapter", LLAMA "/adapter"), small, true},                           /* X03 */
        };
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) compare(c, &all[i]);
    }
    const setting bases[] = {
        {FLAGS("--adapter", LLAMA "/adapter")},
        {FLAGS("--adapter", LLAMA "/adapter", "--use_liger_kernel", "false"), true},
        {FLAGS("--adapter", LLAMA "/adapter", "--gradient_checkpointing", "cheap", "--zero_stage", "1")},
        {FLAGS("--adapter", LLAMA "/adapter", "--gradient_checkpointing", "full"), true},
        {FLAGS("--target_modules", "q_proj,lm_head", "--lora_dropout", "0.3")},                                /* X02 */
        {FLAGS("--target_modules", "q_proj,lm_head", "--lora_dropout", "0.3", "--use_liger_kernel", "false")}, /* X02 */
        {FLAGS("--adapter", LLAMA "/adapter"), false, true},                                                   /* X03 */
    };
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) compare_bases(c, &bases[i]);
    /* ZeRO 2 and 3 */
    const setting pieces[] = {
        {FLAGS("--tuner_type", "full", "--zero_stage", "2")},
        {FLAGS("--tuner_type", "full", "--zero_stage", "3")},
        {FLAGS("--tuner_type", "full", "--zero_stage", "2", "--use_liger_kernel", "false"), true},
        {FLAGS("--tuner_type", "full", "--zero_stage", "3", "--use_liger_kernel", "false")},
        {FLAGS("--tuner_type", "full", "--zero_stage", "3", "--gradient_checkpointing", "full")},
        {FLAGS("--tuner_type", "full", "--zero_stage", "3", "--max_grad_norm", "0.1"), false, true},
        {FLAGS("--adapter", LLAMA "/adapter", "--zero_stage", "2")},
        {FLAGS("--adapter", LLAMA "/adapter", "--zero_stage", "3")},
        {FLAGS("--adapter", LLAMA "/adapter", "--zero_stage", "3", "--shard_base", "false"), false, true},
    };
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) compare(c, &pieces[i]);
    /* and so it is a run of one process: X02 too */
    compare(c, &(setting){FLAGS("--adapter", LLAMA "/adapter", "--shard_base", "true"), .base = true});
    compare(c, &(setting){FLAGS("--target_modules", "q_proj,lm_head", "--lora_dropout", "0.3", "--shard_base", "true"),
                          .base = true});
    comm_close(c);
    return 0;
}
