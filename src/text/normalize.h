/* normalize.h - the "normalizer" of a tokenizer.json: a row of steps that rewrite text before it is split. */
#ifndef TEXT_NORMALIZE_H
#define TEXT_NORMALIZE_H
#include "base/json.h"
#include "text/pattern.h"

enum {
    SEQUENCE_DEPTH_MAX = 16, /* a Sequence inside a Sequence ... */
    STEPS_MAX = 64,          /* of a normalizer, a pre-tokenizer, a decoder */
    GROWTH_MAX = 64,         /* what a text may grow by on its way: so many times ... */
    GROWTH_FREE = 64 * 1024, /* ... and so many bytes. Unicode forms make 11 times at most */
};
static inline size_t growth_limit(size_t n) { return n * GROWTH_MAX + GROWTH_FREE; }

typedef enum {
    NORMALIZE_NFC,
    NORMALIZE_NFD,
    NORMALIZE_NFKC,
    NORMALIZE_NFKD,
    NORMALIZE_LOWERCASE,
    NORMALIZE_PREPEND,
    NORMALIZE_REPLACE,
    NORMALIZE_STRIP,
} normalize_kind;

typedef struct {
    normalize_kind kind;
    char *content; /* PREPEND, REPLACE */
    pattern pattern;
    bool left, right; /* STRIP */
} normalize_step;

/* *steps is an stb_ds array; `item` may be NULL (no normalizer). */
bool normalizer_open(normalize_step **steps, const cJSON *item, failure *f);
void normalizer_close(normalize_step **steps);

typedef struct {
    text_buf text[2]; /* one step reads one and writes the other */
} normalize_scratch;
void normalize_scratch_free(normalize_scratch *s);

/* text[n], valid UTF-8, through all steps. *out points into `text` or into the scratch. */
bool normalize(const normalize_step *steps, normalize_scratch *s, pattern_scratch *p, const char *text, size_t n,
               const char **out, size_t *n_out, failure *f);

/* {"String": x} or {"Regex": x}, shared with the pre-tokenizers. */
bool pattern_read(pattern *p, const cJSON *item, const char *place, failure *f);
#endif
