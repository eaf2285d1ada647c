/* unicode_form.h - NFC, NFD, NFKC and NFKD of a text. */
#ifndef TEXT_UNICODE_FORM_H
#define TEXT_UNICODE_FORM_H
#include "base/text.h"

/* Appends the form of text[n] (valid UTF-8). compose: NFC or NFKC, compatible: NFKC or NFKD. O(n log n). */
void unicode_form(text_buf *out, const char *text, size_t n, bool compose, bool compatible);
#endif
