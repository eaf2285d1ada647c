/* place.c - where the operands of a case lie on the device: each in a block of its own, dense or with gaps behind the
 * rows; an output in the place of an input; or packed as pass_layout packs the products. */
#include "cuda_ops.h"
#include "pass/pass.h"

#include <assert.h>

const char *const layout_names[LAYOUTS] = {"dense", "strided", "in place", "packed"};

void check_cuda(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return;
    printf("FAIL %s: %s\n", what, cudaGetErrorString(error));
    fflush(stdout);
    abort(); /* a broken context answers nothing more */
}

/* ---- blocks ---- */

static size_t block_room(const block *b) { return (b->bytes + GUARD - 1) / GUARD * GUARD + 2 * GUARD; }

void block_make(block *b, size_t bytes, int fill) {
    *b = (block){.bytes = bytes};
    size_t room = block_room(b);
    void *device;
    check_cuda(cudaMalloc(&device, room), "cudaMalloc");
    b->device = device;
    b->before = xmalloc(room);
    b->after = xmalloc(room);
    b->may = xcalloc(room, 1);
    memset(b->before, 0xA5, room);
    memset(b->before + GUARD, fill, bytes);
}

void block_free(block *b) {
    check_cuda(cudaFree(b->device), "cudaFree");
    free(b->before);
    free(b->after);
    free(b->may);
}

void block_allow(block *b, size_t offset, size_t bytes) { memset(b->may + GUARD + offset, 1, bytes); }

void block_upload(const block *b) {
    check_cuda(cudaMemcpy(b->device, b->before, block_room(b), cudaMemcpyHostToDevice), "upload");
}

void block_download(block *b) {
    check_cuda(cudaMemcpy(b->after, b->device, block_room(b), cudaMemcpyDeviceToHost), "a kernel");
}

const char *block_damage(const block *b) {
    static char text[64];
    size_t room = block_room(b);
    for (size_t i = 0; i < room; i++) {
        if (b->may[i] || b->before[i] == b->after[i]) continue;
        if (i < GUARD) return "the guard before it";
        if (i >= GUARD + b->bytes) return "the guard behind it";
        snprintf(text, sizeof text, "byte %zu", i - GUARD);
        return text;
    }
    return NULL;
}

/* ---- types and values ---- */

bool holds_state(const operand *o) { return strstr(o->name, "cache") != NULL; }

/* As graph.c and the passes make them: statistics, rope frequencies and gradients of params are float32. */
dtype device_type(op_kind kind, const operand *o, bool out, dtype compute) {
    static const char *const exact[] = {"rstd", "ra", "dot", "lse", "nll", "dnll", "weight",
                                        "freq", "rq", "rk",  "dW",  "dw",  "dbias"};
    if (o->type == DTYPE_I32) return DTYPE_I32;
    if (kind == OP_weighted_sum || kind == OP_all_reduce || kind == OP_reduce_scatter) return DTYPE_F32;
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
        if (strcmp(o->name, exact[i]) == 0) return DTYPE_F32;
    if (out && o->name[0] == 'd' && (o->name[1] == 'A' || o->name[1] == 'B')) return DTYPE_F32;
    return compute;
}

/* With `add`, the outputs that may be a program's gradients and results are added to; the others never are. */
bool is_added(const operand_set *s, const operand *o, dtype type) {
    static const char *const names[] = {"dW",  "dw",  "dbias", "dA",  "dB",  "sum", "nll", "dAg", "dBg",
                                        "dAu", "dBu", "dAq",   "dBq", "dAk", "dBk", "dAv", "dBv"};
    bool listed = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) listed |= strcmp(o->name, names[i]) == 0;
    return s->c->add && listed && type == DTYPE_F32;
}

double stored_value(const void *p, dtype type) {
    float f;
    int32_t n;
    if (type == DTYPE_I32) {
        memcpy(&n, p, 4);
        return n;
    }
    dtype_to_f32(&f, p, type, 1);
    return (double)f;
}

void store_value(void *p, dtype type, double x) {
    float f = (float)x;
    int32_t n = (int32_t)x;
    if (type == DTYPE_I32) memcpy(p, &n, 4);
    else dtype_from_f32(p, type, &f, 1);
}

/* ---- places ---- */

static operand *operand_at(operand_set *s, int i) { return i < s->n_in ? &s->in[i] : &s->out[i - s->n_in]; }
static tensor *tensor_at(device_call *d, int i) {
    return i < d->set->n_in ? &d->call.in[i] : &d->call.out[i - d->set->n_in];
}

