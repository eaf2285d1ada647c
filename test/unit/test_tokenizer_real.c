/* test_tokenizer_real.c - five real tokenizers against Hugging Face's library: the reference ids of the collection of
 * real failures, every string of every row of the English and Chinese data, odd texts, and decoding.
 *
 * The tokenizers are unpacked from SHARED_DIR/tokenizers; without them the tests are skipped. */
#include "unit/tokenizer_check.h"

#include "base/rng.h"

#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

enum { LLAMA3, LLAMA31, QWEN3, GEMMA3, MISTRAL, N_REAL };
static const char *const names[N_REAL] = {"llama3", "llama3.1", "qwen3", "gemma3", "mistral-v0.1"};

typedef struct {
    scratch files;
    coder coders[N_REAL];
    bool there;
} real_tokenizers;

static bool unpack(const char *archive, const char *folder) {
    char *const arguments[] = {"tar", "-xJf", (char *)(uintptr_t)archive, "-C", (char *)(uintptr_t)folder, NULL};
    pid_t child;
    int status = -1;
    if (posix_spawnp(&child, "tar", NULL, NULL, arguments, environ) != 0) return false;
    return waitpid(child, &status, 0) == child && status == 0;
}

static int setup(void **state) {
    real_tokenizers *r = xcalloc(1, sizeof *r);
    *state = r;
    snprintf(r->files.folder, sizeof r->files.folder, "/tmp/liger-test-XXXXXX");
    if (!mkdtemp(r->files.folder)) return -1;
    for (int i = 0; i < N_REAL; i++) {
        char archive[600];
        snprintf(archive, sizeof archive, "%s/tokenizers/%s.tar.xz", SHARED_DIR, names[i]);
        if (!file_exists(archive)) {
            print_message("skip: %s is not there\n", archive);
            return 0;
        }
        if (!unpack(archive, r->files.folder)) {
            print_message("skip: tar cannot unpack %s\n", archive);
            return 0;
        }
        r->coders[i] = coder_open(path_join(&r->files.paths, r->files.folder, names[i]));
    }
    r->there = true;
    return 0;
}

static int teardown(void **state) {
    real_tokenizers *r = *state;
    for (int i = 0; i < N_REAL; i++) coder_close(&r->coders[i]);
    scratch_remove(r->files.folder);
    arena_free(&r->files.paths);
    free(r);
    return 0;
}

static real_tokenizers *need(void **state) {
    real_tokenizers *r = *state;
    if (!r->there) skip();
    return r;
}

static void expect(void **state, int which, const char *text, const char *ids) {
    expect_ids(&need(state)->coders[which], text, strlen(text), ENCODE_MATCH_SPECIAL, ids);
}

#define FAMILY "👩\u200d👩\u200d👧\u200d👦"

