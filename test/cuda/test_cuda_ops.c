/* test_cuda_ops.c - every op case (test/ops/cases.c, and cases.c here) on the card against the CPU's kernels.
 *
 * A case runs with float32 and with bfloat16 operands, dense, with gaps behind the rows, in place where an op allows
 * it, and packed as pass_layout packs products.  The CPU gets the same values, rounded to the same type.  Checked are:
 * the values; every byte that is no output (place.c); that a second run gives the same bits.
 *
 *   test_cuda_ops [NAME]          all checks, or those of one op        (exit code 1: something failed)
 *   test_cuda_ops --perf [NAME]   times at the shapes of LLaMA-3-8B     (speed.c) */
#include "cuda_ops.h"

#include <math.h>
#include <stdarg.h>
#include <time.h>

/* Of value + root mean square of the output. bfloat16: the largest deviation, and beside it a normalized mean square
 * error of at most 1e-4. */
static const double FORWARD_TOLERANCE = 1e-5, BACKWARD_TOLERANCE = 5e-5, BF16_TOLERANCE = 2e-2, BF16_NMSE = 1e-4;
/* cuDNN rounds dk and dv of every query head to bf16 before it adds up the heads of a group. */
static const double BF16_GROUP_TOLERANCE = 3e-2;

/* ---- the expected values ---- */

/* Inputs and caches as the device stores them. */
static void round_values(operand_set *s, dtype compute) {
    for (int i = 0; i < s->n_in + s->n_out; i++) {
        bool out = i >= s->n_in;
        operand *o = out ? &s->out[i - s->n_in] : &s->in[i];
        if (!o->value || (out && !holds_state(o))) continue;
        dtype type = device_type(s->kind, o, out, compute);
        for (int64_t j = 0; j < o->real * o->cols; j++) o->value[j] = round_to(type, o->value[j]);
    }
}

/* A backward op's inputs: what the forward op (in double) gives for the same inputs. */
static void share_forward(operand_set *b, const op_case *c, dtype compute) {
    operand_set f;
    op_case forward = *c;
    forward.absent = " ";
    operands_make(&f, &forward, forward_of(c->kind));
    round_values(&f, compute);
    reference_run(&f);
    for (int i = 0; i < b->n_in; i++) {
        operand *to = &b->in[i];
        const double *from = value_of(&f, to->name);
        if (from && to->value) memcpy(to->value, from, (size_t)(to->real * to->cols) * sizeof *from);
    }
    operands_count_labels(b);
    operands_free(&f);
}

typedef struct {
    float *out[GRAPH_MAX_OUT]; /* [real, cols] */
} expected;

/* The CPU's kernel on float32 copies. */
static void run_cpu(expected *e, operand_set *s) {
    graph g;
    graph_init(&g, DTYPE_F32);
    graph_op op = {.kind = s->kind, .attr = s->c->attr};
    kernel_call call = {.batch = &s->batch};
    float *blocks[GRAPH_MAX_IN + GRAPH_MAX_OUT] = {0};
    *e = (expected){0};
    for (int i = 0; i < s->n_in + s->n_out; i++) {
        bool out = i >= s->n_in;
        const operand *o = out ? &s->out[i - s->n_in] : &s->in[i];
        if (!o->value) continue;
        dtype type = o->type == DTYPE_I32 ? DTYPE_I32 : DTYPE_F32;
        vid v = graph_add_value(&g, ROLE_TEMP, type, o->rows, o->cols, "%s", o->name);
        *(out ? &op.out[i - s->n_in] : &op.in[i]) = v;
        blocks[i] = xcalloc((size_t)(o->rows * o->cols), 4);
        bool add = out && is_added(s, o, device_type(s->kind, o, out, DTYPE_BF16));
        for (int64_t j = 0; j < o->real * o->cols; j++) {
            if (!out || holds_state(o)) store_value(blocks[i] + j, type, o->value[j]);
            else if (add) blocks[i][j] = (float)(j % 7) - 3;
        }
        tensor t = {.data = blocks[i], .type = type, .rows = o->rows, .cols = o->cols, .ld = o->cols, .add = add};
        *(out ? &call.out[i - s->n_in] : &call.in[i]) = t;
        if (out) e->out[i - s->n_in] = blocks[i];
    }
    call.op = graph_emit(&g, op);
    call.scratch = xcalloc(cpu_backend.scratch(&g, call.op) + 64, 1);
    cpu_backend.kernels[s->kind](&call);
    for (int i = 0; i < s->n_in; i++) free(blocks[i]);
    free(call.scratch);
    graph_free(&g);
}

