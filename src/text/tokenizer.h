/* tokenizer.h - any BPE tokenizer.json: byte-level (Llama-3, Qwen, ...) or SentencePiece-style (Mistral, Gemma). */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H
#include "base/failure.h"
#include "base/text.h"
#include <stdint.h>

typedef struct tokenizer tokenizer;

/* Reads FOLDER/tokenizer.json. A construct that is not supported is a failure that names it. */
bool tokenizer_open(tokenizer **out, const char *folder, failure *f);
void tokenizer_close(tokenizer *t);
int tokenizer_size(const tokenizer *t);                      /* largest id + 1 */
int32_t tokenizer_id(const tokenizer *t, const char *token); /* exact token text; -1 when there is none */
const char *tokenizer_token(const tokenizer *t, int32_t id); /* NULL when there is none */
bool tokenizer_is_special(const tokenizer *t, int32_t id);

typedef enum {
    ENCODE_PLAIN = 0,         /* special tokens in the text stay text; other added tokens are matched */
    ENCODE_MATCH_SPECIAL = 1, /* special tokens in the text become their ids (Hugging Face's behaviour) */
    ENCODE_ADD_SPECIAL = 2,   /* run the post-processor (BOS / EOS) */
} encode_flags;

/* Per-thread working memory for this tokenizer: one per thread, reused between calls. */
typedef struct tokenizer_scratch tokenizer_scratch;
tokenizer_scratch *tokenizer_scratch_new(const tokenizer *t);
void tokenizer_scratch_free(tokenizer_scratch *s);

/* Appends the ids of text[n] (valid UTF-8, checked) to *ids, an stb_ds array. Same ids as Hugging Face's library. */
bool tokenizer_encode(const tokenizer *t, tokenizer_scratch *s, const char *text, size_t n, int flags, int32_t **ids,
                      failure *f);
/* Characters that the vocabulary could not express and Hugging Face drops in silence, since the scratch was made. */
int64_t tokenizer_dropped(const tokenizer_scratch *s);
/* Appends the text of ids. Broken byte runs become U+FFFD. */
void tokenizer_decode(const tokenizer *t, const int32_t *ids, int64_t n, bool skip_special, text_buf *out);
#endif
