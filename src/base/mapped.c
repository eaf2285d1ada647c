/* mapped.c - the list of mapped files that the handler of SIGBUS looks up; see mapped.h.
 *
 * The handler may run in any thread at any time, so an entry's line is ready before the entry is linked, entries are
 * never freed (a free one is used again), and the handler calls nothing but write and _exit. */
#include "base/mapped.h"
#include "base/log.h"
#include "base/memory.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct entry {
    struct entry *next;
    _Atomic(uintptr_t) begin; /* 0: free */
    size_t size;
    char *line;
} entry;

static _Atomic(entry *) list;

static const char before[] = "error: ";
static const char after[] = ": cannot be read any more while it is in use: the file was cut short, or its disk failed; "
                            "put it back whole and start again (what was saved before is untouched)\n";

static char *line_of(const char *path) {
    size_t n = strlen(path);
    char *line = xmalloc(sizeof before + n + sizeof after);
    memcpy(line, before, sizeof before - 1);
    memcpy(line + sizeof before - 1, path, n);
    memcpy(line + sizeof before - 1 + n, after, sizeof after);
    log_tame(line);
    return line;
}

void mapped_add(const void *data, size_t size, const char *path) {
    char *line = line_of(path);
#pragma omp critical(mapped)
    {
        entry *e = atomic_load(&list);
        while (e && atomic_load(&e->begin)) e = e->next;
        bool fresh = !e;
        if (fresh) {
            e = xcalloc(1, sizeof *e);
            e->next = atomic_load(&list);
        }
        free(e->line);
        e->line = line;
        e->size = size;
        atomic_store(&e->begin, (uintptr_t)data);
        if (fresh) atomic_store(&list, e);
    }
}

void mapped_remove(const void *data) {
#pragma omp critical(mapped)
    for (entry *e = atomic_load(&list); e; e = e->next)
        if (atomic_load(&e->begin) == (uintptr_t)data) atomic_store(&e->begin, 0);
}

size_t mapped_bytes(void) {
    size_t sum = 0;
#pragma omp critical(mapped)
    for (entry *e = atomic_load(&list); e; e = e->next) sum += atomic_load(&e->begin) ? e->size : 0;
    return sum;
}

static void on_bus_error(int sign, siginfo_t *info, void *context) {
    (void)context;
    uintptr_t at = (uintptr_t)info->si_addr;
    for (const entry *e = atomic_load(&list); e; e = e->next) {
        uintptr_t begin = atomic_load(&e->begin);
        if (!begin || at < begin || at - begin >= e->size) continue;
        ssize_t ignored = write(STDERR_FILENO, e->line, strlen(e->line));
        (void)ignored;
        _exit(3);
    }
    signal(sign, SIG_DFL); /* not ours: the access is made again, and ends the program as without a handler */
}

void mapped_guard(void) {
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);
}
