/* operands.c - builds the operands of a case from the patterns of ops.def and fills them by what their names mean. */
#include "base/memory.h"
#include "base/rng.h"
#include "ops/ops.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static rng source;
void random_seed(uint64_t seed) { source = (rng){seed, 0}; }
uint64_t random_bits(void) { return rng_next(&source); }
double random_normal(void) { return (double)rng_normal(source.key, source.counter++); }

static int random_below(int64_t n) { return (int)(random_bits() % (uint64_t)n); }

double round_to(dtype type, double x) {
    float f = (float)x, back;
    if (type == DTYPE_I32) return x;
    char stored[4];
    dtype_from_f32(stored, type, &f, 1);
    dtype_to_f32(&back, stored, type, 1);
    return (double)back;
}

int64_t case_dim(const op_case *c, const char *symbol) {
    size_t n = strlen(symbol);
    for (const char *p = c->dims; *p;) {
        if (strncmp(p, symbol, n) == 0 && p[n] == '=') return strtol(p + n + 1, NULL, 10);
        p += strcspn(p, " ");
        p += strspn(p, " ");
    }
    fprintf(stderr, "case of %s: no size for %s in \"%s\"\n", op_name(c->kind), symbol, c->dims);
    abort();
}

/* "1", "N", "H*d", "d/2", "N+1" */
static int64_t size_of(const op_case *c, const char *expr) {
    if (isdigit((unsigned char)expr[0])) return strtol(expr, NULL, 10);
    char a[8] = {0};
    size_t n = strcspn(expr, "*/+");
    memcpy(a, expr, n);
    int64_t left = case_dim(c, a);
    switch (expr[n]) {
    case '*': return left * case_dim(c, expr + n + 1);
    case '/': return left / strtol(expr + n + 1, NULL, 10);
    case '+': return left + strtol(expr + n + 1, NULL, 10);
    default: return left;
    }
}

/* Which operands the folded form alone has, and which it has not. */
static const struct {
    op_kind kind;
    const char *folded, *plain;
} forms[] = {
    {OP_linear_lora, " res rstd ", " "},
    {OP_linear_lora_bwd, " gate up dgate dup dot ", " dx x "},
    {OP_gate_up_glu, " rstd w ", " "},
    {OP_gate_up_bwd, " rstd w dot dres ", " "},
    {OP_norm_qkv_rope, " ra ", " b bq bk bv wq wk sum h rstd q0 k0 rq rk "},
    {OP_qkv_bwd, " rstd w dot dres ", " "},
};

static bool is_absent(const op_case *c, op_kind kind, const char *name) {
    char word[20];
    snprintf(word, sizeof word, " %s ", name);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (forms[i].kind == kind && strstr(c->folded ? forms[i].plain : forms[i].folded, word)) return true;
    return c->absent && strstr(c->absent, word);
}

static bool is_weight(const char *name) {
    static const char *const biases[] = {"bias", "bq", "bk", "bv"};
    for (int i = 0; i < 4; i++)
        if (strcmp(name, biases[i]) == 0) return true;
    return name[0] == 'W' || (name[0] == 'w' && strcmp(name, "weight") != 0);
}

static dtype type_of(const op_case *c, const char *name) {
    static const char *const integers[] = {"ids", "pos", "cu", "target", "index"};
    for (int i = 0; i < 5; i++)
        if (strcmp(name, integers[i]) == 0) return DTYPE_I32;
    return is_weight(name) ? c->weight : DTYPE_F32;
}

/* Reads one operand of a pattern and returns where the next begins. */
static const char *read_operand(operand *o, const op_case *c, op_kind kind, const char *p, int64_t real) {
    char name[16] = {0}, dims[2][8] = {{0}};
    p += strspn(p, " ");
    size_t n = strcspn(p, "?[");
    memcpy(name, p, n);
    bool optional = p[n] == '?';
    p = strchr(p, '[') + 1;
    int dim = 0;
    for (n = 0; *p != ']'; p++) {
        if (*p == ',') dim = 1, n = 0;
        else dims[dim][n++] = *p;
    }
    *o = (operand){.type = type_of(c, name), .rows = size_of(c, dims[0]), .cols = dim ? size_of(c, dims[1]) : 1};
    memcpy(o->name, name, sizeof name);
    memcpy(o->row_symbol, dims[0], sizeof o->row_symbol);
    o->real = strcmp(dims[0], "N") == 0 ? real : o->rows;
    if (!optional || !is_absent(c, kind, name)) o->value = xcalloc((size_t)(o->rows * o->cols), sizeof(double));
    return p + 1;
}

static void fill_integers(operand *o, const operand_set *s) {
    bool cached = s->kind == OP_attention_cached;
    for (int64_t i = 0; i < o->real; i++) {
        int doc = 0;
        while (doc + 1 < s->batch.docs && s->cu[doc + 1] <= i) doc++;
        if (strcmp(o->name, "ids") == 0) o->value[i] = random_below(case_dim(s->c, "V"));
        if (strcmp(o->name, "index") == 0) o->value[i] = random_below(s->batch.rows);
        if (strcmp(o->name, "cu") == 0) o->value[i] = i <= s->batch.docs ? s->cu[i] : -7;
        if (strcmp(o->name, "pos") == 0)
            o->value[i] = cached ? (double)(case_dim(s->c, "C") - 2 - s->batch.rows + i) : (double)(i - s->cu[doc]);
        if (strcmp(o->name, "target") == 0)
            o->value[i] = s->c->no_labels || random_below(3) == 0 ? -100 : random_below(case_dim(s->c, "V"));
    }
}

