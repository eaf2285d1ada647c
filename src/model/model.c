/* model.c - the decoder every supported family shares. What differs is data in model_config. */
#include "model/model.h"

#include <math.h>

typedef struct {
    graph *g;
    const model_config *m;
    stored_type stored;
    void *context;
    model_io io;
    int n_context; /* 0: whole documents; else inference with caches */
} builder;

/* A frozen param under its Hugging Face name. pass_lora adds trainable ones, pass_full makes these trainable. */
static vid param(builder *b, const char *name, int64_t rows, int64_t cols) {
    dtype type = b->stored ? b->stored(name, b->context) : b->m->stored;
    return graph_add_value(b->g, ROLE_PARAM, type, rows, cols, "%s", name);
}

static vid layer_param(builder *b, const char *module, const char *kind, int64_t rows, int64_t cols) {
    char name[128];
    snprintf(name, sizeof name, "model.layers.%d.%s.%s", b->g->layer - 1, module, kind);
    return param(b, name, rows, cols);
}

static vid project(builder *b, vid x, const char *module, int64_t width, bool bias) {
    vid W = layer_param(b, module, "weight", width, b->g->values[x].cols);
    return g_linear(b->g, x, W, bias ? layer_param(b, module, "bias", width, 1) : 0);
}

static vid build_attention(builder *b, vid x) {
    const model_config *m = b->m;
    int d = m->head_dim, H = m->n_head * d, G = m->n_kv_head * d;
    vid q = project(b, x, "self_attn.q_proj", H, m->qkv_bias);
    vid k = project(b, x, "self_attn.k_proj", G, m->qkv_bias);
    vid v = project(b, x, "self_attn.v_proj", G, m->qkv_bias);
    if (m->qk_norm) {
        q = g_rms_norm(b->g, q, layer_param(b, "self_attn.q_norm", "weight", d, 1), m->rms_eps);
        k = g_rms_norm(b->g, k, layer_param(b, "self_attn.k_norm", "weight", d, 1), m->rms_eps);
    }
    q = g_rope(b->g, q, b->io.pos, b->io.freq, false);
    k = g_rope(b->g, k, b->io.pos, b->io.freq, false);
    op_attr attr = {.head_dim = d, .window = m->window[b->g->layer - 1], .scale = 1 / sqrtf((float)d)};
    vid o = b->n_context ? g_attention_cached(b->g, q, k, v, b->io.pos, b->n_context, attr)
                         : g_attention(b->g, q, k, v, b->io.cu, attr.head_dim, attr.window, attr.scale);
    return project(b, o, "self_attn.o_proj", m->d_model, m->o_bias);
}

static vid build_mlp(builder *b, vid x) {
    const model_config *m = b->m;
    vid gate = project(b, x, "mlp.gate_proj", m->d_ff, m->mlp_bias);
    vid up = project(b, x, "mlp.up_proj", m->d_ff, m->mlp_bias);
    return project(b, g_glu(b->g, gate, up, m->glu), "mlp.down_proj", m->d_model, m->mlp_bias);
}

/* Embedding, layers, final norm, head: leaves io.hidden and io.logits. */
static void build_body(builder *b, int n) {
    graph *g = b->g;
    const model_config *m = b->m;
    b->io = (model_io){
        .ids = graph_add_value(g, ROLE_INPUT, DTYPE_I32, n, 1, "ids"),
        .pos = graph_add_value(g, ROLE_INPUT, DTYPE_I32, n, 1, "pos"),
        .cu = b->n_context ? 0 : graph_add_value(g, ROLE_INPUT, DTYPE_I32, n + 1, 1, "cu"),
        .index = b->n_context ? graph_add_value(g, ROLE_INPUT, DTYPE_I32, 1, 1, "index") : 0,
        .freq = graph_add_value(g, ROLE_INPUT, DTYPE_F32, m->head_dim / 2, 1, "freq"),
    };
    vid table = param(b, "model.embed_tokens.weight", m->vocab, m->d_model);
    vid x = g_embed(g, b->io.ids, table);
    for (int l = 1; l <= m->n_layer; l++) {
        g->layer = l;
        vid h = g_rms_norm(g, x, layer_param(b, "input_layernorm", "weight", m->d_model, 1), m->rms_eps);
        x = g_add(g, x, build_attention(b, h));
        h = g_rms_norm(g, x, layer_param(b, "post_attention_layernorm", "weight", m->d_model, 1), m->rms_eps);
        x = g_add(g, x, build_mlp(b, h));
    }
    g->layer = 0;
    b->io.hidden = g_rms_norm(g, x, param(b, "model.norm.weight", m->d_model, 1), m->rms_eps);
    vid head = m->tied_head ? table : param(b, "lm_head.weight", m->vocab, m->d_model);
    vid rows = b->n_context ? g_gather(g, b->io.hidden, b->io.index) : b->io.hidden;
    b->io.logits = g_linear(g, rows, head, 0);
}

model_io model_build(graph *g, const model_config *m, int n_rows, stored_type stored, void *context) {
    builder b = {.g = g, .m = m, .stored = stored, .context = context};
    build_body(&b, n_rows);
    b.io.target = graph_add_value(g, ROLE_INPUT, DTYPE_I32, n_rows, 1, "target");
    b.io.weight = graph_add_value(g, ROLE_INPUT, DTYPE_F32, n_rows, 1, "weight");
    b.io.nll = g_cross_entropy(g, b.io.logits, b.io.target);
    b.io.loss = g_weighted_sum(g, b.io.nll, b.io.weight, "loss");
    return b.io;
}

model_io model_build_inference(graph *g, const model_config *m, int n_rows, int n_context, stored_type stored,
                               void *context) {
    builder b = {.g = g, .m = m, .stored = stored, .context = context, .n_context = n_context};
    build_body(&b, n_rows);
    return b.io;
}
