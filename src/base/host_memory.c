/* host_memory.c - reads /proc and the control groups with buffers on the stack: it is asked when memory is out.  See
 * host_memory.h. */
#include "base/host_memory.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The beginning of a file as a string; "" when it cannot be read. */
static const char *read_text(char *text, size_t room, const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, room - 1) : 0;
    if (fd >= 0) close(fd);
    text[n > 0 ? n : 0] = 0;
    return text;
}

/* The number behind `key` at the beginning of a line, times `unit`; SIZE_MAX when there is none. */
static size_t number_of(const char *text, const char *key, size_t unit) {
    size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
        if (strncmp(line, key, n) != 0) continue;
        char *end;
        unsigned long long x = strtoull(line + n, &end, 10);
        if (end != line + n) return x > SIZE_MAX / unit ? SIZE_MAX : (size_t)x * unit;
    }
    return SIZE_MAX;
}

static size_t number_in(const char *folder, const char *name, const char *key) {
    char path[512], text[8192];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return SIZE_MAX;
    return number_of(read_text(text, sizeof text, path), key, 1); /* "max" is no number: no limit */
}

typedef struct {
    const char *limit, *used, *cache; /* names of files, and a key of memory.stat */
} cgroup_names;

/* The least room of a group and those above it, up to the root's end. */
static size_t group_room(const char *root, const char *group, size_t n, const cgroup_names *names) {
    char folder[512];
    size_t root_length = strlen(root), least = SIZE_MAX;
    if (root_length + n >= sizeof folder) return SIZE_MAX;
    memcpy(folder, root, root_length);
    memcpy(folder + root_length, group, n);
    folder[root_length + n] = 0;
    for (;;) {
        size_t limit = number_in(folder, names->limit, ""), used = number_in(folder, names->used, "");
        size_t cache = number_in(folder, "memory.stat", names->cache);
        if (limit < SIZE_MAX / 4 && used < SIZE_MAX) { /* version 1 writes a number near 2^63 for no limit */
            if (cache <= used) used -= cache;
            size_t room = limit > used ? limit - used : 0;
            if (room < least) least = room;
        }
        char *slash = strrchr(folder + root_length, '/');
        if (!slash) return least;
        *slash = 0;
    }
}

size_t host_cgroup_room(const char *root, const char *self) {
    static const cgroup_names v2 = {"memory.max", "memory.current", "inactive_file "},
                              v1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};
    char text[4096], root_v1[256];
    size_t least = SIZE_MAX;
    snprintf(root_v1, sizeof root_v1, "%s/memory", root);
    read_text(text, sizeof text, self);
    for (char *line = text, *end; *line; line = end + (*end != 0)) { /* "0::/group" or "9:memory:/group" */
        end = line + strcspn(line, "\n");
        char *kind = memchr(line, ':', (size_t)(end - line));
        char *group = kind ? memchr(kind + 1, ':', (size_t)(end - kind - 1)) : NULL;
        if (!group) continue;
        bool unified = group == kind + 1, memory = strncmp(kind, ":memory:", 8) == 0;
        if (!unified && !memory) continue;
        size_t room = group_room(unified ? root : root_v1, group + 1, (size_t)(end - group - 1), unified ? &v2 : &v1);
        if (room < least) least = room;
    }
    return least;
}

size_t host_address_room(void) {
    struct rlimit limit;
    char text[256];
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
    size_t used = number_of(read_text(text, sizeof text, "/proc/self/statm"), "", (size_t)sysconf(_SC_PAGESIZE));
    if (used == SIZE_MAX) return SIZE_MAX;
    return limit.rlim_cur > used ? (size_t)limit.rlim_cur - used : 0;
}

host_room host_memory_room(size_t mapped) {
    char text[2048];
    host_room room = {number_of(read_text(text, sizeof text, "/proc/meminfo"), "MemAvailable:", 1024),
                      "on this machine"};
    size_t group = host_cgroup_room("/sys/fs/cgroup", "/proc/self/cgroup"), address = host_address_room();
    if (group < room.bytes) room = (host_room){group, "under the memory limit of this container or job"};
    if (address < SIZE_MAX - mapped) address += mapped;
    if (address < room.bytes) room = (host_room){address, "under ulimit -v"};
    return room;
}
