/* file.h - files: mapped for reading, written whole or not at all.
 *
 * A file_writer writes PATH.tmp-PID in the same folder; commit checks every write, fsyncs, renames and fsyncs the
 * folder; abort (or a failure) removes the temporary and leaves any older PATH as it was. */
#ifndef BASE_FILE_H
#define BASE_FILE_H
#include "base/failure.h"
#include "base/memory.h"
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const uint8_t *data; /* NULL when the file is empty */
    size_t size;
} file_map;
bool file_map_open(file_map *m, const char *path, failure *f);
void file_map_close(file_map *m);

/* The whole file as one malloc'ed, NUL-terminated block; *n leaves the NUL out. Refuses more than max_bytes. */
bool file_read(char **text, size_t *n, size_t max_bytes, const char *path, failure *f);

typedef struct file_writer file_writer;
bool file_writer_open(file_writer **w, const char *path, failure *f);
bool file_writer_write(file_writer *w, const void *data, size_t bytes, failure *f);
bool file_writer_commit(file_writer *w, failure *f);                           /* frees w, also on failure */
void file_writer_abort(file_writer *w);                                        /* frees w; NULL is fine */
bool file_write(const char *path, const void *data, size_t bytes, failure *f); /* open, write, commit */

bool file_exists(const char *path);
bool file_is_folder(const char *path);
bool file_is_same(const char *a, const char *b); /* both are there and are one file or folder */
bool file_make_folders(const char *path, failure *f);
/* Renames a file or folder (an older file goes, an older folder must be empty) and fsyncs the folder it lies in. */
bool file_rename(const char *from, const char *to, failure *f);
/* Removes a file, or a folder with all that is in it (links themselves, not what they name); nothing there is fine. */
bool file_remove(const char *path, failure *f);
/* A folder that can be written, or one that can be made (then its nearest parent there is counts); makes nothing. */
bool file_check_folder(const char *path, failure *f);
char *path_join(arena *a, const char *folder, const char *name); /* an absolute name wins */
char *path_folder(arena *a, const char *path);                   /* "." for a bare name */
#endif
