/* main.c - argv -> command -> exit code. Nothing else ends the program. */
#include "base/mapped.h"
#include "base/threads.h"
#include "cli/command.h"
#include "cpu/blas_load.h"

#include <signal.h>

static void (*const before_libraries)(int, char **, char **)
    __attribute__((section(".preinit_array"), used)) = blas_load_check;

int main(int argc, char **argv) {
    signal(SIGXFSZ, SIG_IGN); /* a file at its size limit is a write that fails, with a message */
    mapped_guard();
    threads_wait_briefly(argv);
    return command_run(argc, argv);
}
