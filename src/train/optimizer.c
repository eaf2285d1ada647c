/* optimizer.c - moments for each trainable param, the global gradient norm, and the step itself on the backend. */
#include "train/optimizer.h"
#include "base/array.h"
#include "train/bind.h"

#include <math.h>
#include <string.h>

struct optimizer {
    session *s;
    optim_group *groups; /* stb_ds, one per trainable param */
    vid *params;         /* stb_ds, parallel */
    bool pieces;         /* every rank updates a piece of each param (gradients are in pieces) */
    bool working;        /* ops read copies of the params */
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
    optim_group g = bind_group(s, v);
    g.grad = executor_data(s->x, value->grad);
    g.decays = optimizer_decays(value->name);
    size_t bytes = (size_t)g.n * sizeof(float);
    const graph_value *gradient = &s->g.values[value->grad];
    if (gradient->parts) {
        int64_t first = value_piece(gradient, &g.n);
        if (!value->parts) g.weight += first, g.working.data = NULL; /* published when the pieces are together */
        bytes = (size_t)value_part(gradient) * sizeof(float);
        o->pieces = o->shared = true;
    }
    void *m = NULL, *u = NULL;
    bool ok = value->elsewhere ||
              (s->b->alloc(&m, bytes, "first moments", f) && s->b->alloc(&u, bytes, "second moments", f) &&
               s->b->clear(m, bytes, f) && s->b->clear(u, bytes, f));
    g.m = m, g.v = u;
    o->working |= value->working != 0;
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
    for (int i = 0; i < arrlen(o->params); i++) n += value_count(&o->s->g.values[o->params[i]]);
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
static size_t bytes_at(const optimizer *o, int i) { return (size_t)value_count(value_at(o, i)) * sizeof(float); }

/* A part of which every rank keeps a piece. */
static bool in_pieces(const optimizer *o, int i, optimizer_part part) {
    return o->pieces && (part != OPTIMIZER_WEIGHT || value_at(o, i)->parts);
}
static bool asks_others(const optimizer *o, int i, optimizer_part part) {
    return in_pieces(o, i, part) || (part != OPTIMIZER_WEIGHT && value_at(o, i)->elsewhere);
}

/* The pieces of all ranks, behind each other in `to` (bytes_at), which may be NULL where nobody wants them. */
static bool bring_together(const optimizer *o, int i, optimizer_part part, float *to, failure *f) {
    const graph_value *gradient = &o->s->g.values[value_at(o, i)->grad];
    size_t bytes = (size_t)value_part(gradient) * sizeof(float);
    char *mine = xmalloc(bytes), *all = xmalloc(bytes * (size_t)gradient->parts);
    bool ok = o->s->b->download(mine, part_of(o, i, part), bytes, f) &&
              comm_all_gather(o->s->ranks, mine, bytes, all, "pieces for a checkpoint", f);
    if (ok && to) memcpy(to, all, bytes_at(o, i));
    free(mine);
    free(all);
    return ok;
}

/* A part of param i from the rank that keeps it, to all; on rank 0 `number` is what it asks for. -1: nothing more. */
static bool hand_on(const optimizer *o, int32_t *number, float *to, float **block, failure *f) {
    comm *ranks = o->s->ranks;
    TRY(comm_broadcast(ranks, number, sizeof *number, 0, "moments for a checkpoint", f));
    if (*number < 0) return true;
    int i = *number / OPTIMIZER_PARTS, owner = value_at(o, i)->owner;
    optimizer_part part = (optimizer_part)(*number % OPTIMIZER_PARTS);
    if (in_pieces(o, i, part)) return bring_together(o, i, part, to, f);
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
    if (asks_others(o, i, part)) return hand_on(o, &number, to, NULL, f);
    const void *from = part == OPTIMIZER_WEIGHT ? executor_data(o->s->x, o->params[i]) : part_of(o, i, part);
    return o->s->b->download(to, from, bytes_at(o, i), f);
}

bool optimizer_write(optimizer *o, int i, optimizer_part part, const float *from, failure *f) {
    if (in_pieces(o, i, part)) {
        int64_t n, first = value_piece(&o->s->g.values[value_at(o, i)->grad], &n);
        return !n || o->s->b->upload(part_of(o, i, part), from + first, (size_t)n * sizeof *from, f);
    }
    if (part == OPTIMIZER_WEIGHT) return o->s->b->upload(executor_data(o->s->x, o->params[i]), from, bytes_at(o, i), f);
    return value_at(o, i)->elsewhere || o->s->b->upload(part_of(o, i, part), from, bytes_at(o, i), f);
}

bool optimizer_restored(optimizer *o, int64_t updates, failure *f) {
    o->steps = updates;
    return bind_publish(o->s, f);
}

/* Every param, or piece of one that is whole everywhere, from the rank that updated it; then the working copies. */
static bool send_updates(optimizer *o, failure *f) {
    const session *s = o->s;
    for (int i = 0; i < optimizer_count(o) && o->pieces; i++) {
        const graph_value *value = value_at(o, i), *gradient = &s->g.values[value->grad];
        size_t bytes = (size_t)value_part(gradient) * sizeof(float);
        if (!value->parts)
            TRY(s->b->all_gather(s->ranks, o->groups[i].weight, bytes, executor_data(s->x, o->params[i]), f));
    }
    for (int i = 0; i < optimizer_count(o) && !o->pieces; i++)
        TRY(s->b->broadcast(s->ranks, o->groups[i].weight, bytes_at(o, i), value_at(o, i)->owner, f));
    TRY(s->b->finish(f));
    if (!o->working || value_at(o, 0)->parts) return true; /* the step has made them */
    return o->pieces ? bind_publish(s, f) : s->b->publish(o->groups, optimizer_count(o), f);
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
                       .correction2 = (float)(1 - pow(c->adam_beta2, t)),
                       .ranks = o->pieces ? o->s->ranks : NULL};
    TRY(o->s->b->adamw(o->groups, (int)arrlen(o->groups), &args, norm, f));
    bool counts = isfinite(*norm);
    o->steps += counts;
    return !counts || !o->shared || send_updates(o, f);
}
