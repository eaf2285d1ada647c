/* memory.h - host memory: checked allocation and arenas.
 *
 * x*() never return NULL: a machine without host memory ends the program with exit code 3 and a line that says at
 * what, how much was wanted, how much there is, and what to do.  An arena owns many small blocks that live and die
 * together (config, names, the program). */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H
#include <stddef.h>

/* What the program does now, and what the user can do when memory runs out at it; static texts, for that line. */
void memory_doing(const char *what, const char *advice);

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
