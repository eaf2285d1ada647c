/* fuzz_tokenizer.c - tokenizer.json, behind a 0x1E a text to encode and decode, behind another tokenizer_config.json
 * with a chat template. */
#include "base/array.h"
#include "fuzz/fuzz.h"
#include "text/chat.h"

#include <string.h>

static const char plain[] = "Hello  world's 12345 <unk>\n\n\tna\xC3\xAFve caf\x65\xCC\x81 \xE4\xBD\xA0\xE5\xA5\xBD "
                            "\xF0\x9F\x98\x80 aaaaaaaaaaaaaaaaaaaaaaaa\r\n";

/* False when the tokenizer refuses the text: it has had its time. */
static bool encode(const tokenizer *t, const char *text, size_t n) {
    tokenizer_scratch *s = tokenizer_scratch_new(t);
    bool ok = true;
    for (int flags = 0; flags < 4 && ok; flags++) {
        failure f = {0};
        int32_t *ids = NULL;
        text_buf out = {0};
        ok = fuzz_check(tokenizer_encode(t, s, text, n, flags, &ids, &f), &f);
        if (ok) {
            for (ptrdiff_t i = 0; i < arrlen(ids); i++)
                fuzz_expect(ids[i] >= 0 && ids[i] < tokenizer_size(t), "an id is one of the tokenizer's");
            tokenizer_decode(t, ids, arrlen(ids), flags & 1, &out);
            fuzz_expect(utf8_check(out.data ? out.data : "", out.size) == out.size, "decoded text is UTF-8");
        }
        text_free(&out);
        arrfree(ids);
    }
    tokenizer_scratch_free(s);
    return ok;
}

static void chat(const tokenizer *t) {
    static const chat_message turns[] = {
        {CHAT_SYSTEM, "Be brief.", 9, false},
        {CHAT_USER, " 2+2?\n", 6, false},
        {CHAT_ASSISTANT, "<think>\nx\n</think>4", 19, true},
    };
    int n_names;
    const char *const *names = chat_format_names(&n_names);
    for (int i = -1; i < n_names; i++) {
        failure f = {0};
        chat_format *c = NULL;
        if (!fuzz_check(chat_format_open(&c, i < 0 ? "auto" : names[i], fuzz_folder(), t, &f), &f)) continue;
        tokenizer_scratch *s = tokenizer_scratch_new(t);
        int32_t *ids = NULL;
        uint8_t *labels = NULL;
        if (fuzz_check(chat_encode(c, s, turns, 3, false, &ids, &labels, &f), &f))
            fuzz_expect(arrlen(ids) == arrlen(labels), "every id has its label");
        arrfree(ids);
        arrfree(labels);
        tokenizer_scratch_free(s);
        chat_format_close(c);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    failure f = {0};
    tokenizer *t = NULL;
    fuzz_bytes rest, config, file = fuzz_cut((fuzz_bytes){data, size}, &rest), text = fuzz_cut(rest, &config);
    fuzz_file("tokenizer.json", file.data, file.size);
    if (config.data) fuzz_file("tokenizer_config.json", config.data, config.size);
    else fuzz_no_file("tokenizer_config.json");
    if (!fuzz_check(tokenizer_open(&t, fuzz_folder(), &f), &f)) return 0;
    bool ok = encode(t, plain, sizeof plain - 1) && (!text.size || encode(t, (const char *)text.data, text.size));
    if (ok && config.data) chat(t);
    tokenizer_close(t);
    return 0;
}
