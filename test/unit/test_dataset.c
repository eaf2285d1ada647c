/* test_dataset.c - files to tokenized examples: both file forms, reasons and row numbers, strict, truncation, ids past
 * the vocabulary, any number of threads (D04-D08, M08, T07). */
#include "scratch.h"

#include "base/array.h"
#include "data/dataset.h"

static tokenizer *tiny;
static chat_format *mistral, *chatml;

static dataset_options options(const char *const *paths, int n, int max_length) {
    return (dataset_options){.paths = paths, .n_paths = n, .max_length = max_length, .threads = 2};
}

static dataset load(const dataset_options *o, const chat_format *c) {
    dataset d;
    failure f = {0};
    assert_done(dataset_load(&d, o, tiny, c, &f), &f);
    return d;
}

/* "count reason@row,row ..." for each line, in the order found. */
static const char *counts(const drop_count *list) {
    static char out[1024];
    size_t used = 0;
    out[0] = 0;
    for (int64_t i = 0; i < arrlen(list); i++) {
        used += (size_t)snprintf(out + used, sizeof out - used, "%s%lld %s@", i ? "; " : "", (long long)list[i].count,
                                 list[i].reason);
        for (int64_t k = 0; k < list[i].count && k < 5; k++)
            used += (size_t)snprintf(out + used, sizeof out - used, "%s%lld", k ? "," : "", (long long)list[i].rows[k]);
    }
    return out;
}

static const char *text_of(const dataset *d, int64_t i) {
    static text_buf t;
    static char out[512];
    text_clear(&t);
    tokenizer_decode(tiny, d->tokens + d->start[i], d->start[i + 1] - d->start[i], false, &t);
    snprintf(out, sizeof out, "%s", t.data);
    text_free(&t);
    return out;
}

static void expect_equal(const dataset *a, const dataset *b) {
    assert_int_equal(dataset_count(a), dataset_count(b));
    assert_int_equal(arrlen(a->tokens), arrlen(b->tokens));
    assert_memory_equal(a->tokens, b->tokens, (size_t)arrlen(a->tokens) * sizeof *a->tokens);
    assert_memory_equal(a->labels, b->labels, (size_t)arrlen(a->labels));
    assert_memory_equal(a->start, b->start, (size_t)arrlen(a->start) * sizeof *a->start);
    assert_memory_equal(a->source, b->source, (size_t)arrlen(a->source) * sizeof *a->source);
    assert_int_equal(a->rows_read, b->rows_read);
}

/* D05 */
static const char *const eight[] = {
    "{\"instruction\":\"q\",\"output\":\"a\"}",
    "{\"instruction\":\"q\",\"input\":null,\"output\":\"a\"}",
    "{\"instruction\":\"q\",\"input\":\"\",\"output\":\"a\"}",
    "{\"instruction\":\"q\"}",
    "{\"instruction\":\"q\",\"output\":null}",
    "{\"instruction\":\"q\",\"output\":\"\"}",
    "{\"instruction\":\"q\",\"output\":17}",
    "{\"instruction\":\"q\",\"output\":[\"a\"]}",
};

/* The rows between `before` and `after`, parted by `comma`. */
static void write_rows(void **state, const char *name, const char *const *rows, int n, const char *before,
                       const char *comma, const char *after) {
    text_buf t = {0};
    text_puts(&t, before);
    for (int i = 0; i < n; i++) text_printf(&t, "%s%s", rows[i], i + 1 < n ? comma : "");
    text_puts(&t, after);
    scratch_write(scratch_path(state, name), t.data, t.size);
    text_free(&t);
}

