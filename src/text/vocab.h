/* vocab.h - the token texts of a vocabulary: id -> text by index, text -> id by a flat hash table. */
#ifndef TEXT_VOCAB_H
#define TEXT_VOCAB_H
#include "base/memory.h"
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
    TOKEN_ID_BITS = 21, /* a merge is packed into 64 bits: two ids and a rank */
    MERGE_RANK_BITS = 22,
};

typedef struct {
    char *pool; /* texts, each with a NUL behind */
    size_t pool_size, pool_room;
    uint32_t *start, *length; /* [size]; start is UINT32_MAX for an id without a token */
    int32_t size, room;       /* largest id + 1 */
    int32_t *slot;            /* ids, -1 = free; count <= half the slots */
    uint32_t n_slots, count;
    uint64_t key; /* of the hash */
} vocab;          /* zero-initialise */

void vocab_free(vocab *v);
/* The id must be free. `find`: vocab_find finds it. */
void vocab_put(vocab *v, int32_t id, const char *text, size_t n, bool find);
int32_t vocab_find(const vocab *v, const char *text, size_t n); /* -1 when there is none */
static inline const char *vocab_text(const vocab *v, int32_t id, size_t *n) {
    if (id < 0 || id >= v->size || v->start[id] == UINT32_MAX) return NULL;
    if (n) *n = v->length[id];
    return v->pool + v->start[id];
}

/* Both halves of a product: the upper bits of the inputs count in the lower bits of the result, too. */
static inline uint64_t fold(uint64_t a, uint64_t b) {
    __extension__ typedef unsigned __int128 wide;
    wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* 8 bytes at a time; the tail is read without passing the end. key: odd; a secret one where texts come from a file. */
static inline uint64_t bytes_hash(const char *s, size_t n, uint64_t key) {
    uint64_t h = (n ^ key) * 0x9E3779B97F4A7C15u, w;
    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&w, s, 8);
        h = fold(h ^ w, key);
    }
    w = 0;
    if (n >= 4) {
        uint32_t low, high;
        memcpy(&low, s, 4);
        memcpy(&high, s + n - 4, 4);
        w = low | (uint64_t)high << 32;
    } else if (n) {
        w = (uint64_t)(uint8_t)s[0] | (uint64_t)(uint8_t)s[n / 2] << 8 | (uint64_t)(uint8_t)s[n - 1] << 16;
    }
    return fold(fold(h ^ w, key), 0xD6E8FEB86659FD93u);
}
#endif
