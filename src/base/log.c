/* log.c - a level, a text, a line end, in one write. */
#include "base/log.h"

#include <stdarg.h>

static bool quiet_info, file_only;
static int own_rank;
static FILE *own_file; /* lines of a rank past 0 */

void log_quiet(bool quiet) { quiet_info = quiet; }

void log_rank(int rank, FILE *file) {
    own_rank = rank;
    own_file = file;
    file_only = false;
}

void log_to_file_only(void) { file_only = true; }

void log_tame(char *text) {
    for (char *c = text; *c; c++) {
        unsigned char b = (unsigned char)*c, next = (unsigned char)c[1];
        if ((b < 0x20 && b != '\n' && b != '\t') || b == 0x7F) *c = '?';
        if (b == 0xC2 && next >= 0x80 && next < 0xA0) c[0] = c[1] = '?'; /* U+0080 to U+009F */
    }
}

static void line(const char *level, bool error, const char *format, va_list args) {
    char text[4096];
    vsnprintf(text, sizeof text, format, args);
    log_tame(text);
    if (own_file) {
        fprintf(own_file, "%s%s\n", level, text);
        fflush(own_file);
    }
    if (file_only || (own_rank && !error)) return;
    /* one write, so that lines of several threads do not mix */
    if (own_rank) fprintf(stderr, "%srank %d: %s\n", level, own_rank, text);
    else fprintf(stderr, "%s%s\n", level, text);
}

#define LOG(name, level, error, when)                                                                                  \
    void name(const char *format, ...) {                                                                               \
        if (!(when)) return;                                                                                           \
        va_list args;                                                                                                  \
        va_start(args, format);                                                                                        \
        line(level, error, format, args);                                                                              \
        va_end(args);                                                                                                  \
    }

LOG(log_info, "", false, !quiet_info)
LOG(log_warning, "warning: ", false, true)
LOG(log_error, "error: ", true, true)
