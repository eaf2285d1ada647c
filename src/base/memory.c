/* memory.c - the checked allocator, and arenas as a list of blocks of at least 64 KiB.
 *
 * An arena hands out from its newest block and starts another when that is full; nothing is given back before the end.
 */
#include "base/memory.h"
#include "base/host_memory.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct arena_block {
    struct arena_block *next;
    size_t used, size;
    _Alignas(16) char data[];
};

static struct { const char *what, *advice; } doing = {"starting", "end what else uses the memory"};

void memory_doing(const char *what, const char *advice) {
    doing.what = what;
    doing.advice = advice;
}

/* The line is put together on the stack. */
static _Noreturn void exhausted(size_t bytes) {
    char line[512];
    host_room room = host_memory_room(0);
    double needed = (double)bytes / 0x1p20, left = (double)room.bytes / 0x1p20;
    int n = snprintf(line, sizeof line,
                     "error: out of host memory while %s: %.1f MiB more are needed, %.1f MiB are free %s; %s\n",
                     doing.what, needed, left, room.why, doing.advice);
    ssize_t ignored = write(STDERR_FILENO, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
    (void)ignored;
    _exit(3);
}

void *xmalloc(size_t bytes) {
    void *block = malloc(bytes ? bytes : 1);
    if (!block) exhausted(bytes);
    return block;
}

void *xcalloc(size_t count, size_t size) {
    void *block = calloc(count ? count : 1, size ? size : 1);
    if (!block) exhausted(size && count > SIZE_MAX / size ? SIZE_MAX : count * size);
    return block;
}

void *xrealloc(void *old, size_t bytes) {
    void *block = realloc(old, bytes ? bytes : 1);
    if (!block) exhausted(bytes);
    return block;
}

char *xstrdup(const char *text) {
    size_t n = strlen(text) + 1;
    return memcpy(xmalloc(n), text, n);
}

enum { BLOCK_BYTES = 1 << 16 };

void *arena_alloc(arena *a, size_t bytes) {
    if (bytes > SIZE_MAX / 2) exhausted(bytes);
    size_t need = (bytes + 15) / 16 * 16;
    struct arena_block *b = a->head;
    if (!b || b->size - b->used < need) {
        size_t size = need > BLOCK_BYTES ? need : BLOCK_BYTES;
        b = xmalloc(sizeof *b + size);
        *b = (struct arena_block){.next = a->head, .size = size};
        a->head = b;
    }
    void *out = b->data + b->used;
    b->used += need;
    return memset(out, 0, need);
}

char *arena_strndup(arena *a, const char *text, size_t n) { return memcpy(arena_alloc(a, n + 1), text, n); }
char *arena_strdup(arena *a, const char *text) { return arena_strndup(a, text, strlen(text)); }

char *arena_printf(arena *a, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    char *text = arena_alloc(a, (size_t)n + 1);
    vsnprintf(text, (size_t)n + 1, format, again);
    va_end(again);
    va_end(args);
    return text;
}

void arena_free(arena *a) {
    for (struct arena_block *b = a->head, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    a->head = NULL;
}
