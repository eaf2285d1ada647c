/* fuzz_data.c - a file of rows, JSON list or JSONL: cut, parsed and put into a chat format row by row; each row takes
 * the next of the formats that the tokenizer has the tokens for. */
#include "base/array.h"
#include "data/dataset.h"
#include "data/examples.h"
#include "fuzz/fuzz.h"

static tokenizer *tokens;
static chat_format **formats; /* stb_ds */
static tokenizer_scratch *scratch;

static void open_formats(void) {
    static const char folder[] = TEST_DIR "/fixtures/models/tiny-chat";
    failure f = {0};
    if (!tokenizer_open(&tokens, folder, &f)) fuzz_expect(false, f.text);
    int n;
    const char *const *names = chat_format_names(&n);
    for (int i = 0; i < n; i++) {
        chat_format *c;
        if (chat_format_open(&c, names[i], folder, tokens, &f)) arrput(formats, c);
    }
    fuzz_expect(arrlen(formats) > 3, "the tokenizer has the tokens of some formats");
    scratch = tokenizer_scratch_new(tokens);
}

static void encode(const example *e, const chat_format *c) {
    static int32_t *ids;
    static uint8_t *labels;
    failure f = {0};
    arrsetlen(ids, 0);
    arrsetlen(labels, 0);
    if (fuzz_check(chat_encode(c, scratch, e->messages, (int)arrlen(e->messages), false, &ids, &labels, &f), &f))
        fuzz_expect(arrlen(ids) == arrlen(labels), "every id has its label");
}

/* The whole way into packed rows, in each way to cut. */
static void load(size_t size) {
    const char *path = fuzz_path("rows");
    failure f = {0};
    dataset d;
    packing p;
    dataset_options o = {.paths = &path, .n_paths = 1, .max_length = 32, .system = NULL, .vocab = 300, .threads = 1};
    o.truncation = (truncation)(size / 16 % 3);
    o.strict = size / 48 % 2;
    if (!fuzz_check(dataset_load(&d, &o, tokens, formats[size / 96 % arrlenu(formats)], &f), &f)) return;
    pack_rows(&p, &d, o.max_length, true, true, 7);
    fuzz_expect(p.rows > 0 && p.row_start[p.rows] == dataset_count(&d), "every example is in a row");
    packing_free(&p);
    dataset_free(&d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static example e;
    failure f = {0};
    row_reader *r = NULL;
    if (!formats) open_formats();
    fuzz_file("rows", data, size);
    if (!fuzz_check(row_reader_open(&r, fuzz_path("rows"), &f), &f)) return 0;
    data_row row;
    while (fuzz_check(row_reader_next(r, &row, &f), &f) && row.text) {
        fuzz_expect(row.size > 0 && row.offset + row.size <= size, "a row lies in the file");
        bool ok = fuzz_check(example_read(&e, &row, row.number % 2 ? "Be brief." : NULL, &f), &f);
        fuzz_expect(ok || e.reason, "a bad row has a reason");
        if (ok) encode(&e, formats[row.number % arrlen(formats)]);
    }
    row_reader_close(r);
    if (size % 16 == 0) load(size); /* much slower, so not always */
    return 0;
}