/* ---- checks of one call ---- */

static void describe(char *text, size_t size, const device_call *d) {
    const op_case *c = d->set->c;
    snprintf(text, size, "%s (%s, rows %d, docs %d, without \"%s\"%s; %s, %s)", op_name(c->kind), c->dims, c->rows,
             c->docs, c->absent ? c->absent : "", c->add ? ", add" : "", dtype_name(d->compute),
             layout_names[d->layout]);
}

static bool wrong(const device_call *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool wrong(const device_call *d, const char *format, ...) {
    char text[256];
    describe(text, sizeof text, d);
    printf("FAIL %s: ", text);
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n");
    return false;
}

static bool check_output(const device_call *d, const expected *e, int k) {
    const operand *o = &d->set->out[k];
    const tensor *t = &d->call.out[k];
    int at = d->set->n_in + k;
    const unsigned char *data = d->blocks[d->of_block[at]].after + GUARD + d->at[at];
    int64_t n = o->real * o->cols;
    double squares = 0, error = 0,
           tolerance = forward_of(d->set->kind) == OP_COUNT && d->set->kind != OP_qkv_bwd ? FORWARD_TOLERANCE
                                                                                          : BACKWARD_TOLERANCE;
    if (d->compute == DTYPE_BF16) tolerance = d->set->kind == OP_attention_bwd ? BF16_GROUP_TOLERANCE : BF16_TOLERANCE;
    for (int64_t i = 0; i < n; i++) squares += (double)e->out[k][i] * (double)e->out[k][i];
    double rms = n ? sqrt(squares / (double)n) : 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = i / o->cols, col = i % o->cols;
        double want = (double)e->out[k][i];
        double got = stored_value(data + (size_t)(row * t->ld + col) * dtype_size(t->type), t->type);
        error += (got - want) * (got - want);
        if (fabs(got - want) <= tolerance * (fabs(want) + rms)) continue; /* false for NaN */
        return wrong(d, "%s: element %lld of row %lld: found %.9g, expected %.9g (rms %.3g)", o->name, (long long)col,
                     (long long)row, got, want, rms);
    }
    if (d->compute == DTYPE_BF16 && error > BF16_NMSE * squares)
        return wrong(d, "%s: normalized mean square error %.3g", o->name, error / squares);
    return true;
}

static const char *block_name(const device_call *d, int which) {
    int n = d->set->n_in + d->set->n_out;
    for (int i = 0; i < n; i++)
        if (d->of_block[i] == which) return i < d->set->n_in ? d->set->in[i].name : d->set->out[i - d->set->n_in].name;
    return "scratch";
}

static bool run_once(device_call *d, const kernel *cuda_kernels, const backend *b) {
    failure f;
    for (int i = 0; i < d->n_blocks; i++) block_upload(&d->blocks[i]);
    cuda_kernels[d->set->kind](&d->call);
    if (b->finish && !b->finish(&f)) return wrong(d, "%s", f.text);
    check_cuda(cudaDeviceSynchronize(),
               op_name(d->set->kind)); /* nothing works behind a kernel that broke the context */
    for (int i = 0; i < d->n_blocks; i++) block_download(&d->blocks[i]);
    return true;
}

