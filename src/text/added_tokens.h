/* added_tokens.h - the "added_tokens" of a tokenizer.json: texts that become one id wherever they stand. */
#ifndef TEXT_ADDED_TOKENS_H
#define TEXT_ADDED_TOKENS_H
#include "base/json.h"
#include "text/normalize.h"
#include "text/vocab.h"

typedef struct {
    const char *text; /* in the vocabulary's pool */
    size_t size;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} added_token;

/* Child and sibling links; node 0 is unused. */
typedef struct {
    int32_t child, sibling, token; /* token: index of the added token that ends here, -1 */
    uint8_t byte;
} trie_node;
typedef struct {
    trie_node *nodes; /* stb_ds */
    int32_t root[256];
} trie;

typedef struct {
    added_token *list; /* stb_ds, in the file's order */
    trie plain, normalized;
    uint8_t *special; /* [vocab size] by id */
    int32_t n_ids;
} added_tokens; /* zero-initialise */

/* `tokens` has the model's vocabulary (`model_count` of them) and gets the new ids. */
bool added_tokens_open(added_tokens *a, const cJSON *list, vocab *tokens, int32_t model_count,
                       const normalize_step *steps, failure *f);
void added_tokens_close(added_tokens *a);

/* A stretch of text: an added token's (id >= 0), or plain (-1). */
typedef struct {
    size_t start, end;
    int32_t id;
} added_span;
/* Appends the stretches of text[n] to the stb_ds array *spans. !match_special: special tokens stay text. */
void added_tokens_split(const added_tokens *a, const trie *t, const char *text, size_t n, bool match_special,
                        added_span **spans);
static inline bool added_tokens_special(const added_tokens *a, int32_t id) {
    return id >= 0 && id < a->n_ids && a->special[id];
}
#endif
