/* st_header.h - the header of one .safetensors file; used by safetensors.c alone. */
#ifndef WEIGHTS_ST_HEADER_H
#define WEIGHTS_ST_HEADER_H
#include "base/json.h"
#include "weights/safetensors.h"

enum { ST_MAX_HEADER = 100000000 }; /* bytes, the format's own limit */

typedef struct {
    const char *key, *value;
} st_meta;

/* Checks the whole header of a mapped file and appends its tensors (their data points into the mapping) and metadata
 * to two stb_ds containers. Strings live in a. Reads nothing behind the header. */
bool st_header_read(const file_map *m, const char *path, arena *a, st_tensor **tensors, st_meta **metadata, failure *f);

/* "PATH: tensor "NAME": ..."; the name is printed with its control characters escaped. */
bool st_fail(failure *f, const char *path, const char *name, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#endif
