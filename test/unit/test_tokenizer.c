/* test_tokenizer.c - tiny tokenizers: cases T01-T08 of the collection of real failures, every construct against Hugging
 * Face's library (features.json), and the working of tables, caches and long texts. */
#include "unit/tokenizer_check.h"

#include "text/pretokenize.h"

#include <pthread.h>

#define TINY TEST_DIR "/fixtures/tokenizers/"

typedef struct {
    const char *text, *ids;
} id_case;

static void check_tiny(const char *name, const id_case *cases, size_t n) {
    char folder[400];
    snprintf(folder, sizeof folder, "%s%s", TINY, name);
    coder c = coder_open(folder);
    for (size_t i = 0; i < n; i++)
        expect_ids(&c, cases[i].text, strlen(cases[i].text), ENCODE_MATCH_SPECIAL, cases[i].ids);
    coder_close(&c);
}
#define CHECK_TINY(name, ...)                                                                                          \
    check_tiny(name, (const id_case[]){__VA_ARGS__}, sizeof((const id_case[]){__VA_ARGS__}) / sizeof(id_case))

static void test_t01_ignore_merges(void **state) {
    (void)state;
    CHECK_TINY("t01_true", {"abc", "4"}, {"bc", "5"}, {"abcabc", "3,2,3,2"}, {"abc  bc", "4,5"});
    CHECK_TINY("t01_false", {"abc", "3,2"}, {"bc", "1,2"}, {"abcabc", "3,2,3,2"});
    CHECK_TINY("t01_absent", {"abc", "3,2"}, {"bc", "1,2"});
}

static void test_t02_merge_pairs(void **state) {
    (void)state;
    CHECK_TINY("t02", {"a b", "4"}, {"a  b", "3,1,2"});
}

static void test_t04_added_before_nfc(void **state) {
    (void)state;
    CHECK_TINY("t04", {"e\xCC\x81X", "6"}, {"e\xCC\x81Y", "7"}, {"\xC3\xA9Y", "7"}, {"\xC3\xA9X", "0,4"},
               {"A\xCC\x8AX", "3,4"}, {"\xE2\x84\xABX", "3,4"});
}

static void test_t05_byte_fallback(void **state) {
    (void)state;
    CHECK_TINY("t05_full", {"a🦙b", "1,243,162,169,156,2"}, {"<0x41>", "63,51,123,55,52,65"});
    CHECK_TINY("t05_fused", {"a🦙b", "1,0,2"}, {"a🦙🦙b", "1,0,2"});
    CHECK_TINY("t05_apart", {"a🦙🦙b", "1,0,0,2"});
    coder c = coder_open(TINY "t05_full");
    int32_t llama[] = {1, 243, 162, 169, 156, 2}, broken[] = {1, 243, 162, 2, 156};
    expect_text(&c, llama, 6, false, "a🦙b");
    expect_text(&c, broken, 5, false,
                "a\xEF\xBF\xBD\xEF\xBF\xBD"
                "b\xEF\xBF\xBD");
    coder_close(&c);
    c = coder_open(TINY "t05_silent");
    for (int64_t i = 1; i <= 3; i++) { /* counted again although the word was seen before */
        expect_ids(&c, "azzb", 4, ENCODE_PLAIN, "0,1");
        assert_int_equal(tokenizer_dropped(c.s), 2 * i);
    }
    coder_close(&c);
}

static void test_t06_flags(void **state) {
    (void)state;
    /* a b c ' ' < > L R W x y \t \n d are 0-13; <L> <R> <W> <x> <x>y ab are 14-19. */
    CHECK_TINY("t06", {"a  <L>  b", "0,14,3,3,1"}, {"a  <R> \t\n b", "0,3,3,15,1"}, {"a<W>b", "0,4,8,5,1"},
               {"a <W> b", "0,3,16,3,1"}, {"a<x>yb", "0,18,1"}, {"a<x>b", "0,17,1"}, {"cabc", "2,0,1,2"},
               {"c ab c", "2,3,19,3,2"});
    CHECK_TINY("t06_lower", {"a<N>b", "0,5,1"}, {"a<n>b", "0,5,1"}, {"A<M>B", "0,6,1"}, {"a<m>n", "0,2,3,4"});
}

