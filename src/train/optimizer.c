/* optimizer.c - moments for each trainable param, the global gradient norm, and the step itself on the backend. */
#include "train/optimizer.h"
#include "base/array.h"

#include <math.h>
#include <string.h>

typedef struct {
    vid param, grad;
    int64_t n;
    void *m, *v; /* moments, device memory */
    bool decays;
} group;

struct optimizer {
    session *s;
    group *groups; /* stb_ds, one per trainable param */
    int64_t steps; /* taken so far: Adam's bias correction */
};

bool optimizer_decays(const char *name) {
    size_t n = strlen(name);
    bool bias = n > 5 && strcmp(name + n - 5, ".bias") == 0;
    return !bias && !strstr(name, "norm.weight");
}

bool optimizer_open(optimizer **out, session *s, failure *f) {
    optimizer *o = xcalloc(1, sizeof *o);
    o->s = s;
    bool ok = true;
    for (vid v = 1; v < arrlen(s->g.values) && ok; v++) {
        const graph_value *value = &s->g.values[v];
        if (!value->trainable || !value->grad) continue;
        group g = {v, value->grad, value_count(value), NULL, NULL, optimizer_decays(value->name)};
        size_t bytes = (size_t)g.n * sizeof(float);
        ok = s->b->alloc(&g.m, bytes, "first moments", f) && s->b->alloc(&g.v, bytes, "second moments", f) &&
             s->b->clear(g.m, bytes, f) && s->b->clear(g.v, bytes, f);
        arrput(o->groups, g);
    }
    if (ok && arrlen(o->groups)) {
        *out = o;
        return true;
    }
    optimizer_close(o);
    return ok ? fail(f, FAIL_INPUT, "nothing to train: no param has a gradient") : false;
}

void optimizer_close(optimizer *o) {
    if (!o) return;
    for (int i = 0; i < arrlen(o->groups); i++) {
        o->s->b->free(o->groups[i].m);
        o->s->b->free(o->groups[i].v);
    }
    arrfree(o->groups);
    free(o);
}

int64_t optimizer_params(const optimizer *o) {
    int64_t n = 0;
    for (int i = 0; i < arrlen(o->groups); i++) n += o->groups[i].n;
    return n;
}

bool optimizer_grad_norm(optimizer *o, double *norm, failure *f) {
    double sum = 0;
    for (int i = 0; i < arrlen(o->groups); i++) {
        double part;
        TRY(o->s->b->sum_squares(&part, executor_data(o->s->x, o->groups[i].grad), o->groups[i].n, f));
        sum += part;
    }
    *norm = sqrt(sum);
    return true;
}

bool optimizer_step(optimizer *o, double learning_rate, double norm, failure *f) {
    const config *c = o->s->c;
    double clip = c->max_grad_norm > 0 ? fmin(1, c->max_grad_norm / (norm + 1e-6)) : 1; /* torch's clip_grad_norm_ */
    double t = (double)++o->steps;
    adamw_args args = {.learning_rate = (float)learning_rate,
                       .beta1 = (float)c->adam_beta1,
                       .beta2 = (float)c->adam_beta2,
                       .eps = (float)c->adam_epsilon,
                       .grad_scale = (float)clip,
                       .correction1 = (float)(1 - pow(c->adam_beta1, t)),
                       .correction2 = (float)(1 - pow(c->adam_beta2, t))};
    for (int i = 0; i < arrlen(o->groups); i++) {
        const group *g = &o->groups[i];
        args.weight_decay = g->decays ? (float)c->weight_decay : 0;
        TRY(o->s->b->adamw(executor_data(o->s->x, g->param), executor_data(o->s->x, g->grad), g->m, g->v, g->n, &args,
                           f));
    }
    return true;
}
