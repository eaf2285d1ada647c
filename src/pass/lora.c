/* lora.c - attaches adapters: y = xW' becomes y = xW' + scaling * (dropout(x) A') B' for every targeted linear.
 *
 * The final add writes the linear's old output value, so no use is redirected.  Base weights stay frozen.  Targets are
 * matched once, by the module path in the weight's name: the only place where a name means anything to a pass. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "base/array.h"
#include "pass/pass.h"

#include <math.h>
#include <pcre2.h>
#include <string.h>

float lora_scaling(const lora_options *o) {
    return o->alpha / (o->use_rslora ? sqrtf((float)o->rank) : (float)o->rank);
}

enum { MATCH_LIMIT = 100000 }; /* steps; a path has a hundred characters */

typedef struct {
    graph *g;
    const lora_options *o;
    pcre2_code *regex;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    bool gave_up;  /* the expression took more steps than it may */
    bool *hit;     /* [n_targets] */
    vid embedding; /* a tied head reads it: no linear of its own, so never a target (PEFT would wrap the look-up) */
    int attached;
} context;

/* "model.layers.0.self_attn.q_proj.weight" -> "model.layers.0.self_attn.q_proj" */
static bool module_path(char *out, size_t room, const char *weight) {
    size_t n = strlen(weight), suffix = strlen(".weight");
    if (n <= suffix || strcmp(weight + n - suffix, ".weight") != 0 || n - suffix >= room) return false;
    memcpy(out, weight, n - suffix);
    out[n - suffix] = 0;
    return true;
}

/* The module path of a linear that has a weight of its own. */
static bool find_path(const context *c, const graph_op *op, char *out, size_t room) {
    return op->kind == OP_linear && op->in[1] != c->embedding && module_path(out, room, c->g->values[op->in[1]].name);
}

static bool layer_wanted(const lora_options *o, int layer) {
    if (!o->layers) return true;
    for (int i = 0; i < o->n_layers; i++)
        if (o->layers[i] == layer - 1) return true;
    return false;
}

static bool is_target(context *c, const graph_op *op, const char *path) {
    if (!layer_wanted(c->o, op->layer)) return false;
    if (c->regex) { /* PEFT: re.fullmatch */
        if (c->gave_up) return false;
        int rc = pcre2_match(c->regex, (PCRE2_SPTR)path, strlen(path), 0, 0, c->match, c->limits);
        c->gave_up = rc < 0 && rc != PCRE2_ERROR_NOMATCH;
        return rc >= 0;
    }
    for (int i = 0; i < c->o->n_targets; i++) {
        const char *t = c->o->targets[i];
        size_t n = strlen(path), m = strnlen(t, n + 1);
        bool all = strcmp(t, "all-linear") == 0 && op->layer > 0;
        /* PEFT's rule: the whole path (as it writes all-linear itself), or its last parts. */
        bool suffix = n >= m && strcmp(path + n - m, t) == 0 && (n == m || path[n - m - 1] == '.');
        if (!all && !suffix) continue;
        c->hit[i] = true;
        return true;
    }
    return false;
}

static void attach(context *c, graph_op o, const char *path) {
    graph *g = c->g;
    vid x = o.in[0], W = o.in[1];
    int64_t rank = c->o->rank, in = g->values[W].cols, out = g->values[W].rows;
    g->layer = o.layer;
    vid A = graph_add_value(g, ROLE_PARAM, DTYPE_F32, rank, in, "base_model.model.%s.lora_A.weight", path);
    vid B = graph_add_value(g, ROLE_PARAM, DTYPE_F32, out, rank, "base_model.model.%s.lora_B.weight", path);
    g->values[A].trainable = g->values[B].trainable = true;
    vid base = g_linear(g, x, W, o.in[2]);
    vid xd = c->o->dropout > 0 ? g_dropout(g, x, c->o->dropout, (uint32_t)c->attached) : x;
    vid delta = g_scale(g, g_linear(g, g_linear(g, xd, A, 0), B, 0), lora_scaling(c->o));
    graph_emit(g, (graph_op){OP_add, {base, delta}, {o.out[0]}});
    c->attached++;
}

static bool compile(context *c, failure *f) {
    if (!c->o->regex) return true;
    int code;
    PCRE2_SIZE at;
    c->regex = pcre2_compile((PCRE2_SPTR)c->o->targets[0], PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED | PCRE2_ENDANCHORED,
                             &code, &at, NULL);
    if (c->regex) {
        c->match = pcre2_match_data_create_from_pattern(c->regex, NULL);
        c->limits = pcre2_match_context_create(NULL);
        pcre2_set_match_limit(c->limits, MATCH_LIMIT);
        return true;
    }
    PCRE2_UCHAR message[128];
    pcre2_get_error_message(code, message, sizeof message);
    return fail(f, FAIL_INPUT, "target_regex: \"%s\" is no regular expression: %s (at character %zu)", c->o->targets[0],
                (const char *)message, (size_t)at);
}

/* Names a target that matched nothing, and some that could have been meant. */
static bool check_hits(const context *c, const graph_op *ops, failure *f) {
    const char *missing = NULL;
    for (int i = 0; i < c->o->n_targets && !missing; i++)
        if (c->regex ? !c->attached : !c->hit[i]) missing = c->o->targets[i];
    if (!missing) return true;
    char names[1024] = "";
    size_t used = 0;
    for (int i = 0; i < arrlen(ops) && ops[i].layer <= 1; i++) {
        char path[256];
        if (!find_path(c, &ops[i], path, sizeof path)) continue;
        int n = snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", path);
        if (n > 0 && (size_t)n < sizeof names - used) used += (size_t)n;
    }
    return fail(f, FAIL_INPUT, "%s: \"%s\" matches no linear layer of this model; its layers are named like %s",
                c->o->regex ? "target_regex" : "target_modules", missing, names);
}

bool pass_lora(graph *g, const lora_options *o, failure *f) {
    context c = {.g = g, .o = o, .hit = xcalloc((size_t)o->n_targets + 1, sizeof(bool))};
    bool ok = compile(&c, f);
    graph_op *old = g->ops;
    for (int i = 0; i < arrlen(old) && !c.embedding; i++)
        if (old[i].kind == OP_embed) c.embedding = old[i].in[1];
    if (ok) {
        g->ops = NULL;
        for (int i = 0; i < arrlen(old); i++) {
            char path[256];
            bool target = find_path(&c, &old[i], path, sizeof path) && is_target(&c, &old[i], path);
            if (target) attach(&c, old[i], path);
            else arrput(g->ops, old[i]);
        }
        g->layer = 0;
        ok = c.gave_up ? fail(f, FAIL_INPUT, "target_regex: \"%s\" takes too many steps", o->targets[0])
                       : check_hits(&c, old, f);
        arrfree(old);
    }
    pcre2_match_data_free(c.match);
    pcre2_match_context_free(c.limits);
    pcre2_code_free(c.regex);
    free(c.hit);
    return ok;
}
