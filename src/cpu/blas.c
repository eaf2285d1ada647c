/* blas.c - OpenBLAS as these kernels want it.
 *
 * OpenBLAS 0.3.21 (Debian 12) knows processors by model number and takes the 2004 "Prescott" kernels for any that
 * came later: a fifth of the speed on an AVX-512 machine.  It also reads OPENBLAS_CORETYPE, but only while it is
 * loaded.  Its own start-up functions are exported, so here the variable is set from what the processor says it can
 * do (a value set by the user wins) and the choice is made again.  Other BLAS libraries lack these symbols (weak).
 * Calls are single-threaded: product.c cuts work into tiles for OpenMP's threads, which share no second pool. */
#include "base/simd.h"
#include "cpu/cpu.h"

#include <cblas.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

void gotoblas_dynamic_init(void) __attribute__((weak));
void gotoblas_dynamic_quit(void) __attribute__((weak));

int cpu_threads(void) { return omp_get_max_threads(); }

static bool core_is_one_of(const char *const *names) {
    const char *core = openblas_get_corename();
    for (; *names; names++)
        if (strcasecmp(core, *names) == 0) return true;
    return false;
}

void cpu_blas_open(void) {
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
}
