/* test_tokenizer_broken.c - tokenizer.json files that lie, break off or ask for what is not supported: each is a
 * failure that names the file and the place. */
#include "unit/tokenizer_check.h"

#include "base/rng.h"

#define VOCAB         "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
#define MODEL         "\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a b\"]}"
#define ADDED(fields) "{" MODEL ",\"added_tokens\":[" fields "]}"
#define TEMPLATE(single, specials)                                                                                     \
    "{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":" single                                \
    ",\"special_tokens\":" specials "}}"
#define SPLIT(regex)                                                                                                   \
    "{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":"             \
    "\"Isolated\"}}"
#define SEQUENCE_A "{\"Sequence\":{\"id\":\"A\"}}"

static const struct {
    const char *json, *says;
} broken[] = {
    {"", "the text is empty"},
    {"{" MODEL, "not JSON"},
    {"[1,2]", "found list, expected an object"},
    {"{}", "model: found nothing"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "\"Unigram\" is not supported"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":[\"a\"],\"merges\":[]}}", "model.vocab: found list"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", "no tokens"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "have the same id 0"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}", "stands twice"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", "out of range"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1e300},\"merges\":[]}}", "out of range"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":2097152},\"merges\":[]}}", "out of range"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0.5},\"merges\":[]}}", "out of range"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"0\"},\"merges\":[]}}", "is string"},
    {"{\"model\":{\"type\":\"BPE\"," VOCAB "}}", "model.merges: found nothing"},
    {"{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a b\",\"b a\"]}}", "model.merges[1]: the result \"ba\""},
    {"{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[[\"a\",\"x\"]]}}", "the part \"x\""},
    {"{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a  b\"]}}", "model.merges[0]: \"a  b\" is not two tokens"},
    {"{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"ab\"]}}", "is not two tokens"},
    {"{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[[\"a\",\"b\",\"c\"]]}}", "expected \"a b\" or"},
    {"{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[[\"a\",1]]}}", "expected \"a b\" or"},
    {"{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[],\"unk_token\":\"<unk>\"}}", "model.unk_token: \"<unk>\""},
    {"{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[],\"dropout\":0.1}}", "model.dropout"},
    {"{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[],\"end_of_word_suffix\":\"</w>\"}}", "end_of_word_suffix"},
    {"{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[],\"fuse_unk\":1}}", "fuse_unk: found number"},
    {"{" MODEL ",\"added_tokens\":{}}", "added_tokens: found object"},
    {ADDED("7"), "added_tokens[0]: found number"},
    {ADDED("{\"content\":\"<x>\"}"), "\"id\" is missing"},
    {ADDED("{\"id\":3,\"content\":\"\"}"), "0 bytes"},
    {ADDED("{\"id\":-1,\"content\":\"<x>\"}"), "expected 0 to"},
    {ADDED("{\"id\":99999999999,\"content\":\"<x>\"}"), "expected 0 to"},
    {ADDED("{\"id\":9,\"content\":\"<x>\"}"), "would give it 3"},
    {ADDED("{\"id\":1,\"content\":\"a\"}"), "would give it 0"},
    {ADDED("{\"id\":3,\"content\":\"<x>\"},{\"id\":4,\"content\":\"<x>\"}"), "stands twice"},
    {TEMPLATE("[{\"SpecialToken\":{\"id\":\"<s>\"}}," SEQUENCE_A "]", "{}"), "no ids for \"<s>\""},
    {TEMPLATE("[{\"SpecialToken\":{\"id\":\"<s>\"}}," SEQUENCE_A "]", "{\"<s>\":{\"ids\":[3]}}"),
     "no id of the vocabulary"},
    {TEMPLATE("[]", "{}"), "the sequence A is missing"},
    {TEMPLATE("[" SEQUENCE_A "," SEQUENCE_A "]", "{}"), "once the sequence A"},
    {"{" MODEL ",\"post_processor\":{\"type\":\"RobertaProcessing\"}}", "\"RobertaProcessing\" is not supported"},
    {"{" MODEL ",\"normalizer\":{\"type\":\"Precompiled\"}}", "normalizer: the type \"Precompiled\""},
    {"{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":\" \",\"content\":\"\"}}", "pattern: expected"},
    {"{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"\"}}",
     "empty string"},
    {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}}", "pre_tokenizer: the type \"UnicodeScripts\""},
    {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Punctuation\",\"behavior\":\"Sideways\"}}", "\"Sideways\" is not known"},
    {"{" MODEL ",\"decoder\":{\"type\":\"WordPiece\"}}", "decoder: the type \"WordPiece\""},
    {"{" MODEL ",\"decoder\":{\"type\":\"Strip\",\"content\":\"ab\",\"start\":1,\"stop\":0}}",
     "expected one character"},
    {SPLIT("(a"), "does not compile"},
    {SPLIT("[a"), "a class without an end"},
    {SPLIT("[[:alpha:]]"), "a class inside a class"},
    {SPLIT("[a-z&&b]"), "an intersection"},
    {SPLIT("a{1,3}+"), "+ or ? behind {}"},
    {SPLIT("\\\\bword"), "this escape"},
    {SPLIT("\\\\xE9"), "\\x without the digits of a character"},
    {SPLIT("\\\\x{}"), "\\x without the digits of a character"},
    {SPLIT("\\\\x{41"), "\\x without the digits of a character"},
    {SPLIT("(?m)a"), "this kind of group"},
    {SPLIT("\\\\p{Klingon}"), "does not compile"},
    {SPLIT("((a{99}){99}){99}"), "does not compile"},
};

