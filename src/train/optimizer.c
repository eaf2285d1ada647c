/* optimizer.c - moments for each trainable param, the global gradient norm, and the step itself on the backend. */
#include "train/optimizer.h"
#include "base/array.h"

#include <math.h>
#include <string.h>

struct optimizer {
    session *s;
    optim_group *groups; /* stb_ds, one per trainable param */
    vid *params;         /* stb_ds, parallel */
    int64_t steps;       /* taken so far: Adam's bias correction */
    bool shared;         /* other ranks keep moments too */
};

bool optimizer_decays(const char *name) {
    size_t n = strlen(name);
    bool bias = n > 5 && strcmp(name + n - 5, ".bias") == 0;
    return !bias && !strstr(name, "norm.weight");
}

static bool add_group(optimizer *o, vid v, failure *f) {
    session *s = o->s;
    const graph_value *value = &s->g.values[v];
    optim_group g = {.weight = executor_data(s->x, v),
                     .grad = executor_data(s->x, value->grad),
                     .n = value_count(value),
                     .decays = optimizer_decays(value->name)};
    size_t bytes = (size_t)g.n * sizeof(float);
    void *m = NULL, *u = NULL;
    bool ok = value->elsewhere ||
              (s->b->alloc(&m, bytes, "first moments", f) && s->b->alloc(&u, bytes, "second moments", f) &&
               s->b->clear(m, bytes, f) && s->b->clear(u, bytes, f));
    g.m = m, g.v = u;
    if (value->working) g.working = executor_tensor(s->x, value->working);
    if (value->fold) g.fold = executor_tensor(s->x, value->fold);
    arrput(o->groups, g);
    arrput(o->params, v);
    o->shared |= value->elsewhere;
    return ok;
}

bool optimizer_open(optimizer **out, session *s, failure *f) {
    optimizer *o = xcalloc(1, sizeof *o);
    o->s = s;
    bool ok = true;
    for (vid v = 1; v < arrlen(s->g.values) && ok; v++)
        if (s->g.values[v].trainable && s->g.values[v].grad) ok = add_group(o, v, f);
    if (ok && !arrlen(o->groups)) ok = fail(f, FAIL_INPUT, "nothing to train: no param has a gradient");
    if (ok) *out = o;
    else optimizer_close(o);
    return ok;
}

void optimizer_close(optimizer *o) {
    if (!o) return;
    for (int i = 0; i < arrlen(o->groups); i++) {
        o->s->b->free(o->groups[i].m);
        o->s->b->free(o->groups[i].v);
    }
    arrfree(o->groups);
    arrfree(o->params);
    free(o);
}

int64_t optimizer_params(const optimizer *o) {
    int64_t n = 0;
    for (int i = 0; i < arrlen(o->groups); i++) n += o->groups[i].n;
    return n;
}

int optimizer_count(const optimizer *o) { return (int)arrlen(o->groups); }
vid optimizer_param(const optimizer *o, int i) { return o->params[i]; }
int64_t optimizer_updates(const optimizer *o) { return o->steps; }

static float *part_of(const optimizer *o, int i, optimizer_part part) {
    const optim_group *g = &o->groups[i];
    return part == OPTIMIZER_WEIGHT ? g->weight : part == OPTIMIZER_MEAN ? g->m : g->v;
}

static const graph_value *value_at(const optimizer *o, int i) { return &o->s->g.values[o->params[i]]; }
static size_t bytes_at(const optimizer *o, int i) { return (size_t)o->groups[i].n * sizeof(float); }

/* A part of param i from the rank that keeps it, to all; on rank 0 `number` is what it asks for. -1: nothing more. */
static bool hand_on(const optimizer *o, int32_t *number, float *to, float **block, failure *f) {
    comm *ranks = o->s->ranks;
    TRY(comm_broadcast(ranks, number, sizeof *number, 0, "moments for a checkpoint", f));
    if (*number < 0) return true;
    int i = *number / OPTIMIZER_PARTS, owner = value_at(o, i)->owner;
    optimizer_part part = (optimizer_part)(*number % OPTIMIZER_PARTS);
    if (!to) to = *block = xrealloc(*block, bytes_at(o, i));
    if (owner == comm_rank(ranks)) TRY(o->s->b->download(to, part_of(o, i, part), bytes_at(o, i), f));
    return comm_broadcast(ranks, to, bytes_at(o, i), owner, "moments for a checkpoint", f);
}

bool optimizer_serve(const optimizer *o, failure *f) {
    float *block = NULL;
    bool ok = true;
    for (int32_t number = 0; o->shared && ok && number >= 0;) ok = hand_on(o, &number, NULL, &block, f);
    free(block);
    return ok;
}

bool optimizer_served(const optimizer *o, failure *f) {
    int32_t nothing = -1;
    return !o->shared || hand_on(o, &nothing, NULL, NULL, f);
}

bool optimizer_read(const optimizer *o, int i, optimizer_part part, float *to, failure *f) {
    int32_t number = i * OPTIMIZER_PARTS + (int32_t)part;
    if (part != OPTIMIZER_WEIGHT && value_at(o, i)->elsewhere) return hand_on(o, &number, to, NULL, f);
    return o->s->b->download(to, part_of(o, i, part), bytes_at(o, i), f);
}

bool optimizer_write(optimizer *o, int i, optimizer_part part, const float *from, failure *f) {
    if (part != OPTIMIZER_WEIGHT && value_at(o, i)->elsewhere) return true;
    return o->s->b->upload(part_of(o, i, part), from, bytes_at(o, i), f);
}

bool optimizer_restored(optimizer *o, int64_t updates, failure *f) {
    optim_group *working = NULL;
    o->steps = updates;
    for (int i = 0; i < optimizer_count(o); i++)
        if (o->groups[i].working.data) arrput(working, o->groups[i]);
    bool ok = !working || o->s->b->publish(working, (int)arrlen(working), f);
    arrfree(working);
    return ok;
}

/* Every param from the rank that updated it; then the working copies of all. */
static bool send_updates(optimizer *o, failure *f) {
    const session *s = o->s;
    for (int i = 0; i < optimizer_count(o); i++)
        TRY(s->b->broadcast(s->ranks, o->groups[i].weight, bytes_at(o, i), value_at(o, i)->owner, f));
    TRY(s->b->finish(f));
    bool working = o->groups[0].working.data != NULL; /* of all params, or of none */
    return !working || s->b->publish(o->groups, optimizer_count(o), f);
}

bool optimizer_step(optimizer *o, double learning_rate, double *norm, failure *f) {
    const config *c = o->s->c;
    double t = (double)(o->steps + 1);
    adamw_args args = {.learning_rate = (float)learning_rate,
                       .beta1 = (float)c->adam_beta1,
                       .beta2 = (float)c->adam_beta2,
                       .eps = (float)c->adam_epsilon,
                       .weight_decay = (float)c->weight_decay,
                       .max_grad_norm = (float)c->max_grad_norm,
                       .correction1 = (float)(1 - pow(c->adam_beta1, t)),
                       .correction2 = (float)(1 - pow(c->adam_beta2, t))};
    TRY(o->s->b->adamw(o->groups, (int)arrlen(o->groups), &args, norm, f));
    bool counts = isfinite(*norm);
    o->steps += counts;
    return !counts || !o->shared || send_updates(o, f);
}
