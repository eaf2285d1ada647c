/* rows.h - a data file as a stream of rows: the elements of a JSON list, or the lines of a JSONL file.
 *
 * The file is mapped and cut at the rows' edges; no row is parsed here.  Which of the two forms a file has is told by
 * its first character ("[" or not) after a UTF-8 byte order mark and blanks.  What goes wrong between rows (a comma too
 * many, a list that never ends) is the file's failure, with the row's number and the byte offset. */
#ifndef DATA_ROWS_H
#define DATA_ROWS_H
#include "base/failure.h"
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *text; /* into the mapped file, not NUL-terminated; NULL at the end */
    size_t size;
    int64_t number; /* 1-based in its file; blank lines of JSONL do not count */
    size_t offset;  /* of text[0] in the file */
} data_row;

typedef struct row_reader row_reader;

/* `name` is a path, or PATH#N for the first N rows (a file whose own name ends so is taken as it is). */
bool row_reader_open(row_reader **out, const char *name, failure *f);
bool row_reader_next(row_reader *r, data_row *row, failure *f);
const char *row_reader_path(const row_reader *r); /* without #N */
void row_reader_close(row_reader *r);
#endif
