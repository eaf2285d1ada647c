/* test_cuda_fold.c - whole programs with folded norms (pass_fold) on the card: a small model whose sizes our products
 * serve, with random weights, norms that are not 1 and an adapter of odd rank.
 *
 * The CPU's program in float32 is the measure: a gradient of the folded program in bf16 may be twice as far from it as
 * that of the fused program without the rule (both are roundings of their own), the loss too.  Every recompute level
 * and planned or unplanned memory must give the same bits, and the folded program needs less memory. */
#include "unit/scratch.h"

#include "fixture_run.h"
#include "model/model_weights.h"
#include "pass/pass.h"
#include "weights/adapter.h"

#include <sys/stat.h>

enum { HEADS = 2, LAYERS = 3, RANK = 5, ROWS = 301, SLOTS = 304 };

static const char *const config_text =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 256, "
    "\"intermediate_size\": 328, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"head_dim\": 64, \"vocab_size\": 96, \"max_position_embeddings\": 512, \"hidden_act\": \"silu\", "
    "\"rms_norm_eps\": 1e-05, \"bos_token_id\": 1, \"eos_token_id\": 2, \"tie_word_embeddings\": false, "
    "\"attention_bias\": false, \"mlp_bias\": false, \"rope_theta\": 10000.0, \"torch_dtype\": \"bfloat16\"}";

/* ---- the model ---- */

static float random_element(const graph_value *v, rng *r) {
    float x = rng_normal(r->key, r->counter++);
    if (v->cols == 1) return 1 + 0.3f * x; /* norms */
    if (strstr(v->name, "embed_tokens")) return x;
    return 0.5f * x / sqrtf((float)v->cols); /* small: bf16 then is near enough that a mistake shows */
}

/* All params whose name begins, or does not begin, like an adapter's. */
static void write_params(const graph *g, bool adapter, const char *path) {
    st_entry *entries = NULL;
    rng r = {.key = 5 + adapter};
    for (vid v = 1; v < arrlen(g->values); v++) {
        const graph_value *value = &g->values[v];
        bool lora = strncmp(value->name, "base_model.", 11) == 0;
        if (value->role != ROLE_PARAM || lora != adapter) continue;
        int64_t n = value_count(value);
        float *x = xmalloc((size_t)n * sizeof *x);
        for (int64_t i = 0; i < n; i++) x[i] = random_element(value, &r);
        dtype type = adapter ? DTYPE_F32 : DTYPE_BF16;
        void *stored = xmalloc((size_t)n * dtype_size(type));
        dtype_from_f32(stored, type, x, (size_t)n);
        free(x);
        st_entry e = {value->name, type, value->cols == 1 ? 1 : 2, {value->rows, value->cols, 1, 1}, stored};
        arrput(entries, e);
    }
    MUST(st_write(path, entries, (int)arrlen(entries), f));
    for (int i = 0; i < arrlen(entries); i++) free((void *)(uintptr_t)entries[i].data);
    arrfree(entries);
}

static void write_model(void **state) {
    static const char *targets[] = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
    arena names = {0};
    graph g;
    model_config m;
    MUST(file_write(scratch_path(state, "config.json"), config_text, strlen(config_text), f));
    MUST(model_config_read(&m, scratch_folder(state), &names, f));
    graph_init(&g, DTYPE_F32);
    model_build(&g, &m, 8, NULL, NULL);
    lora_options o = {.rank = RANK, .alpha = 10, .targets = (const char *const *)targets, .n_targets = 7};
    MUST(pass_lora(&g, &o, f));
    write_params(&g, false, scratch_path(state, "model.safetensors"));
    const char *folder = scratch_path(state, "adapter");
    assert_int_equal(mkdir(folder, 0755), 0);
    write_params(&g, true, path_join(&names, folder, "adapter_model.safetensors"));
    adapter_config c = {
        .base_model = scratch_folder(state), .rank = RANK, .alpha = 10, .targets = targets, .n_targets = 7};
    MUST(adapter_config_write(&c, folder, f));
    graph_free(&g);
    arena_free(&names);
}

/* Three documents; a third of the rows has no label. */
static void fill_row(micro_batch *b) {
    static const int32_t starts[] = {0, 130, 131, ROWS};
    *b = (micro_batch){
        .ids = xcalloc(ROWS, 4), .pos = xcalloc(ROWS, 4), .cu = xcalloc(4, 4), .target = xcalloc(ROWS, 4)};
    b->info = (batch_info){.rows = ROWS, .docs = 3, .seed = 1};
    memcpy(b->cu, starts, sizeof starts);
    for (int t = 0; t < ROWS; t++) b->ids[t] = (t * 37 + t * t / 7) % 96;
    for (int d = 0; d < 3; d++)
        for (int t = starts[d]; t < starts[d + 1]; t++) {
            b->pos[t] = t - starts[d];
            b->target[t] = t + 1 == starts[d + 1] || t % 3 == 0 ? -100 : b->ids[t + 1];
        }
    fixture_row_count(b);
}

/* ---- programs ---- */

typedef struct {
    const char *device, *dtype, *rules;
    recompute_level level;
    bool unplanned;
} variant;

