/* tokenizer.c - opens a tokenizer.json and runs its parts one after the other:
 *   text -> added tokens cut out (added_tokens.c) -> normalised (normalize.c) -> normalised added tokens cut out
 *        -> pieces (pretokenize.c) -> ids (bpe.c) -> BOS and EOS (post_process.c)
 *
 * Everything in a tokenizer stays as it is once open, so that threads share it; what changes is in the scratch.
 * "truncation" and "padding" of the file are passed over: row lengths are the caller's matter. */
#include "text/tokenizer.h"
#include "base/array.h"
#include "base/file.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decode.h"
#include "text/normalize.h"
#include "text/post_process.h"
#include "text/pretokenize.h"

#include <assert.h>

enum { TEXT_MAX = 1 << 29 }; /* symbols are counted in 32 bits, two for a byte at most */

struct tokenizer {
    normalize_step *normalizer;
    pretokenize_step *pretokenizer;
    bpe model;
    added_tokens added;
    post_processor post;
    decode_step *decoder;
};

struct tokenizer_scratch {
    const tokenizer *owner; /* the cache of words holds its ids */
    added_span *outer, *inner;
    normalize_scratch normal;
    pretokenize_scratch pieces;
    pattern_scratch pattern;
    bpe_scratch bpe;
};

static bool open_parts(tokenizer *t, const cJSON *root, failure *f) {
    bool raw = false;
    if (!cJSON_IsObject(root)) return fail(f, FAIL_INPUT, "found %s, expected an object", json_kind(root));
    TRY(normalizer_open(&t->normalizer, json_find(root, "normalizer"), f));
    TRY(pretokenizer_open(&t->pretokenizer, &raw, json_find(root, "pre_tokenizer"), f));
    TRY(bpe_open(&t->model, json_find(root, "model"), raw, f));
    TRY(added_tokens_open(&t->added, json_find(root, "added_tokens"), &t->model.tokens, t->model.model_count,
                          t->normalizer, f));
    TRY(post_processor_open(&t->post, json_find(root, "post_processor"), t->model.tokens.size, f));
    return decoder_open(&t->decoder, json_find(root, "decoder"), f);
}

bool tokenizer_open(tokenizer **out, const char *folder, failure *f) {
    arena a = {0};
    const char *path = path_join(&a, folder, "tokenizer.json");
    cJSON *root = NULL;
    tokenizer *t = xcalloc(1, sizeof *t);
    bool ok = json_read(&root, path, f) && (open_parts(t, root, f) || fail_in(f, "%s", path));
    cJSON_Delete(root);
    arena_free(&a);
    if (ok) *out = t;
    else tokenizer_close(t);
    return ok;
}

void tokenizer_close(tokenizer *t) {
    if (!t) return;
    normalizer_close(&t->normalizer);
    pretokenizer_close(&t->pretokenizer);
    bpe_close(&t->model);
    added_tokens_close(&t->added);
    post_processor_close(&t->post);
    decoder_close(&t->decoder);
    free(t);
}

int tokenizer_size(const tokenizer *t) { return t->model.tokens.size; }

int32_t tokenizer_id(const tokenizer *t, const char *token) {
    size_t n = strlen(token);
    int32_t id = vocab_find(&t->model.tokens, token, n);
    for (ptrdiff_t i = 0; i < arrlen(t->added.list) && id < 0; i++)
        if (strcmp(t->added.list[i].text, token) == 0) id = t->added.list[i].id;
    return id;
}

const char *tokenizer_token(const tokenizer *t, int32_t id) { return vocab_text(&t->model.tokens, id, NULL); }

bool tokenizer_is_special(const tokenizer *t, int32_t id) { return added_tokens_special(&t->added, id); }

tokenizer_scratch *tokenizer_scratch_new(const tokenizer *t) {
    tokenizer_scratch *s = xcalloc(1, sizeof *s);
    s->owner = t;
    pattern_scratch_init(&s->pattern);
    bpe_scratch_init(&s->bpe);
    return s;
}

void tokenizer_scratch_free(tokenizer_scratch *s) {
    if (!s) return;
    arrfree(s->outer);
    arrfree(s->inner);
    normalize_scratch_free(&s->normal);
    pretokenize_scratch_free(&s->pieces);
    pattern_scratch_free(&s->pattern);
    bpe_scratch_free(&s->bpe);
    free(s);
}

