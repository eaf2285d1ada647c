/* bpe.h - byte-pair encoding of one piece of text, with Hugging Face's results.
 *
 * Two kinds of model.  `raw`: a byte-level vocabulary behind a ByteLevel pre-tokenizer; symbols start as single bytes
 * (the byte alphabet is undone once, when the file is read).  Otherwise symbols start as characters, and a character
 * that is no token becomes its bytes' tokens (byte fallback) or the unknown token. */
#ifndef TEXT_BPE_H
#define TEXT_BPE_H
#include "base/failure.h"
#include "base/json.h"
#include "text/vocab.h"

typedef struct {
    vocab tokens;     /* of the model; texts as in the file; ids of added tokens stand here, too, but are not found */
    vocab raw_tokens; /* raw and ignore_merges: the same in bytes */
    bool raw, fuse_unk, byte_fallback, ignore_merges;
    int32_t unk;                /* -1: none */
    int32_t model_count;        /* tokens in the model's vocabulary */
    int32_t byte_id[256];       /* raw: the first symbol of each byte, -1: none */
    bool all_bytes;             /* raw: every byte has one */
    int32_t fallback_id[256];   /* <0xNN>, -1: none */
    int32_t *char_page[0x1100]; /* not raw: ids of single characters by code point >> 8 and & 255; NULL page: none */
    uint64_t *merge_slot;       /* left id, right id, rank; UINT64_MAX: free */
    int32_t *merged;            /* [n_merges] rank -> id of the result */
    uint32_t merge_shift, n_merges;
    uint64_t merge_hash; /* the key of their hash */
    uint64_t *junction;  /* bit set over all merges of where they join: bpe_cut.c */
    uint32_t junction_shift;
} bpe; /* zero-initialise */

bool bpe_open(bpe *b, const cJSON *model, bool raw, failure *f);
void bpe_close(bpe *b);

/* One cache line: a word and its ids. */
enum { WORD_MAX = 34, WORD_IDS = 7, WORD_SLOT_BITS = 15, WORD_PIECE = 0x80 };
typedef struct {
    uint8_t size; /* 0: free; with WORD_PIECE: as a whole piece, which ignore_merges looks up first */
    uint8_t n_ids;
    char text[WORD_MAX];
    int32_t ids[WORD_IDS];
} bpe_word;

typedef struct {
    bpe_word *words; /* [1 << WORD_SLOT_BITS], a word may be pushed out by another */
    int32_t *id;     /* symbols of the piece at hand */
    uint32_t *rank;  /* of the merge of symbol i with its follower */
    int32_t *next, *previous;
    uint64_t *heap;
    size_t room, n_heap;
    int64_t dropped;
} bpe_scratch;

void bpe_scratch_init(bpe_scratch *s);
void bpe_scratch_free(bpe_scratch *s);

/* Where a piece may be cut: the first such place behind `from`, or n. bpe_cut_put tells it of a merge. */
void bpe_cut_put(bpe *b, const char *left, size_t n_left, const char *right, size_t n_right);
size_t bpe_cut_next(const bpe *b, const char *text, size_t n, size_t from);

/* Appends the ids of text[n], valid UTF-8, to the stb_ds array *ids. n < 2^31. */
void bpe_encode(const bpe *b, bpe_scratch *s, const char *text, size_t n, int32_t **ids);

/* Merges symbols id[n] in place, best rank first and leftmost among equals; returns how many are left. */
int32_t bpe_merge(const bpe *b, bpe_scratch *s, int32_t *id, int32_t n);

static inline int32_t bpe_char_id(const bpe *b, uint32_t c) {
    const int32_t *page = b->char_page[c >> 8];
    return page ? page[c & 255] : -1;
}

enum { MERGE_NONE = -1 };
static inline uint64_t merge_key(int32_t left, int32_t right) {
    return ((uint64_t)(uint32_t)left << TOKEN_ID_BITS | (uint32_t)right) << MERGE_RANK_BITS;
}
static inline uint64_t pair_mix(int32_t left, int32_t right, uint64_t key) { /* key: odd */
    uint64_t x = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * key;
    return (x ^ x >> 29) * 0xD6E8FEB86659FD93u;
}
static inline uint32_t bpe_rank(const bpe *b, int32_t left, int32_t right) { /* UINT32_MAX: no such merge */
    uint64_t key = merge_key(left, right), low = ((uint64_t)1 << MERGE_RANK_BITS) - 1;
    uint64_t mask = UINT64_MAX >> b->merge_shift;
    for (uint64_t i = pair_mix(left, right, b->merge_hash) >> b->merge_shift;; i = (i + 1) & mask) {
        uint64_t slot = b->merge_slot[i];
        if ((slot & ~low) == key) return (uint32_t)(slot & low);
        if (slot == UINT64_MAX) return UINT32_MAX;
    }
}
#endif
