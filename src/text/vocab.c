/* vocab.c - one pool of texts, two arrays by id, and a hash table of ids with open addressing at half load. */
#include "text/vocab.h"
#include "base/rng.h"

#include <assert.h>
#include <stdlib.h>

void vocab_free(vocab *v) {
    free(v->pool);
    free(v->start);
    free(v->length);
    free(v->slot);
    *v = (vocab){0};
}

static void slot_fill(vocab *v, int32_t id) {
    uint32_t i = (uint32_t)bytes_hash(v->pool + v->start[id], v->length[id], v->key) & (v->n_slots - 1);
    while (v->slot[i] >= 0) i = (i + 1) & (v->n_slots - 1);
    v->slot[i] = id;
}

static void slots_double(vocab *v) {
    uint32_t old_n = v->n_slots;
    int32_t *old = v->slot;
    if (!old_n) v->key = rng_secret();
    v->n_slots = old_n ? old_n * 2 : 1024;
    v->slot = xmalloc(v->n_slots * sizeof *v->slot);
    memset(v->slot, 0xFF, v->n_slots * sizeof *v->slot);
    for (uint32_t i = 0; i < old_n; i++)
        if (old[i] >= 0) slot_fill(v, old[i]);
    free(old);
}

static void reserve_id(vocab *v, int32_t id) {
    if (id < v->size) return;
    if (id >= v->room) {
        int32_t room = v->room ? v->room : 1024;
        while (room <= id) room *= 2;
        v->start = xrealloc(v->start, (size_t)room * sizeof *v->start);
        v->length = xrealloc(v->length, (size_t)room * sizeof *v->length);
        v->room = room;
    }
    for (int32_t i = v->size; i <= id; i++) v->start[i] = UINT32_MAX, v->length[i] = 0;
    v->size = id + 1;
}

void vocab_put(vocab *v, int32_t id, const char *text, size_t n, bool find) {
    assert(id >= 0 && id < 1 << TOKEN_ID_BITS && !vocab_text(v, id, NULL));
    reserve_id(v, id);
    if (v->pool_size + n + 1 > v->pool_room) {
        v->pool_room = (v->pool_size + n + 1) * 2;
        v->pool = xrealloc(v->pool, v->pool_room);
    }
    assert(v->pool_size < UINT32_MAX); /* JSON_MAX_BYTES is less */
    v->start[id] = (uint32_t)v->pool_size;
    v->length[id] = (uint32_t)n;
    if (n) memcpy(v->pool + v->pool_size, text, n);
    v->pool[v->pool_size + n] = 0;
    v->pool_size += n + 1;
    if (!find) return;
    if (++v->count * 2 > v->n_slots) slots_double(v);
    slot_fill(v, id);
}

int32_t vocab_find(const vocab *v, const char *text, size_t n) {
    if (!v->n_slots) return -1;
    uint32_t i = (uint32_t)bytes_hash(text, n, v->key) & (v->n_slots - 1);
    for (; v->slot[i] >= 0; i = (i + 1) & (v->n_slots - 1)) {
        int32_t id = v->slot[i];
        if (v->length[id] == n && memcmp(v->pool + v->start[id], text, n) == 0) return id;
    }
    return -1;
}