int64_t tokenizer_dropped(const tokenizer_scratch *s) { return s->bpe.dropped; }

/* Text without added tokens. */
static bool encode_pieces(const tokenizer *t, tokenizer_scratch *s, const char *text, size_t n, bool first,
                          int32_t **ids, failure *f) {
    TRY(pretokenize(t->pretokenizer, &s->pieces, &s->pattern, text, n, first, f));
    for (ptrdiff_t i = 0; i < arrlen(s->pieces.pieces); i++) {
        text_piece p = s->pieces.pieces[i];
        if (p.size > TEXT_MAX)
            return fail(f, FAIL_INPUT, "a piece of text of %u bytes, at most %d fit", p.size, TEXT_MAX);
        if (p.size) bpe_encode(&t->model, &s->bpe, s->pieces.text + p.start, p.size, ids);
    }
    return true;
}

/* Text between two unnormalised added tokens. */
static bool encode_segment(const tokenizer *t, tokenizer_scratch *s, const char *text, size_t n, bool first,
                           bool match_special, int32_t **ids, failure *f) {
    TRY(normalize(t->normalizer, &s->normal, &s->pattern, text, n, &text, &n, f));
    arrsetlen(s->inner, 0);
    added_tokens_split(&t->added, &t->added.normalized, text, n, match_special, &s->inner);
    for (ptrdiff_t i = 0; i < arrlen(s->inner); i++) {
        added_span p = s->inner[i];
        if (p.id >= 0) arrput(*ids, p.id);
        else TRY(encode_pieces(t, s, text + p.start, p.end - p.start, first && p.start == 0, ids, f));
    }
    return true;
}

static bool encode_text(const tokenizer *t, tokenizer_scratch *s, const char *text, size_t n, bool match_special,
                        int32_t **ids, failure *f) {
    if (n > TEXT_MAX) return fail(f, FAIL_INPUT, "a text of %zu bytes, at most %d are encoded", n, TEXT_MAX);
    size_t valid = utf8_check(text, n);
    if (valid < n)
        return fail(f, FAIL_INPUT, "the text is not UTF-8 (byte 0x%02X at offset %zu)", (uint8_t)text[valid], valid);
    pattern_scratch_begin(&s->pattern, n);
    arrsetlen(s->outer, 0);
    added_tokens_split(&t->added, &t->added.plain, text, n, match_special, &s->outer);
    for (ptrdiff_t i = 0; i < arrlen(s->outer); i++) {
        added_span p = s->outer[i];
        if (p.id >= 0) arrput(*ids, p.id);
        else TRY(encode_segment(t, s, text + p.start, p.end - p.start, p.start == 0, match_special, ids, f));
    }
    return true;
}

bool tokenizer_encode(const tokenizer *t, tokenizer_scratch *s, const char *text, size_t n, int flags, int32_t **ids,
                      failure *f) {
    assert(s->owner == t);
    ptrdiff_t before = arrlen(*ids);
    bool add = flags & ENCODE_ADD_SPECIAL;
    for (ptrdiff_t i = 0; i < arrlen(t->post.before) && add; i++) arrput(*ids, t->post.before[i]);
    if (!encode_text(t, s, text, n, flags & ENCODE_MATCH_SPECIAL, ids, f)) {
        arrsetlen(*ids, before);
        return false;
    }
    for (ptrdiff_t i = 0; i < arrlen(t->post.behind) && add; i++) arrput(*ids, t->post.behind[i]);
    return true;
}

void tokenizer_decode(const tokenizer *t, const int32_t *ids, int64_t n, bool skip_special, text_buf *out) {
    decode_row row = {0};
    for (int64_t i = 0; i < n; i++) {
        size_t size;
        const char *text = vocab_text(&t->model.tokens, ids[i], &size);
        if (!text || (skip_special && tokenizer_is_special(t, ids[i]))) continue;
        text_add(&row.text, text, size);
        arrput(row.end, row.text.size);
    }
    decoder_run(t->decoder, &row, out);
    text_free(&row.text);
    arrfree(row.end);
}