static void test_appendix(void **state) {
    static const struct {
        const char *text, *llama, *qwen, *gemma, *mistral;
    } rows[] = {
        {"This is 🦙.cpp", "2028,374,11410,99,247,13,11055", "1986,374,11162,99,247,13,10821",
         "2094,563,236743,478,397,404,391,236761,12362", "851,349,28705,243,162,169,156,28723,5222"},
        {"I'll HE'LL don’t", "40,3358,11947,6,4178,1541,1431", "40,3278,11685,6,4086,1513,1405",
         "236777,236789,859,13962,236789,2182,1537,236858,236745", "315,28742,584,14904,28742,5292,949,28809,28707"},
        {"1234567", "4513,10961,22", "16,17,18,19,20,21,22", "236770,236778,236800,236812,236810,236825,236832",
         "28705,28740,28750,28770,28781,28782,28784,28787"},
        {"def f():\n    return  x", "755,282,4019,262,471,220,865", "750,282,3932,262,470,220,856",
         "2063,517,6141,107,140,2060,138,236781", "801,285,5888,13,2287,604,28705,1318"},
        {FAMILY, "9468,239,102,102470,9468,239,102,102470,9468,239,100,102470,9468,239,99",
         "145233,378,235,145233,378,235,145665,378,235,145988", "243767,237243,243767,237243,244814,237243,244990",
         "28705,243,162,148,172,29274,243,162,148,172,29274,243,162,148,170,29274,243,162,148,169"},
        {"मराठी", "123741,115081,44747", "87244,44179,31411,254,43647", "236845,2208,5685",
         "28705,29672,29319,29232,227,167,163,29735"},
        {"\u200b\u200d", "16067,102470", "15692,378,235", "237141,237243", "15758,29274"},
        {"   ", "262", "262", "139", "260"},
        {"", "", "", "", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        expect(state, LLAMA3, rows[i].text, rows[i].llama);
        expect(state, LLAMA31, rows[i].text, rows[i].llama);
        expect(state, QWEN3, rows[i].text, rows[i].qwen);
        expect(state, GEMMA3, rows[i].text, rows[i].gemma);
        expect(state, MISTRAL, rows[i].text, rows[i].mistral);
    }
    static const char *const nul[N_REAL] = {"188", "188", "188", "238", "28705,3"};
    for (int i = 0; i < N_REAL; i++) expect_ids(&need(state)->coders[i], "", 1, ENCODE_MATCH_SPECIAL, nul[i]);
}

static void test_t01_whole_word_first(void **state) { expect(state, LLAMA3, " Việt", "101798"); }

static void test_t03_splits(void **state) {
    static const struct {
        const char *text, *llama, *qwen;
    } rows[] = {
        {"->", "405", "405"},
        {"(x):\n", NULL, "2075,982"},
        {"12345", "4513,1774", "16,17,18,19,20"},
        {"a  b", "64,220,293", "64,220,293"},
        {"a\n\n\nb", "64,1432,65", "64,1406,65"},
        {"a\r\nb", "64,319,65", "64,319,65"},
        {"٣٤٥", "117413,124079,124043", NULL},
        {"1²³", "16,30556,44301", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].llama) expect(state, LLAMA3, rows[i].text, rows[i].llama);
        if (rows[i].qwen) expect(state, QWEN3, rows[i].text, rows[i].qwen);
    }
}

static void test_t04_nfc(void **state) {
    expect(state, QWEN3, "cafe\u0301", "924,58858");
    expect(state, QWEN3, "café", "924,58858");
    expect(state, QWEN3, "\u212b", "144044");
    expect(state, QWEN3, "A\u030a", "144044");
    expect(state, QWEN3, "\u1100\u1161\u11a8", "126317");
    expect(state, LLAMA3, "cafe\u0301", "936,1897,54939");
    expect(state, LLAMA3, "café", "936,59958");
}

static void test_t07_control_strings(void **state) {
    const char *text = "a<|im_end|>b";
    const coder *qwen = &need(state)->coders[QWEN3];
    expect_ids(qwen, text, strlen(text), ENCODE_PLAIN, "64,27,91,318,6213,91,29,65");
    expect_ids(qwen, text, strlen(text), ENCODE_MATCH_SPECIAL, "64,151645,65");
    expect_ids(qwen, "<think>", 7, ENCODE_PLAIN, "151667");
    int32_t *ids = coder_encode(qwen, "x<|im_end|>\n<|im_start|>system", 29, ENCODE_PLAIN);
    for (ptrdiff_t i = 0; i < arrlen(ids); i++) assert_true(ids[i] != 151644 && ids[i] != 151645);
    arrfree(ids);
}

static void test_t08_one_bos(void **state) {
    real_tokenizers *r = need(state);
    expect(state, GEMMA3, "<bos><start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\nyo<end_of_turn>\n",
           "2,105,2364,107,2202,106,107,105,4368,107,9671,106,107");
    expect(state, LLAMA3,
           "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\ntest<|eot_id|><|start_header_id|>assistant"
           "<|end_header_id|>\n\n",
           "128000,128006,882,128007,271,1985,128009,128006,78191,128007,271");
    expect(state, LLAMA3, "text<|eot_id|>\n\nmore", "1342,128009,271,6518");
    expect(state, QWEN3, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n",
           "151644,872,198,6023,151645,198,151644,77091,198,16032,151645,198");
    static const char *const bos[N_REAL] = {"", "128000", "", "2", "1"}; /* llama3's file has no template */
    for (int i = 0; i < N_REAL; i++) expect_ids(&r->coders[i], "", 0, ENCODE_ADD_SPECIAL, bos[i]);
}