static void expect_failure(void **state, const char *json, const char *says) {
    failure f = {0};
    tokenizer *t = NULL;
    scratch_puts(state, "tokenizer.json", json);
    if (tokenizer_open(&t, scratch_folder(state), &f)) test_fail("%.300s: opened", json);
    assert_null(t);
    assert_int_equal(f.kind, FAIL_INPUT);
    if (!strstr(f.text, says) || !strstr(f.text, "tokenizer.json"))
        test_fail("%.300s: \"%s\" does not say \"%s\"", json, f.text, says);
}

static void test_broken_files(void **state) {
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) expect_failure(state, broken[i].json, broken[i].says);
    print_message("%zu broken files\n", sizeof broken / sizeof *broken);
}

static void nested(text_buf *out, const char *key, const char *list, int depth) {
    text_clear(out);
    text_printf(out, "{" MODEL ",\"%s\":", key);
    for (int i = 0; i < depth; i++) text_printf(out, "{\"type\":\"Sequence\",\"%s\":[", list);
    for (int i = 0; i < depth; i++) text_puts(out, "]}");
    text_puts(out, "}");
}

static void test_deep_files(void **state) {
    static const char *const keys[][2] = {{"normalizer", "normalizers"},
                                          {"pre_tokenizer", "pretokenizers"},
                                          {"post_processor", "processors"},
                                          {"decoder", "decoders"}};
    text_buf json = {0};
    for (int i = 0; i < 4; i++) {
        nested(&json, keys[i][0], keys[i][1], 100);
        expect_failure(state, json.data, "more than 16 levels");
        nested(&json, keys[i][0], keys[i][1], 4000);
        expect_failure(state, json.data, "tokenizer.json");
    }
    text_free(&json);
}

/* Every beginning of a good file is a failure, never a crash. */
static void test_cut_files(void **state) {
    static const char whole[] = TEMPLATE("[{\"SpecialToken\":{\"id\":\"a\"}}," SEQUENCE_A "]", "{\"a\":{\"ids\":[0]}}");
    char part[sizeof whole];
    for (size_t n = 0; n + 1 < sizeof whole; n++) {
        memcpy(part, whole, n);
        part[n] = 0;
        expect_failure(state, part, "tokenizer.json");
    }
    scratch_puts(state, "tokenizer.json", whole);
    coder c = coder_open(scratch_folder(state));
    expect_ids(&c, "ab", 2, ENCODE_ADD_SPECIAL, "0,2");
    coder_close(&c);
}

