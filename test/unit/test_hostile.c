/* test_hostile.c - files made to stop a program: names that collide in hash tables, texts that blow up, expressions
 * that never end, lists that make loops quadratic.  Each is refused, or done with in seconds; a hang is killed. */
#include "unit/tokenizer_check.h"

#include "exec/plan.h"
#include "model/model.h"
#include "pass/pass.h"
#include "text/bpe.h"
#include "text/unicode_form.h"
#include "weights/adapter.h"

#include <time.h>
#include <utf8proc.h>

enum { SECONDS = 120, COLLIDING = 30000, MEGABYTE = 1000000 };

static int limit_setup(void **state) {
    alarm(SECONDS); /* far more than any of these takes, also with sanitizers on a busy machine */
    return scratch_setup(state);
}
static int limit_teardown(void **state) {
    alarm(0);
    return scratch_teardown(state);
}
#define HOSTILE_TEST(name) cmocka_unit_test_setup_teardown(name, limit_setup, limit_teardown)

/* Number i of 27^4 names of 14 letters that all have one hash in stb_ds: its hash turns by 9 bits a letter, so letters
 * seven places apart overlap but for one bit, and (c, d) and (c + 2, d - 1) come out the same. */
static void colliding_name(char name[15], int i) {
    memset(name, 'x', 14);
    for (int p = 0; p < 4; p++, i /= 27) {
        int k = i % 27;
        name[p] = (char)('B' + 2 * (k < 13 ? k : k + 1)); /* steps over the backslash */
        name[p + 7] = (char)('z' - (k < 13 ? k : k + 1));
    }
    name[14] = 0;
}

static void put_names(text_buf *t, const char *behind) {
    char name[15];
    for (int i = 0; i < COLLIDING; i++) {
        colliding_name(name, i);
        text_printf(t, "%s\"%s\":%s", i ? "," : "{", name, behind);
    }
    text_puts(t, "}");
}

static void put_repeated(text_buf *t, const char *what, int n) {
    for (int i = 0; i < n; i++) text_puts(t, what);
}

static void test_colliding_keys(void **state) {
    (void)state;
    failure f = {0};
    cJSON *root;
    text_buf t = {0};
    put_names(&t, "0");
    assert_done(json_parse(&root, t.data, t.size, "place", &f), &f);
    assert_int_equal(cJSON_GetArraySize(root), COLLIDING);
    cJSON_Delete(root);
    t.data[t.size - 1] = ',';
    text_puts(&t, "\"xy\":1,\"yx\":2,\"xy\":3}");
    assert_false(json_parse(&root, t.data, t.size, "place", &f));
    assert_string_equal(f.text, "place: the key \"xy\" stands twice in one object");
    text_free(&t);
}

static void test_too_many_values(void **state) {
    (void)state;
    failure f = {0};
    cJSON *root;
    text_buf t = {0};
    text_puts(&t, "[\"");
    put_repeated(&t, ",[{\\\"", 2000000); /* text has no values */
    text_puts(&t, "\"]");
    assert_done(json_parse(&root, t.data, t.size, "place", &f), &f);
    cJSON_Delete(root);
    text_clear(&t);
    text_puts(&t, "[1");
    put_repeated(&t, ",1", JSON_MAX_VALUES);
    text_puts(&t, "]");
    assert_false(json_parse(&root, t.data, t.size, "place", &f));
    assert_string_equal(f.text, "place: 8000001 values in the JSON text, at most 8000000 are read");
    text_free(&t);
}

static void write_header(void **state, const char *file, const text_buf *header) {
    text_buf all = {0};
    uint64_t n = header->size;
    for (int i = 0; i < 8; i++) text_add(&all, (char[]){(char)(n >> 8 * i)}, 1);
    text_add(&all, header->data, header->size);
    scratch_write(scratch_path(state, file), all.data, all.size);
    text_free(&all);
}

static void test_colliding_tensors(void **state) {
    failure f = {0};
    st_set *s;
    text_buf t = {0};
    put_names(&t, "{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}");
    write_header(state, "model.safetensors", &t);
    assert_done(st_open_file(&s, scratch_path(state, "model.safetensors"), &f), &f);
    char name[15];
    for (int i = 0; i < COLLIDING; i++) {
        colliding_name(name, i);
        const st_tensor *found = st_find(s, name);
        assert_non_null(found);
        assert_string_equal(found->name, name);
    }
    st_close(s);
    text_clear(&t);
    text_puts(&t, "{\"__metadata__\":");
    put_names(&t, "\"v\"");
    text_puts(&t, "}");
    write_header(state, "model.safetensors", &t);
    assert_done(st_open_file(&s, scratch_path(state, "model.safetensors"), &f), &f);
    colliding_name(name, COLLIDING - 1);
    assert_string_equal(st_metadata(s, name), "v");
    st_close(s);
    text_free(&t);
}

