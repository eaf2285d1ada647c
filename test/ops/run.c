/* run.c - test_ops: runs every case of cases.c.
 *
 * Forward ops are held against a reference in double.  Backward ops are held against central differences of that
 * reference: L = sum of (upstream gradient x output), dL/dx at a sample of elements.  Every buffer of the kernel has
 * guard bytes on both sides; rows that are not real hold NaN, so that reading one shows; inputs must not change; a
 * second run, with another number of threads, must give the same bits.
 *
 *   test_ops           all checks        test_ops NAME          the cases of one op
 *   test_ops --perf    speed at the shapes of SmolLM2-135M      test_ops --perf NAME */
#include "base/array.h"
#include "ops/ops.h"

#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 256, SAMPLES = 24 };
static const double FORWARD_TOLERANCE = 1e-5, BACKWARD_TOLERANCE = 5e-5; /* of value + root mean square of the output */

static void *block_new(prepared *p, int i, size_t bytes) {
    size_t room = (bytes + GUARD - 1) / GUARD * GUARD + 2 * GUARD;
    p->blocks[i] = aligned_alloc(GUARD, room);
    p->bytes[i] = bytes;
    memset(p->blocks[i], 0xA5, room);
    memset(p->blocks[i] + GUARD, 0xFF, bytes); /* NaN as a float; -1 as an integer */
    return p->blocks[i] + GUARD;
}

static const char *guards_broken(const prepared *p, int i) {
    const char *b = p->blocks[i];
    size_t room = (p->bytes[i] + GUARD - 1) / GUARD * GUARD + 2 * GUARD;
    for (size_t at = 0; at < room; at++)
        if ((at < GUARD || at >= GUARD + p->bytes[i]) && (unsigned char)b[at] != 0xA5)
            return at < GUARD ? "before" : "behind";
    return NULL;
}

static void write_values(void *to, const operand *o) {
    for (int64_t i = 0; i < o->real * o->cols; i++) {
        float f = (float)o->value[i];
        int32_t n = (int32_t)o->value[i];
        if (o->type == DTYPE_I32) memcpy((char *)to + i * 4, &n, 4);
        else dtype_from_f32((char *)to + (size_t)i * dtype_size(o->type), o->type, &f, 1);
    }
}

static bool holds_state(const operand *o) { return strstr(o->name, "cache") != NULL; }

/* With `add`, the outputs that may be a program's gradients and results are added to; the others never are. */
static bool is_added(const operand_set *s, const operand *o) {
    static const char *const names[] = {"dW", "dw", "dbias", "dA", "dB", "sum", "nll"};
    bool product = s->kind == OP_linear || s->kind == OP_linear_dx, listed = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) listed |= strcmp(o->name, names[i]) == 0;
    return s->c->add && (product || listed);
}

static tensor bind(prepared *p, int i, const operand *o, bool out) {
    if (!o->value) return (tensor){0};
    tensor t = {.type = o->type, .rows = o->rows, .cols = o->cols, .add = out && is_added(p->set, o)};
    t.data = block_new(p, i, (size_t)(o->rows * o->cols) * dtype_size(o->type));
    if (!out || holds_state(o)) write_values(t.data, o);
    for (int64_t j = 0; t.add && j < o->real * o->cols; j++) ((float *)t.data)[j] = (float)(j % 7) - 3;
    return t;
}

