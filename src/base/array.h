/* array.h - growing arrays and hash maps: stb_ds, with our checked allocator (implementation in array.c). */
#ifndef BASE_ARRAY_H
#define BASE_ARRAY_H
#include "base/memory.h"
#include <stdlib.h>
#define STBDS_REALLOC(context, block, bytes) xrealloc(block, bytes)
#define STBDS_FREE(context, block)           free(block)
#include <stb_ds.h>
#endif