static bool check_call(device_call *d, const expected *e, const kernel *cuda_kernels, const backend *b) {
    if (!run_once(d, cuda_kernels, b)) return false;
    for (int i = 0; i < d->n_blocks; i++) {
        const char *damage = block_damage(&d->blocks[i]);
        if (damage) return wrong(d, "block of %s: %s was written", block_name(d, i), damage);
    }
    for (int k = 0; k < d->set->n_out; k++)
        if (d->set->out[k].value && !check_output(d, e, k)) return false;
    unsigned char *first[MOST_BLOCKS];
    for (int i = 0; i < d->n_blocks; i++) {
        first[i] = xmalloc(d->blocks[i].bytes + 1);
        memcpy(first[i], d->blocks[i].after + GUARD, d->blocks[i].bytes);
    }
    bool ok = run_once(d, cuda_kernels, b);
    for (int i = 0; i < d->n_blocks; i++) { /* the scratch, which is last, may differ */
        bool differs = i < d->n_blocks - 1 && memcmp(first[i], d->blocks[i].after + GUARD, d->blocks[i].bytes) != 0;
        if (ok && differs) ok = wrong(d, "block of %s: another run gives other bits", block_name(d, i));
        free(first[i]);
    }
    return ok;
}

static void check_case(tally *t, const op_case *c, int seed, dtype compute, const backend *b) {
    operand_set s;
    expected e;
    random_seed((uint64_t)seed);
    operands_make(&s, c, c->kind);
    if (forward_of(c->kind) != OP_COUNT) share_forward(&s, c, compute);
    round_values(&s, compute);
    run_cpu(&e, &s);
    for (layout how = DENSE; how < LAYOUTS; how++) {
        device_call d;
        if (!device_call_make(&d, &s, how, compute, b)) continue;
        const char *why;
        if (c->folded && !b->serves(&d.g, d.call.op, &why)) t->skipped++;
        else if (check_call(&d, &e, b->kernels, b)) t->passed++;
        else t->failed++;
        device_call_free(&d);
    }
    for (int k = 0; k < s.n_out; k++) free(e.out[k]);
    operands_free(&s);
}

static void check_list(tally *t, const op_case *cases, int n, const char *only, const backend *b) {
    bool told[OP_COUNT] = {false};
    for (int i = 0; i < n; i++) {
        op_kind kind = cases[i].kind;
        if (only && strcmp(only, op_name(kind)) != 0) continue;
        if (!b->kernels[kind]) {
            if (!told[kind]) printf("skip: %s: no kernel\n", op_name(kind));
            told[kind] = true;
            t->skipped++;
            continue;
        }
        check_case(t, &cases[i], i, DTYPE_F32, b);
        check_case(t, &cases[i], i, DTYPE_BF16, b);
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    failure f;
    const backend *b;
    tally t = {0};
    if (!cuda_backend_find(&b, 0, &f) || !b->open(&f) || !cpu_backend.open(&f)) {
        printf("skip: %s\n", f.text);
        return 77;
    }
    bool perf = argc > 1 && strcmp(argv[1], "--perf") == 0;
    const char *only = argc > 1 + perf ? argv[1 + perf] : NULL;
    const kernel *cuda_kernels = b->kernels;
    if (perf) {
        run_cuda_perf(cuda_kernels, b, only);
        return 0;
    }
    time_t start = time(NULL);
    check_list(&t, op_cases, n_op_cases, only, b);
    check_list(&t, cuda_cases, n_cuda_cases, only, b);
    if (!only || strcmp(only, "cross_entropy") == 0) check_chunk(&t);
    if (!only || strcmp(only, "adamw") == 0) check_adamw(&t, b);
    printf("%d passed, %d failed, %d skipped (%ld s)\n", t.passed, t.failed, t.skipped, (long)(time(NULL) - start));
    b->close();
    return t.failed || t.passed + t.skipped == 0; /* a name that no case has is a mistake */
}