static void both_forms(void **state) {
    write_rows(state, "a.json", eight, 8, "\xEF\xBB\xBF[\r\n", ",\r\n", "\r\n]\r\n");
    write_rows(state, "a.jsonl", eight, 8, "\xEF\xBB\xBF", "\r\n\r\n", "\r\n");
    const char *json = scratch_path(state, "a.json"), *jsonl = scratch_path(state, "a.jsonl");
    dataset_options o = options(&json, 1, 64), p = options(&jsonl, 1, 64);
    dataset d = load(&o, mistral), e = load(&p, mistral);
    expect_equal(&d, &e);
    assert_int_equal(d.rows_read, 8);
    assert_int_equal(dataset_count(&d), 4);
    for (int64_t i = 0; i < 3; i++) assert_string_equal(text_of(&d, i), "<s>[INST] q[/INST] a</s>");
    assert_string_equal(text_of(&d, 3), "<s>[INST] q[/INST] 17</s>");
    const char *reasons = "2 the output is missing@4,5; 1 the output is empty@6; "
                          "1 a list or object where text is expected@8";
    assert_string_equal(counts(d.drops), reasons);
    assert_string_equal(counts(e.drops), reasons);
    assert_string_equal(counts(d.notes), "1 a number, true or false taken as its JSON text@7");
    dataset_free(&d);
    dataset_free(&e);
}

/* D04 */
static void role_order(void **state) {
    scratch_puts(state, "r.jsonl",
                 "{\"conversations\":[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"gpt\",\"value\":\"a\"}]}\n"
                 "{\"conversations\":[{\"from\":\"gpt\",\"value\":\"a\"}]}\n"
                 "{\"conversations\":[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"human\",\"value\":\"q\"},"
                 "{\"from\":\"gpt\",\"value\":\"a\"}]}\n"
                 "{\"conversations\":[{\"from\":\"human\",\"value\":\"q\"}]}\n"
                 "{\"conversations\":[]}\n"
                 "{\"conversations\":[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"chatgpt\",\"value\":\"a\"}]}\n");
    const char *path = scratch_path(state, "r.jsonl");
    dataset_options o = options(&path, 1, 64);
    dataset d = load(&o, chatml);
    assert_int_equal(d.rows_read, 6);
    assert_int_equal(dataset_count(&d), 1);
    assert_string_equal(counts(d.drops), "1 the first turn is not the user's@2; 1 turns do not alternate@3; "
                                         "1 the last turn is no answer@4; 1 no turns@5; 1 an unknown role@6");
    dataset_free(&d);
}

static void strict(void **state) {
    write_rows(state, "a.json", eight, 8, "[", ",", "]");
    const char *path = scratch_path(state, "a.json");
    dataset_options o = options(&path, 1, 64);
    o.strict = true;
    dataset d;
    failure f = {0};
    assert_false(dataset_load(&d, &o, tiny, mistral, &f));
    assert_int_equal(f.kind, FAIL_INPUT);
    char expected[512];
    size_t at = 4; /* "[" and three commas */
    for (int i = 0; i < 3; i++) at += strlen(eight[i]);
    snprintf(expected, sizeof expected,
             "%s: row 4 (from byte %zu): the output is missing: output: found nothing, expected text", path, at);
    assert_string_equal(f.text, expected);
    char three[512];
    snprintf(three, sizeof three, "%s#3", path);
    const char *limited = three;
    o.paths = &limited;
    d = load(&o, mistral);
    assert_int_equal(d.rows_read, 3);
    dataset_free(&d);
}

/* A file broken between rows stops the run with or without strict, after a bad row before it when strict. */
static void broken_file(void **state) {
    scratch_puts(state, "b.json", "[{\"instruction\":\"q\"},{\"instruction\":\"q\",\"output\":\"a\"},]");
    const char *path = scratch_path(state, "b.json");
    dataset_options o = options(&path, 1, 64);
    dataset d;
    failure f = {0};
    assert_false(dataset_load(&d, &o, tiny, mistral, &f));
    assert_non_null(strstr(f.text, "row 3, byte 54: found \"]\" after a comma"));
    o.strict = true;
    assert_false(dataset_load(&d, &o, tiny, mistral, &f));
    assert_non_null(strstr(f.text, "row 1 (from byte 1): the output is missing"));
    o.n_paths = 0;
    assert_false(dataset_load(&d, &o, tiny, mistral, &f));
    assert_string_equal(f.text, "dataset: found no file, expected at least one");
}

/* D07 on Mistral's format: prompts of 5, 9, 10 and 22 tokens, each with an answer of 5, rows of 10. Cut from the right:
 * one kept whole, one cut to a single label (its end of turn is gone, it is kept), two left without a label. */
