/* log.h - lines to standard error.  Standard output belongs to results and metrics alone. */
#ifndef BASE_LOG_H
#define BASE_LOG_H
#include <stdbool.h>
#include <stdio.h>

void log_quiet(bool quiet); /* drops log_info lines */
/* This process is rank `rank` of several. Rank 0 speaks as ever. The others leave standard error to it but for errors,
 * which then begin with the rank; all their lines go to `file` (NULL: nowhere), which must stay open. */
void log_rank(int rank, FILE *file);
void log_to_file_only(void); /* another rank says the rest */
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warning(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Takes out what would command the terminal: names from files must not. In place. */
void log_tame(char *text);
#endif
