/* bpe.c - one piece of text to ids: cut into words, look each up in the cache, else symbols and merges.
 *
 * A SentencePiece-style model has no pre-tokenizer, so a piece is a whole document.  It may still be cut between two
 * characters when no merge joins a token that ends in the first with one that begins with the second: no symbol can
 * ever cross that place, so the parts merge as they would together.  The set of such pairs is hashed into bits; a false
 * hit only leaves a cut out.  Both characters must be tokens themselves, since symbols of bytes and unknowns have other
 * texts.  With ignore_merges the piece is looked up whole, so it is not cut. */
#include "text/bpe.h"
#include "base/array.h"
#include "text/unicode.h"

#include <stdlib.h>

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
    s->room = n + n / 2 + 256;
    s->id = xrealloc(s->id, s->room * sizeof *s->id);
    s->rank = xrealloc(s->rank, s->room * sizeof *s->rank);
    s->next = xrealloc(s->next, s->room * sizeof *s->next);
    s->previous = xrealloc(s->previous, s->room * sizeof *s->previous);
    s->heap = xrealloc(s->heap, s->room * 3 * sizeof *s->heap);
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
    reserve(s, 2 * n + 1);
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

static void encode_word(const bpe *b, bpe_scratch *s, const char *text, size_t n, int32_t **ids) {
    bpe_word *word = NULL;
    if (n <= WORD_MAX) {
        word = s->words + (bytes_hash(text, n) >> (64 - WORD_SLOT_BITS));
        if (word->size == n && memcmp(word->text, text, n) == 0) {
            put_ids(ids, word->ids, word->n_ids);
            return;
        }
    }
    int64_t dropped = s->dropped;
    int32_t whole = !b->ignore_merges ? -1 : vocab_find(b->raw ? &b->raw_tokens : &b->tokens, text, n), left = 1;
    const int32_t *id = &whole;
    if (whole < 0) {
        left = bpe_merge(b, s, s->id, make_symbols(b, s, text, n));
        id = s->id;
    }
    put_ids(ids, id, (size_t)left);
    if (!word || left > WORD_IDS || s->dropped != dropped) return;
    word->size = (uint8_t)n;
    word->n_ids = (uint8_t)left;
    memcpy(word->text, text, n);
    if (left) memcpy(word->ids, id, (size_t)left * sizeof *id);
}

void bpe_encode(const bpe *b, bpe_scratch *s, const char *text, size_t n, int32_t **ids) {
    size_t start = 0;
    if (!b->raw && !b->ignore_merges) {
        int32_t left = -1;
        for (size_t i = 0; i < n;) {
            int len;
            int32_t right = bpe_char_id(b, utf8_read(text + i, &len));
            if (left >= 0 && right >= 0) {
                uint64_t bit = pair_mix(left, right) >> b->junction_shift;
                if (!(b->junction[bit >> 6] >> (bit & 63) & 1)) {
                    encode_word(b, s, text + start, i - start, ids);
                    start = i;
                }
            }
            left = right;
            i += (size_t)len;
        }
    }
    if (start < n) encode_word(b, s, text + start, n - start, ids);
}
