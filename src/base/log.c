/* log.c - a level, a text, a line end, in one write. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

static bool quiet_info;

void log_quiet(bool quiet) { quiet_info = quiet; }

static void line(const char *level, const char *format, va_list args) {
    char text[4096];
    vsnprintf(text, sizeof text, format, args);
    for (char *c = text; *c; c++) /* names from files must not command the terminal */
        if (((unsigned char)*c < 0x20 && *c != '\n' && *c != '\t') || *c == 0x7F) *c = '?';
    fprintf(stderr, "%s%s\n", level, text); /* one write, so that lines of several threads do not mix */
}

#define LOG(name, level, when)                                                                                         \
    void name(const char *format, ...) {                                                                               \
        if (!(when)) return;                                                                                           \
        va_list args;                                                                                                  \
        va_start(args, format);                                                                                        \
        line(level, format, args);                                                                                     \
        va_end(args);                                                                                                  \
    }

LOG(log_info, "", !quiet_info)
LOG(log_warning, "warning: ", true)
LOG(log_error, "error: ", true)
