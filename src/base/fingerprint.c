/* fingerprint.c - a sum over mixed 8-byte words with their places, so that threads may take any part of it. */
#include "base/fingerprint.h"
#include "base/rng.h"

#include <string.h>

static uint64_t word_at(const uint8_t *data, size_t bytes, size_t i) {
    uint8_t b[8] = {0};
    memcpy(b, data + 8 * i, bytes - 8 * i < 8 ? bytes - 8 * i : 8);
    uint64_t word = 0;
    for (int k = 0; k < 8; k++) word |= (uint64_t)b[k] << 8 * k;
    return word;
}

uint64_t fingerprint(uint64_t key, const void *data, size_t bytes) {
    uint64_t sum = 0, from = rng_fold(key, bytes);
    size_t words = (bytes + 7) / 8;
#pragma omp parallel for reduction(+ : sum) if (words > 1 << 16)
    for (size_t i = 0; i < words; i++) sum += rng_bits(from ^ word_at(data, bytes, i), i);
    return rng_fold(from, sum);
}