static void test_t07_special_as_text(void **state) {
    (void)state;
    coder c = coder_open(TINY "t08");
    expect_ids(&c, "a<s>a", 5, ENCODE_MATCH_SPECIAL, "1,0,1");
    expect_ids(&c, "a<s>a", 5, ENCODE_PLAIN, "1,1"); /* '<', 's' and '>' are no tokens */
    assert_int_equal(tokenizer_dropped(c.s), 3);
    coder_close(&c);
}

static void test_t08_one_bos(void **state) {
    (void)state;
    coder c = coder_open(TINY "t08");
    expect_ids(&c, "<s>aa</s>", 9, ENCODE_MATCH_SPECIAL, "0,1,1,2");
    expect_ids(&c, "", 0, ENCODE_ADD_SPECIAL, "0");
    expect_ids(&c, "a", 1, ENCODE_ADD_SPECIAL | ENCODE_MATCH_SPECIAL, "0,1");
    int32_t ids[] = {0, 1, 2};
    expect_text(&c, ids, 3, true, "a");
    expect_text(&c, ids, 3, false, "<s> a </s>"); /* no decoder: joined with blanks */
    assert_int_equal(tokenizer_size(c.t), 3);
    assert_int_equal(tokenizer_id(c.t, "</s>"), 2);
    assert_int_equal(tokenizer_id(c.t, "b"), -1);
    assert_string_equal(tokenizer_token(c.t, 1), "a");
    assert_null(tokenizer_token(c.t, 3));
    assert_null(tokenizer_token(c.t, -1));
    assert_true(tokenizer_is_special(c.t, 0) && !tokenizer_is_special(c.t, 1) && !tokenizer_is_special(c.t, 99));
    coder_close(&c);
}

/* 0 stands for the same as before. */
static const cJSON *or_before(const cJSON *item, const cJSON *before) { return cJSON_IsNumber(item) ? before : item; }

static void check_ids(const char *name, const coder *c, const char *text, int flags, const cJSON *expected) {
    int32_t *ids = coder_encode(c, text, strlen(text), flags);
    int at = 0;
    bool same = cJSON_GetArraySize(expected) == arrlen(ids);
    for (const cJSON *id = expected->child; id && same; id = id->next) same = id->valueint == ids[at++];
    if (!same) {
        text_buf got = {0};
        ids_print(&got, ids, arrlen(ids));
        test_fail("%s: \"%s\" flags %d: ids %s, expected %s", name, text, flags, got.data,
                  cJSON_PrintUnformatted(expected));
    }
    arrfree(ids);
}

static void check_feature(const char *name, const coder *c, const cJSON *row) {
    const cJSON *part[6] = {row->child};
    for (int i = 1; i < 6; i++) part[i] = part[i - 1]->next;
    const char *text = part[0]->valuestring;
    check_ids(name, c, text, ENCODE_MATCH_SPECIAL, part[1]);
    check_ids(name, c, text, ENCODE_PLAIN, or_before(part[2], part[1]));
    check_ids(name, c, text, ENCODE_MATCH_SPECIAL | ENCODE_ADD_SPECIAL, or_before(part[3], part[1]));
    int32_t *ids = coder_encode(c, text, strlen(text), ENCODE_MATCH_SPECIAL);
    for (int skip = 0; skip < 2; skip++) {
        text_buf got = {0};
        const cJSON *expected = skip ? or_before(part[5], part[4]) : part[4];
        tokenizer_decode(c->t, ids, arrlen(ids), skip, &got);
        text_puts(&got, "");
        if (cJSON_IsString(expected) && strcmp(got.data, expected->valuestring) != 0)
            test_fail("%s: \"%s\" decoded \"%s\", expected \"%s\"", name, text, got.data, expected->valuestring);
        text_free(&got);
    }
    arrfree(ids);
}