/* A good file with a few characters changed: a failure, or a tokenizer that encodes and decodes without a crash. */
static void test_changed_files(void **state) {
    static const char whole[] = "{\"added_tokens\":[{\"id\":6,\"content\":\"<x>\",\"lstrip\":true,\"rstrip\":true,"
                                "\"special\":true}],\"normalizer\":"
                                "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Replace\","
                                "\"pattern\":{\"Regex\":\"b[a-c]?\"},"
                                "\"content\":\"a\"}]},\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\" "
                                "?[^\\\\s\\\\p{L}]+|\\\\s+(?!\\\\S)|(a+)+\"},"
                                "\"behavior\":\"MergedWithNext\",\"invert\":false},\"decoder\":{\"type\":\"Strip\","
                                "\"content\":\"a\",\"start\":1,\"stop\":1},"
                                "\"model\":{\"type\":\"BPE\",\"unk_token\":\"a\",\"byte_fallback\":true,\"ignore_"
                                "merges\":true,\"vocab\":{\"a\":0,\"b\":1,"
                                "\"ab\":2,\" \":3,\"<0x3C>\":4,\"aa\":5},\"merges\":[\"a b\",[\"a\",\"a\"]]}}";
    static const char alphabet[] = "{}[]\",:0123456789-+e.abcABC<>\\?*(){}|^$truefalsn \xC3\xA9";
    char part[sizeof whole];
    int opened = 0;
    for (uint64_t round = 0; round < 3000; round++) {
        failure f = {0};
        tokenizer *t = NULL;
        memcpy(part, whole, sizeof whole);
        for (uint64_t i = 0; i <= rng_bits(round, 0) % 4; i++)
            part[rng_bits(round, 2 * i + 1) % (sizeof whole - 1)] =
                alphabet[rng_bits(round, 2 * i + 2) % (sizeof alphabet - 1)];
        scratch_puts(state, "tokenizer.json", part);
        if (!tokenizer_open(&t, scratch_folder(state), &f)) {
            assert_non_null(strstr(f.text, "tokenizer.json"));
            continue;
        }
        opened++;
        coder c = {t, tokenizer_scratch_new(t)};
        int32_t *ids = NULL;
        text_buf text = {0};
        if (tokenizer_encode(t, c.s, "ab <x> \n aaab<\xE4\xB8\xADz", 17, ENCODE_MATCH_SPECIAL, &ids, &f))
            tokenizer_decode(t, ids, arrlen(ids), round & 1, &text);
        text_free(&text);
        arrfree(ids);
        coder_close(&c);
    }
    print_message("%d of 3000 changed files opened\n", opened);
    assert_true(opened > 100 && opened < 2900);
}

/* An expression that needs exponential work ends in a failure that names it. */
static void test_regex_that_blows_up(void **state) {
    failure f = {0};
    int32_t *ids = NULL;
    scratch_puts(state, "tokenizer.json", SPLIT("(?:a|aa|(?:a|b)+)+d"));
    coder c = coder_open(scratch_folder(state));
    char text[200];
    memset(text, 'a', sizeof text);
    text[sizeof text - 2] = 'c', text[sizeof text - 1] = 'd'; /* PCRE2 gives up early on a text without a d */
    assert_false(tokenizer_encode(c.t, c.s, text, sizeof text, ENCODE_PLAIN, &ids, &f));
    assert_non_null(strstr(f.text, "gave up"));
    assert_int_equal(arrlen(ids), 0);
    expect_ids(&c, "ab", 2, ENCODE_PLAIN, "2"); /* the tokenizer is still good */
    coder_close(&c);
}

static void test_no_file(void **state) {
    failure f = {0};
    tokenizer *t = NULL;
    assert_false(tokenizer_open(&t, scratch_path(state, "nowhere"), &f));
    assert_non_null(strstr(f.text, "nowhere/tokenizer.json"));
}

/* Holes between ids are allowed, as in Hugging Face's library. */
static void test_holes(void **state) {
    scratch_puts(state, "tokenizer.json",
                 "{\"model\":{\"vocab\":{\"a\":5,\"b\":2097151,\"ab\":9},\"merges\":[\"a b\"]},\"added_tokens\":null}");
    coder c = coder_open(scratch_folder(state));
    expect_ids(&c, "aba", 3, ENCODE_PLAIN, "9,5");
    assert_int_equal(tokenizer_size(c.t), 1 << 21);
    assert_null(tokenizer_token(c.t, 6));
    int32_t ids[] = {9, 6, -3, 1 << 22, 5};
    expect_text(&c, ids, 5, false, "ab a");
    coder_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(test_broken_files),  SCRATCH_TEST(test_deep_files),          SCRATCH_TEST(test_cut_files),
        SCRATCH_TEST(test_changed_files), SCRATCH_TEST(test_regex_that_blows_up), SCRATCH_TEST(test_no_file),
        SCRATCH_TEST(test_holes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
