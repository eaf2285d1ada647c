/* log.h - lines to standard error.  Standard output belongs to results and metrics alone. */
#ifndef BASE_LOG_H
#define BASE_LOG_H
#include <stdbool.h>

void log_quiet(bool quiet); /* drops log_info lines */
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warning(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
#endif
