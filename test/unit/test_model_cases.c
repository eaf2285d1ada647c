/* test_model_cases.c - cases M05, M07, M08, M09, L01, D07 and A06 through a whole session on the fixture models.
 *
 * Variants of a fixture (another head, fewer rows) are written into the test's own folder. */
#include "scratch.h"

#include "base/json.h"
#include "base/rng.h"
#include "fixture_run.h"

/* The row becomes one document of n tokens behind `before` tokens of another. */
static void set_documents(fixture_run *r, int before, int n) {
    micro_batch *b = &r->row;
    b->info.rows = before + n;
    b->info.docs = before ? 2 : 1;
    b->cu[0] = 0, b->cu[b->info.docs - 1] = before, b->cu[b->info.docs] = before + n;
    for (int t = 0; t < before + n; t++) {
        b->pos[t] = t < before ? t : t - before;
        b->target[t] = t == before + n - 1 || t == before - 1 ? -100 : b->ids[t + 1];
    }
    fixture_row_count(b);
}

static void first_layer_only(model_config *m) { m->n_layer = 1; }

/* M05: with a window of 4, row 3 sees token 0 and row 4 does not. */
static void window_reach(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        int before = i & 1 ? 3 : 0;
        fixture_options o = {.model = "mistral", .kind = RUN_LOGITS, .fused = i & 2};
        fixture_run *r = fixture_open_edited(o, first_layer_only);
        assert_int_equal(r->s.model.window[0], 4);
        set_documents(r, before, 8);
        int64_t vocab = r->s.model.vocab, n = (before + 8) * vocab;
        fixture_run_row(r, false);
        float *old = fixture_download(r, r->s.io.logits, n);
        r->row.ids[before] = (r->row.ids[before] + 1) % 60;
        fixture_run_row(r, false);
        float *new = fixture_download(r, r->s.io.logits, n);
        for (int t = 0; t < before + 8; t++) {
            bool same = memcmp(old + t * vocab, new + t *vocab, (size_t)vocab * sizeof *old) == 0;
            assert_int_equal(same, t < before || t >= before + 4);
        }
        free(old);
        free(new);
        fixture_close(r);
    }
}

/* nll of the last document, which has n tokens. */
static float *last_nll(fixture_run *r, int n) {
    fixture_run_row(r, false);
    float *all = fixture_download(r, r->s.io.nll, r->row.info.rows);
    float *last = xmalloc((size_t)n * sizeof *last);
    memcpy(last, all + r->row.info.rows - n, (size_t)n * sizeof *last);
    free(all);
    return last;
}

/* M09: document B alone, behind A, behind another A of the same length. */
static void packed_document_is_alone(void **state) {
    (void)state;
    static const char *const models[] = {"llama3-rope", "mistral", "qwen2-window", "qwen3"};
    for (int i = 0; i < 8; i++) {
        fixture_run *r = fixture_open((fixture_options){.model = models[i / 2], .kind = RUN_FULL, .fused = i & 1});
        const int a = 9, n = 11;
        set_documents(r, a, n);
        float *behind = last_nll(r, n);
        for (int t = 0; t < a; t++) r->row.ids[t] = (r->row.ids[t] + 7) % 60;
        set_documents(r, a, n);
        float *behind_other = last_nll(r, n);
        assert_memory_equal(behind, behind_other, (size_t)n * sizeof *behind);
        memmove(r->row.ids, r->row.ids + a, (size_t)n * sizeof *r->row.ids);
        set_documents(r, 0, n);
        float *alone = last_nll(r, n);
        for (int t = 0; t < n - 1; t++) {
            assert_true(alone[t] > 0);
            assert_true(fabs((double)alone[t] - (double)behind[t]) <= 1e-5 * fabs((double)alone[t]));
        }
        free(behind);
        free(behind_other);
        free(alone);
        fixture_close(r);
    }
}

static void slide_everywhere(model_config *m) {
    for (int l = 0; l < m->n_layer; l++) m->window[l] = 4;
}

/* All gradients, one after the other (stb_ds). */
static float *gradients(fixture_run *r) {
    float *all = NULL;
    fixture_run_row(r, true);
    for (vid v = 1; v < arrlen(r->s.g.values); v++) {
        const graph_value *value = &r->s.g.values[v];
        if (!value->trainable) continue;
        float *g = fixture_download(r, value->grad, value_count(value));
        memcpy(arraddnptr(all, (size_t)value_count(value)), g, (size_t)value_count(value) * sizeof *g);
        free(g);
    }
    return all;
}

