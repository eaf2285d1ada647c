/* unicode.h - character classes as Hugging Face's library (Rust) sees them, and the byte alphabet of byte-level BPE. */
#ifndef TEXT_UNICODE_H
#define TEXT_UNICODE_H
#include "base/text.h"

bool unicode_is_space(uint32_t c);   /* White_Space */
bool unicode_is_word(uint32_t c);    /* \w: Alphabetic, M, Nd, Pc, Join_Control */
bool unicode_is_numeric(uint32_t c); /* N */
bool unicode_is_punct(uint32_t c);   /* ASCII punctuation, P */

/* The character that stands for byte b in a byte-level vocabulary (GPT-2's bytes_to_unicode): itself when printable in
 * Latin-1, else U+0100 and up. */
uint32_t byte_char(uint8_t b);
int byte_from_char(uint32_t c); /* -1 when c stands for no byte */

/* The character that ends at s[n], 0 when n is 0 (s must be valid UTF-8); *len gets its bytes. */
uint32_t utf8_last(const char *s, size_t n, int *len);
/* Valid UTF-8 only: one character, without checks. */
static inline uint32_t utf8_read(const char *s, int *len) {
    const uint8_t *u = (const uint8_t *)s;
    if (u[0] < 0x80) return *len = 1, u[0];
    if (u[0] < 0xE0) return *len = 2, (u[0] & 0x1Fu) << 6 | (u[1] & 0x3Fu);
    if (u[0] < 0xF0) return *len = 3, (u[0] & 0x0Fu) << 12 | (u[1] & 0x3Fu) << 6 | (u[2] & 0x3Fu);
    return *len = 4, (u[0] & 7u) << 18 | (u[1] & 0x3Fu) << 12 | (u[2] & 0x3Fu) << 6 | (u[3] & 0x3Fu);
}
#endif
