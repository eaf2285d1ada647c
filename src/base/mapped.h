/* mapped.h - what happens when a mapped file gets shorter, or its disk fails, while it is in use.
 *
 * The kernel then sends SIGBUS to whoever reads the lost pages; there is nothing to go on with. The program ends with
 * exit code 3 and a line that names the file. */
#ifndef BASE_MAPPED_H
#define BASE_MAPPED_H
#include <stddef.h>

/* Installs the handler of SIGBUS; main's. */
void mapped_guard(void);
/* Files as they are mapped and unmapped; any thread. */
void mapped_add(const void *data, size_t size, const char *path);
void mapped_remove(const void *data);
size_t mapped_bytes(void); /* of all that are mapped now */
#endif