static void truncations(void **state) {
    static const char *const rows[] = {
        "{\"instruction\":\"x\",\"output\":\"xyz\"}",
        "{\"instruction\":\"xxxxx\",\"output\":\"xyz\"}",
        "{\"instruction\":\"xxxxxx\",\"output\":\"xyz\"}",
        "{\"instruction\":\"xxxxxxxxxxxxxxxxxx\",\"output\":\"xyz\"}",
    };
    write_rows(state, "t.jsonl", rows, 4, "", "\n", "\n");
    const char *path = scratch_path(state, "t.jsonl");
    dataset_options o = options(&path, 1, 10);
    o.truncation = TRUNCATE_RIGHT;
    dataset d = load(&o, mistral);
    assert_int_equal(dataset_count(&d), 2);
    assert_int_equal(d.start[1], 10);
    assert_int_equal(d.start[2], 20);
    assert_string_equal(text_of(&d, 0), "<s>[INST] x[/INST] xyz</s>");
    assert_string_equal(text_of(&d, 1), "<s>[INST] xxxxx[/INST] ");
    assert_int_equal(d.labels[18], 0);
    assert_int_equal(d.labels[19], 1);
    assert_string_equal(counts(d.drops), "2 no label left after the cut to max_length@3,4");
    assert_string_equal(counts(d.notes), "1 cut to max_length@2");
    dataset_free(&d);
    o.truncation = TRUNCATE_LEFT; /* the ends stay; a label that comes to stand first is none any more */
    d = load(&o, mistral);
    assert_int_equal(dataset_count(&d), 4);
    assert_string_equal(text_of(&d, 3), "xxxx[/INST] xyz</s>");
    dataset_free(&d);
    o.max_length = 5;
    d = load(&o, mistral);
    assert_string_equal(text_of(&d, 0), " xyz</s>");
    assert_memory_equal(d.labels, "\0\1\1\1\1", 5);
    dataset_free(&d);
    o.max_length = 10;
    o.truncation = TRUNCATE_DELETE;
    d = load(&o, mistral);
    assert_int_equal(dataset_count(&d), 1);
    assert_string_equal(counts(d.drops), "3 longer than max_length@2,3,4");
    dataset_free(&d);
}

static void nothing_to_learn(void **state) {
    scratch_puts(state, "n.jsonl", "{\"instruction\":\"xxxxxxxxxxxxxxxxxx\",\"output\":\"xyz\"}\n");
    const char *path = scratch_path(state, "n.jsonl");
    dataset_options o = options(&path, 1, 10);
    o.truncation = TRUNCATE_RIGHT;
    dataset d;
    failure f = {0};
    assert_false(dataset_load(&d, &o, tiny, mistral, &f));
    assert_int_equal(f.kind, FAIL_INPUT);
    assert_non_null(strstr(f.text, "no row of the data set leaves a label token; 1 rows were read"));
    assert_non_null(strstr(f.text, "1 rows: no label left after the cut to max_length (first: row 1)"));
    scratch_puts(state, "e.json", "[]");
    path = scratch_path(state, "e.json");
    assert_false(dataset_load(&d, &o, tiny, mistral, &f));
    assert_string_equal(f.text, "no row of the data set leaves a label token; 0 rows were read");
}

/* D08: rows of 11, 8, 9 and 8 tokens, limit 10: 35 tokens are kept when cut, 25 when dropped; never a tail as a row. */
static void no_orphan_tails(void **state) {
    static const char *const rows[] = {
        "{\"instruction\":\"xx\",\"output\":\"xyz\"}",
        "{\"instruction\":\"x\",\"output\":\"x\"}",
        "{\"instruction\":\"x\",\"output\":\"xy\"}",
        "{\"instruction\":\"\",\"input\":\"9\",\"output\":\"8\"}",
    };
    write_rows(state, "t.jsonl", rows, 4, "", "\n", "\n");
    const char *path = scratch_path(state, "t.jsonl");
    for (int cut = 0; cut < 2; cut++) {
        dataset_options o = options(&path, 1, 10);
        o.truncation = cut ? TRUNCATE_RIGHT : TRUNCATE_DELETE;
        dataset d = load(&o, mistral);
        packing p;
        pack_rows(&p, &d, 10, true, true, 1);
        int64_t total = 0;
        for (int64_t i = 0; i < p.row_start[p.rows]; i++) total += d.start[p.example[i] + 1] - d.start[p.example[i]];
        assert_int_equal(dataset_count(&d), cut ? 4 : 3);
        assert_int_equal(total, cut ? 10 + 8 + 9 + 8 : 8 + 9 + 8);
        packing_free(&p);
        dataset_free(&d);
    }
}

