/* threads.c - libgomp reads GOMP_SPINCOUNT while it is loaded: set it and start again. See threads.h. */
#include "base/threads.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_set(const char *name) {
    size_t n = strlen(name);
    for (char **entry = environ; entry && *entry; entry++)
        if (strncmp(*entry, name, n) == 0 && (*entry)[n] == '=') return 1;
    return 0;
}

void threads_wait_briefly(char *const *argv) {
    if (is_set("GOMP_SPINCOUNT") || is_set("OMP_WAIT_POLICY")) return;
    if (setenv("GOMP_SPINCOUNT", "10000", 1) != 0) return;
    execv("/proc/self/exe", argv); /* returns only when it could not: then the default stays */
}
