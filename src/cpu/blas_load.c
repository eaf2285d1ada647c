/* blas_load.c - can OpenBLAS's buffers be mapped?  See blas_load.h.
 *
 * Nothing is set up yet when this runs, not even the sanitizers: no allocation, no calls into our own code. */
#include "cpu/blas_load.h"
#include "cpu/cpu.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define EARLY __attribute__((no_sanitize("address", "undefined")))
enum { MOST = 128 };       /* threads that Debian's OpenBLAS is built for */
enum { SPARE = 32 << 20 }; /* for libraries whose constructors run between this and OpenBLAS's; CUDA's take 5 MiB */

/* The positive number of a variable; 0 when there is none. */
static EARLY int number_of(char **environment, const char *name) {
    for (; *environment; environment++) {
        int i = 0, value = 0;
        while (name[i] && (*environment)[i] == name[i]) i++;
        if (name[i] || (*environment)[i] != '=') continue;
        for (const char *c = *environment + i + 1; *c >= '0' && *c <= '9' && value < 1000000; c++)
            value = 10 * value + *c - '0';
        return value;
    }
    return 0;
}

/* As OpenBLAS counts its threads. */
static EARLY int buffers(char **environment) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int wanted = number_of(environment, "OPENBLAS_NUM_THREADS");
    if (!wanted) wanted = number_of(environment, "GOTO_NUM_THREADS");
    if (!wanted) wanted = number_of(environment, "OMP_NUM_THREADS");
    if (wanted && wanted < n) n = wanted;
    return n < MOST ? n : MOST;
}

EARLY void blas_load_check(int argc, char **argv, char **environment) {
    (void)argc, (void)argv;
    static const char text[] = "error: host memory: OpenBLAS reserves 128 MiB of address space for each processor when "
                               "the program starts, and "
                               "the limit (ulimit -v) leaves less: raise it, or set OMP_NUM_THREADS to fewer\n";
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    void *block[MOST + 1];
    int n = buffers(environment) + 1, got = 0;
    for (; got < n; got++) {
        block[got] =
            mmap(NULL, got ? CPU_BLAS_BUFFER : SPARE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block[got] == MAP_FAILED) break;
    }
    for (int i = 0; i < got; i++) munmap(block[i], i ? CPU_BLAS_BUFFER : SPARE);
    if (got == n) return;
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    (void)ignored;
    _exit(3);
}
