/* temp_file.h - a file for one test, under a name of its own in the temporary folder. */
#ifndef TEST_TEMP_FILE_H
#define TEST_TEMP_FILE_H
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct {
    char path[64];
} temp_file;

static inline temp_file temp_file_make(const char *bytes, size_t n) {
    temp_file t = {"/tmp/liger-test-XXXXXX"};
    int fd = mkstemp(t.path);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n) {
        perror(t.path);
        abort();
    }
    close(fd);
    return t;
}
#endif
