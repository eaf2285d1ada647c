/* bpe.c - one piece of text to ids: cut where no merge can cross (bpe_cut.c), each part looked up in the cache of
 * words, else made into symbols and merged.
 *
 * With ignore_merges a piece that is a token as a whole is that token; only then its parts are merged.  The same text
 * may so have other ids as a piece and as a part, and the cache keeps the two apart. */
#include "text/bpe.h"
#include "base/array.h"
#include "text/unicode.h"

#include <stdlib.h>

/* A word that pushes another out of the cache costs little, so this key is no secret. */
#define WORD_KEY 0xD6E8FEB86659FD93u

void bpe_scratch_init(bpe_scratch *s) { s->words = xcalloc((size_t)1 << WORD_SLOT_BITS, sizeof *s->words); }

void bpe_scratch_free(bpe_scratch *s) {
    free(s->words);
    free(s->id);
    free(s->rank);
    free(s->next);
    free(s->previous);
    free(s->heap);
    *s = (bpe_scratch){0};
}

static void reserve(bpe_scratch *s, size_t n) {
    if (n <= s->room) return;
    s->room = n + n / 8 + 256;
    s->id = xrealloc(s->id, s->room * sizeof *s->id);
    s->rank = xrealloc(s->rank, s->room * sizeof *s->rank);
    s->next = xrealloc(s->next, s->room * sizeof *s->next);
    s->previous = xrealloc(s->previous, s->room * sizeof *s->previous);
    s->heap = xrealloc(s->heap, s->room * 2 * sizeof *s->heap);
}

/* The symbols of a piece, with an unknown token that waits for more unknowns when they are fused. */
typedef struct {
    int32_t *id, n, unk; /* unk: pending, -1: none */
} symbols;

static void symbols_put(symbols *y, int32_t id) {
    if (y->unk >= 0) y->id[y->n++] = y->unk;
    y->unk = -1;
    y->id[y->n++] = id;
}

/* A character (in a raw model: one byte's character) that is no token. All its bytes have tokens, or none is used.
 * The bytes do not push a pending unknown out: Hugging Face's order. */
static void symbols_put_unknown(const bpe *b, bpe_scratch *s, symbols *y, const char *text, int n) {
    bool all = b->byte_fallback;
    for (int i = 0; i < n; i++) all = all && b->fallback_id[(uint8_t)text[i]] >= 0;
    if (all) {
        for (int i = 0; i < n; i++) y->id[y->n++] = b->fallback_id[(uint8_t)text[i]];
    } else if (b->unk < 0) {
        s->dropped++;
    } else {
        if (y->unk >= 0 && !b->fuse_unk) y->id[y->n++] = y->unk;
        y->unk = b->unk;
    }
}

/* Never more symbols than bytes, but in a raw model an unknown byte may become two fallback bytes. */
static int32_t make_symbols(const bpe *b, bpe_scratch *s, const char *text, size_t n) {
    reserve(s, (b->raw && b->byte_fallback ? 2 * n : n) + 1);
    symbols y = {.id = s->id, .unk = -1};
    for (size_t i = 0; i < n;) {
        char mapped[4];
        int len = 1, n_mapped;
        int32_t id = b->raw ? b->byte_id[(uint8_t)text[i]] : bpe_char_id(b, utf8_read(text + i, &len));
        if (id >= 0) {
            symbols_put(&y, id);
        } else if (b->raw) {
            n_mapped = utf8_put(mapped, byte_char((uint8_t)text[i]));
            symbols_put_unknown(b, s, &y, mapped, n_mapped);
        } else {
            symbols_put_unknown(b, s, &y, text + i, len);
        }
        i += (size_t)len;
    }
    if (y.unk >= 0) y.id[y.n++] = y.unk;
    return y.n;
}

static void put_ids(int32_t **ids, const int32_t *id, size_t n) {
    if (n) memcpy(arraddnptr(*ids, n), id, n * sizeof *id);
}

static void merge_part(const bpe *b, bpe_scratch *s, const char *text, size_t n, int32_t **ids) {
    int32_t count = make_symbols(b, s, text, n);
    put_ids(ids, s->id, (size_t)bpe_merge(b, s, s->id, count));
}

static void encode_word(const bpe *b, bpe_scratch *s, const char *text, size_t n, int kind, int32_t **ids);

static void encode_parts(const bpe *b, bpe_scratch *s, const char *text, size_t n, int kind, int32_t **ids) {
    for (size_t start = 0, end; start < n; start = end) {
        end = bpe_cut_next(b, text, n, start);
        if (kind == WORD_PIECE && end - start == n) merge_part(b, s, text, n, ids); /* the caller keeps it */
        else encode_word(b, s, text + start, end - start, 0, ids);
    }
}

/* kind: WORD_PIECE, or 0 for a part without cuts. What dropped characters is not kept, so that they are counted. */
static void encode_word(const bpe *b, bpe_scratch *s, const char *text, size_t n, int kind, int32_t **ids) {
    bpe_word *word = NULL;
    if (n <= WORD_MAX) {
        word = s->words + (bytes_hash(text, n, WORD_KEY) >> (64 - WORD_SLOT_BITS));
        if (word->size == (n | (size_t)kind) && memcmp(word->text, text, n) == 0) {
            put_ids(ids, word->ids, word->n_ids);
            return;
        }
    }
    int64_t dropped = s->dropped;
    ptrdiff_t before = arrlen(*ids);
    int32_t whole = kind ? vocab_find(b->raw ? &b->raw_tokens : &b->tokens, text, n) : -1;
    if (whole >= 0) arrput(*ids, whole);
    else if (kind) encode_parts(b, s, text, n, kind, ids);
    else merge_part(b, s, text, n, ids);
    ptrdiff_t count = arrlen(*ids) - before;
    if (!word || count > WORD_IDS || s->dropped != dropped) return;
    word->size = (uint8_t)(n | (size_t)kind);
    word->n_ids = (uint8_t)count;
    memcpy(word->text, text, n);
    if (count) memcpy(word->ids, *ids + before, (size_t)count * sizeof **ids);
}

void bpe_encode(const bpe *b, bpe_scratch *s, const char *text, size_t n, int32_t **ids) {
    if (b->ignore_merges) encode_word(b, s, text, n, WORD_PIECE, ids);
    else encode_parts(b, s, text, n, 0, ids);
}