static double distance(const float *a, const float *b) {
    double sum = 0, size = 0;
    assert_int_equal(arrlen(a), arrlen(b));
    for (int64_t i = 0; i < arrlen(a); i++) {
        double d = (double)a[i] - (double)b[i];
        sum += d * d, size += (double)b[i] * (double)b[i];
    }
    assert_true(size > 0);
    return sqrt(sum / size);
}

/* M09 with llama3's RoPE scaling, a sliding window and recompute at once: the gradients of document B, with nothing to
 * learn in A, are those of B alone, in front of A and behind it. */
static void packed_gradient_is_alone(void **state) {
    (void)state;
    enum { A = 9, B = 11 };
    for (int i = 0; i < 4; i++) {
        fixture_run *r = fixture_open_edited((fixture_options){.model = "llama3-rope",
                                                               .kind = i & 1 ? RUN_FULL : RUN_LORA,
                                                               .fused = i & 2,
                                                               .recompute = RECOMPUTE_FULL},
                                             slide_everywhere);
        float *packed[2], *alone;
        int32_t a[A], b[B];
        memcpy(a, r->row.ids, sizeof a);
        memcpy(b, r->row.ids + A, sizeof b);
        for (int behind = 0; behind < 2; behind++) {
            int at = behind ? A : 0;
            memcpy(r->row.ids + at, b, sizeof b);
            memcpy(r->row.ids + (behind ? 0 : B), a, sizeof a);
            set_documents(r, behind ? A : B, behind ? B : A);
            for (int t = 0; t < A + B; t++)
                if (t < at || t >= at + B) r->row.target[t] = -100;
            fixture_row_count(&r->row);
            packed[behind] = gradients(r);
        }
        memcpy(r->row.ids, b, sizeof b);
        set_documents(r, 0, B);
        alone = gradients(r);
        for (int behind = 0; behind < 2; behind++) {
            assert_true(distance(packed[behind], alone) <= 1e-5);
            arrfree(packed[behind]);
        }
        arrfree(alone);
        fixture_close(r);
    }
}

static void slide_last_two(model_config *m) {
    for (int l = 0; l < 4; l++) m->window[l] = l < 2 ? 0 : 4;
}

static void slide_nowhere(model_config *m) {
    for (int l = 0; l < 4; l++) m->window[l] = 0;
}

/* M05: Qwen2's max_window_layers 2 of 4, in a packed row: layers 0 and 1 are full, 2 and 3 slide. */
static void qwen_layers_that_slide(void **state) {
    (void)state;
    void (*const edits[])(model_config *) = {NULL, slide_last_two, slide_nowhere, slide_everywhere};
    float *logits[4];
    int64_t n = 0;
    for (int i = 0; i < 4; i++) {
        fixture_run *r = fixture_open_edited(
            (fixture_options){.model = "qwen2-window", .kind = RUN_LOGITS, .fused = true}, edits[i]);
        assert_true(r->row.info.docs > 2 && r->row.info.longest > 4);
        n = (int64_t)r->row.info.rows * r->s.model.vocab;
        fixture_run_row(r, false);
        logits[i] = fixture_download(r, r->s.io.logits, n);
        fixture_close(r);
    }
    assert_memory_equal(logits[0], logits[1], (size_t)n * sizeof **logits);
    assert_memory_not_equal(logits[0], logits[2], (size_t)n * sizeof **logits);
    assert_memory_not_equal(logits[0], logits[3], (size_t)n * sizeof **logits);
    for (int i = 0; i < 4; i++) free(logits[i]);
}

/* L01, D07: a micro-batch without labels adds nothing to the loss and the gradients of its step. */
static void masked_micro_batch(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        fixture_options o = {.model = "qwen3", .kind = i & 1 ? RUN_FULL : RUN_LORA, .fused = i & 2};
        fixture_run *r = fixture_open(o);
        fixture_run_row(r, true);
        float loss = fixture_loss(r), scale = 1 / (float)r->row.info.labels;
        float *before = fixture_gradients(r);
        for (int t = 0; t < r->row.info.rows; t++) r->row.target[t] = -100;
        fixture_row_count(&r->row);
        assert_int_equal(r->row.info.labels, 0);
        MUST(train_micro_batch(&r->s, &r->row, scale, true, f));
        float *after = fixture_gradients(r);
        assert_true(fixture_loss(r) == loss);
        assert_true(arrlen(before) > 100);
        assert_memory_equal(after, before, (size_t)arrlen(before) * sizeof *before);
        arrfree(before);
        arrfree(after);
        fixture_close(r);
    }
}