/* Outputs that may lie in the place of an input: {kind, output, input}. */
static const int in_place[][3] = {
    {OP_rope, 0, 0},    {OP_add, 0, 1},     {OP_scale, 0, 0},        {OP_dropout, 0, 0},           {OP_glu, 0, 0},
    {OP_glu_bwd, 0, 1}, {OP_glu_bwd, 1, 2}, {OP_rms_norm_bwd, 0, 4}, {OP_cross_entropy_bwd, 0, 1},
};

static int input_under(const device_call *d, int output) {
    for (size_t i = 0; d->layout == IN_PLACE && i < sizeof in_place / sizeof *in_place; i++)
        if ((int)d->set->kind == in_place[i][0] && output == in_place[i][1] && d->set->in[in_place[i][2]].value)
            return in_place[i][2];
    return -1;
}

static bool is_product(op_kind kind) {
    return kind == OP_linear_lora || kind == OP_linear_lora_bwd || kind == OP_gate_up_glu || kind == OP_gate_up_bwd ||
           kind == OP_norm_qkv_rope || kind == OP_qkv_bwd;
}

static bool has_layout(const device_call *d) {
    if (d->set->c->folded) return d->layout == PACKED; /* weights lie folded, which pass_layout says */
    if (d->layout == DENSE || d->layout == STRIDED) return true;
    if (d->layout == PACKED) return is_product(d->set->kind) || d->set->kind == OP_attention_bwd;
    for (int k = 0; k < d->set->n_out; k++)
        if (d->set->out[k].value && input_under(d, k) >= 0) return true;
    return false;
}

/* A param of the program: trainable when an adapter's. */
static vid add_value(device_call *d, const operand *o, dtype type, bool out) {
    bool adapter = !out && (o->name[0] == 'A' || o->name[0] == 'B');
    bool weight = !out;
    weight = weight && (adapter || o->name[0] == 'W' || o->name[0] == 'w' || strcmp(o->name, "bias") == 0 ||
                        strcmp(o->name, "bq") == 0 || strcmp(o->name, "bk") == 0 || strcmp(o->name, "bv") == 0);
    bool param = weight && d->layout == PACKED;
    vid v = graph_add_value(&d->g, param ? ROLE_PARAM : ROLE_TEMP, type, o->rows, o->cols, "%s", o->name);
    d->g.values[v].trainable = param && adapter;
    return v;
}

static int64_t stride(const device_call *d, const operand *o, dtype type) {
    bool gaps = d->layout == STRIDED && o->cols > 1 && type == d->compute && !holds_state(o);
    bool statistic = device_type(d->set->kind, o, true, DTYPE_BF16) == DTYPE_F32;
    if (!gaps || statistic) return o->cols;
    return o->cols % 8 == 0 ? o->cols + 24 : o->cols + 5;
}

/* Three operands of attention as the products around it place them. */
static void put_beside(graph *g, const vid *list, int64_t room) {
    graph_value *first = &g->values[list[0]];
    first->ld = first->cols;
    for (int i = 1; i < 3; i++) {
        graph_value *value = &g->values[list[i]];
        value->base = list[0], value->at = first->ld;
        first->ld += value->cols;
    }
    first->ld += room;
}

static void make_graph(device_call *d) {
    operand_set *s = d->set;
    graph_init(&d->g, d->compute);
    graph_op op = {.kind = s->kind, .attr = s->c->attr};
    for (int i = 0; i < s->n_in + s->n_out; i++) {
        operand *o = operand_at(s, i);
        bool out = i >= s->n_in;
        if (!o->value) continue;
        dtype type = device_type(s->kind, o, out, d->compute);
        vid v = add_value(d, o, type, out);
        *(out ? &op.out[i - s->n_in] : &op.in[i]) = v;
        int64_t ld = stride(d, o, type);
        if (ld != o->cols) d->g.values[v].ld = ld;
    }
    graph_emit(&d->g, op);
    if (d->layout == PACKED && s->kind == OP_attention_bwd) {
        put_beside(&d->g, &op.in[ATB_Q], 0);
        put_beside(&d->g, &op.out[ATB_DQ], 8);
    }
    if (d->layout == PACKED) pass_layout(&d->g);
    d->call.op = &d->g.ops[0];
}

static void place_packed(device_call *d, int i, vid v) {
    int *block_of = d->of_block, n = d->set->n_in + d->set->n_out;
    vid storage = d->g.values[v].base ? d->g.values[v].base : v;
    for (int j = 0; j < n; j++) { /* another operand in the same storage */
        vid w = j < d->set->n_in ? d->call.op->in[j] : d->call.op->out[j - d->set->n_in];
        if (!w || j >= i) continue;
        if (d->g.values[w].working) w = d->g.values[w].working;
        vid other = d->g.values[w].base ? d->g.values[w].base : w;
        if (other == storage) block_of[i] = block_of[j];
    }
    if (block_of[i] < 0) {
        value_role role = d->g.values[storage].role;
        block_of[i] = d->n_blocks++;
        block_make(&d->blocks[block_of[i]], (size_t)value_storage(&d->g, storage), role == ROLE_TEMP ? 0xFF : 0);
    }
    d->at[i] = (size_t)d->g.values[v].at * dtype_size(d->g.values[v].type);
}

