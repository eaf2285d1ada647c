/* metrics_file.h - metrics.jsonl: whole lines, whatever happens to the run that writes them. */
#ifndef REPORT_METRICS_FILE_H
#define REPORT_METRICS_FILE_H
#include "base/failure.h"
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int fd; /* -1: not open */
    char *path;
} metrics_file;

/* Opens the file for appending. goes_on false: empty. goes_on true: with the lines that are there, but for a last one
 * that its run did not finish, which is cut off with a warning. */
bool metrics_file_open(metrics_file *m, const char *path, bool goes_on, failure *f);
/* Cuts off the lines at the end whose "step" is past `step`: a resumed run does those steps again. Without `evaluated`
 * the evaluation behind `step` is done again too, and its line goes. */
bool metrics_file_keep(metrics_file *m, int64_t step, bool evaluated, failure *f);
/* One line, its end included, in one write. What a full disk takes in part is cut off again. */
bool metrics_file_append(metrics_file *m, const char *line, size_t n, failure *f);
void metrics_file_close(metrics_file *m);
#endif