/* Copies config.json of a fixture with tie_word_embeddings and, when not 0, vocab_size set anew. */
static void write_config(void **state, const char *model, bool tied, int vocab) {
    failure f = {0};
    cJSON *json;
    char path[600];
    snprintf(path, sizeof path, "%s/fixtures/models/%s/config.json", TEST_DIR, model);
    assert_done(json_read(&json, path, &f), &f);
    cJSON_ReplaceItemInObject(json, "tie_word_embeddings", cJSON_CreateBool(tied));
    if (vocab) cJSON_ReplaceItemInObject(json, "vocab_size", cJSON_CreateNumber(vocab));
    char *text = cJSON_Print(json);
    scratch_puts(state, "config.json", text);
    cJSON_free(text);
    cJSON_Delete(json);
}

/* The weights of llama-tied, with a head in the file or without: the embedding's values times `scale`. */
static void write_weights(void **state, bool head, float scale) {
    failure f = {0};
    st_set *set;
    st_entry *entries = NULL;
    float *values = NULL;
    assert_done(st_open_folder(&set, TEST_DIR "/fixtures/models/llama-tied", &f), &f);
    for (int i = 0; i < st_count(set); i++) {
        const st_tensor *t = st_at(set, i);
        arrput(entries, ((st_entry){t->name, t->type, t->n_dims, {t->dim[0], t->dim[1]}, t->data}));
    }
    if (head) {
        const st_tensor *t = st_find(set, "model.embed_tokens.weight");
        values = fixture_floats(t);
        for (int64_t i = 0; i < t->count; i++) values[i] *= scale;
        arrput(entries, ((st_entry){"lm_head.weight", DTYPE_F32, 2, {t->dim[0], t->dim[1]}, values}));
    }
    assert_done(st_write(scratch_path(state, "model.safetensors"), entries, (int)arrlen(entries), &f), &f);
    arrfree(entries);
    free(values);
    st_close(set);
}

/* Full-tuning gradient of a param, malloc'ed. */
static float *gradient_of(fixture_run *r, const char *name) {
    vid v = graph_find(&r->s.g, name);
    assert_int_not_equal(v, 0);
    return fixture_download(r, r->s.g.values[v].grad, value_count(&r->s.g.values[v]));
}

/* The variant in the test's folder, with llama-tied's row. */
static fixture_run *open_variant(void **state, run_kind kind) {
    fixture_run *r =
        fixture_open((fixture_options){.model = "llama-tied", .kind = kind, .folder = scratch_folder(state)});
    fixture_run_row(r, kind == RUN_FULL);
    return r;
}

static float loss_of_variant(void **state) {
    fixture_run *r = open_variant(state, RUN_LOGITS);
    float loss = fixture_loss(r);
    fixture_close(r);
    return loss;
}

/* M07: tied and absent, tied and present and equal, tied and present and different, untied and absent. */
static void heads(void **state) {
    log_quiet(true);
    write_config(state, "llama-tied", true, 0);
    write_weights(state, false, 1);
    float absent = loss_of_variant(state);
    write_weights(state, true, 1);
    float equal = loss_of_variant(state);
    assert_memory_equal(&absent, &equal, sizeof equal);
    write_weights(state, true, 1.25f);
    float stored = loss_of_variant(state);
    assert_true(stored != absent);
    write_config(state, "llama-tied", false, 0);
    float untied = loss_of_variant(state);
    assert_memory_equal(&stored, &untied, sizeof untied); /* the stored head is what was used */

    write_weights(state, false, 1);
    failure f = {0};
    session s = {0};
    arena a = {0};
    config c;
    char *argv[] = {"--model", arena_strdup(&a, scratch_folder(state)), "--device", "cpu"};
    assert_done(config_read(&c, 4, argv, &a, &f), &f);
    assert_done(session_open_model(&s, &c, &f), &f);
    bool ok = session_open_weights(&s, &f) && session_build(&s, SESSION_EVAL, 8, RECOMPUTE_NONE, &f) &&
              session_start(&s, true, &f);
    assert_false(ok);
    assert_int_equal(f.kind, FAIL_INPUT);
    assert_non_null(strstr(f.text, "lm_head.weight"));
    session_close(&s);
    arena_free(&a);
}

