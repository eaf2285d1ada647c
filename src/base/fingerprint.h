/* fingerprint.h - 64 bits that tell contents apart by accident, not by malice. */
#ifndef BASE_FINGERPRINT_H
#define BASE_FINGERPRINT_H
#include <stddef.h>
#include <stdint.h>

/* Folds `bytes` bytes into `key`. The same number on every machine; the order of calls counts. Several GB/s. */
uint64_t fingerprint(uint64_t key, const void *data, size_t bytes);
#endif