void prepare(prepared *p, operand_set *s) {
    *p = (prepared){.set = s};
    graph_init(&p->g, DTYPE_F32);
    graph_op op = {.kind = s->kind, .attr = s->c->attr};
    for (int i = 0; i < s->n_in; i++) {
        const operand *o = &s->in[i];
        if (o->value) op.in[i] = graph_add_value(&p->g, ROLE_TEMP, o->type, o->rows, o->cols, "%s", o->name);
        p->call.in[i] = bind(p, i, o, false);
    }
    for (int i = 0; i < s->n_out; i++) {
        const operand *o = &s->out[i];
        if (o->value) op.out[i] = graph_add_value(&p->g, ROLE_TEMP, o->type, o->rows, o->cols, "%s", o->name);
        p->call.out[i] = bind(p, s->n_in + i, o, true);
    }
    p->call.op = graph_emit(&p->g, op); /* checks the shapes */
    p->call.batch = &s->batch;
    p->call.scratch = block_new(p, s->n_in + s->n_out, cpu_backend.scratch(&p->g, p->call.op));
    for (int i = 0; i <= s->n_in + s->n_out; i++) {
        if (!p->blocks[i]) continue;
        p->copies[i] = malloc(p->bytes[i] + 1);
        memcpy(p->copies[i], p->blocks[i] + GUARD, p->bytes[i]);
    }
}

void prepared_free(prepared *p) {
    for (int i = 0; i <= p->set->n_in + p->set->n_out; i++) {
        free(p->blocks[i]);
        free(p->copies[i]);
    }
    graph_free(&p->g);
}

static int complain(const operand_set *s, const char *format, const char *name, const char *what) {
    const op_case *c = s->c;
    printf("FAIL %s (%s, rows %d, docs %d, %s, without \"%s\"%s): ", op_name(s->kind), c->dims, c->rows, c->docs,
           dtype_name(c->weight), c->absent ? c->absent : "", c->add ? ", add" : "");
    printf(format, name, what);
    printf("\n");
    return 1;
}

static int check_guards(const prepared *p) {
    int bad = 0;
    const operand_set *s = p->set;
    for (int i = 0; i <= s->n_in + s->n_out; i++) {
        if (!p->blocks[i]) continue;
        const char *name = i < s->n_in ? s->in[i].name : i < s->n_in + s->n_out ? s->out[i - s->n_in].name : "scratch";
        const char *where = guards_broken(p, i);
        if (where) bad += complain(s, "%s: bytes %s it were written", name, where);
        if (i < s->n_in && memcmp(p->copies[i], p->blocks[i] + GUARD, p->bytes[i]) != 0)
            bad += complain(s, "%s: an input was changed%s", name, "");
    }
    return bad;
}

/* What output o should hold, at element i of its real rows. */
static double prior(const prepared *p, const operand *o, int64_t i) {
    return is_added(p->set, o) && !holds_state(o) ? (double)(i % 7) - 3 : 0;
}

static double root_mean_square(const operand *o) {
    double sum = 0;
    int64_t n = o->real * o->cols;
    for (int64_t i = 0; i < n; i++) sum += o->value[i] * o->value[i];
    return n ? sqrt(sum / (double)n) : 0;
}

static int compare(const prepared *p, int k, int64_t i, double want, double scale, double tolerance) {
    const operand *o = &p->set->out[k];
    double got = (double)((const float *)p->call.out[k].data)[i];
    want += prior(p, o, i);
    if (fabs(got - want) <= tolerance * (fabs(want) + scale)) return 0; /* false for NaN */
    char text[160];
    snprintf(text, sizeof text, "element %lld of row %lld: found %.9g, expected %.9g (rms %.3g)",
             (long long)(i % o->cols), (long long)(i / o->cols), got, want, scale);
    return complain(p->set, "%s %s", o->name, text);
}

/* Every real element of an output against the values of the set; the other rows must be untouched. */
static int compare_output(const prepared *p, int k, double tolerance) {
    const operand *o = &p->set->out[k];
    double scale = root_mean_square(o);
    int bad = 0;
    for (int64_t i = 0; i < o->real * o->cols && !bad; i++) {
        if (holds_state(o) && isnan(o->value[i])) continue;
        bad += compare(p, k, i, o->value[i], scale, tolerance);
    }
    size_t from = (size_t)(o->real * o->cols) * 4;
    int at = p->set->n_in + k;
    if (memcmp(p->copies[at] + from, p->blocks[at] + GUARD + from, p->bytes[at] - from) != 0)
        bad += complain(p->set, "%s: rows beyond the real ones were written%s", o->name, "");
    return bad;
}

