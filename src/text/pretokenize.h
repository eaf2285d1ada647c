/* pretokenize.h - the "pre_tokenizer" of a tokenizer.json: a row of steps that cut text into pieces. */
#ifndef TEXT_PRETOKENIZE_H
#define TEXT_PRETOKENIZE_H
#include "base/json.h"
#include "text/pattern.h"

/* What becomes of a delimiter. */
typedef enum {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
} split_behavior;

typedef enum {
    STEP_SPLIT,      /* delimiters: matches of a pattern */
    STEP_CHARS,      /* delimiters: characters of a class */
    STEP_BYTE_LEVEL, /* GPT-2's words, bytes written as characters */
    STEP_METASPACE,  /* blanks become U+2581, words begin with it */
} pretokenize_kind;

typedef enum { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER } prepend_scheme;

typedef struct {
    pretokenize_kind kind;
    split_behavior behavior;
    bool invert;
    pattern pattern;                /* SPLIT; BYTE_LEVEL: its words, when use_regex; METASPACE: the replacement */
    bool (*is_delimiter)(uint32_t); /* CHARS */
    bool add_prefix_space, use_regex, map_bytes; /* BYTE_LEVEL */
    prepend_scheme prepend;                      /* METASPACE */
    bool split;                                  /* METASPACE */
} pretokenize_step;

/* *steps is an stb_ds array; `item` may be NULL. *raw: ByteLevel is the last step, so that the model takes the pieces
 * as plain bytes and the step leaves them so. */
bool pretokenizer_open(pretokenize_step **steps, bool *raw, const cJSON *item, failure *f);
void pretokenizer_close(pretokenize_step **steps);
bool metaspace_read(const cJSON *item, const char **replacement, prepend_scheme *prepend, bool *split,
                    const char *place, failure *f);

typedef struct {
    uint32_t start, size;
    bool first; /* begins where the whole text begins */
} text_piece;

typedef struct {
    const char *text; /* that the pieces point into: the caller's or the buffer's */
    text_piece *pieces, *other;
    text_buf buffer[2];
} pretokenize_scratch;
void pretokenize_scratch_free(pretokenize_scratch *s);

/* Leaves the pieces of text[n] in s->pieces (stb_ds; empty ones to be passed over). n < 2^31. */
bool pretokenize(const pretokenize_step *steps, pretokenize_scratch *s, pattern_scratch *p, const char *text, size_t n,
                 bool first, failure *f);
#endif
