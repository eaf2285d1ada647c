/* rng.c - what is built on the mixer: normal numbers, numbers below a limit, shuffling. */
#include "base/rng.h"

#include <math.h>
#include <sys/random.h>
#include <time.h>

float rng_normal(uint64_t key, uint64_t counter) {
    uint64_t a = rng_bits(key, 2 * counter), b = rng_bits(key, 2 * counter + 1);
    double u = ((double)(a >> 11) + 1) * 0x1p-53, angle = (double)(b >> 11) * 0x1p-53 * 6.283185307179586;
    return (float)(sqrt(-2 * log(u)) * cos(angle));
}

uint64_t rng_below(rng *r, uint64_t n) {
    uint64_t limit = UINT64_MAX - UINT64_MAX % n, x;
    do x = rng_next(r);
    while (x >= limit);
    return x % n;
}

void rng_shuffle(rng *r, int32_t *list, int64_t n) {
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)rng_below(r, (uint64_t)i + 1);
        int32_t t = list[i];
        list[i] = list[j];
        list[j] = t;
    }
}

uint64_t rng_secret(void) {
    uint64_t key;
    if (getrandom(&key, sizeof key, 0) != sizeof key) key = rng_mix((uint64_t)time(NULL)); /* an old kernel */
    return key | 1;
}