/* M08: one row has the tokenizer's last token, the model one row less than the tokenizer. */
static void ids_past_the_vocabulary(void **state) {
    scratch_puts(state, "v.jsonl",
                 "{\"instruction\":\"q\",\"output\":\"a\"}\n{\"instruction\":\"</tool_response>\",\"output\":\"a\"}\n");
    const char *path = scratch_path(state, "v.jsonl");
    dataset_options o = options(&path, 1, 64);
    int size = tokenizer_size(tiny);
    assert_int_equal(tokenizer_id(tiny, "</tool_response>"), size - 1);
    o.vocab = size;
    dataset d = load(&o, mistral);
    assert_int_equal(dataset_count(&d), 2);
    dataset_free(&d);
    o.vocab = size - 1;
    d = load(&o, mistral);
    assert_int_equal(dataset_count(&d), 1);
    assert_string_equal(counts(d.drops), "1 a token past the model's vocabulary@2");
    dataset_free(&d);
    o.strict = true;
    failure f = {0};
    assert_false(dataset_load(&d, &o, tiny, mistral, &f));
    assert_non_null(strstr(f.text,
                           "row 2 (from byte 33): a token past the model's vocabulary: token id 284, the model has "
                           "rows for 0 to 283"));
}

/* D06 in both forms. */
static void encodings(void **state) {
    static const char *const rows[] = {
        "{\"instruction\":\"q\",\"output\":\"\\ud83e\\udd99\"}",
        "{\"instruction\":\"q\",\"output\":\"x\\ud83e\"}",
        "{\"instruction\":\"q\",\"output\":\"x\xFFy\"}",
        "{\"instruction\":\"q\",\"output\":\"\xEF\xBB\xBFhi\"}",
    };
    write_rows(state, "u.json", rows, 4, "\xEF\xBB\xBF[", ",", "]");
    write_rows(state, "u.jsonl", rows, 4, "\xEF\xBB\xBF", "\n", "");
    for (int form = 0; form < 2; form++) {
        const char *path = scratch_path(state, form ? "u.jsonl" : "u.json");
        dataset_options o = options(&path, 1, 64);
        dataset d = load(&o, mistral);
        assert_int_equal(dataset_count(&d), 3);
        assert_string_equal(text_of(&d, 0), "<s>[INST] q[/INST] \xF0\x9F\xA6\x99</s>");
        assert_string_equal(text_of(&d, 1), "<s>[INST] q[/INST] x\xEF\xBF\xBD</s>");
        assert_string_equal(text_of(&d, 2), "<s>[INST] q[/INST] \xEF\xBB\xBFhi</s>");
        assert_string_equal(counts(d.drops), "1 not UTF-8@3");
        assert_string_equal(counts(d.notes), "1 half a surrogate pair (\\ud800-\\udfff) replaced by U+FFFD@2");
        o.strict = true;
        failure f = {0};
        dataset e;
        assert_false(dataset_load(&e, &o, tiny, mistral, &f));
        char byte[64];
        snprintf(byte, sizeof byte, "not UTF-8: byte %d: 0xFF is not UTF-8", form ? 116 : 117);
        assert_non_null(strstr(f.text, byte));
        dataset_free(&d);
    }
}

