/* threads.c - libgomp reads GOMP_SPINCOUNT while it is loaded: set it and start again. See threads.h. */
#include "base/threads.h"
#include "base/memory.h"

#include <pthread.h>
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

static void *wait_for_end(void *gate) {
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

bool threads_check(int n, failure *f) {
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t *thread = xcalloc((size_t)n, sizeof *thread);
    int got = 1, error = 0; /* this one */
    pthread_mutex_lock(&gate);
    while (got < n && !(error = pthread_create(&thread[got], NULL, wait_for_end, &gate))) got++;
    pthread_mutex_unlock(&gate);
    for (int i = 1; i < got; i++) pthread_join(thread[i], NULL);
    free(thread);
    if (!error) return true;
    return fail(f, FAIL_MACHINE,
                "threads: %d are wanted, %d can run (%s): lower threads, or raise what limits them "
                "(ulimit -u, ulimit -v, the job's limit of processes)",
                n, got, strerror(error));
}
