/* executor.c - binds every value of a program to memory of a backend and runs ranges of ops. */
#include "exec/executor.h"
#include "base/array.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

struct executor {
    const graph *g;
    const plan *p;
    const backend *b;
    comm *ranks;
    void **data;   /* [values] device addresses */
    bool *owned;   /* [values] data[v] is a block of its own */
    int64_t *room; /* [values] see tensor */
    char *arena;
    struct {
        void *block;
        size_t bytes;
    } gathered[2]; /* all GRAD values, all OUTPUT values: cleared together at each step */
};

static int gathered_index(value_role role) { return role == ROLE_GRAD ? 0 : role == ROLE_OUTPUT ? 1 : -1; }

/* Storage of its own for a value that is neither temporary nor bound: zeroed. */
static bool alloc_storage(executor *x, vid v, failure *f) {
    const char *name = x->g->values[v].name;
    size_t bytes = (size_t)value_storage(x->g, v);
    if (!bytes) return true;
    if (x->g->values[v].role == ROLE_HOST && x->b->alloc_host) {
        TRY(x->b->alloc_host(&x->data[v], bytes, name, f));
        return x->owned[v] = true;
    }
    TRY(x->b->alloc(&x->data[v], bytes, name, f));
    x->owned[v] = true;
    return x->b->clear(x->data[v], bytes, f);
}

/* Everything persistent that executor_bind does not give, and params that others lie in (their gaps must be 0). */
static bool alloc_persistent(executor *x, failure *f) {
    for (vid v = 1; v < arrlen(x->g->values); v++) {
        const graph_value *value = &x->g->values[v];
        bool shared = value->role == ROLE_PARAM && (value->ld || value->storage_rows);
        bool own = value->role == ROLE_INPUT || value->role == ROLE_STATE || value->role == ROLE_HOST;
        if (own || shared) TRY(alloc_storage(x, v, f));
    }
    return true;
}

/* One block for the values of a role that is cleared as a whole. */
static bool alloc_gathered(executor *x, value_role role, const char *what, failure *f) {
    enum { ALIGN = 256 };
    int k = gathered_index(role), n = (int)arrlen(x->g->values);
    size_t bytes = 0;
    for (vid v = 1; v < n; v++)
        if (x->g->values[v].role == role) bytes += ((size_t)value_storage(x->g, v) + ALIGN - 1) / ALIGN * ALIGN;
    if (!bytes) return true;
    TRY(x->b->alloc(&x->gathered[k].block, bytes, what, f));
    x->gathered[k].bytes = bytes;
    char *at = x->gathered[k].block;
    for (vid v = 1; v < n; v++) {
        if (x->g->values[v].role != role) continue;
        x->data[v] = at;
        at += ((size_t)value_storage(x->g, v) + ALIGN - 1) / ALIGN * ALIGN;
    }
    return x->b->clear(x->gathered[k].block, bytes, f);
}

/* Of the first row that is kept here; NULL: none is, or its storage has no address yet. */
static char *address(const executor *x, vid v) {
    const graph_value *value = &x->g->values[v];
    bool inside = value->base && !x->g->values[value->base].parts;
    char *base = inside ? address(x, value->base) : x->data[value->base ? value->base : v];
    kept_rows k = value_kept(x->g, v);
    return base && k.n ? base + k.at * (int64_t)dtype_size(value->type) : NULL;
}

/* Addresses inside other values, once these have theirs. */
static void place_inside(executor *x) {
    for (vid v = 1; v < arrlen(x->g->values); v++)
        if (x->g->values[v].base && address(x, v)) x->data[v] = address(x, v);
}

static bool check_kernels(const executor *x, failure *f) {
    for (int i = 0; i < arrlen(x->g->ops); i++)
        if (!x->b->kernels[x->g->ops[i].kind])
            return fail(f, FAIL_MACHINE, "the %s backend has no kernel for %s", x->b->name, op_name(x->g->ops[i].kind));
    return true;
}

bool executor_open(executor **out, const graph *g, const plan *p, const backend *b, failure *f) {
    executor *x = xcalloc(1, sizeof *x);
    size_t n = (size_t)arrlen(g->values);
    *x = (executor){.g = g,
                    .p = p,
                    .b = b,
                    .data = xcalloc(n, sizeof(void *)),
                    .owned = xcalloc(n, sizeof(bool)),
                    .room = xcalloc(n, sizeof(int64_t))};
    for (vid v = 1; v < arrlen(g->values); v++) x->room[v] = value_room(g, v);
    void *temporaries = NULL;
    bool ok = check_kernels(x, f) && alloc_persistent(x, f) && alloc_gathered(x, ROLE_GRAD, "gradients", f) &&
              alloc_gathered(x, ROLE_OUTPUT, "outputs", f) &&
              b->alloc(&temporaries, (size_t)p->arena + 1, "temporaries", f);
    x->arena = temporaries;
    if (!ok) {
        executor_close(x);
        return false;
    }
    for (vid v = 1; v < arrlen(g->values); v++)
        if (p->offset[v] >= 0) x->data[v] = x->arena + p->offset[v];
    place_inside(x);
    *out = x;
    return true;
}

void executor_close(executor *x) {
    if (!x) return;
    for (vid v = 1; v < arrlen(x->g->values); v++) {
        bool at_host = x->g->values[v].role == ROLE_HOST && x->b->free_host;
        if (x->owned[v]) (at_host ? x->b->free_host : x->b->free)(x->data[v]);
    }
    for (int k = 0; k < 2; k++)
        if (x->gathered[k].block) x->b->free(x->gathered[k].block);
    if (x->arena) x->b->free(x->arena);
    free(x->data);
    free(x->owned);
    free(x->room);
    free(x);
}