/* M07: the gradient of the tied matrix is the sum of both uses. */
static void tied_gradient(void **state) {
    const char *embedding = "model.embed_tokens.weight";
    write_config(state, "llama-tied", true, 0);
    write_weights(state, false, 1);
    fixture_run *tied = open_variant(state, RUN_FULL);
    write_config(state, "llama-tied", false, 0);
    write_weights(state, true, 1);
    fixture_run *untied = open_variant(state, RUN_FULL);
    float *sum = gradient_of(tied, embedding);
    float *first = gradient_of(untied, embedding), *second = gradient_of(untied, "lm_head.weight");
    int64_t n = (int64_t)tied->s.model.vocab * tied->s.model.d_model;
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double want = (double)first[i] + (double)second[i];
        difference += ((double)sum[i] - want) * ((double)sum[i] - want), size += want * want;
    }
    assert_true(size > 0);
    assert_true(sqrt(difference / size) < 1e-6);
    free(sum);
    free(first);
    free(second);
    fixture_close(tied);
    fixture_close(untied);
}

/* tiny-chat with exactly as many rows as its tokenizer has tokens, and a tokenizer with one token more. */
static void write_short_model(void **state, int rows) {
    failure f = {0};
    st_set *set;
    st_entry *entries = NULL;
    cJSON *json;
    write_config(state, "tiny-chat", true, rows);
    assert_done(st_open_folder(&set, TEST_DIR "/fixtures/models/tiny-chat", &f), &f);
    for (int i = 0; i < st_count(set); i++) {
        const st_tensor *t = st_at(set, i);
        bool table = strcmp(t->name, "model.embed_tokens.weight") == 0;
        arrput(entries, ((st_entry){t->name, t->type, t->n_dims, {table ? rows : t->dim[0], t->dim[1]}, t->data}));
    }
    assert_done(st_write(scratch_path(state, "model.safetensors"), entries, (int)arrlen(entries), &f), &f);
    arrfree(entries);
    st_close(set);
    assert_done(json_read(&json, TEST_DIR "/fixtures/models/tiny-chat/tokenizer.json", &f), &f);
    cJSON *token = cJSON_CreateObject();
    cJSON_AddNumberToObject(token, "id", rows);
    cJSON_AddStringToObject(token, "content", "<extra>");
    const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
    for (int i = 0; i < 5; i++) cJSON_AddBoolToObject(token, flags[i], false);
    cJSON_AddItemToArray(cJSON_GetObjectItem(json, "added_tokens"), token);
    char *text = cJSON_Print(json);
    scratch_puts(state, "tokenizer.json", text);
    cJSON_free(text);
    cJSON_Delete(json);
}

/* M08: an id at or past the last row of the embedding makes its row bad, before any kernel runs. */
static void ids_past_the_last_row(void **state) {
    enum { ROWS = 303 };
    failure f = {0};
    session s = {0};
    arena a = {0};
    config c;
    write_short_model(state, ROWS);
    const char *rows = scratch_path(state, "rows.jsonl");
    scratch_puts(state, "rows.jsonl",
                 "{\"instruction\": \"Name a colour.\", \"output\": \"red\"}\n"
                 "{\"instruction\": \"Say <extra>.\", \"output\": \"y\"}\n"
                 "{\"instruction\": \"Spell river.\", \"output\": \"<extra>\"}\n");
    char *argv[] = {"--model", arena_strdup(&a, scratch_folder(state)), "--device", "cpu", "--template", "chatml"};
    assert_done(config_read(&c, 6, argv, &a, &f), &f);
    assert_done(session_open_model(&s, &c, &f) && session_open_text(&s, &f), &f);
    assert_int_equal(s.model.vocab, ROWS);
    assert_int_equal(tokenizer_size(s.tokens), ROWS + 1);
    dataset d = {0};
    dataset_options o = {.paths = &rows, .n_paths = 1, .max_length = 80, .vocab = s.model.vocab, .threads = 1};
    assert_done(dataset_load(&d, &o, s.tokens, s.chat, &f), &f);
    assert_int_equal(dataset_count(&d), 1);
    assert_int_equal(d.rows_read, 3);
    int64_t bad = 0;
    for (int i = 0; i < arrlen(d.drops); i++) bad += d.drops[i].count;
    assert_int_equal(bad, 2);
    for (int64_t t = 0; t < arrlen(d.tokens); t++) assert_in_range(d.tokens[t], 0, ROWS - 1);
    dataset_free(&d);
    o.strict = true; /* stops at the first bad row, with its number */
    assert_false(dataset_load(&d, &o, s.tokens, s.chat, &f));
    assert_non_null(strstr(f.text, "2"));
    dataset_free(&d);
    session_close(&s);
    arena_free(&a);
}