/* Products are tiled by the number of threads (cpu/product.c).  OpenBLAS's AVX-512 kernels sum in the same order in any
 * tile; others do not, and then only equal numbers of threads give equal bits. */
static bool bits_depend_on_threads(op_kind kind) {
    const char *name = op_name(kind), *core = openblas_get_corename();
    bool product = strncmp(name, "linear", 6) == 0 && strncmp(name, "linear_ce", 9) != 0;
    product |= kind == OP_gate_up_glu || kind == OP_gate_up_bwd || kind == OP_norm_qkv_rope || kind == OP_qkv_bwd;
    return product && strcmp(core, "SkylakeX") != 0 && strcmp(core, "Cooperlake") != 0;
}

static bool equal_outputs(const char *a, const char *b, size_t bytes, bool exact) {
    if (exact) return memcmp(a, b, bytes) == 0;
    const float *x = (const void *)a, *y = (const void *)b;
    double difference = 0, size = 0;
    for (size_t i = 0; i < bytes / 4; i++) {
        if (isnan(x[i]) && isnan(y[i])) continue; /* a row that is not real */
        difference = fmax(difference, fabs((double)x[i] - (double)y[i]));
        size = fmax(size, fabs((double)x[i]));
    }
    return difference <= FORWARD_TOLERANCE * size;
}

/* The same call again, and with other numbers of threads: the same bits. */
static int check_repeat(prepared *p) {
    const operand_set *s = p->set;
    int bad = 0, before = omp_get_max_threads();
    const int threads[] = {before, 1, 2};
    char *first[GRAPH_MAX_OUT] = {0};
    for (int k = 0; k < s->n_out; k++) {
        int at = s->n_in + k;
        if (!p->blocks[at]) continue;
        first[k] = malloc(p->bytes[at] + 1);
        memcpy(first[k], p->blocks[at] + GUARD, p->bytes[at]);
    }
    for (int r = 0; r < 3 && !bad; r++) {
        omp_set_num_threads(threads[r]);
        for (int k = 0; k < s->n_out; k++)
            if (first[k]) memcpy(p->blocks[s->n_in + k] + GUARD, p->copies[s->n_in + k], p->bytes[s->n_in + k]);
        cpu_backend.kernels[s->kind](&p->call);
        bool exact = r == 0 || !bits_depend_on_threads(s->kind);
        for (int k = 0; k < s->n_out; k++) {
            int at = s->n_in + k;
            if (first[k] && !equal_outputs(first[k], p->blocks[at] + GUARD, p->bytes[at], exact))
                bad += complain(s, "%s: another run gives other bits%s", s->out[k].name, r ? " (threads)" : "");
        }
    }
    omp_set_num_threads(before);
    for (int k = 0; k < s->n_out; k++) free(first[k]);
    return bad;
}

static int check_forward(const op_case *c) {
    operand_set s;
    prepared p;
    operands_make(&s, c, c->kind);
    prepare(&p, &s);
    cpu_backend.kernels[c->kind](&p.call);
    reference_run(&s);
    int bad = check_guards(&p);
    for (int k = 0; k < s.n_out; k++)
        if (s.out[k].value) bad += compare_output(&p, k, FORWARD_TOLERANCE);
    bad += check_repeat(&p);
    prepared_free(&p);
    operands_free(&s);
    return bad;
}

/* ---- backward ---- */

/* The upstream gradient of forward output `name`, or NULL when the backward op takes none. */
static operand *upstream(operand_set *b, const char *name) {
    char gradient[20];
    snprintf(gradient, sizeof gradient, "d%s", name);
    return operand_find(b->in, b->n_in, gradient);
}

static double loss(operand_set *f, operand_set *b) {
    reference_through_glu(f, b);
    reference_run(f);
    double sum = 0;
    for (int k = 0; k < f->n_out; k++) {
        operand *d = upstream(b, f->out[k].name);
        for (int64_t i = 0; d && i < d->real * d->cols; i++) sum += d->value[i] * f->out[k].value[i];
    }
    return sum;
}

