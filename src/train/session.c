/* session.c - puts the pieces together; see session.h. Order: model -> text -> weights -> build -> start. */
#include "train/session.h"
#include "base/array.h"
#include "base/log.h"
#include "base/rng.h"
#include "model/model_weights.h"
#include "train/bind.h"
#include "train/fit.h"
#include "weights/hub_cache.h"

#include <assert.h>
#include <math.h>
#include <string.h>

bool session_open_model(session *s, const config *c, failure *f) {
    *s = (session){.c = c};
    TRY(config_need(c, "model", f));
    TRY(hub_find_model(&s->folder, c->model, &s->memory, f));
    return model_config_read(&s->model, s->folder, &s->memory, f);
}

bool session_open_text(session *s, failure *f) {
    memory_doing("reading the tokenizer", "end what else uses the memory");
    TRY(tokenizer_open(&s->tokens, s->folder, f));
    return chat_format_open(&s->chat, s->c->template, s->folder, s->tokens, f);
}

bool session_open_weights(session *s, failure *f) {
    memory_doing("reading what the weights files hold", "end what else uses the memory");
    TRY(st_open_folder(&s->weights, s->folder, f));
    bool tied = s->model.tied_head;
    TRY(model_weights_settle_head(&s->model, s->weights, f));
    s->untied_by_file = tied && !s->model.tied_head;
    if (!s->c->adapter[0]) return true;
    TRY(adapter_config_read(&s->lora, s->c->adapter, &s->memory, f));
    log_info("adapter %s: rank %d, alpha %g", s->c->adapter, s->lora.rank, s->lora.alpha);
    return adapter_open(&s->adapter, s->c->adapter, f);
}

/* The adapter's shape: of the adapter the config names, else of the config's lora_* keys. */
static bool adapter_from_config(session *s, failure *f) {
    const config *c = s->c;
    if (c->use_dora) return fail(f, FAIL_INPUT, "use_dora: DoRA is not in this version; leave it false");
    adapter_config *a = &s->lora;
    *a = (adapter_config){.base_model = c->model,
                          .rank = (int)c->lora_rank,
                          .alpha = c->lora_alpha,
                          .dropout = c->lora_dropout,
                          .use_rslora = c->use_rslora,
                          .regex = c->target_regex[0] != 0};
    a->n_targets = a->regex ? 1 : c->target_modules.n;
    a->targets = arena_alloc(&s->memory, sizeof(char *) * (size_t)(a->n_targets + 1));
    for (int i = 0; i < a->n_targets; i++) a->targets[i] = a->regex ? c->target_regex : c->target_modules.items[i];
    if (!a->n_targets) return fail(f, FAIL_INPUT, "target_modules: the list is empty");
    a->n_layers = c->layers_to_transform.n;
    if (a->n_layers) a->layers = arena_alloc(&s->memory, sizeof(int) * (size_t)a->n_layers);
    for (int i = 0; i < a->n_layers; i++) {
        int64_t layer;
        const char *word = c->layers_to_transform.items[i];
        if (!text_to_int(word, &layer) || layer < 0 || layer >= s->model.n_layer)
            return fail(f, FAIL_INPUT, "layers_to_transform: found \"%s\", expected a layer from 0 to %d", word,
                        s->model.n_layer - 1);
        a->layers[i] = (int)layer;
    }
    return true;
}

static bool attach_adapter(session *s, bool training, failure *f) {
    const adapter_config *a = &s->lora;
    lora_options o = {.rank = a->rank,
                      .alpha = (float)a->alpha,
                      .use_rslora = a->use_rslora,
                      .dropout = training ? (float)s->c->lora_dropout : 0,
                      .targets = (const char *const *)a->targets,
                      .n_targets = a->n_targets,
                      .regex = a->regex,
                      .layers = a->layers,
                      .n_layers = a->n_layers};
    return pass_lora(&s->g, &o, f);
}

/* In a program that only runs forward nothing trains. */
static void freeze(graph *g) {
    for (vid v = 1; v < arrlen(g->values); v++) g->values[v].trainable = false;
}

/* What a pass left behind must be a program: our mistake otherwise, so that it ends in an assert. */
static bool verified(const graph *g, const char *after) {
    failure f = {0};
    if (pass_verify(g, &f)) return true;
    log_error("program malformed after %s: %s", after, f.text);
    return false;
}

bool session_open_backend(session *s, failure *f) {
    if (s->b) return true;
    TRY(backend_find(&s->b, s->c->device, comm_local_rank(s->ranks), f));
    TRY(s->b->open(f));
    if (s->b->set_deterministic) s->b->set_deterministic(s->c->deterministic);
    return true;
}

