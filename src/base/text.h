/* text.h - a growing byte string, and what error messages need of text. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *data; /* NUL-terminated whenever anything was added; may hold NULs of its own */
    size_t size, room;
} text_buf; /* zero-initialise */

void text_add(text_buf *t, const char *bytes, size_t n);
void text_puts(text_buf *t, const char *s);
void text_printf(text_buf *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_clear(text_buf *t); /* empty, keeps the room */
void text_free(text_buf *t);

/* Length of the valid UTF-8 sequence at s (1-4), 0 if the bytes there are none; *code gets the code point. */
int utf8_next(const char *s, size_t n, uint32_t *code);
int utf8_put(char out[4], uint32_t code); /* bytes written */
/* Offset of the first byte that is not valid UTF-8, or n. */
size_t utf8_check(const char *s, size_t n);

/* A finite decimal number, whole text, "." as the point whatever the locale ("1e-5", ".5"; no "nan", "inf", hex). */
bool text_to_double(const char *s, double *out);
bool text_to_int(const char *s, int64_t *out);
/* Sorts the list by bytes; a name that stands in it twice, NULL when none does. For names from files: nobody can choose
 * names that make sorting slow, as they could with a hash table. */
const char *text_twice(const char **names, size_t n);
/* The name of the list nearest to `word` by edit distance, NULL if none is near enough to be a slip of the pen. */
const char *text_nearest(const char *word, const char *const *names, int n);
#endif
