/* bind.c - weights from files, adapters from files or new, or random weights for measuring; see bind.h.
 *
 * Where pass_layout says so (graph_value.fold), what products read has its columns times a norm's weight: frozen params
 * are bound so, of trainable ones the working copy is published so, and the master stays what files hold. */
#include "train/bind.h"
#include "base/array.h"
#include "base/rng.h"
#include "model/model_weights.h"

#include <math.h>
#include <string.h>

/* Adapter start: A uniform in +-1/sqrt(in) (PEFT's kaiming_uniform with a = sqrt 5), B zero. */
static bool init_adapter(session *s, vid v, failure *f) {
    const graph_value *value = &s->g.values[v];
    int64_t n = value_count(value);
    float *w = xcalloc((size_t)n, sizeof *w), bound = 1 / sqrtf((float)value->cols);
    uint64_t key = rng_fold((uint64_t)s->c->seed, 0x10AA);
    for (const char *p = value->name; *p; p++) key = rng_fold(key, (unsigned char)*p);
    if (strstr(value->name, ".lora_A.weight"))
        for (int64_t i = 0; i < n; i++) w[i] = (2 * rng_uniform(key, (uint64_t)i) - 1) * bound;
    bool ok = executor_bind(s->x, v, w, DTYPE_F32, f);
    free(w);
    return ok;
}

/* The tensor times the norm's weight by column, in float32: one rounding to the type that is stored. The norm is
 * rounded as the device has it. */
static bool bind_folded(session *s, vid v, const st_tensor *t, const st_tensor *norm, failure *f) {
    const graph_value *value = &s->g.values[v];
    size_t rows = (size_t)value->rows, cols = (size_t)value->cols, size = sizeof(float);
    dtype type = s->g.values[value->fold].type;
    kept_rows kept = value_kept(&s->g, v);
    size_t from = (size_t)kept.first, to = from + (size_t)kept.n;
    float *x = xmalloc(rows * cols * size), *g = xmalloc(cols * size);
    void *stored = xmalloc(cols * size);
    dtype_to_f32(g, norm->data, norm->type, cols);
    dtype_from_f32(stored, type, g, cols);
    dtype_to_f32(g, stored, type, cols);
#pragma omp parallel for schedule(static)
    for (size_t i = from; i < to; i++) {
        float *row = x + i * cols;
        dtype_to_f32(row, (const char *)t->data + i * cols * dtype_size(t->type), t->type, cols);
        for (size_t j = 0; j < cols; j++) row[j] *= g[j];
    }
    bool ok = executor_bind(s->x, v, x, DTYPE_F32, f);
    free(stored);
    free(g);
    free(x);
    return ok;
}

static bool bind_files(session *s, failure *f) {
    int n = (int)arrlen(s->g.values);
    const st_tensor **found = xcalloc((size_t)n, sizeof *found);
    bool ok = model_weights_find(&s->g, s->weights, &s->model, found, f) &&
              (!s->adapter || adapter_weights_find(&s->g, s->adapter, found, f));
    for (vid v = 1; v < n && ok; v++) {
        const graph_value *value = &s->g.values[v];
        if (found[v] && value->fold && !value->working) ok = bind_folded(s, v, found[v], found[value->fold], f);
        else if (found[v]) ok = executor_bind(s->x, v, found[v]->data, found[v]->type, f);
        else if (s->g.values[v].role == ROLE_PARAM) ok = init_adapter(s, v, f);
    }
    free(found);
    return ok;
}

/* One block of random numbers serves every matrix; it lives as long as the session, where weights are used in place.
 * Norms are 1, so that folded weights are as they are. */
static bool bind_random(session *s, failure *f) {
    int64_t most = 0;
    for (vid v = 1; v < arrlen(s->g.values); v++)
        if (s->g.values[v].role == ROLE_PARAM && value_count(&s->g.values[v]) > most)
            most = value_count(&s->g.values[v]);
    dtype type = s->model.stored;
    float *ones = xmalloc((size_t)most * sizeof *ones);
    s->random = xrealloc(s->random, (size_t)most * dtype_size(type));
    const float width = 0.02f * 3.4641016f; /* of a uniform distribution with deviation 0.02 */
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < most; i++) ones[i] = (rng_uniform(1, (uint64_t)i) - 0.5f) * width;
    dtype_from_f32(s->random, type, ones, (size_t)most);
    for (int64_t i = 0; i < most; i++) ones[i] = 1;
    bool ok = true;
    for (vid v = 1; v < arrlen(s->g.values) && ok; v++) {
        const graph_value *value = &s->g.values[v];
        if (value->role != ROLE_PARAM) continue;
        if (strncmp(value->name, "base_model.", 11) == 0) ok = init_adapter(s, v, f);
        else if (value->cols > 1) ok = executor_bind(s->x, v, s->random, type, f);
        else {
            float *vector = xmalloc((size_t)value->rows * dtype_size(type));
            dtype_from_f32(vector, type, ones, (size_t)value->rows);
            ok = executor_bind(s->x, v, vector, type, f);
            if (executor_data(s->x, v) == (void *)vector) arrput(s->vectors, vector);
            else free(vector);
        }
    }
    free(ones);
    return ok;
}

optim_group bind_group(const session *s, vid v) {
    const graph_value *value = &s->g.values[v];
    int64_t n = value_count(value);
    if (value->parts) value_piece(value, &n);
    return (optim_group){.weight = executor_data(s->x, v),
                         .n = n,
                         .working = executor_tensor(s->x, value->working),
                         .first = value_kept(&s->g, value->working).first,
                         .fold = executor_tensor(s->x, value->fold)};
}

bool bind_publish(const session *s, failure *f) {
    optim_group *groups = NULL;
    for (vid v = 1; v < arrlen(s->g.values); v++)
        if (s->g.values[v].working) arrput(groups, bind_group(s, v));
    bool ok = !groups || s->b->publish(groups, (int)arrlen(groups), f);
    arrfree(groups);
    return ok;
}

bool bind_params(session *s, failure *f) {
    return (s->weights ? bind_files(s, f) : bind_random(s, f)) && bind_publish(s, f);
}