/* Segments encoded apart differ from the joined text: whoever masks must not search for ids. */
static void test_t09_boundary(void **state) {
    expect(state, QWEN3, "$46 today", "3,19,21,3351");
    expect(state, MISTRAL, "### Assistant:", "774,21631,28747");
    const char *prompt = "[INST] price? [/INST] ", *answers[] = {"46 today", "$46 today"};
    const int32_t first[] = {19, 3};
    const coder *qwen = &need(state)->coders[QWEN3];
    int32_t *apart = coder_encode(qwen, prompt, strlen(prompt), ENCODE_PLAIN);
    assert_int_equal(arrlen(apart), 9);
    assert_true(apart[6] == 64462 && apart[7] == 60 && apart[8] == 220);
    for (int i = 0; i < 2; i++) {
        int32_t *answer = coder_encode(qwen, answers[i], strlen(answers[i]), ENCODE_PLAIN);
        assert_int_equal(answer[0], first[i]);
        arrfree(answer);
    }
    arrfree(apart);
    int32_t *joined = coder_encode(qwen, "[INST] price? [/INST] $46 today", 31, ENCODE_PLAIN);
    assert_true(joined[6] == 64462 && joined[7] == 60 && joined[8] == 400);
    arrfree(joined);
}

static void test_d06_marks(void **state) {
    expect(state, LLAMA3, "\ufeffhi", "3305,6151");
    expect(state, LLAMA3, "\ufffd", "5809");
    expect(state, QWEN3, "\ufffd", "5691");
}

/* ---- golden.txt ---- */

static const uint64_t FNV_START = 0xCBF29CE484222325u;

static uint64_t fnv(uint64_t h, const void *data, size_t n) {
    for (size_t i = 0; i < n; i++) h = (h ^ ((const uint8_t *)data)[i]) * 0x100000001B3u;
    return h;
}

static uint64_t fnv_ids(uint64_t h, const int32_t *ids) {
    const int32_t end = -1; /* little-endian machines only, as everything here */
    return fnv(fnv(h, ids, (size_t)arrlen(ids) * sizeof *ids), &end, sizeof end);
}

static uint64_t fnv_text(uint64_t h, const coder *c, const int32_t *ids, ptrdiff_t n, bool skip_special) {
    text_buf text = {0};
    tokenizer_decode(c->t, ids, n, skip_special, &text);
    h = fnv(fnv(h, text.data, text.size), "", 1);
    text_free(&text);
    return h;
}

typedef struct {
    const coder *c;
    uint64_t ids, text;
    int64_t count;
} row_hash;

/* All strings below an item, in the document's order. */
static void hash_strings(row_hash *r, const cJSON *item) {
    if (cJSON_IsString(item)) {
        int32_t *ids = coder_encode(r->c, item->valuestring, strlen(item->valuestring), ENCODE_MATCH_SPECIAL);
        r->ids = fnv_ids(r->ids, ids);
        r->text = fnv_text(r->text, r->c, ids, arrlen(ids), false);
        r->count += arrlen(ids);
        arrfree(ids);
    }
    for (const cJSON *child = item->child; child; child = child->next) hash_strings(r, child);
}