/* `from` in the type of the value, n elements: itself, or converted into a block to be freed. */
static const void *converted(dtype to, const void *from, dtype type, size_t n, void **block) {
    *block = NULL;
    if (type == to) return from;
    float *f32 = xmalloc(n * sizeof *f32);
    dtype_to_f32(f32, from, type, n);
    *block = f32;
    if (to != DTYPE_F32) {
        *block = xmalloc(n * dtype_size(to));
        dtype_from_f32(*block, to, f32, n);
        free(f32);
    }
    return *block;
}

/* The run of a param's elements that this rank keeps; nothing but it is read. */
static bool bind_part(executor *x, vid v, const void *from, dtype type, failure *f) {
    const graph_value *value = &x->g->values[v];
    int64_t n, first = value_piece(value, &n);
    const char *piece = (const char *)from + (size_t)first * dtype_size(type);
    bool in_place =
        x->b->host_memory && !value->trainable && type == value->type && !x->data[v] && n == value_part(value);
    if (in_place && (uintptr_t)piece % dtype_size(type) == 0) {
        x->data[v] = (void *)(uintptr_t)piece; /* frozen: never written */
        return true;
    }
    if (!x->data[v]) TRY(alloc_storage(x, v, f));
    void *block;
    const void *source = converted(value->type, piece, type, (size_t)n, &block);
    bool ok = x->b->upload(x->data[v], source, (size_t)n * dtype_size(value->type), f);
    free(block);
    return ok;
}

bool executor_bind(executor *x, vid v, const void *from, dtype type, failure *f) {
    const graph_value *value = &x->g->values[v];
    assert(value->role == ROLE_PARAM);
    if (value->parts && !value->ld && !value->storage_rows) return bind_part(x, v, from, type, f);
    bool in_place = x->b->host_memory && !value->trainable && type == value->type && !x->data[v];
    if (in_place && (uintptr_t)from % dtype_size(type) == 0) {
        x->data[v] = (void *)(uintptr_t)from; /* frozen: never written */
        return true;
    }
    if (!x->data[v]) TRY(alloc_storage(x, v, f));
    kept_rows k = value_kept(x->g, v);
    void *block, *to = address(x, v);
    size_t size = dtype_size(value->type), ld = (size_t)value_ld(x->g, v), cols = (size_t)value->cols;
    const char *rows = (const char *)from + (size_t)k.first * cols * dtype_size(type);
    const void *source = converted(value->type, rows, type, (size_t)k.n * cols, &block);
    bool ok = ld == cols ? x->b->upload(to, source, (size_t)k.n * cols * size, f)
                         : x->b->upload_rows(to, ld * size, source, cols * size, k.n, f);
    free(block);
    return ok;
}

void *executor_data(const executor *x, vid v) { return x->data[v]; }

bool executor_upload(executor *x, vid v, const void *from, int64_t elements, failure *f) {
    const graph_value *value = &x->g->values[v];
    assert(elements <= value_count(value));
    return x->b->upload(x->data[v], from, (size_t)elements * dtype_size(value->type), f);
}

bool executor_download(executor *x, vid v, void *to, int64_t elements, failure *f) {
    const graph_value *value = &x->g->values[v];
    assert(elements <= value_count(value));
    return x->b->download(to, x->data[v], (size_t)elements * dtype_size(value->type), f);
}

bool executor_clear(executor *x, value_role role, failure *f) {
    int k = gathered_index(role);
    assert(k >= 0);
    return !x->gathered[k].block || x->b->clear(x->gathered[k].block, x->gathered[k].bytes, f);
}

tensor executor_tensor(const executor *x, vid v) {
    if (!v) return (tensor){0};
    const graph_value *value = &x->g->values[v];
    bool add = value->role == ROLE_GRAD || value->role == ROLE_OUTPUT;
    if (value->parts) return (tensor){x->data[v], value->type, value_part(value), 1, 1, add, 0};
    int64_t rows = value_kept(x->g, v).n;
    return (tensor){x->data[v], value->type, rows, value->cols, value_ld(x->g, v), add, x->room[v]};
}

/* What an op reads or writes: of a trainable param the working copy. */
static tensor operand(const executor *x, vid v) {
    vid working = x->g->values[v].working;
    return executor_tensor(x, working ? working : v);
}

void executor_join(executor *x, comm *ranks) { x->ranks = ranks; }

bool executor_run(executor *x, int first, int n, const batch_info *batch, failure *f) {
    failure between = {0}; /* ranks; a device's own failures come from finish */
    for (int i = first; i < first + n && !between.kind; i++) {
        op_scratch scratch = x->p->scratch[i];
        kernel_call call = {.op = &x->g->ops[i], .batch = batch, .ranks = x->ranks, .f = &between};
        call.scratch = x->arena + scratch.at, call.scratch_bytes = (size_t)scratch.bytes;
        for (int k = 0; k < GRAPH_MAX_IN; k++) call.in[k] = operand(x, call.op->in[k]);
        for (int k = 0; k < GRAPH_MAX_OUT; k++) call.out[k] = operand(x, call.op->out[k]);
        x->b->kernels[call.op->kind](&call);
    }
    if (between.kind) {
        *f = between;
        return false;
    }
    return x->b->finish(f);
}
