/* pattern.h - the patterns of a tokenizer.json: plain strings, or Oniguruma regular expressions run by PCRE2.
 *
 * A regular expression is translated first, because the two libraries differ: what \s, \w, \h, \v, ^, $, \p{Script} and
 * {,n} mean.  What cannot be translated faithfully is refused by name.  Matching has a limit of steps for one match and
 * of processor time for a text, so that a hostile expression ends in a failure and not in a hang. */
#ifndef TEXT_PATTERN_H
#define TEXT_PATTERN_H
#include "base/failure.h"
#include "base/memory.h"
#include <stddef.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

typedef struct {
    char *literal; /* plain string, or NULL */
    size_t literal_size;
    char *source;
    pcre2_code *code;
    bool jit;
} pattern; /* zero-initialise */

/* Per thread. */
typedef struct {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    size_t text_bytes;    /* what the time is for */
    size_t work;          /* since the last look at the clock */
    double wall, used_up; /* seconds: the clock when it began; processor time of this thread when it will be over */
} pattern_scratch;

bool pattern_open_regex(pattern *p, const char *source, const char *place, failure *f);
bool pattern_open_literal(pattern *p, const char *literal, const char *place, failure *f);
void pattern_close(pattern *p);

void pattern_scratch_init(pattern_scratch *s);
void pattern_scratch_free(pattern_scratch *s);
/* Before the searches in a new text of n bytes: they may take one second and four for each megabyte, all together. */
void pattern_scratch_begin(pattern_scratch *s, size_t n);

/* Matches one after the other, as Hugging Face's library walks them: an empty match right behind a match is passed. */
typedef struct {
    size_t from, last_end;
    bool any;
} pattern_walk; /* zero-initialise for each text */
typedef enum { PATTERN_NONE, PATTERN_FOUND, PATTERN_FAILED } pattern_result;
pattern_result pattern_next(const pattern *p, pattern_scratch *s, const char *text, size_t n, pattern_walk *walk,
                            size_t *start, size_t *end, failure *f);
#endif
