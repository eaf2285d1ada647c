/* decode.h - the "decoder" of a tokenizer.json: a row of steps from token texts to text. */
#ifndef TEXT_DECODE_H
#define TEXT_DECODE_H
#include "base/json.h"
#include "text/pretokenize.h"

typedef enum {
    DECODE_BYTE_LEVEL,
    DECODE_REPLACE,
    DECODE_BYTE_FALLBACK,
    DECODE_FUSE,
    DECODE_STRIP,
    DECODE_METASPACE,
} decode_kind;

typedef struct {
    decode_kind kind;
    char *from, *to;        /* REPLACE; STRIP and METASPACE: from is one character */
    int64_t start, stop;    /* STRIP: at most so many at each end */
    prepend_scheme prepend; /* METASPACE */
} decode_step;

/* The texts of tokens one after the other. */
typedef struct {
    text_buf text;
    size_t *end; /* stb_ds */
} decode_row;

/* *steps is an stb_ds array; `item` may be NULL: then Hugging Face joins the tokens with blanks. */
bool decoder_open(decode_step **steps, const cJSON *item, failure *f);
void decoder_close(decode_step **steps);
/* Appends the text of the tokens to *out; the row is used up. */
void decoder_run(const decode_step *steps, decode_row *row, text_buf *out);
#endif
