/* bpe_open.c - reads the "model" of a tokenizer.json into flat tables.
 *
 * The file is not trusted: ids are bounded, each stands once, a merge needs both its parts and its result in the
 * vocabulary (Hugging Face's library refuses the rest, too).  Holes between ids are allowed, as there.
 * A later merge of the same pair replaces an earlier one, as there. */
#include "base/rng.h"
#include "text/bpe.h"
#include "text/unicode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKEN_SIZE_MAX = 4096 }; /* bytes; bounds the text that a row of ids stands for */

static bool read_vocab(bpe *b, const cJSON *list, failure *f) {
    if (!cJSON_IsObject(list))
        return fail(f, FAIL_INPUT, "model.vocab: found %s, expected an object of token: id", json_kind(list));
    for (const cJSON *item = list->child; item; item = item->next) {
        double id = item->valuedouble;
        size_t n, size = strlen(item->string);
        if (size > TOKEN_SIZE_MAX)
            return fail(f, FAIL_INPUT, "model.vocab: the token \"%.100s...\" has %zu bytes, at most %d are read",
                        item->string, size, TOKEN_SIZE_MAX);
        if (!cJSON_IsNumber(item) || id != floor(id) || id < 0 || id >= 1 << TOKEN_ID_BITS)
            return fail(f, FAIL_INPUT, "model.vocab: the id of \"%.100s\" is %s, expected an integer from 0 to %d",
                        item->string, cJSON_IsNumber(item) ? "out of range" : json_kind(item),
                        (1 << TOKEN_ID_BITS) - 1);
        const char *other = vocab_text(&b->tokens, (int32_t)id, &n);
        if (other)
            return fail(f, FAIL_INPUT, "model.vocab: \"%.100s\" and \"%.100s\" have the same id %d", other,
                        item->string, (int)id);
        vocab_put(&b->tokens, (int32_t)id, item->string, size, true);
    }
    b->model_count = (int32_t)b->tokens.count;
    if (!b->model_count) return fail(f, FAIL_INPUT, "model.vocab: no tokens");
    return true;
}

/* The bytes that a token of a byte-level vocabulary stands for; false when it holds other characters. */
static bool token_bytes(const char *text, size_t n, char *out, size_t *n_out) {
    *n_out = 0;
    for (size_t i = 0; i < n;) {
        int len, byte = byte_from_char(utf8_read(text + i, &len));
        if (byte < 0) return false;
        out[(*n_out)++] = (char)byte;
        i += (size_t)len;
    }
    return n > 0;
}

static void index_raw(bpe *b) {
    b->all_bytes = true;
    for (int i = 0; i < 256; i++) {
        char text[4];
        int n = utf8_put(text, byte_char((uint8_t)i));
        b->byte_id[i] = vocab_find(&b->tokens, text, (size_t)n);
        b->all_bytes = b->all_bytes && b->byte_id[i] >= 0;
    }
    if (!b->ignore_merges) return;
    char *bytes = NULL;
    for (int32_t id = 0; id < b->tokens.size; id++) {
        size_t n, n_bytes;
        const char *text = vocab_text(&b->tokens, id, &n);
        if (!text) continue;
        bytes = xrealloc(bytes, n + 1);
        if (token_bytes(text, n, bytes, &n_bytes)) vocab_put(&b->raw_tokens, id, bytes, n_bytes, true);
    }
    free(bytes);
}

static void index_chars(bpe *b) {
    for (int32_t id = 0; id < b->tokens.size; id++) {
        size_t n;
        const char *text = vocab_text(&b->tokens, id, &n);
        int len = 0;
        if (!text || !n) continue;
        uint32_t c = utf8_read(text, &len);
        if ((size_t)len != n) continue;
        int32_t **page = &b->char_page[c >> 8];
        if (!*page) {
            *page = xmalloc(256 * sizeof **page);
            memset(*page, 0xFF, 256 * sizeof **page);
        }
        (*page)[c & 255] = id;
    }
}

static void index_fallback(bpe *b) {
    for (int i = 0; i < 256; i++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)i);
        b->fallback_id[i] = b->byte_fallback ? vocab_find(&b->tokens, text, 6) : -1;
    }
}

/* "a b" or ["a", "b"] -> the two texts. Only one blank may stand in the first form. */
static bool merge_parts(const cJSON *item, int64_t line, const char **left, size_t *n_left, const char **right,
                        size_t *n_right, failure *f) {
    if (cJSON_IsString(item)) {
        const char *blank = strchr(item->valuestring, ' ');
        if (!blank || strchr(blank + 1, ' '))
            return fail(f, FAIL_INPUT, "model.merges[%lld]: \"%.100s\" is not two tokens with one blank between",
                        (long long)line, item->valuestring);
        *left = item->valuestring;
        *n_left = (size_t)(blank - item->valuestring);
        *right = blank + 1;
        *n_right = strlen(blank + 1);
        return true;
    }
    const cJSON *a = cJSON_IsArray(item) ? item->child : NULL, *c = a ? a->next : NULL;
    if (!c || c->next || !cJSON_IsString(a) || !cJSON_IsString(c))
        return fail(f, FAIL_INPUT, "model.merges[%lld]: found %s, expected \"a b\" or [\"a\", \"b\"]", (long long)line,
                    json_kind(item));
    *left = a->valuestring;
    *n_left = strlen(*left);
    *right = c->valuestring;
    *n_right = strlen(*right);
    return true;
}

