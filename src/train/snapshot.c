/* snapshot.c - see snapshot.h. */
#include "train/snapshot.h"
#include "base/array.h"

#include <string.h>

static const graph_value *value_of(const snapshot *p, int i) { return &p->s->g.values[p->params[i]]; }

static bool fetch(const snapshot *p, int i, optimizer_part part, float *to, failure *f) {
    if (p->o) return optimizer_read(p->o, i, part, to, f);
    for (int k = 0; value_of(p, i)->parts && k < optimizer_count(p->pieces); k++)
        if (optimizer_param(p->pieces, k) == p->params[i]) return optimizer_read(p->pieces, k, part, to, f);
    return executor_download(p->s->x, p->params[i], to, value_count(value_of(p, i)), f);
}

static bool hold_all(snapshot *p, failure *f) {
    int n = (int)arrlen(p->params), parts = p->o ? OPTIMIZER_PARTS : 1;
    p->held = xcalloc((size_t)n * OPTIMIZER_PARTS, sizeof *p->held);
    for (int i = 0; i < n; i++)
        for (int part = 0; part < parts; part++) {
            float **to = &p->held[i * OPTIMIZER_PARTS + part];
            *to = xmalloc((size_t)value_count(value_of(p, i)) * sizeof **to);
            TRY(fetch(p, i, (optimizer_part)part, *to, f));
        }
    return true;
}

bool snapshot_open(snapshot *p, const session *s, const optimizer *o, bool hold, failure *f) {
    *p = (snapshot){.s = s, .o = o};
    int64_t most = 0;
    for (vid v = 1; v < arrlen(s->g.values); v++) {
        const graph_value *value = &s->g.values[v];
        if (value->role != ROLE_PARAM || !value->trainable || (o && !value->grad)) continue;
        arrput(p->params, v);
        if (value_count(value) > most) most = value_count(value);
    }
    if (!hold) p->fetched = xmalloc((size_t)most * sizeof *p->fetched + 1);
    if (!hold || hold_all(p, f)) return true;
    snapshot_close(p);
    return false;
}

void snapshot_close(snapshot *p) {
    for (int i = 0; p->held && i < arrlen(p->params) * OPTIMIZER_PARTS; i++) free(p->held[i]);
    free(p->held);
    free(p->fetched);
    arrfree(p->params);
    *p = (snapshot){0};
}

int64_t snapshot_bytes(const snapshot *p) {
    int64_t n = 0;
    for (int i = 0; i < arrlen(p->params); i++) n += value_count(value_of(p, i));
    return n * (p->o ? OPTIMIZER_PARTS : 1) * (int64_t)sizeof(float);
}

const float *snapshot_tensor(snapshot *p, int i, optimizer_part part, failure *f) {
    if (p->held) return p->held[i * OPTIMIZER_PARTS + part];
    return fetch(p, i, part, p->fetched, f) ? p->fetched : NULL;
}

int snapshot_find(const snapshot *p, const char *name) {
    for (int i = 0; i < arrlen(p->params); i++)
        if (strcmp(value_of(p, i)->name, name) == 0) return i;
    return -1;
}
