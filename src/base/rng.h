/* rng.h - random numbers as a pure function of (key, counter), so that any order of use, any thread and any device
 * gives the same numbers.  The mixer is SplitMix64's (Steele, Lea, Flood 2014). */
#ifndef BASE_RNG_H
#define BASE_RNG_H
#include <stdint.h>

static inline uint64_t rng_mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}
/* A key for a purpose: fold seed, step, value id ... one after the other. */
static inline uint64_t rng_fold(uint64_t key, uint64_t word) { return rng_mix(key ^ rng_mix(word)); }
static inline uint64_t rng_bits(uint64_t key, uint64_t counter) { return rng_mix(key + counter * 0xD1342543DE82EF95u); }
/* In [0, 1), 24 bits. */
static inline float rng_uniform(uint64_t key, uint64_t counter) {
    return (float)(int32_t)(rng_bits(key, counter) >> 40) * 0x1p-24f; /* int32_t: vectors convert it faster */
}
float rng_normal(uint64_t key, uint64_t counter); /* standard normal (Box-Muller) */

/* A stream, for code that draws one after the other. */
typedef struct {
    uint64_t key, counter;
} rng;
static inline uint64_t rng_next(rng *r) { return rng_bits(r->key, r->counter++); }
uint64_t rng_below(rng *r, uint64_t n);             /* uniform in [0, n), unbiased; n > 0 */
void rng_shuffle(rng *r, int32_t *list, int64_t n); /* Fisher-Yates */

/* Odd, from the system, different in each run: the key of a hash table for names from files, so that nobody can choose
 * names that collide. Nothing else: results do not depend on it. */
uint64_t rng_secret(void);
#endif