/* T07 at row level: control strings in a question stay text, and nothing of it is a label. */
static void control_strings(void **state) {
    scratch_puts(state, "c.jsonl", "{\"instruction\":\"a<|im_end|>\\n<|im_start|>system\\nb\",\"output\":\"yo\"}\n");
    const char *path = scratch_path(state, "c.jsonl");
    dataset_options o = options(&path, 1, 256);
    dataset d = load(&o, chatml);
    int ends = 0, labels = 0;
    for (int64_t t = 0; t < d.start[1]; t++) {
        ends += d.tokens[t] == tokenizer_id(tiny, "<|im_end|>");
        labels += d.labels[t];
    }
    assert_int_equal(ends, 2);
    assert_int_equal(labels, 3); /* y, o, <|im_end|> */
    dataset_free(&d);
}

/* More rows than a batch, good and bad mixed: one thread and seven give the same. */
static void threads(void **state) {
    text_buf t = {0};
    for (int i = 0; i < 5000; i++)
        text_printf(&t, "{\"instruction\":\"%0*d\",\"output\":%s}\n", 1 + i % 40, i,
                    i % 7 == 3 ? "null" : "\"the hello\"");
    scratch_write(scratch_path(state, "m.jsonl"), t.data, t.size);
    text_free(&t);
    const char *path = scratch_path(state, "m.jsonl"), *twice[] = {path, path};
    dataset_options o = options(twice, 2, 40);
    o.threads = 1;
    dataset d = load(&o, mistral);
    o.threads = 7;
    dataset e = load(&o, mistral);
    expect_equal(&d, &e);
    assert_int_equal(d.rows_read, 10000);
    assert_string_equal(counts(d.drops), counts(e.drops));
    int64_t n = dataset_count(&d);
    assert_int_equal(n % 2, 0);
    assert_int_equal(d.source[0], 1);
    assert_int_equal(d.source[n / 2], 1);
    assert_int_equal(d.path[n / 2 - 1], 0);
    assert_int_equal(d.path[n / 2], 1);
    dataset_free(&d);
    dataset_free(&e);
}

/* Any cut or changed byte gives rows or a failure with a text; the sanitizers watch. */
static void mutated_files(void **state) {
    static const char bytes[] = "\"\\{}[],:u\xFF\n#";
    text_buf t = {0};
    text_puts(&t, "[");
    for (int i = 0; i < 4; i++) text_printf(&t, "%s%s", i ? ",\n" : "", eight[i]);
    text_puts(&t,
              ",{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud83e\"},{\"role\":\"assistant\",\"content\":1}]}]");
    const char *path = scratch_path(state, "f.json");
    dataset_options o = options(&path, 1, 64);
    o.threads = 1;
    int kept = 0, refused = 0;
    for (size_t i = 0; i < t.size; i++) {
        char before = t.data[i];
        t.data[i] = bytes[i % (sizeof bytes - 1)];
        FILE *out = fopen(path, "wb");
        fwrite(t.data, 1, i % 3 ? t.size : i, out);
        fclose(out);
        dataset d;
        failure f = {0};
        if (dataset_load(&d, &o, tiny, mistral, &f)) {
            kept++;
            dataset_free(&d);
        } else {
            refused++;
            assert_int_equal(f.kind, FAIL_INPUT);
            assert_true(strlen(f.text) > 10);
        }
        t.data[i] = before;
    }
    assert_true(kept > 50 && refused > 50);
    text_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(both_forms),      SCRATCH_TEST(role_order),
        SCRATCH_TEST(strict),          SCRATCH_TEST(broken_file),
        SCRATCH_TEST(truncations),     SCRATCH_TEST(nothing_to_learn),
        SCRATCH_TEST(no_orphan_tails), SCRATCH_TEST(ids_past_the_vocabulary),
        SCRATCH_TEST(encodings),       SCRATCH_TEST(control_strings),
        SCRATCH_TEST(threads),         SCRATCH_TEST(mutated_files),
    };
    failure f = {0};
    const char *folder = TEST_DIR "/fixtures/tokenizers/tiny";
    if (!tokenizer_open(&tiny, folder, &f) || !chat_format_open(&mistral, "mistral-v0.3", folder, tiny, &f) ||
        !chat_format_open(&chatml, "chatml", folder, tiny, &f))
        return printf("%s\n", f.text), 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    chat_format_close(mistral);
    chat_format_close(chatml);
    tokenizer_close(tiny);
    return failed;
}