/* The forward op's name of an operand: the stream that norm_qkv_rope reads is x behind it. */
static const char *forward_name(const operand_set *b, const char *name) {
    bool stream = b->kind == OP_qkv_bwd && strcmp(name, "x") == 0,
         rstd = b->kind == OP_qkv_bwd && strcmp(name, "rstd") == 0;
    return stream ? "a" : rstd ? "ra" : name;
}

/* <z, dz> over all outputs z of the forward op, by row. */
static void fill_dot(operand_set *b, operand_set *f) {
    operand *dot = operand_find(b->in, b->n_in, "dot");
    for (int64_t t = 0; dot && t < dot->real; t++) {
        dot->value[t] = 0;
        for (int k = 0; k < f->n_out; k++) {
            const operand *z = &f->out[k], *d = upstream(b, z->name);
            for (int64_t j = 0; d && j < z->cols; j++)
                dot->value[t] += z->value[t * z->cols + j] * d->value[t * z->cols + j];
        }
    }
}

/* Gives the backward op's inputs the forward's values. */
static void share_values(operand_set *b, operand_set *f) {
    operand *pos = operand_find(f->in, f->n_in, "pos");
    for (int64_t t = 0; b->kind == OP_qkv_bwd && t < pos->real; t++) pos->value[t] = 0; /* qkv_bwd is behind the rope */
    reference_through_glu(f, b);
    reference_run(f);
    for (int i = 0; i < b->n_in; i++) {
        operand *to = &b->in[i];
        const double *from = value_of(f, forward_name(b, to->name));
        if (from && to->value) memcpy(to->value, from, (size_t)(to->real * to->cols) * sizeof *from);
    }
    operands_count_labels(b);
    fill_dot(b, f);
}

/* Adds `by` to element i of input x of the forward op. Where the backward op goes back through rope: to that of x as it
 * was before rope, whose turned place is two elements. */
static void move(operand_set *b, operand *x, int64_t i, double by) {
    const double *pos = b->kind == OP_attention_bwd ? value_of(b, "pos") : NULL;
    if (!pos || strcmp(x->name, "v") == 0) {
        x->value[i] += by;
        return;
    }
    int64_t half = b->c->attr.head_dim / 2, low = i / (2 * half) * 2 * half + i % half;
    double angle = (double)((float)pos[i / x->cols] * (float)value_of(b, "freq")[i % half]);
    bool is_low = i == low;
    x->value[low] += by * (is_low ? cos(angle) : -sin(angle));
    x->value[low + half] += by * (is_low ? sin(angle) : cos(angle));
}

/* dL/d(element i of input x of the forward op or what is before it), plus the residual gradient that norms add. */
static double difference(operand_set *f, operand_set *b, operand *x, int64_t i) {
    const double step = 1e-5;
    move(b, x, i, step);
    double up = loss(f, b);
    move(b, x, i, -2 * step);
    double down = loss(f, b);
    move(b, x, i, step);
    const double *dres = strcmp(x->name, forward_name(b, "x")) == 0 ? value_of(b, "dres") : NULL;
    return (up - down) / (2 * step) + (dres ? dres[i] : 0);
}

static int check_gradient(prepared *p, operand_set *f, int k) {
    operand *out = &p->set->out[k], *x = operand_find(f->in, f->n_in, forward_name(p->set, out->name + 1));
    if (!x) x = operand_find(p->set->in, p->set->n_in, out->name + 1); /* gate and up, of which x is made */
    if (!x) return complain(p->set, "%s: no such input of the forward op%s", out->name, "");
    int64_t n = out->real * out->cols, most = p->set->c->samples ? p->set->c->samples : SAMPLES;
    int64_t samples = n < most ? n : most;
    int64_t at[SAMPLES];
    double want[SAMPLES], squares = 0;
    for (int64_t i = 0; i < samples; i++) {
        at[i] = n < most ? i : (int64_t)(random_bits() % (uint64_t)n);
        want[i] = difference(f, p->set, x, at[i]);
        squares += want[i] * want[i];
    }
    int bad = 0;
    double scale = sqrt(squares / (double)samples) + 1e-2; /* inputs are of size 1, so float noise is not relative */
    for (int64_t i = 0; i < samples && !bad; i++) bad += compare(p, k, at[i], want[i], scale, BACKWARD_TOLERANCE);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(((const float *)p->call.out[k].data)[i]))
            return complain(p->set, "%s: not finite%s", out->name, "");
    return bad;
}

