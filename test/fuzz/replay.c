/* replay.c - runs a fuzz target over files and folders of inputs, in place of libFuzzer.
 *
 * Each input has its time limit: one that hangs ends the program. Where no sanitizer needs the address space, it is
 * limited, too. */
#include "fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SECONDS = 30 }; /* far more than any input of the corpus needs, on a busy machine with sanitizers too */

static int count;

static void run_file(const char *path) {
    FILE *file = fopen(path, "rb");
    struct stat st;
    fuzz_expect(file && fstat(fileno(file), &st) == 0, path);
    size_t size = (size_t)st.st_size;
    uint8_t *data = malloc(size ? size : 1);
    fuzz_expect(data && fread(data, 1, size, file) == size, path);
    fclose(file);
    fprintf(stderr, "%s\n", path); /* the last line names the input when one crashes */
    alarm(SECONDS);
    LLVMFuzzerTestOneInput(data, size);
    alarm(0);
    free(data);
    count++;
}

static void run_path(const char *path) {
    DIR *dir = opendir(path);
    if (!dir) {
        run_file(path);
        return;
    }
    for (const struct dirent *e; (e = readdir(dir));) {
        char inside[4096];
        snprintf(inside, sizeof inside, "%s/%s", path, e->d_name);
        if (e->d_name[0] != '.') run_file(inside);
    }
    closedir(dir);
}

int main(int argc, char **argv) {
#ifndef __SANITIZE_ADDRESS__
    struct rlimit memory = {(rlim_t)2 << 30, (rlim_t)2 << 30};
    setrlimit(RLIMIT_AS, &memory);
#endif
    for (int i = 1; i < argc; i++) run_path(argv[i]);
    printf("%d inputs\n", count);
    return count ? 0 : 1;
}
