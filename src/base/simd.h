/* simd.h - one source, several instruction sets.
 *
 * SIMD_CLONES before a function makes the compiler build it for AVX-512, AVX2 and the baseline, and the loader pick
 * one.  The loops inside must be plain enough to be vectorised (no calls that are not inlined). */
#ifndef BASE_SIMD_H
#define BASE_SIMD_H

typedef enum { SIMD_BASE, SIMD_AVX2, SIMD_AVX512 } simd_level;

simd_level simd_detect(void); /* what this processor and its operating system offer */

#if defined(__x86_64__) && defined(__gnu_linux__)
#define SIMD_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SIMD_CLONES
#endif
#endif