/* Row t of q, k and v times `by`. */
static void stretch(operand_set *f, int64_t t, double by) {
    for (int i = 0; i < 3; i++)
        for (int64_t j = 0; j < f->in[i].cols; j++) f->in[i].value[t * f->in[i].cols + j] *= by;
}

/* dot of attention: dL/da where row t of q, k and v is a times what it is. */
static int check_dot_by_rows(prepared *p, operand_set *f, int k) {
    const double step = 1e-5;
    operand *dot = &p->set->out[k];
    for (int64_t t = 0; t < dot->real; t++) {
        stretch(f, t, 1 + step);
        double up = loss(f, p->set);
        stretch(f, t, (1 - step) / (1 + step));
        dot->value[t] = (up - loss(f, p->set)) / (2 * step);
        stretch(f, t, 1 / (1 - step));
    }
    return compare_output(p, k, BACKWARD_TOLERANCE);
}

/* dot against the gradients that the kernel gave beside it. */
static int check_dot(const prepared *p, int k) {
    static const char *const pairs[2][2] = {{"dgate", "gate"}, {"dup", "up"}};
    operand_set *s = p->set;
    operand *dot = &s->out[k];
    memset(dot->value, 0, (size_t)dot->rows * sizeof *dot->value);
    for (int i = 0; i < 2; i++) {
        const operand *d = operand_find(s->out, s->n_out, pairs[i][0]), *z = operand_find(s->in, s->n_in, pairs[i][1]);
        const float *got = p->call.out[d - s->out].data;
        for (int64_t j = 0; j < d->real * d->cols; j++) dot->value[j / d->cols] += (double)got[j] * z->value[j];
    }
    return compare_output(p, k, BACKWARD_TOLERANCE);
}

static int check_backward(const op_case *c) {
    operand_set b, f;
    prepared p;
    op_case forward = *c;
    forward.absent = " "; /* the biases and adapters are all there: their gradients are asked for */
    if (c->folded && c->absent) forward.absent = c->absent; /* but the ones that are not: dot sums over what there is */
    operands_make(&b, c, c->kind);
    operands_make(&f, &forward, forward_of(c->kind));
    share_values(&b, &f);
    prepare(&p, &b);
    cpu_backend.kernels[c->kind](&p.call);
    int bad = check_guards(&p);
    for (int k = 0; k < b.n_out; k++) {
        if (!b.out[k].value) continue;
        bool dot = strcmp(b.out[k].name, "dot") == 0, attention = b.kind == OP_attention_bwd;
        bad += !dot ? check_gradient(&p, &f, k) : attention ? check_dot_by_rows(&p, &f, k) : check_dot(&p, k);
    }
    bad += check_repeat(&p);
    prepared_free(&p);
    operands_free(&b);
    operands_free(&f);
    return bad;
}

int main(int argc, char **argv) {
    failure f;
    if (!cpu_backend.open(&f)) return 1;
    bool perf = argc > 1 && strcmp(argv[1], "--perf") == 0;
    const char *only = argc > 1 + perf ? argv[1 + perf] : NULL;
    if (perf) return run_perf(only);
    omp_set_num_threads(3);
    int bad = check_complete(), ran = 0;
    for (int i = 0; i < n_op_cases; i++) {
        const op_case *c = &op_cases[i];
        if (only && strcmp(only, op_name(c->kind)) != 0) continue;
        random_seed((uint64_t)i);
        bad += reference_has(c) ? check_forward(c) : check_backward(c);
        ran++;
    }
    printf("%d cases, %d failures\n", ran, bad);
    return bad != 0;
}
