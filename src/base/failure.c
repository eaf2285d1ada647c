/* failure.c - fills a failure's text; what does not fit is cut at the end. */
#include "base/failure.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool fail(failure *f, failure_kind kind, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
    f->kind = kind;
    return false;
}

bool fail_errno(failure *f, failure_kind kind, const char *format, ...) {
    int saved = errno;
    va_list args;
    va_start(args, format);
    vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
    size_t used = strlen(f->text);
    snprintf(f->text + used, sizeof f->text - used, ": %s", strerror(saved));
    f->kind = kind;
    return false;
}

bool fail_in(failure *f, const char *format, ...) {
    char place[sizeof f->text / 2];
    va_list args;
    va_start(args, format);
    vsnprintf(place, sizeof place, format, args);
    va_end(args);
    size_t used = strlen(place), room = sizeof f->text - 1, n = strlen(f->text);
    if (used + 2 + n > room) n = used + 2 < room ? room - used - 2 : 0; /* the tail of a very long text is cut */
    memmove(f->text + used + 2, f->text, n);
    f->text[used + 2 + n] = 0;
    memcpy(f->text, place, used);
    memcpy(f->text + used, ": ", 2);
    return false;
}
