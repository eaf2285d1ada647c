/* merge.c - W + scale * B * A for every adapted W, in blocks of rows, into a new model folder.
 *
 * The new weights go file by file under temporary names; the index comes last and an old one goes first, so that a run
 * cut short leaves nothing that a reader would take for a model.  The same function makes a block for writing and, read
 * back, for the check: both must agree bit for bit. */
#include "weights/merge.h"
#include "base/array.h"
#include "base/log.h"
#include "weights/adapter.h"
#include "weights/merge.h"
#include "weights/model_folder.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>

enum { BLOCK_FLOATS = 1 << 24 }; /* of W at a time: 64 MB */

typedef struct {
    const st_tensor *A, *B; /* NULL: copied as it is */
} pair;

typedef struct {
    const merge_options *o;
    merge_report *report;
    failure *f;
    arena memory;
    st_set *base, *adapter;
    adapter_config config;
    pair *pairs;           /* [tensors of base] */
    float *W, *change;     /* [BLOCK_FLOATS or one row] */
    float *A, *B;          /* of the tensor at work; stb_ds arrays */
    uint8_t *block;        /* W in its stored type */
    double moved, rounded; /* sums of squares */
} merger;

/* "base_model.model.X.lora_A.weight" -> index of X.weight in the base, and which half; -1 when the name is no such. */
static int find_base(merger *m, const char *name, bool *is_A) {
    static const char start[] = "base_model.model.";
    static const char *const ends[] = {".lora_B.weight", ".lora_A.weight"};
    size_t n = strlen(name), from = sizeof start - 1, end = strlen(ends[0]);
    if (strncmp(name, start, from) != 0 || n < from + end) return -1;
    *is_A = strcmp(name + n - end, ends[1]) == 0;
    if (!*is_A && strcmp(name + n - end, ends[0]) != 0) return -1;
    const char *weight = arena_printf(&m->memory, "%.*s.weight", (int)(n - from - end), name + from);
    const st_tensor *W = st_find(m->base, weight);
    return W ? (int)(W - st_at(m->base, 0)) : -1;
}

static bool collect_pairs(merger *m) {
    m->pairs = xcalloc((size_t)st_count(m->base), sizeof *m->pairs);
    for (int i = 0; i < st_count(m->adapter); i++) {
        const st_tensor *t = st_at(m->adapter, i);
        bool is_A = false;
        int at = find_base(m, t->name, &is_A);
        if (at < 0)
            return fail(m->f, FAIL_INPUT, "%s: %s: is no lora_A or lora_B of a weight that %s has",
                        st_path(m->adapter, t), t->name, m->o->model);
        if (is_A) m->pairs[at].A = t;
        else m->pairs[at].B = t;
    }
    return true;
}

static bool check_pair(const merger *m, const st_tensor *W, const pair *p) {
    if (!p->A || !p->B)
        return fail(m->f, FAIL_INPUT, "%s: %s has a %s but no %s", m->o->adapter, W->name, p->A ? "lora_A" : "lora_B",
                    p->A ? "lora_B" : "lora_A");
    const st_tensor *A = p->A, *B = p->B;
    bool floats = W->type != DTYPE_I32 && A->type != DTYPE_I32 && B->type != DTYPE_I32;
    bool fits = W->n_dims == 2 && W->count > 0 && W->dim[1] <= INT32_MAX && A->n_dims == 2 && B->n_dims == 2 &&
                A->dim[0] == m->config.rank && A->dim[1] == W->dim[1] && B->dim[0] == W->dim[0] &&
                B->dim[1] == m->config.rank;
    if (floats && fits) return true;
    return fail(
        m->f, FAIL_INPUT,
        "%s: %s is [%lld, %lld] of %s; lora_A is [%lld, %lld], lora_B is [%lld, %lld], r in adapter_config.json "
        "is %d: they do not fit",
        m->o->adapter, W->name, (long long)W->dim[0], (long long)W->dim[1], dtype_name(W->type), (long long)A->dim[0],
        (long long)A->dim[1], (long long)B->dim[0], (long long)B->dim[1], m->config.rank);
}

static bool open_inputs(merger *m) {
    failure *f = m->f;
    TRY(adapter_config_read(&m->config, m->o->adapter, &m->memory, f));
    TRY(adapter_open(&m->adapter, m->o->adapter, f));
    TRY(st_open_folder(&m->base, m->o->model, f));
    TRY(collect_pairs(m));
    size_t floats = 0;
    for (int i = 0; i < st_count(m->base); i++) {
        const st_tensor *W = st_at(m->base, i);
        if (!m->pairs[i].A && !m->pairs[i].B) continue;
        TRY(check_pair(m, W, &m->pairs[i]));
        size_t need = (size_t)W->count < BLOCK_FLOATS ? (size_t)W->count : BLOCK_FLOATS;
        if (need < (size_t)W->dim[1]) need = (size_t)W->dim[1];
        if (need > floats) floats = need;
        m->report->merged++;
    }
    if (!m->report->merged) return fail(f, FAIL_INPUT, "%s: the adapter has no tensors", m->o->adapter);
    m->W = xmalloc(floats * sizeof *m->W);
    m->change = xmalloc(floats * sizeof *m->change);
    m->block = xmalloc(floats * sizeof *m->W);
    return true;
}

static int64_t block_rows(const st_tensor *W) {
    int64_t rows = BLOCK_FLOATS / W->dim[1];
    return rows > 0 ? rows : 1;
}

/* A and B of tensor i as float32. */
static void load_pair(merger *m, int i) {
    const pair *p = &m->pairs[i];
    arrsetlen(m->A, (size_t)p->A->count);
    arrsetlen(m->B, (size_t)p->B->count);
    dtype_to_f32(m->A, p->A->data, p->A->type, (size_t)p->A->count);
    dtype_to_f32(m->B, p->B->data, p->B->type, (size_t)p->B->count);
}