/* The type of activations: the backend's, or float32 where the config asks for it. */
static dtype compute_type(const session *s) {
    return strcmp(s->c->torch_dtype, "float32") == 0 ? DTYPE_F32 : s->b->compute;
}

static void share_among_ranks(session *s) {
    shard_options o = {.rank = s->plan_ranks ? -1 : comm_rank(s->ranks),
                       .ranks = s->plan_ranks ? s->plan_ranks : comm_size(s->ranks),
                       .bucket_bytes = s->c->ddp_bucket_cap_mb << 20,
                       .zero_stage = s->spread.zero_stage,
                       .base = s->spread.shard_base};
    if (o.base || o.zero_stage == 3) pass_shard_weights(&s->g, &o);
    assert(verified(&s->g, "shard_weights"));
    if (o.zero_stage >= 2) pass_shard_gradients(&s->g, &o);
    else pass_shard(&s->g, &o);
}

/* The order of the passes, top to bottom. */
bool session_build(session *s, session_kind kind, int n_rows, recompute_level level, failure *f) {
    memory_doing("building the program", "end what else uses the memory");
    graph *g = &s->g;
    bool training = kind == SESSION_TRAIN, full = training && strcmp(s->c->tuner_type, "full") == 0;
    stored_type stored = s->weights ? model_weights_stored : NULL;
    TRY(session_open_backend(s, f));
    graph_init(g, compute_type(s));
    s->level = level;
    if (kind == SESSION_GENERATE) {
        s->io = model_build_inference(g, &s->model, n_rows, s->n_context, stored, s->weights);
    } else {
        s->io = model_build(g, &s->model, n_rows, stored, s->weights);
    }
    assert(verified(g, "build"));
    if (full && s->c->adapter[0]) return fail(f, FAIL_INPUT, "adapter: tuner_type full trains the model itself");
    if (training && !full && !s->adapter) TRY(adapter_from_config(s, f));
    if (full) pass_full(g);
    else if (s->lora.rank) TRY(attach_adapter(s, training, f));
    assert(verified(g, "lora"));
    if (!training) freeze(g);
    if (s->c->use_liger_kernel) TRY(pass_fuse(g, s->c->fuse_rules, s->folds, s->b->serves, f));
    assert(verified(g, "fuse"));
    g->n_forward = (int)arrlen(g->ops);
    if (training) pass_backward(g, s->io.nll, s->io.weight);
    assert(verified(g, "backward"));
    if (training) pass_early_loss(g);
    if (training) pass_recompute(g, level);
    assert(verified(g, "recompute"));
    if (s->b->upload_rows) pass_layout(g);
    assert(verified(g, "layout"));
    if (training && (s->ranks || s->plan_ranks)) share_among_ranks(s);
    assert(verified(g, "shard"));
    return true;
}

static bool upload_rope(session *s, failure *f) {
    float *freq = xcalloc((size_t)s->model.head_dim / 2, sizeof *freq);
    model_rope_frequencies(&s->model, freq);
    bool ok = executor_upload(s->x, s->io.freq, freq, s->model.head_dim / 2, f);
    free(freq);
    return ok;
}

bool session_start(session *s, bool planned, failure *f) {
    plan_make(&s->p, &s->g, s->b, planned);
    memory_doing("placing the weights", "take a smaller model, or end what else uses the memory");
    bool ok = executor_open(&s->x, &s->g, &s->p, s->b, f);
    if (ok) executor_join(s->x, s->ranks);
    if (ok && bind_params(s, f) && upload_rope(s, f)) {
        memory_doing("running the model", "lower per_device_train_batch_size or max_length");
        return true;
    }
    if (f->kind != FAIL_MACHINE) return false;
    text_buf parts = {0};
    fit_put_plan(&parts, &s->p);
    fail_in(f, "placing the %.2f GiB of this run on the %s (%s)", (double)s->p.total / 0x1p30, s->b->name, parts.data);
    text_free(&parts);
    return false;
}

int session_ops(const session *s) { return (int)arrlen(s->g.ops); }

void session_drop_program(session *s) {
    executor_close(s->x);
    s->x = NULL;
    plan_free(&s->p);
    graph_free(&s->g);
    for (int i = 0; i < arrlen(s->vectors); i++) free(s->vectors[i]);
    arrfree(s->vectors);
    free(s->random);
    s->random = NULL;
}

void session_close(session *s) {
    session_drop_program(s);
    if (s->b) s->b->close();
    st_close(s->adapter);
    st_close(s->weights);
    chat_format_close(s->chat);
    tokenizer_close(s->tokens);
    arena_free(&s->memory);
    *s = (session){0};
}
