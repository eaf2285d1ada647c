/* memory.h - host memory: checked allocation and arenas.
 *
 * x*() never return NULL: a machine without host memory ends the program with exit code 3 and a line that names the
 * size.  An arena owns many small blocks that live and die together (config, names, the program). */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H
#include <stddef.h>

void *xmalloc(size_t bytes);
void *xcalloc(size_t count, size_t size); /* zeroed; count * size is checked for overflow */
void *xrealloc(void *block, size_t bytes);
char *xstrdup(const char *text);

typedef struct {
    struct arena_block *head;
} arena; /* zero-initialise */

void *arena_alloc(arena *a, size_t bytes); /* zeroed, 16-byte aligned; lives until arena_free */
char *arena_strdup(arena *a, const char *text);
char *arena_strndup(arena *a, const char *text, size_t n);
char *arena_printf(arena *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
void arena_free(arena *a);
#endif
