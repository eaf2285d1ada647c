/* fuzz.h - what the fuzz targets share.
 *
 * A target is test/fuzz/fuzz_X.c: one function that feeds bytes to a parser as a file of a user's.  The same source is
 * a libFuzzer program (`make fuzz`, clang) and, with replay.c in place of libFuzzer, a test that runs over
 * test/fuzz/corpus/X: seeds, and what once crashed or hung.  Inputs of several files have a 0x1E byte between them. */
#ifndef FUZZ_FUZZ_H
#define FUZZ_FUZZ_H
#include "base/failure.h"
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A folder in memory (/dev/shm, else /tmp) that goes when the program ends. */
const char *fuzz_folder(void);
/* FOLDER/name with these bytes; lives as long as the program. */
void fuzz_file(const char *name, const void *data, size_t size);
void fuzz_no_file(const char *name);
/* FOLDER/name; the text lives until the next call. */
const char *fuzz_path(const char *name);

/* The bytes up to the first 0x1E, and in *rest those behind it (NULL: there is none). */
typedef struct {
    const uint8_t *data;
    size_t size;
} fuzz_bytes;
fuzz_bytes fuzz_cut(fuzz_bytes all, fuzz_bytes *rest);

/* What holds of every parser: true, or false with a text and the kind of a user's mistake. Aborts when not. Returns ok.
 */
bool fuzz_check(bool ok, const failure *f);
/* Aborts: the parser promised otherwise. */
void fuzz_expect(bool holds, const char *what);
#endif