static void test_colliding_shards(void **state) {
    failure f = {0};
    st_set *s;
    text_buf t = {0};
    text_puts(&t, "{\"weight_map\":{\"x\":\"a\"");
    char name[15];
    for (int i = 0; i < COLLIDING; i++) {
        colliding_name(name, i);
        text_printf(&t, ",\"%d\":\"%s\"", i, name);
    }
    text_puts(&t, "}}");
    scratch_write(scratch_path(state, "model.safetensors.index.json"), t.data, t.size);
    assert_false(st_open_folder(&s, scratch_folder(state), &f));
    assert_non_null(strstr(f.text, "30001 of its 30001 files are missing"));
    text_free(&t);
}

/* A pipe has no end: opening it would wait for a writer. */
static void test_pipe(void **state) {
    failure f = {0};
    file_map m;
    const char *path = scratch_path(state, "pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_false(file_map_open(&m, path, &f));
    assert_non_null(strstr(f.text, "not a regular file"));
}

/* ---- tokenizer.json ---- */

#define MODEL "\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\\u0301\":3},\"merges\":[\"a b\"]}"

static tokenizer *open_json(void **state, const text_buf *json, failure *f) {
    tokenizer *t = NULL;
    scratch_write(scratch_path(state, "tokenizer.json"), json->data, json->size);
    return tokenizer_open(&t, scratch_folder(state), f) ? t : NULL;
}

static void refuse_tokenizer(void **state, const text_buf *json, const char *says) {
    failure f = {0};
    tokenizer *t = open_json(state, json, &f);
    if (t) test_fail("accepted, expected \"%s\"", says);
    if (!strstr(f.text, says)) test_fail("\"%s\" does not say \"%s\"", f.text, says);
}

/* BEGIN, n times ITEM with commas between, END; made anew. */
static void put_list(text_buf *t, const char *begin, const char *item, int n, const char *end) {
    text_clear(t);
    text_puts(t, begin);
    for (int i = 0; i < n; i++) text_printf(t, "%s%s", i ? "," : "", item);
    text_puts(t, end);
}

static void test_long_lists(void **state) {
    text_buf t = {0};
    static const char special[] = "{\"SpecialToken\":{\"id\":\"z\"}}";
    static const char templates[] = "{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[";
    put_list(&t, templates, special, 20000, "],\"special_tokens\":{\"z\":{\"ids\":[0]}}}}");
    refuse_tokenizer(state, &t, "more than 64 parts");
    text_clear(&t);
    text_printf(&t, "%s%s,{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"z\":{\"ids\":[0", templates, special);
    put_repeated(&t, ",0", 100000);
    text_puts(&t, "]}}}}");
    refuse_tokenizer(state, &t, "more than 64 ids");
    put_list(&t, "{" MODEL ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[", "{\"type\":\"NFC\"}", 20000,
             "]}}");
    refuse_tokenizer(state, &t, "normalizer: more than 64 steps");
    put_list(&t, "{" MODEL ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[", "{\"type\":\"ByteLevel\"}",
             20000, "]}}");
    refuse_tokenizer(state, &t, "pre_tokenizer: more than 64 steps");
    put_list(&t, "{" MODEL ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[", "{\"type\":\"Fuse\"}", 20000, "]}}");
    refuse_tokenizer(state, &t, "decoder: more than 64 steps");
    text_clear(&t);
    text_puts(&t, "{\"model\":{\"vocab\":{\"");
    put_repeated(&t, "a", 5000);
    text_puts(&t, "\":0},\"merges\":[]}}");
    refuse_tokenizer(state, &t, "has 5000 bytes, at most 4096 are read");
    text_free(&t);
}

/* 40 steps that each double a text. */
static void test_decoder_growth(void **state) {
    text_buf t = {0};
    put_list(&t, "{" MODEL ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[",
             "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aa\"}", 40, "]}}");
    refuse_tokenizer(state, &t, "decoder: its Replace steps could make a text more than 64 times as long");
    text_free(&t);
}

static void refuse_text(void **state, const text_buf *json, const char *text, size_t n, const char *says) {
    failure f = {0};
    tokenizer *t = open_json(state, json, &f);
    if (!t) test_fail("%s", f.text);
    tokenizer_scratch *s = tokenizer_scratch_new(t);
    int32_t *ids = NULL;
    if (tokenizer_encode(t, s, text, n, 0, &ids, &f)) test_fail("encoded, expected \"%s\"", says);
    if (!strstr(f.text, says)) test_fail("\"%s\" does not say \"%s\"", f.text, says);
    assert_int_equal(arrlen(ids), 0);
    tokenizer_scratch_free(s);
    tokenizer_close(t);
}

static void test_growth(void **state) {
    text_buf t = {0};
    char *text = xmalloc(MEGABYTE);
    memset(text, 'a', MEGABYTE);
    put_list(&t, "{" MODEL ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[",
             "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aa\"}", 60, "]}}");
    refuse_text(state, &t, text, 1000, "normalisation blew a text up to more than 64 times its size");
    text_clear(&t);
    text_puts(&t, "{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(?=a)\"},\"content\":\"");
    put_repeated(&t, "b", 100000);
    text_puts(&t, "\"}}");
    refuse_text(state, &t, text, MEGABYTE, "normalisation blew a text up to more than 64 times its size");
    put_list(&t, "{" MODEL ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[",
             "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}", 40, "]}}");
    memset(text, ' ', 1000);
    refuse_text(state, &t, text, 1000, "pre-tokenisation blew a text up to more than 64 times its size");
    free(text);
    text_free(&t);
}

static void put_split(text_buf *t, const char *regex) {
    text_clear(t);
    text_printf(t,
                "{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":", regex);
    text_puts(t, "\"Isolated\"}}");
}

/* Exponential: stopped by the limit of steps. Quadratic without many steps at any place: stopped by the clock. */
static void test_slow_expressions(void **state) {
    text_buf t = {0};
    char *text = xmalloc(MEGABYTE);
    memset(text, 'a', MEGABYTE);
    put_split(&t, "(a+)+[bc]"); /* a class: PCRE2 sees at once when a letter that must come is nowhere */
    refuse_text(state, &t, text, 3000, "gave up on a text of 3000 bytes: match limit exceeded");
    put_split(&t, "a*[bc]|a");
    refuse_text(state, &t, text, MEGABYTE / 4, "took more than 2 seconds on a text of 250000 bytes");
    put_split(&t, "(?<=a)a*[bc]");
    refuse_text(state, &t, text, MEGABYTE / 4, "took more than 2 seconds on a text of 250000 bytes");
    free(text);
    text_free(&t);
}

/* A search that looks at some thousand places at a time finds the same as one that looks at all. */
static void test_far_matches(void **state) {
    failure f = {0};
    text_buf t = {0}, text = {0};
    put_split(&t, "(?<=a)b");
    tokenizer *k = open_json(state, &t, &f);
    if (!k) test_fail("%s", f.text);
    coder c = {k, tokenizer_scratch_new(k)};
    for (int n = 4080; n < 4110; n++) {
        text_clear(&text);
        put_repeated(&text, "\xCC\x81", n); /* two bytes: a window may end inside */
        text_puts(&text, "ab");
        int32_t *ids = coder_encode(&c, text.data, text.size, 0);
        assert_int_equal(arrlen(ids), n + 2); /* split between a and b, so they do not merge */
        assert_int_equal(ids[n], 0);
        assert_int_equal(ids[n + 1], 1);
        arrfree(ids);
    }
    coder_close(&c);
    text_free(&text);
    text_free(&t);
}

/* Marks in the wrong order: utf8proc alone would take hours for a megabyte of them. */
static void test_marks_out_of_order(void **state) {
    (void)state;
    text_buf text = {0}, out = {0};
    text_puts(&text, "a");
    put_repeated(&text, "\xCC\x95", MEGABYTE / 4); /* U+0315, class 232 */
    put_repeated(&text, "\xCC\x96", MEGABYTE / 4); /* U+0316, class 220 */
    unicode_form(&out, text.data, text.size, true, false);
    assert_int_equal(out.size, text.size);
    assert_memory_equal(out.data, "a\xCC\x96\xCC\x96", 5);
    assert_memory_equal(out.data + out.size - 2, "\xCC\x95", 2);
    text_free(&text);
    text_free(&out);
}

/* On short texts: what utf8proc_map gives. */
static void test_forms(void **state) {
    (void)state;
    static const uint32_t codes[] = {'a',    'e',    0x300,  0x301,  0x315,  0x316,  0x323,   0x327,  0x345,  0x5B0,
                                     0x5B4,  0xE9,   0x1EA5, 0x1100, 0x1161, 0x11A8, 0xAC00,  0xFB01, 0xFDFA, 0x2126,
                                     0x212B, 0x0F73, 0x0F71, 0x0F72, 0x3099, 0x304B, 0x1D15E, 0x0340, 0x0344, 0xFB1D};
    rng r = {7, 0};
    text_buf text = {0}, out = {0};
    for (int turn = 0; turn < 40000; turn++) {
        text_clear(&text);
        text_clear(&out);
        for (int k = 1 + (int)rng_below(&r, 12); k > 0; k--) {
            char bytes[4];
            text_add(&text, bytes, (size_t)utf8_put(bytes, codes[rng_below(&r, sizeof codes / sizeof *codes)]));
        }
        bool compose = turn & 1, compatible = turn & 2;
        utf8proc_uint8_t *map = NULL;
        utf8proc_option_t options =
            UTF8PROC_STABLE | UTF8PROC_NULLTERM | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
        if (compatible) options |= UTF8PROC_COMPAT;
        assert_true(utf8proc_map((const utf8proc_uint8_t *)text.data, 0, &map, options) >= 0);
        unicode_form(&out, text.data, text.size, compose, compatible);
        assert_string_equal(out.data, (const char *)map);
        free(map);
    }
    text_free(&text);
    text_free(&out);
}

/* One letter a million times, with and without merges of it. */
static void test_one_letter(void **state) {
    static const char *const models[] = {
        "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}",
        "{\"model\":{\"vocab\":{\"a\":0,\"aa\":1,\"aaa\":2,\"aaaa\":3},\"merges\":[\"a a\",\"aa a\",\"aa aa\"]}}",
        "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"vocab\":{\"a\":0,\"aa\":1,\"aaaa\":2},\"merges\":"
        "[\"a a\",\"aa aa\"]}}",
    };
    static const ptrdiff_t expected[] = {MEGABYTE, MEGABYTE / 4, MEGABYTE / 4};
    char *text = xmalloc(MEGABYTE);
    memset(text, 'a', MEGABYTE);
    for (int i = 0; i < 3; i++) {
        scratch_puts(state, "tokenizer.json", models[i]);
        coder c = coder_open(scratch_folder(state));
        int32_t *ids = coder_encode(&c, text, MEGABYTE, 0);
        assert_int_equal(arrlen(ids), expected[i]);
        arrfree(ids);
        coder_close(&c);
    }
    free(text);
}

/* Names that share a place of the vocabulary's hash table under one key, and pairs of ids of the merges' table, are
 * spread by another key; and each tokenizer has a key of its own. */
static void test_keys_of_hashes(void **state) {
    enum { NAMES = 256, PLACES = 1024 };
    const uint64_t first = 0x123456789ABCDEFu, second = 0xFEDCBA987654321u;
    int names = 0, pairs = 0, same_names = 0, same_pairs = 0;
    for (uint64_t i = 0; names < NAMES; i++) {
        char name[24];
        snprintf(name, sizeof name, "token%015lld", (long long)i);
        if (bytes_hash(name, 20, first) % PLACES) continue;
        names++;
        same_names += bytes_hash(name, 20, second) % PLACES == 0;
    }
    for (int32_t i = 0; pairs < NAMES; i++) {
        if (pair_mix(i % 1000, i / 1000, first) >> 54) continue;
        pairs++;
        same_pairs += pair_mix(i % 1000, i / 1000, second) >> 54 == 0;
    }
    assert_in_range(same_names, 0, 8);
    assert_in_range(same_pairs, 0, 8);
    assert_true(rng_secret() != rng_secret());
    (void)state;
}

/* ---- adapter_config.json ---- */

#define LORA "{\"peft_type\":\"LORA\",\"r\":1,\"lora_alpha\":1,"

static void refuse_adapter(void **state, const text_buf *json, const char *says) {
    failure f = {0};
    arena a = {0};
    adapter_config c;
    scratch_write(scratch_path(state, "adapter_config.json"), json->data, json->size);
    assert_false(adapter_config_read(&c, scratch_folder(state), &a, &f));
    if (!strstr(f.text, says)) test_fail("\"%s\" does not say \"%s\"", f.text, says);
    arena_free(&a);
}

static void test_adapter_lists(void **state) {
    text_buf t = {0};
    put_list(&t, LORA "\"target_modules\":[\"q_proj\"],\"layers_to_transform\":[", "0", 5000, "]}");
    refuse_adapter(state, &t, "layers_to_transform: 5000 entries, at most 4096 are read");
    put_list(&t, LORA "\"target_modules\":[", "\"x\"", 5000, "]}");
    refuse_adapter(state, &t, "target_modules: 5000 entries, at most 4096 are read");
    text_free(&t);
}

static void build_model(graph *g, int *window, int n_layer) {
    model_config m = {.family = "llama", .n_layer = n_layer, .d_model = 32, .n_head = 4, .n_kv_head = 2, .head_dim = 8};
    m.d_ff = 44;
    m.vocab = 67;
    m.rms_eps = 1e-5f;
    m.max_position = 64;
    m.window = window;
    graph_init(g, DTYPE_F32);
    model_build(g, &m, 4, NULL, NULL);
}

/* An expression that gives up on a path must not pass for one that does not match it. */
static void test_slow_target(void **state) {
    (void)state;
    int window[2] = {0};
    failure f = {0};
    const char *target = "(?:(?:[a-z_]|\\.|[0-9])+)+[!?]";
    lora_options o = {.rank = 1, .alpha = 1, .targets = &target, .n_targets = 1, .regex = true};
    graph g;
    build_model(&g, window, 2);
    assert_false(pass_lora(&g, &o, &f));
    assert_non_null(strstr(f.text, "takes too many steps"));
    graph_free(&g);
}

/* As many layers as config.json may have. */
static void test_many_layers(void **state) {
    (void)state;
    enum { LAYERS = 1024 };
    failure f = {0};
    const char *target = "all-linear";
    int *window = xcalloc(LAYERS, sizeof *window), n = 0;
    lora_options o = {.rank = 1, .alpha = 1, .targets = &target, .n_targets = 1};
    graph g;
    build_model(&g, window, LAYERS);
    assert_done(pass_lora(&g, &o, &f), &f);
    assert_done(pass_fuse(&g, "all", FOLD_NONE, NULL, &f), &f);
    for (ptrdiff_t i = 0; i < arrlen(g.ops); i++) n += g.ops[i].kind == OP_norm_qkv_rope;
    assert_int_equal(n, LAYERS);
    graph_free(&g);
    free(window);
}

/* Sizes whose sum does not fit 64 bits: the plan says that it is far too much, not that it is less than nothing. */
static void test_huge_sizes(void **state) {
    (void)state;
    enum { LAYERS = 320 };
    int *window = xcalloc(LAYERS, sizeof *window);
    model_config m = {.family = "llama", .n_layer = LAYERS, .n_head = 4096, .n_kv_head = 4096, .head_dim = 1024};
    m.d_model = 1 << 17;
    m.d_ff = 1 << 20;
    m.vocab = 1 << 24;
    m.rms_eps = 1e-5f;
    m.max_position = 64;
    m.window = window;
    graph g;
    plan p;
    graph_init(&g, DTYPE_F32);
    model_build(&g, &m, INT32_MAX - 1, NULL, NULL); /* as many rows as the settings allow */
    plan_make(&p, &g, NULL, false);
    assert_true(p.naive == (int64_t)1 << 59 && p.arena == p.naive && p.total > p.arena);
    plan_free(&p);
    graph_free(&g);
    free(window);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        HOSTILE_TEST(test_colliding_keys),
        HOSTILE_TEST(test_too_many_values),
        HOSTILE_TEST(test_colliding_tensors),
        HOSTILE_TEST(test_colliding_shards),
        HOSTILE_TEST(test_pipe),
        HOSTILE_TEST(test_long_lists),
        HOSTILE_TEST(test_decoder_growth),
        HOSTILE_TEST(test_growth),
        HOSTILE_TEST(test_slow_expressions),
        HOSTILE_TEST(test_far_matches),
        HOSTILE_TEST(test_marks_out_of_order),
        HOSTILE_TEST(test_forms),
        HOSTILE_TEST(test_one_letter),
        HOSTILE_TEST(test_keys_of_hashes),
        HOSTILE_TEST(test_adapter_lists),
        HOSTILE_TEST(test_slow_target),
        HOSTILE_TEST(test_many_layers),
        HOSTILE_TEST(test_huge_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
