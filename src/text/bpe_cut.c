/* bpe_cut.c - places that no merge can cross, where a piece may be cut and its parts merged apart.
 *
 * A merge joins a left token that ends at some place with a right token that begins there. Where the text around a
 * place fits no merge at all, nothing ever crosses it, so the parts merge as they would together; and short parts are
 * found in the cache of words. The merges are hashed into bits; a false hit only leaves a cut out.
 *
 * Characters: a SentencePiece-style model has no pre-tokenizer, so a piece is a whole document.  The key is (last
 * character of the left token, first of the right).  Both characters must be tokens, since the symbols of bytes and
 * unknowns have other texts than they stand for.
 * Bytes: a byte-level model's words are short in scripts with blanks, but whole clauses in Chinese or Japanese.  A
 * token may begin or end inside a character, so the key is (last 1 to 3 bytes of the left, first 1 to 3 of the right):
 * as many as the token has, three at most; nine questions a place. Only places before characters of three or more bytes
 * are asked, and all 256 bytes must be tokens. */
#include "text/bpe.h"
#include "text/unicode.h"

/* A false hit costs little, so this key is no secret. */
#define JUNCTION_KEY 0x9E3779B97F4A7C15u

enum { EDGE = 3, WIDE_LEAD = 0xE0 };

/* 1 to 3 bytes and how many, in one number. */
static uint32_t edge_key(const uint8_t *bytes, size_t n) {
    uint32_t key = (uint32_t)n;
    for (size_t i = 0; i < n; i++) key = key << 8 | bytes[i];
    return key;
}

static void bit_set(bpe *b, uint32_t left, uint32_t right) {
    uint64_t bit = pair_mix((int32_t)left, (int32_t)right, JUNCTION_KEY) >> b->junction_shift;
    b->junction[bit >> 6] |= (uint64_t)1 << (bit & 63);
}

static bool bit_get(const bpe *b, uint32_t left, uint32_t right) {
    uint64_t bit = pair_mix((int32_t)left, (int32_t)right, JUNCTION_KEY) >> b->junction_shift;
    return b->junction[bit >> 6] >> (bit & 63) & 1;
}

static void put_chars(bpe *b, const char *left, size_t n_left, const char *right) {
    int len;
    int32_t x = bpe_char_id(b, utf8_last(left, n_left, &len)), y = bpe_char_id(b, utf8_read(right, &len));
    if (x >= 0 && y >= 0) bit_set(b, (uint32_t)x, (uint32_t)y);
}

/* The tokens are in the byte alphabet. One with other characters never comes out of text. */
static void put_bytes(bpe *b, const char *left, size_t n_left, const char *right, size_t n_right) {
    uint8_t end[EDGE], begin[EDGE];
    size_t n_end = 0, n_begin = 0;
    int len;
    for (size_t at = 0; at < n_right && n_begin < EDGE; at += (size_t)len) {
        int byte = byte_from_char(utf8_read(right + at, &len));
        if (byte < 0) return;
        begin[n_begin++] = (uint8_t)byte;
    }
    if (begin[0] < WIDE_LEAD) return;
    for (size_t at = n_left; at > 0 && n_end < EDGE; at -= (size_t)len) {
        int byte = byte_from_char(utf8_last(left, at, &len));
        if (byte < 0) return;
        end[EDGE - ++n_end] = (uint8_t)byte;
    }
    bit_set(b, edge_key(end + EDGE - n_end, n_end), edge_key(begin, n_begin));
}

void bpe_cut_put(bpe *b, const char *left, size_t n_left, const char *right, size_t n_right) {
    if (!n_left || !n_right) return;
    if (b->raw) put_bytes(b, left, n_left, right, n_right);
    else put_chars(b, left, n_left, right);
}

static size_t next_between_chars(const bpe *b, const char *text, size_t n, size_t from) {
    int32_t left = -1;
    for (size_t i = from; i < n;) {
        int len;
        int32_t right = bpe_char_id(b, utf8_read(text + i, &len));
        if (left >= 0 && right >= 0 && !bit_get(b, (uint32_t)left, (uint32_t)right)) return i;
        left = right;
        i += (size_t)len;
    }
    return n;
}

static bool crossed(const bpe *b, const uint8_t *text, size_t n, size_t at) {
    for (size_t right = EDGE; right > 0; right--) {
        if (at + right > n) continue;
        uint32_t key = edge_key(text + at, right);
        for (size_t left = EDGE; left > 0; left--)
            if (left <= at && bit_get(b, edge_key(text + at - left, left), key)) return true;
    }
    return false;
}

size_t bpe_cut_next(const bpe *b, const char *text, size_t n, size_t from) {
    if (!b->raw) return next_between_chars(b, text, n, from);
    if (!b->all_bytes) return n;
    for (size_t i = from + 1; i < n; i++)
        if ((uint8_t)text[i] >= WIDE_LEAD && !crossed(b, (const uint8_t *)text, n, i)) return i;
    return n;
}