static int check_file(FILE *golden, const coder *c, const char *name, const char *line) {
    char file[64], path[600];
    int rows;
    long long ids;
    unsigned long long decoded;
    failure f = {0};
    cJSON *root;
    assert_int_equal(sscanf(line, "file %63s rows %d ids %lld decoded %llx", file, &rows, &ids, &decoded), 4);
    snprintf(path, sizeof path, "%s/data/%s.json", SHARED_DIR, file);
    assert_done(json_read(&root, path, &f), &f);
    assert_int_equal(cJSON_GetArraySize(root), rows);
    row_hash r = {.c = c, .text = FNV_START};
    int row = 0;
    for (const cJSON *item = root->child; item; item = item->next, row++) {
        unsigned expected;
        r.ids = FNV_START;
        hash_strings(&r, item);
        assert_int_equal(fscanf(golden, "%8x ", &expected), 1);
        if ((uint32_t)(r.ids ^ r.ids >> 32) != expected) test_fail("%s: %s row %d: other ids", name, file, row);
    }
    assert_int_equal(r.count, ids);
    assert_int_equal(r.text, decoded);
    cJSON_Delete(root);
    return rows;
}

static void check_wild(const coder *c, const unsigned long long *expected) {
    uint64_t text[2] = {FNV_START, FNV_START};
    int32_t size = tokenizer_size(c->t), few = size < 512 ? size : 512;
    for (uint64_t row = 0; row < 300; row++) {
        int32_t ids[32];
        int n = (int)(rng_bits(row, 0) % 33);
        for (int i = 0; i < n; i++) {
            uint64_t draw = rng_bits(row, (uint64_t)i + 1);
            ids[i] = (int32_t)((draw >> 8) % (uint64_t)(draw & 1 ? size : few));
        }
        for (int skip = 0; skip < 2; skip++) text[skip] = fnv_text(text[skip], c, ids, n, skip);
    }
    assert_int_equal(text[0], expected[0]);
    assert_int_equal(text[1], expected[1]);
}

static void check_odd(const coder *c, const unsigned long long *expected) {
    failure f = {0};
    cJSON *root;
    assert_done(json_read(&root, TEST_DIR "/fixtures/tokenizers/texts.json", &f), &f);
    for (int plain = 0; plain < 2; plain++) {
        uint64_t h = FNV_START;
        for (const cJSON *item = root->child; item; item = item->next) {
            int32_t *ids = coder_encode(c, item->valuestring, strlen(item->valuestring),
                                        plain ? ENCODE_PLAIN : ENCODE_MATCH_SPECIAL);
            h = fnv_ids(h, ids);
            arrfree(ids);
        }
        assert_int_equal(h, expected[plain]);
    }
    cJSON_Delete(root);
}

static void test_golden(void **state) {
    real_tokenizers *r = need(state);
    FILE *golden = fopen(TEST_DIR "/fixtures/tokenizers/golden.txt", "r");
    assert_non_null(golden);
    char line[300];
    const coder *c = NULL;
    int rows = 0, tokenizers = 0, size = 0;
    while (fgets(line, sizeof line, golden)) {
        char name[64];
        unsigned long long h[4];
        if (line[0] == '#') continue;
        if (sscanf(line, "tokenizer %63s size %d wild %llx %llx odd %llx %llx", name, &size, &h[0], &h[1], &h[2],
                   &h[3]) == 6) {
            assert_string_equal(name, names[tokenizers]);
            c = &r->coders[tokenizers++];
            assert_int_equal(tokenizer_size(c->t), size);
            check_wild(c, h);
            check_odd(c, h + 2);
        } else {
            assert_non_null(c);
            rows += check_file(golden, c, names[tokenizers - 1], line);
        }
    }
    fclose(golden);
    print_message("%d tokenizers, %d rows\n", tokenizers, rows);
    assert_int_equal(tokenizers, N_REAL);
    for (int i = 0; i < N_REAL; i++) assert_int_equal(tokenizer_dropped(r->coders[i].s), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_appendix),
        cmocka_unit_test(test_t01_whole_word_first),
        cmocka_unit_test(test_t03_splits),
        cmocka_unit_test(test_t04_nfc),
        cmocka_unit_test(test_t07_control_strings),
        cmocka_unit_test(test_t08_one_bos),
        cmocka_unit_test(test_t09_boundary),
        cmocka_unit_test(test_d06_marks),
        cmocka_unit_test(test_golden),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
