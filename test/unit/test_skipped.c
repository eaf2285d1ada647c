/* test_skipped.c - how the rows of a step are named: by file, in order, as ranges, and not endlessly. */
#include "unit.h"

#include "base/array.h"
#include "train/skipped.h"

static const char *const paths[] = {"one.json", "a \"b\".jsonl#5"};

static void rows_as_text_and_json(void **state) {
    (void)state;
    static const struct {
        int n, row[8]; /* below 100: of the first file, else of the second, from row 100 on */
        int most;
        const char *text, *json;
    } cases[] = {
        {0, {0}, 5, "", "{}"},
        {1, {7}, 5, "one.json row 7", "{\"one.json\": [7]}"},
        {4, {9, 3, 4, 2}, 5, "one.json row 2-4, 9", "{\"one.json\": [2, 3, 4, 9]}"},
        {4, {9, 3, 4, 2}, 1, "one.json row 2-4 and 1 more", "{\"one.json\": [2, 3, 4, 9]}"},
        {5,
         {101, 5, 102, 1, 3},
         2,
         "one.json row 1, 3 and 3 more",
         "{\"one.json\": [1, 3, 5], \"a \\\"b\\\".jsonl#5\": [1, 2]}"},
        {3,
         {101, 5, 102},
         9,
         "one.json row 5; a \"b\".jsonl#5 row 1-2",
         "{\"one.json\": [5], \"a \\\"b\\\".jsonl#5\": [1, 2]}"},
        {2, {199, 150}, 9, "a \"b\".jsonl#5 row 50, 99", "{\"a \\\"b\\\".jsonl#5\": [50, 99]}"},
    };
    dataset d = {0};
    for (int i = 0; i < 200; i++) {
        arrput(d.source, i % 100);
        arrput(d.path, i / 100);
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t *examples = NULL;
        text_buf text = {0}, json = {0};
        for (int k = 0; k < cases[i].n; k++) arrput(examples, cases[i].row[k]);
        skipped_put_rows(&text, &d, paths, examples, cases[i].most);
        skipped_put_json(&json, &d, paths, examples);
        assert_string_equal(text.data ? text.data : "", cases[i].text);
        assert_string_equal(json.data, cases[i].json);
        text_free(&text);
        text_free(&json);
        arrfree(examples);
    }
    dataset_free(&d);
}

static void examples_of_a_step(void **state) {
    (void)state;
    micro_batch b[2];
    for (int i = 0; i < 2; i++) micro_batch_init(&b[i], 8);
    b[0].info = (batch_info){.rows = 7, .docs = 2};
    b[1].info = (batch_info){.rows = 4, .docs = 1};
    b[0].cu[1] = 3, b[0].cu[2] = 7, b[1].cu[1] = 4;
    for (int t = 0; t < 7; t++) b[0].example[t] = t < 3 ? 11 : 5;
    for (int t = 0; t < 4; t++) b[1].example[t] = 8;
    int32_t *list = skipped_examples(b, 2);
    static const int32_t want[] = {11, 5, 8};
    assert_int_equal(arrlen(list), 3);
    assert_memory_equal(list, want, sizeof want);
    arrfree(list);
    for (int i = 0; i < 2; i++) micro_batch_free(&b[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_as_text_and_json), cmocka_unit_test(examples_of_a_step)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
