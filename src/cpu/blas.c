/* blas.c - OpenBLAS as these kernels want it.
 *
 * OpenBLAS 0.3.21 (Debian 12) knows processors by model number and takes the 2004 "Prescott" kernels for any that
 * came later: a fifth of the speed on an AVX-512 machine.  It also reads OPENBLAS_CORETYPE, but only while it is
 * loaded.  Its own start-up functions are exported, so here the variable is set from what the processor says it can
 * do (a value set by the user wins) and the choice is made again.  Other BLAS libraries lack these symbols (weak).
 * Calls are single-threaded: product.c cuts work into tiles for OpenMP's threads, which share no second pool. */
#include "base/host_memory.h"
#include "base/memory.h"
#include "base/simd.h"
#include "cpu/cpu.h"

#include <cblas.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void gotoblas_dynamic_init(void) __attribute__((weak));
void gotoblas_dynamic_quit(void) __attribute__((weak));
void *blas_memory_alloc(int place) __attribute__((weak));
void blas_memory_free(void *buffer) __attribute__((weak));

int cpu_threads(void) { return omp_get_max_threads(); }

static bool core_is_one_of(const char *const *names) {
    const char *core = openblas_get_corename();
    for (; *names; names++)
        if (strcasecmp(core, *names) == 0) return true;
    return false;
}

/* Whether n blocks more can be mapped. */
static bool can_map(int n, size_t bytes) {
    void **block = xcalloc((size_t)n, sizeof *block);
    int got = 0;
    for (; got < n; got++) {
        block[got] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (block[got] == MAP_FAILED) break;
    }
    for (int i = 0; i < got; i++) munmap(block[i], bytes);
    free(block);
    return got == n;
}

/* OpenBLAS maps a buffer for each call that runs beside others, and where it cannot it tries again for ever.  So all
 * that can run at once are mapped now; the pages are not touched. */
static bool reserve_buffers(int threads, failure *f) {
    if (!blas_memory_alloc || !blas_memory_free) return true;
    if (!can_map(threads, CPU_BLAS_BUFFER)) {
        host_room room = host_memory_room(0);
        return fail(f, FAIL_MACHINE,
                    "host memory: OpenBLAS reserves 128 MiB of address space for each of %d threads, %.1f MiB are free "
                    "%s: lower threads, or raise the limit",
                    threads, (double)room.bytes / 0x1p20, room.why);
    }
    void **buffer = xcalloc((size_t)threads, sizeof *buffer);
    for (int i = 0; i < threads; i++) buffer[i] = blas_memory_alloc(0);
    for (int i = 0; i < threads; i++) blas_memory_free(buffer[i]);
    free(buffer);
    return true;
}

bool cpu_blas_open(failure *f) {
    static const char *const avx512[] = {"SkylakeX", "Cooperlake", "SapphireRapids", NULL};
    static const char *const avx2[] = {"Haswell", "Zen", "SkylakeX", "Cooperlake", "SapphireRapids", NULL};
    simd_level level = simd_detect();
    bool slow = level == SIMD_AVX512 ? !core_is_one_of(avx512) : level == SIMD_AVX2 && !core_is_one_of(avx2);
    if (slow && gotoblas_dynamic_init && gotoblas_dynamic_quit) {
        setenv("OPENBLAS_CORETYPE", level == SIMD_AVX512 ? "SkylakeX" : "Haswell", 0);
        gotoblas_dynamic_quit();
        gotoblas_dynamic_init();
    }
    int threads = omp_get_max_threads();
    openblas_set_num_threads(1);
    omp_set_num_threads(threads); /* OpenBLAS's OpenMP build changes it */
    return reserve_buffers(threads, f);
}