enum { CHUNK_ROWS = 64 }; /* what a thread takes; the cut, not the number of threads, decides the rounding */

/* Rows [first, first + rows) of the merged W[M,K] into m->block: W[rows,K] + scale * B[rows,R] * A[R,K]. Adds to the
 * sums behind report.rounding; false when a weight left the range of its type. */
static bool merge_block(merger *m, const st_tensor *W, int64_t first, int64_t rows) {
    int64_t K = W->dim[1], R = m->config.rank;
    size_t size = dtype_size(W->type);
    float scale = (float)adapter_scale(&m->config);
    double moved = 0, rounded = 0;
#pragma omp parallel for reduction(+ : moved, rounded)
    for (int64_t row = 0; row < rows; row += CHUNK_ROWS) {
        int64_t n_rows = rows - row < CHUNK_ROWS ? rows - row : CHUNK_ROWS;
        size_t n = (size_t)(n_rows * K), at = (size_t)(row * K);
        float *w = m->W + at, *change = m->change + at;
        uint8_t *stored = m->block + at * size;
        dtype_to_f32(w, (const uint8_t *)W->data + ((size_t)(first * K) + at) * size, W->type, n);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)n_rows, (int)K, (int)R, scale,
                    m->B + (first + row) * R, (int)R, m->A, (int)K, 0.0f, change, (int)K);
        for (size_t k = 0; k < n; k++) {
            w[k] += change[k];
            moved += (double)change[k] * change[k];
        }
        dtype_from_f32(stored, W->type, w, n);
        dtype_to_f32(change, stored, W->type, n);
        for (size_t k = 0; k < n; k++) rounded += ((double)change[k] - w[k]) * ((double)change[k] - w[k]);
    }
    m->moved += moved;
    m->rounded += rounded;
    return isfinite(moved) && isfinite(rounded);
}

static bool write_merged(merger *m, st_writer *w, int i) {
    const st_tensor *W = st_at(m->base, i);
    load_pair(m, i);
    for (int64_t row = 0; row < W->dim[0]; row += block_rows(W)) {
        int64_t rows = W->dim[0] - row < block_rows(W) ? W->dim[0] - row : block_rows(W);
        size_t n = (size_t)(rows * W->dim[1]);
        if (!merge_block(m, W, row, rows))
            return fail(m->f, FAIL_INPUT, "%s: merged weights leave the range of %s or are not finite", W->name,
                        dtype_name(W->type));
        TRY(st_writer_add(w, m->block, n * dtype_size(W->type), m->f));
    }
    return true;
}

static size_t tensor_bytes(const st_tensor *t) { return (size_t)t->count * dtype_size(t->type); }

static bool write_tensor(void *context, st_writer *w, int i, failure *f) {
    merger *m = context;
    const st_tensor *t = st_at(m->base, i);
    return m->pairs[i].A ? write_merged(m, w, i) : st_writer_add(w, t->data, tensor_bytes(t), f);
}

static bool same_merged(merger *m, int i, const uint8_t *found) {
    const st_tensor *W = st_at(m->base, i);
    load_pair(m, i);
    for (int64_t row = 0; row < W->dim[0]; row += block_rows(W)) {
        int64_t rows = W->dim[0] - row < block_rows(W) ? W->dim[0] - row : block_rows(W);
        size_t bytes = (size_t)(rows * W->dim[1]) * dtype_size(W->type);
        if (!merge_block(m, W, row, rows) || memcmp(found, m->block, bytes) != 0) return false;
        found += bytes;
    }
    return true;
}

/* Opens what was written as any reader would, and compares all of it. */
static bool check_output(merger *m) {
    st_set *out = NULL;
    TRY(st_open_folder(&out, m->o->output, m->f));
    bool ok = st_count(out) == st_count(m->base);
    const char *wrong = "the number of tensors";
    for (int i = 0; ok && i < st_count(m->base); i++) {
        const st_tensor *t = st_at(m->base, i), *found = st_find(out, t->name);
        wrong = t->name;
        ok = found && found->type == t->type && found->n_dims == t->n_dims &&
             memcmp(found->dim, t->dim, sizeof t->dim) == 0;
        if (ok) ok = m->pairs[i].A ? same_merged(m, i, found->data) : !memcmp(found->data, t->data, tensor_bytes(t));
    }
    st_close(out);
    if (ok) return true;
    return fail(m->f, FAIL_MACHINE, "%s: read back, %s is not what was written; is the disk sound?", m->o->output,
                wrong);
}

static bool write_output(merger *m) {
    model_folder_size size;
    TRY(model_folder_write(m->o->output, m->base, m->o->shard_bytes, write_tensor, m, &size, m->f));
    TRY(check_output(m));
    TRY(model_folder_copy_others(m->o->output, m->o->model, m->f)); /* config.json: now it is a model */
    m->report->tensors = st_count(m->base);
    m->report->files = size.files;
    m->report->bytes = size.bytes;
    m->report->rounding = m->moved > 0 ? sqrt(m->rounded / m->moved) : 0;
    return true;
}

bool merge_adapter(const merge_options *o, merge_report *r, failure *f) {
    merger m = {.o = o, .report = r, .f = f};
    *r = (merge_report){0};
    bool ok = model_folder_check(o->output, o->model, o->overwrite, f) && open_inputs(&m) && write_output(&m);
    st_close(m.base);
    st_close(m.adapter);
    arrfree(m.A);
    arrfree(m.B);
    free(m.W);
    free(m.change);
    free(m.block);
    free(m.pairs);
    arena_free(&m.memory);
    return ok;
}
