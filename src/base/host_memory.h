/* host_memory.h - how much host memory this process can still have, whatever limits it. */
#ifndef BASE_HOST_MEMORY_H
#define BASE_HOST_MEMORY_H
#include <stddef.h>

typedef struct {
    size_t bytes;    /* SIZE_MAX: unknown */
    const char *why; /* what limits it, for a message: "on this machine", "under ulimit -v", ... */
} host_room;

/* The least of: what the kernel thinks can be had without swapping, the limits of the process's control groups (v1 and
 * v2, whose file cache counts as free), and the address space (ulimit -v). mapped: bytes of files that are mapped
 * already and are to be counted as if they were not. Allocates nothing. */
host_room host_memory_room(size_t mapped);
/* The part about control groups: `root` is where they are mounted, `self` the file that names the process's. */
size_t host_cgroup_room(const char *root, const char *self);
/* What ulimit -v leaves; SIZE_MAX without one. */
size_t host_address_room(void);
#endif
