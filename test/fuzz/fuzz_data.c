/* fuzz_data.c - a file of rows, JSON list or JSONL: cut, parsed and put into a chat format row by row. */
#include "base/array.h"
#include "data/examples.h"
#include "fuzz/fuzz.h"

static tokenizer *tokens;
static chat_format *format;
static tokenizer_scratch *scratch;

static void open_format(void) {
    static const char folder[] = TEST_DIR "/fixtures/models/tiny-chat";
    failure f = {0};
    if (!tokenizer_open(&tokens, folder, &f) || !chat_format_open(&format, "auto", folder, tokens, &f))
        fuzz_expect(false, f.text);
    scratch = tokenizer_scratch_new(tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int32_t *ids;
    static uint8_t *labels;
    static example e;
    failure f = {0};
    row_reader *r = NULL;
    if (!format) open_format();
    fuzz_file("rows", data, size);
    if (!fuzz_check(row_reader_open(&r, fuzz_path("rows"), &f), &f)) return 0;
    data_row row;
    while (fuzz_check(row_reader_next(r, &row, &f), &f) && row.text) {
        fuzz_expect(row.size > 0 && row.offset + row.size <= size, "a row lies in the file");
        if (!fuzz_check(example_read(&e, &row, "Be brief.", &f), &f)) {
            fuzz_expect(e.reason != NULL, "a bad row has a reason");
            continue;
        }
        arrsetlen(ids, 0);
        arrsetlen(labels, 0);
        if (fuzz_check(chat_encode(format, scratch, e.messages, (int)arrlen(e.messages), false, &ids, &labels, &f), &f))
            fuzz_expect(arrlen(ids) == arrlen(labels), "every id has its label");
    }
    row_reader_close(r);
    return 0;
}
