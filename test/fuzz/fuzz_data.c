/* fuzz_data.c - a file of rows, JSON list or JSONL: cut, parsed and put into a chat format row by row; each row takes
 * the next of the formats that the tokenizer has the tokens for. */
#include "base/array.h"
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
    return 0;
}
