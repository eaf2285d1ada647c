/* tokenizer_check.h - one tokenizer with its scratch, and checks of ids and texts. Include it first. */
#ifndef UNIT_TOKENIZER_CHECK_H
#define UNIT_TOKENIZER_CHECK_H
#include "unit/scratch.h"

#include "base/array.h"
#include "base/json.h"
#include "text/tokenizer.h"

typedef struct {
    tokenizer *t;
    tokenizer_scratch *s;
} coder;

static inline coder coder_open(const char *folder) {
    failure f = {0};
    coder c = {0};
    assert_done(tokenizer_open(&c.t, folder, &f), &f);
    c.s = tokenizer_scratch_new(c.t);
    return c;
}

static inline void coder_close(coder *c) {
    tokenizer_scratch_free(c->s);
    tokenizer_close(c->t);
}

/* An stb_ds array. The text is copied to a block without a byte to spare, so that the sanitizer sees reads beyond. */
static inline int32_t *coder_encode(const coder *c, const char *text, size_t n, int flags) {
    failure f = {0};
    int32_t *ids = NULL;
    char *exact = xmalloc(n);
    if (n) memcpy(exact, text, n);
    assert_done(tokenizer_encode(c->t, c->s, exact, n, flags, &ids, &f), &f);
    free(exact);
    return ids;
}

static inline void ids_print(text_buf *out, const int32_t *ids, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++) text_printf(out, i ? ",%d" : "%d", ids[i]);
    text_puts(out, "");
}

/* `expected`: "1,2,3". */
static inline void expect_ids(const coder *c, const char *text, size_t n, int flags, const char *expected) {
    int32_t *ids = coder_encode(c, text, n, flags);
    text_buf got = {0};
    ids_print(&got, ids, arrlen(ids));
    if (strcmp(got.data, expected) != 0)
        test_fail("\"%.*s\" flags %d: ids %s, expected %s", (int)n, text, flags, got.data, expected);
    text_free(&got);
    arrfree(ids);
}

static inline void expect_text(const coder *c, const int32_t *ids, ptrdiff_t n, bool skip, const char *expected) {
    text_buf got = {0};
    tokenizer_decode(c->t, ids, n, skip, &got);
    text_puts(&got, "");
    if (strcmp(got.data, expected) != 0) test_fail("decoded \"%s\", expected \"%s\"", got.data, expected);
    text_free(&got);
}
#endif