static void test_features(void **state) {
    failure f = {0};
    cJSON *root;
    int cases = 0, tokenizers = 0;
    assert_done(json_read(&root, TINY "features.json", &f), &f);
    for (const cJSON *item = root->child; item; item = item->next, tokenizers++) {
        char *text = cJSON_PrintUnformatted(json_find(item, "tokenizer"));
        scratch_puts(state, "tokenizer.json", text);
        free(text);
        coder c = coder_open(scratch_folder(state));
        for (const cJSON *row = json_find(item, "cases")->child; row; row = row->next, cases++)
            check_feature(json_find(item, "name")->valuestring, &c, row);
        coder_close(&c);
    }
    print_message("%d tokenizers, %d cases\n", tokenizers, cases);
    assert_true(tokenizers >= 65 && cases >= 65 * 36);
    cJSON_Delete(root);
}

static uint64_t fnv(uint64_t h, const char *data, size_t n) {
    for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)data[i]) * 0x100000001B3u;
    return h;
}

static uint64_t hash_pieces(const pretokenize_step *steps, const cJSON *texts) {
    pretokenize_scratch s = {0};
    pattern_scratch p;
    pattern_scratch_init(&p);
    uint64_t h = 0xCBF29CE484222325u;
    failure f = {0};
    for (const cJSON *item = texts->child; item; item = item->next) {
        assert_done(pretokenize(steps, &s, &p, item->valuestring, strlen(item->valuestring), true, &f), &f);
        for (ptrdiff_t i = 0; i < arrlen(s.pieces); i++)
            if (s.pieces[i].size) h = fnv(fnv(h, s.text + s.pieces[i].start, s.pieces[i].size), "", 1);
        h = fnv(h, "", 1);
    }
    pattern_scratch_free(&p);
    pretokenize_scratch_free(&s);
    return h;
}

/* \x{H...} with letters among its digits, and \xHH: one character each. */
static void test_hex_escapes(void **state) {
    scratch_puts(state, "tokenizer.json",
                 "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\x{1F600}|\\\\x41|[\\\\x{e9}]\"},"
                 "\"behavior\":\"Removed\"},\"model\":{\"vocab\":{\"b\":0,\"bb\":1},\"merges\":[\"b b\"]}}");
    coder c = coder_open(scratch_folder(state));
    static const char text[] = "bb\xF0\x9F\x98\x80"
                               "bAb\xC3\xA9"
                               "b";
    expect_ids(&c, text, sizeof text - 1, 0, "1,0,0,0");
    coder_close(&c);
}

/* The splitters of well-known tokenizers, and what Oniguruma and PCRE2 read differently. */
static void test_splits(void **state) {
    (void)state;
    failure f = {0};
    cJSON *root, *texts;
    int n = 0;
    assert_done(json_read(&texts, TINY "texts.json", &f), &f);
    assert_done(json_read(&root, TINY "splits.json", &f), &f);
    for (const cJSON *item = root->child; item; item = item->next, n++) {
        pretokenize_step *steps = NULL;
        bool raw;
        char got[20];
        assert_done(pretokenizer_open(&steps, &raw, json_find(item, "pre_tokenizer"), &f), &f);
        snprintf(got, sizeof got, "%016llx", (unsigned long long)hash_pieces(steps, texts));
        if (strcmp(got, json_find(item, "hash")->valuestring) != 0)
            test_fail("%s: other pieces", json_find(item, "name")->valuestring);
        pretokenizer_close(&steps);
    }
    assert_int_equal(n, 13);
    cJSON_Delete(root);
    cJSON_Delete(texts);
}

static void test_text_that_is_not_utf8(void **state) {
    (void)state;
    coder c = coder_open(TINY "t05_full");
    failure f = {0};
    int32_t *ids = NULL;
    arrput(ids, 7);
    assert_false(tokenizer_encode(c.t, c.s, "ab\xFFz", 4, ENCODE_ADD_SPECIAL, &ids, &f));
    assert_non_null(strstr(f.text, "offset 2"));
    assert_int_equal(arrlen(ids), 1); /* what stood before stays */
    arrfree(ids);
    coder_close(&c);
}