/* A06: over many seeds the mean of an adapter's output under dropout is its output without. */
static void dropout_mean(void **state) {
    (void)state;
    enum { N = 3, K = 16, R = 4, M = 5, SEEDS = 2000 };
    failure f = {0};
    graph g;
    graph_init(&g, DTYPE_F32);
    vid x = graph_add_value(&g, ROLE_INPUT, DTYPE_F32, N, K, "x");
    vid A = graph_add_value(&g, ROLE_PARAM, DTYPE_F32, R, K, "A"),
        B = graph_add_value(&g, ROLE_PARAM, DTYPE_F32, M, R, "B");
    vid y = g_linear(&g, g_linear(&g, g_dropout(&g, x, 0.5f, 0), A, 0), B, 0);
    g.n_forward = (int)arrlen(g.ops);
    const backend *b;
    plan p;
    executor *e;
    assert_done(backend_find(&b, "cpu", 0, &f) && b->open(&f), &f);
    plan_make(&p, &g, b, true);
    assert_done(executor_open(&e, &g, &p, b, &f), &f);
    float xs[N * K], as[R * K], bs[M * R], out[N * M], plain[N * M];
    double mean[N * M] = {0};
    for (int i = 0; i < N * K; i++) xs[i] = rng_normal(1, (uint64_t)i);
    for (int i = 0; i < R * K; i++) as[i] = rng_normal(2, (uint64_t)i) / 4;
    for (int i = 0; i < M * R; i++) bs[i] = rng_normal(3, (uint64_t)i) / 2;
    assert_done(executor_upload(e, x, xs, N * K, &f) && executor_bind(e, A, as, DTYPE_F32, &f), &f);
    assert_done(executor_bind(e, B, bs, DTYPE_F32, &f), &f);
    batch_info info = {.rows = N, .docs = 1};
    assert_done(executor_run(e, 0, g.n_forward, &info, &f) && executor_download(e, y, plain, N * M, &f), &f);
    info.training = true;
    for (int seed = 0; seed < SEEDS; seed++) {
        info.seed = rng_fold(9, (uint64_t)seed);
        assert_done(executor_run(e, 0, g.n_forward, &info, &f) && executor_download(e, y, out, N * M, &f), &f);
        for (int i = 0; i < N * M; i++) mean[i] += (double)out[i] / SEEDS;
    }
    for (int i = 0; i < N * M; i++) { /* 5 standard errors of a sum of K terms with inverted scaling */
        double variance = 0;
        for (int k = 0; k < K; k++) {
            double w = 0;
            for (int r = 0; r < R; r++) w += (double)bs[i % M * R + r] * (double)as[r * K + k];
            variance += w * w * (double)xs[i / M * K + k] * (double)xs[i / M * K + k];
        }
        assert_true(fabs(mean[i] - (double)plain[i]) <= 5 * sqrt(variance / SEEDS));
    }
    executor_close(e);
    plan_free(&p);
    graph_free(&g);
    b->close();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(window_reach),
        cmocka_unit_test(packed_document_is_alone),
        cmocka_unit_test(masked_micro_batch),
        cmocka_unit_test(packed_gradient_is_alone),
        cmocka_unit_test(qwen_layers_that_slide),
        SCRATCH_TEST(heads),
        SCRATCH_TEST(tied_gradient),
        SCRATCH_TEST(ids_past_the_last_row),
        cmocka_unit_test(dropout_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