/* The residual stream of a folded form: its rows are of different sizes, so that their rstd counts. */
static bool is_stream(const operand *o, const operand_set *s) {
    bool x = strcmp(o->name, s->kind == OP_norm_qkv_rope ? "a" : "x") == 0;
    return x && s->c->folded && s->kind != OP_linear_lora && s->kind != OP_linear_lora_bwd;
}

static double scale_of(const operand *o) {
    if (strcmp(o->name, "logits") == 0) return 2;
    if (strcmp(o->name, "dot") == 0) return 100; /* a sum over a row */
    bool matrix = o->cols > 1 && (is_weight(o->name) || o->name[0] == 'A' || o->name[0] == 'B');
    return matrix ? 1 / sqrt((double)o->cols) : 1;
}

static void fill(operand *o, const operand_set *s) {
    if (!o->value) return;
    if (o->type == DTYPE_I32) {
        fill_integers(o, s);
        return;
    }
    bool norm = o->name[0] == 'w' && o->cols == 1, freq = strcmp(o->name, "freq") == 0;
    for (int64_t i = 0; i < o->real * o->cols; i++) {
        double x = random_normal() * scale_of(o);
        if (norm) x = 1 + 0.3 * x;
        if (is_stream(o, s)) x *= 0.4 * (double)(1 + i / o->cols % 5);
        if (freq) x = pow(10000, -(double)i / (double)o->rows);
        o->value[i] = round_to(o->type, x);
    }
}

/* The rstd that a folded form reads is its x's. */
static void fill_rstd(operand_set *s) {
    operand *rstd = operand_find(s->in, s->n_in, s->kind == OP_norm_qkv_rope ? "ra" : "rstd");
    const operand *x = operand_find(s->in, s->n_in, s->kind == OP_norm_qkv_rope ? "a" : "x");
    if (!s->c->folded || !rstd) return;
    for (int64_t t = 0; t < x->real; t++) {
        double sum = 0;
        for (int64_t j = 0; j < x->cols; j++) sum += x->value[t * x->cols + j] * x->value[t * x->cols + j];
        rstd->value[t] = round_to(DTYPE_F32, 1 / sqrt(sum / (double)x->cols + (double)s->c->attr.eps));
    }
}

/* Uneven documents: 1, then growing shares. */
static void cut_documents(operand_set *s) {
    int docs = s->c->docs ? s->c->docs : 1, rows = s->batch.rows;
    s->batch.docs = docs;
    s->cu[docs] = rows;
    for (int i = 1; i < docs; i++) s->cu[i] = i == 1 ? 1 : (int)((int64_t)rows * i * i / (docs * docs) + 1);
    for (int i = 0; i < docs; i++) {
        int length = s->cu[i + 1] - s->cu[i];
        assert(length > 0);
        if (length > s->batch.longest) s->batch.longest = length;
    }
}

/* ops.def's pattern, or that of a norm over each head (as graph/op_check.c has it). */
static const char *pattern(const op_case *c, op_kind kind, bool in) {
    if (c->attr.head_dim && kind == OP_rms_norm) return in ? "x[N,H*d] w[d]" : "y[N,H*d] rstd[N,H]";
    if (c->attr.head_dim && kind == OP_rms_norm_bwd)
        return in ? "dy[N,H*d] x[N,H*d] w[d] rstd[N,H] dres?[N,H*d]" : "dx?[N,H*d] dw?[d]";
    return in ? op_inputs(kind) : op_outputs(kind);
}

void operands_make(operand_set *s, const op_case *c, op_kind kind) {
    *s = (operand_set){.kind = kind, .c = c};
    int64_t N = case_dim(c, "N"), real = c->rows ? c->rows : N;
    s->batch = (batch_info){.rows = (int)real, .seed = 1234, .training = !c->evaluation};
    cut_documents(s);
    s->n_in = op_operands(op_inputs(kind));
    s->n_out = op_operands(op_outputs(kind));
    const char *p = pattern(c, kind, true);
    for (int i = 0; i < s->n_in; i++) p = read_operand(&s->in[i], c, kind, p, real);
    p = pattern(c, kind, false);
    for (int i = 0; i < s->n_out; i++) p = read_operand(&s->out[i], c, kind, p, real);
    if (kind == OP_gather) s->batch.labels = (int)s->out[0].rows;
    for (int i = 0; i < s->n_in; i++) fill(&s->in[i], s);
    fill_rstd(s);
    operands_count_labels(s);
    for (int i = 0; i < s->n_out; i++) /* the caches hold earlier rows */
        if (s->out[i].value && strstr(s->out[i].name, "cache")) fill(&s->out[i], s);
}

void operands_count_labels(operand_set *s) {
    const operand *target = operand_find(s->in, s->n_in, "target");
    if (target) s->batch.labels = 0;
    for (int64_t t = 0; target && t < target->real; t++) s->batch.labels += target->value[t] >= 0;
}

void operands_free(operand_set *s) {
    for (int i = 0; i < s->n_in; i++) free(s->in[i].value);
    for (int i = 0; i < s->n_out; i++) free(s->out[i].value);
}

operand *operand_find(operand *list, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0) return list[i].value ? &list[i] : NULL;
    return NULL;
}

double *value_of(operand_set *s, const char *name) {
    operand *o = operand_find(s->in, s->n_in, name);
    if (!o) o = operand_find(s->out, s->n_out, name);
    return o ? o->value : NULL;
}
