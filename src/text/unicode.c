/* unicode.c - character classes from utf8proc's categories, and GPT-2's byte alphabet. */
#include "text/unicode.h"

#include <utf8proc.h>

bool unicode_is_space(uint32_t c) {
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

static utf8proc_category_t category(uint32_t c) { return utf8proc_category((utf8proc_int32_t)c); }

bool unicode_is_word(uint32_t c) {
    if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || c == '_' || (c >= 'a' && c <= 'z');
    utf8proc_category_t k = category(c);
    if (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) return true; /* L, M, Nd, Nl follow each other */
    if (k == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D) return true;
    return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
           (c >= 0x1F170 && c <= 0x1F189); /* circled and squared letters are Alphabetic, too */
}

bool unicode_is_numeric(uint32_t c) {
    if (c < 0x80) return c >= '0' && c <= '9';
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

bool unicode_is_punct(uint32_t c) {
    if (c < 0x80) return (c > ' ' && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') || (c > 'z' && c < 0x7F);
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

static bool stands_for_itself(uint32_t c) { return (c > 0x20 && c < 0x7F) || (c > 0xA0 && c < 0x100 && c != 0xAD); }

/* The others, in order, are U+0100...: 0-32, 127-160, 173. */
uint32_t byte_char(uint8_t b) {
    if (stands_for_itself(b)) return b;
    return b <= 0x20 ? 0x100u + b : b <= 0xA0 ? 0x100u + b - 0x7F + 33 : 0x143;
}

int byte_from_char(uint32_t c) {
    if (c < 0x100) return stands_for_itself(c) ? (int)c : -1;
    if (c > 0x143) return -1;
    uint32_t i = c - 0x100;
    return (int)(i <= 0x20 ? i : i < 67 ? i - 33 + 0x7F : 0xAD);
}

uint32_t utf8_last(const char *s, size_t n, int *len) {
    *len = 0;
    if (!n) return 0;
    size_t at = n - 1;
    while (at > 0 && ((uint8_t)s[at] & 0xC0) == 0x80) at--;
    return utf8_read(s + at, len);
}