static fixture_run *open_variant(void **state, variant v) {
    fixture_run *r = xcalloc(1, sizeof *r);
    const char *flags[] = {"--model",         scratch_folder(state),
                           "--adapter",       scratch_path(state, "adapter"),
                           "--device",        v.device,
                           "--torch_dtype",   v.dtype,
                           "--fuse_rules",    v.rules,
                           "--deterministic", "true"};
    enum { N = sizeof flags / sizeof *flags };
    char *argv[N];
    for (int i = 0; i < N; i++) argv[i] = arena_strdup(&r->memory, flags[i]);
    r->o.model = "random";
    log_quiet(true);
    MUST(config_read(&r->c, N, argv, &r->memory, f));
    MUST(session_open_model(&r->s, &r->c, f));
    MUST(session_open_weights(&r->s, f));
    MUST(session_build(&r->s, SESSION_TRAIN, SLOTS, v.level, f));
    MUST(session_start(&r->s, !v.unplanned, f));
    fill_row(&r->row);
    return r;
}

typedef struct {
    float loss, *gradients; /* stb_ds, all of them */
    int64_t arena_bytes;
    int folded;
} result;

static result run_variant(void **state, variant v) {
    fixture_run *r = open_variant(state, v);
    result out = {0};
    plan temporaries; /* without what ops need beside their operands */
    plan_make(&temporaries, &r->s.g, NULL, !v.unplanned);
    out.arena_bytes = temporaries.arena;
    plan_free(&temporaries);
    for (int i = 0; i < arrlen(r->s.g.ops); i++) {
        const graph_op *o = &r->s.g.ops[i];
        out.folded += (o->kind == OP_norm_qkv_rope && o->in[NQR_RA]) || (o->kind == OP_gate_up_glu && o->in[GUG_RSTD]);
    }
    for (int i = 0; i < arrlen(r->s.g.notes); i++) print_message("[          ] %s\n", r->s.g.notes[i]);
    fixture_run_row(r, true);
    out.loss = fixture_loss(r);
    out.gradients = fixture_gradients(r);
    fixture_close(r);
    return out;
}

/* Relative, of n elements. */
static double distance(const float *a, const float *b, int64_t from, int64_t n) {
    double difference = 0, size = 0;
    for (int64_t i = from; i < from + n; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / size);
}

static void folded_is_as_near(void **state) {
    enum { PIECE = RANK * 64 }; /* of the gradients: no more than a param's */
    write_model(state);
    result exact = run_variant(state, (variant){.device = "cpu", .dtype = "float32", .rules = "all"});
    result folded_cpu = run_variant(state, (variant){.device = "cpu", .dtype = "float32", .rules = "all,fold"});
    result fused = run_variant(state, (variant){.device = "cuda", .dtype = "bfloat16", .rules = "all"});
    result folded = run_variant(state, (variant){.device = "cuda", .dtype = "bfloat16", .rules = "all,fold"});
    int64_t n = arrlen(exact.gradients);
    assert_int_equal(folded.folded, 2 * LAYERS - 1);
    assert_int_equal(fused.folded, 0);
    assert_true(arrlen(fused.gradients) == n && arrlen(folded.gradients) == n);
    assert_true(distance(folded_cpu.gradients, exact.gradients, 0, n) <= 1e-5);
    double all = distance(folded.gradients, exact.gradients, 0, n);
    double all_fused = distance(fused.gradients, exact.gradients, 0, n), worst_ratio = 0;
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t length = n - at < PIECE ? n - at : PIECE;
        double mine = distance(folded.gradients, exact.gradients, at, length);
        double theirs = distance(fused.gradients, exact.gradients, at, length);
        if (mine / theirs > worst_ratio) worst_ratio = mine / theirs;
        if (!(mine <= 2 * theirs + 1e-3)) test_fail("gradients from %ld on: %.3g, fused %.3g", (long)at, mine, theirs);
    }
    print_message(
        "[          ] distance to float32: folded %.3g, fused %.3g, of a piece at most %.2f times; loss %.7g, "
        "%.7g, exact %.7g; arena %ld, %ld bytes\n",
        all, all_fused, worst_ratio, (double)folded.loss, (double)fused.loss, (double)exact.loss,
        (long)folded.arena_bytes, (long)fused.arena_bytes);
    assert_true(all <= 2 * all_fused);
    assert_true(fabs((double)folded.loss - (double)exact.loss) <= 5e-4 * (double)exact.loss);
    assert_true(folded.arena_bytes < fused.arena_bytes);
    arrfree(exact.gradients);
    arrfree(folded_cpu.gradients);
    arrfree(fused.gradients);
    arrfree(folded.gradients);
}

static void same_bits(void **state) {
    write_model(state);
    variant v = {.device = "cuda", .dtype = "bfloat16", .rules = "all,fold"};
    result kept = run_variant(state, v);
    for (v.level = 0; v.level < RECOMPUTE_COUNT; v.level++)
        for (int unplanned = 0; unplanned < 2; unplanned++) {
            v.unplanned = unplanned;
            result again = run_variant(state, v);
            assert_memory_equal(&again.loss, &kept.loss, sizeof kept.loss);
            assert_memory_equal(again.gradients, kept.gradients, (size_t)arrlen(kept.gradients) * sizeof(float));
            if (v.level > 0 && !unplanned) assert_true(again.arena_bytes < kept.arena_bytes);
            arrfree(again.gradients);
        }
    arrfree(kept.gradients);
}

int main(void) {
    const backend *b;
    failure f = {0};
    if (!cuda_backend_find(&b, 0, &f)) {
        printf("skip: %s\n", f.text);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(folded_is_as_near, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(same_bits, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