static void merge_put(bpe *b, int32_t left, int32_t right, uint32_t rank) {
    uint64_t key = merge_key(left, right), low = ((uint64_t)1 << MERGE_RANK_BITS) - 1;
    uint64_t mask = UINT64_MAX >> b->merge_shift, i = pair_mix(left, right, b->merge_hash) >> b->merge_shift;
    while (b->merge_slot[i] != UINT64_MAX && (b->merge_slot[i] & ~low) != key) i = (i + 1) & mask;
    b->merge_slot[i] = key | rank;
}

/* The smallest power of two that is at least n; at least 64. */
static uint32_t log2_room(uint64_t n) {
    uint32_t bits = 6;
    while ((uint64_t)1 << bits < n) bits++;
    return bits;
}

static void merges_reserve(bpe *b, size_t n) {
    uint32_t bits = log2_room((uint64_t)n * 4 / 3 + 1), junction_bits = log2_room((uint64_t)n * 8);
    b->merge_slot = xmalloc(((size_t)1 << bits) * sizeof *b->merge_slot);
    memset(b->merge_slot, 0xFF, ((size_t)1 << bits) * sizeof *b->merge_slot);
    b->merge_shift = 64 - bits;
    b->merge_hash = rng_secret();
    b->merged = xcalloc(n + 1, sizeof *b->merged);
    b->junction = xcalloc((size_t)1 << (junction_bits - 6), sizeof *b->junction);
    b->junction_shift = 64 - junction_bits;
}

/* `joined` grows to hold the text of the result. */
static bool read_merge(bpe *b, const cJSON *item, int64_t line, text_buf *joined, failure *f) {
    const char *text[2] = {0};
    size_t n[2] = {0};
    int32_t id[3];
    TRY(merge_parts(item, line, &text[0], &n[0], &text[1], &n[1], f));
    text_clear(joined);
    text_add(joined, text[0], n[0]);
    text_add(joined, text[1], n[1]);
    for (int i = 0; i < 3; i++) {
        const char *part = i < 2 ? text[i] : joined->data;
        size_t size = i < 2 ? n[i] : joined->size;
        id[i] = vocab_find(&b->tokens, part, size);
        if (id[i] < 0)
            return fail(f, FAIL_INPUT, "model.merges[%lld]: %s \"%.*s\" is not in the vocabulary", (long long)line,
                        i < 2 ? "the part" : "the result", (int)(size < 100 ? size : 100), part);
    }
    merge_put(b, id[0], id[1], b->n_merges);
    bpe_cut_put(b, text[0], n[0], text[1], n[1]);
    b->merged[b->n_merges++] = id[2];
    return true;
}

static bool read_merges(bpe *b, const cJSON *list, failure *f) {
    if (!cJSON_IsArray(list)) return fail(f, FAIL_INPUT, "model.merges: found %s, expected a list", json_kind(list));
    size_t n = 0;
    for (const cJSON *item = list->child; item; item = item->next) n++;
    if (n >= ((size_t)1 << MERGE_RANK_BITS) - 1)
        return fail(f, FAIL_INPUT, "model.merges: %zu merges, at most %d are read", n, (1 << MERGE_RANK_BITS) - 2);
    merges_reserve(b, n);
    text_buf joined = {0};
    bool ok = true;
    int64_t line = 0;
    for (const cJSON *item = list->child; item && ok; item = item->next, line++) {
        if (cJSON_IsString(item) && strncmp(item->valuestring, "#version", 8) == 0) continue;
        ok = read_merge(b, item, line, &joined, f);
    }
    text_free(&joined);
    return ok;
}

static bool read_flags(bpe *b, const cJSON *model, failure *f) {
    static const char *const affix[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    double dropout = 0;
    const char *unk = NULL, *text = NULL;
    TRY(json_get_double(model, "dropout", &dropout, "model", f));
    if (dropout != 0) return fail(f, FAIL_INPUT, "model.dropout: %g is not supported, only 0 or null", dropout);
    for (int i = 0; i < 2; i++) {
        TRY(json_get_string(model, affix[i], &text, "model", f));
        if (text && *text) return fail(f, FAIL_INPUT, "model.%s: \"%.100s\" is not supported", affix[i], text);
    }
    TRY(json_get_bool(model, "fuse_unk", &b->fuse_unk, "model", f));
    TRY(json_get_bool(model, "byte_fallback", &b->byte_fallback, "model", f));
    TRY(json_get_bool(model, "ignore_merges", &b->ignore_merges, "model", f));
    TRY(json_get_string(model, "unk_token", &unk, "model", f));
    b->unk = unk ? vocab_find(&b->tokens, unk, strlen(unk)) : -1;
    if (unk && b->unk < 0) return fail(f, FAIL_INPUT, "model.unk_token: \"%.100s\" is not in the vocabulary", unk);
    return true;
}

bool bpe_open(bpe *b, const cJSON *model, bool raw, failure *f) {
    if (!cJSON_IsObject(model)) return fail(f, FAIL_INPUT, "model: found %s, expected an object", json_kind(model));
    const char *type = "BPE";
    TRY(json_get_string(model, "type", &type, "model", f));
    if (strcmp(type, "BPE") != 0) return fail(f, FAIL_INPUT, "model.type: \"%.100s\" is not supported, only BPE", type);
    b->raw = raw;
    TRY(read_vocab(b, json_find(model, "vocab"), f));
    TRY(read_flags(b, model, f));
    index_fallback(b);
    if (raw) index_raw(b);
    else index_chars(b);
    return read_merges(b, json_find(model, "merges"), f);
}

void bpe_close(bpe *b) {
    vocab_free(&b->tokens);
    vocab_free(&b->raw_tokens);
    for (size_t i = 0; i < sizeof b->char_page / sizeof *b->char_page; i++) free(b->char_page[i]);
    free(b->merge_slot);
    free(b->merged);
    free(b->junction);
    *b = (bpe){0};
}
