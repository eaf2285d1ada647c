/* pattern_translate.h - an Oniguruma regular expression as PCRE2 reads it. */
#ifndef TEXT_PATTERN_TRANSLATE_H
#define TEXT_PATTERN_TRANSLATE_H
#include "base/failure.h"
#include "base/text.h"

/* Appends the translation to *out. `place` names the source in errors. */
bool pattern_translate(const char *source, text_buf *out, const char *place, failure *f);
#endif