/* The two ways of merging agree: a text longer than the scan takes, and its parts. */
static void test_long_words(void **state) {
    (void)state;
    coder c = coder_open(TINY "t01_false");
    char text[3001], expected[12001] = "";
    size_t at = 0;
    for (int i = 0; i < 1000; i++) memcpy(text + 3 * i, "abc", 3);
    for (int i = 0; i < 1000; i++) at += (size_t)snprintf(expected + at, sizeof expected - at, i ? ",3,2" : "3,2");
    expect_ids(&c, text, 3000, ENCODE_PLAIN, expected);
    coder_close(&c);
}

/* A million equal characters, each pair a merge: quadratic work would take minutes. */
static void test_no_quadratic_work(void **state) {
    scratch_puts(state, "tokenizer.json",
                 "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"aa\":1,\"aaaa\":2},\"merges\":[\"a a\",\"aa aa\"]},"
                 "\"added_tokens\":[{\"id\":3,\"content\":\"\\n\",\"rstrip\":true,\"normalized\":false},"
                 "{\"id\":4,\"content\":\"\\t\",\"rstrip\":true,\"lstrip\":true,\"normalized\":false}]}");
    coder c = coder_open(scratch_folder(state));
    static const struct {
        char fill;
        size_t n_ids;
        int32_t id;
    } cases[] = {{'a', 250000, 2}, {'\n', 1000000, 3}, {'\t', 1, 4}};
    size_t n = 1000 * 1000;
    char *text = xmalloc(n);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(text, cases[i].fill, n);
        int32_t *ids = coder_encode(&c, text, n, ENCODE_PLAIN);
        assert_int_equal(arrlen(ids), cases[i].n_ids);
        assert_true(ids[0] == cases[i].id && ids[cases[i].n_ids - 1] == cases[i].id);
        arrfree(ids);
    }
    free(text);
    coder_close(&c);
}

typedef struct {
    const tokenizer *t;
    uint64_t sum;
} thread_work;

static void *encode_in_thread(void *argument) {
    thread_work *w = argument;
    tokenizer_scratch *s = tokenizer_scratch_new(w->t);
    int32_t *ids = NULL;
    failure f = {0};
    for (int i = 0; i < 2000; i++) {
        char text[64];
        int n = snprintf(text, sizeof text, "ab%dabc bc %d 🦙", i % 7, i % 5);
        if (!tokenizer_encode(w->t, s, text, (size_t)n, ENCODE_PLAIN, &ids, &f)) abort();
    }
    for (ptrdiff_t i = 0; i < arrlen(ids); i++) w->sum = w->sum * 31 + (uint64_t)ids[i];
    arrfree(ids);
    tokenizer_scratch_free(s);
    return NULL;
}

static void test_threads_share_a_tokenizer(void **state) {
    (void)state;
    coder c = coder_open(TINY "t01_true");
    pthread_t thread[4];
    thread_work work[4];
    for (int i = 0; i < 4; i++) {
        work[i] = (thread_work){.t = c.t};
        assert_int_equal(pthread_create(&thread[i], NULL, encode_in_thread, &work[i]), 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    for (int i = 1; i < 4; i++) assert_int_equal(work[i].sum, work[0].sum);
    assert_int_not_equal(work[0].sum, 0);
    coder_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_t01_ignore_merges),
        cmocka_unit_test(test_t02_merge_pairs),
        cmocka_unit_test(test_t04_added_before_nfc),
        cmocka_unit_test(test_t05_byte_fallback),
        cmocka_unit_test(test_t06_flags),
        cmocka_unit_test(test_t07_special_as_text),
        cmocka_unit_test(test_t08_one_bos),
        SCRATCH_TEST(test_features),
        cmocka_unit_test(test_splits),
        SCRATCH_TEST(test_hex_escapes),
        cmocka_unit_test(test_text_that_is_not_utf8),
        cmocka_unit_test(test_long_words),
        SCRATCH_TEST(test_no_quadratic_work),
        cmocka_unit_test(test_threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
