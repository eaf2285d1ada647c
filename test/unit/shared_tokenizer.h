/* shared_tokenizer.h - real tokenizers for tests: SHARED_DIR/tokenizers/NAME.tar.xz unpacked into a scratch folder. */
#ifndef UNIT_SHARED_TOKENIZER_H
#define UNIT_SHARED_TOKENIZER_H
#include "scratch.h"

#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

static inline bool shared_is_here(const char *name) {
    if (file_exists(name)) return true;
    printf("skip: %s is not here\n", name);
    return false;
}

/* The folder with tokenizer.json and tokenizer_config.json; NULL (said on standard output) when it cannot be had. */
static inline const char *shared_tokenizer(void **state, const char *name) {
    const char *folder = scratch_path(state, name);
    if (file_is_folder(folder)) return folder;
    char archive[512];
    snprintf(archive, sizeof archive, SHARED_DIR "/tokenizers/%s.tar.xz", name);
    if (!shared_is_here(archive)) return NULL;
    const char *argv[] = {"tar", "-xJf", archive, "-C", scratch_folder(state), NULL};
    pid_t pid;
    int code = 0;
    if (posix_spawnp(&pid, "tar", NULL, NULL, (char *const *)(uintptr_t)argv, environ) != 0 ||
        waitpid(pid, &code, 0) != pid || code != 0 || !file_is_folder(folder)) {
        printf("skip: tar cannot unpack %s\n", archive);
        return NULL;
    }
    return folder;
}
#endif