static void place(device_call *d, int i) {
    operand_set *s = d->set;
    operand *o = operand_at(s, i);
    bool out = i >= s->n_in;
    vid v = out ? d->call.op->out[i - s->n_in] : d->call.op->in[i];
    d->of_block[i] = -1;
    if (!o->value) return;
    if (d->g.values[v].working) v = d->g.values[v].working;
    dtype type = d->g.values[v].type;
    tensor t = {.type = type, .rows = o->rows, .cols = o->cols, .ld = value_ld(&d->g, v)};
    int under = out ? input_under(d, i - s->n_in) : -1;
    if (d->layout == PACKED) {
        place_packed(d, i, v);
        t.room = value_room(&d->g, v);
    } else if (under >= 0) {
        d->of_block[i] = d->of_block[under];
    } else {
        d->of_block[i] = d->n_blocks++;
        block_make(&d->blocks[d->of_block[i]], (size_t)(t.rows * t.ld) * dtype_size(type), 0xFF);
    }
    t.add = out && is_added(s, o, type);
    t.data = block_device(&d->blocks[d->of_block[i]], d->at[i]);
    *tensor_at(d, i) = t;
}

/* What the stored weight's columns are times (pass_layout); NULL: they lie as they are. */
static const double *fold_of(device_call *d, int i) {
    if (i >= d->set->n_in || !d->g.values[d->call.op->in[i]].fold) return NULL;
    return operand_find(d->set->in, d->set->n_in, "w")->value;
}

static void write_operand(device_call *d, int i) {
    const double *fold = fold_of(d, i);
    operand *o = operand_at(d->set, i);
    tensor *t = tensor_at(d, i);
    block *b = &d->blocks[d->of_block[i]];
    bool out = i >= d->set->n_in;
    size_t size = dtype_size(t->type);
    for (int64_t r = 0; r < o->real; r++)
        for (int64_t c = 0; c < o->cols; c++) {
            size_t at = d->at[i] + (size_t)(r * t->ld + c) * size;
            double x = o->value[r * o->cols + c] * (fold ? fold[c] : 1);
            if (!out || holds_state(o)) store_value(block_at(b, at), t->type, x);
            else if (t->add) store_value(block_at(b, at), t->type, (double)((r * o->cols + c) % 7) - 3);
        }
}

/* In a packed call the room behind the rows of temporaries belongs to the op. */
static void allow_room(device_call *d, int i) {
    vid v = i < d->set->n_in ? d->call.op->in[i] : d->call.op->out[i - d->set->n_in];
    const graph_value *value = &d->g.values[v];
    if (d->layout != PACKED || value->role != ROLE_TEMP || value->base || !value->ld) return;
    size_t size = dtype_size(value->type);
    operand *o = operand_at(d->set, i);
    block_allow(&d->blocks[d->of_block[i]], 0, (size_t)(o->real * value->ld) * size);
}

static void set_allowed(device_call *d, int i, bool allowed) {
    operand *o = operand_at(d->set, i);
    tensor *t = tensor_at(d, i);
    size_t size = dtype_size(t->type);
    block *b = &d->blocks[d->of_block[i]];
    for (int64_t r = 0; r < o->real; r++)
        memset(b->may + GUARD + d->at[i] + (size_t)(r * t->ld) * size, allowed, (size_t)o->cols * size);
}

bool device_call_make(device_call *d, operand_set *s, layout how, dtype compute, const backend *b) {
    *d = (device_call){.set = s, .layout = how, .compute = compute};
    if (!has_layout(d)) return false;
    make_graph(d);
    int n = s->n_in + s->n_out;
    for (int i = 0; i < n; i++) place(d, i);
    for (int i = 0; i < n; i++)
        if (d->of_block[i] >= 0) allow_room(d, i);
    for (int i = 0; i < n; i++) /* inputs first: outputs may lie on them */
        if (d->of_block[i] >= 0) set_allowed(d, i, i >= s->n_in), write_operand(d, i);
    block *scratch = &d->blocks[d->n_blocks++];
    size_t bytes = b->scratch ? b->scratch(&d->g, d->call.op) : 0;
    block_make(scratch, bytes, 0xFF);
    block_allow(scratch, 0, bytes);
    d->call.scratch = block_device(scratch, 0);
    d->call.batch = &s->batch;
    return true;
}

void device_call_free(device_call *d) {
    for (int i = 0; i < d->n_blocks; i++) block_free(&d->blocks[i]);
    graph_free(&d->g);
}
