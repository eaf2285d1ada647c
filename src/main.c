/* main.c - argv -> command -> exit code. Nothing else ends the program. */
#include "base/threads.h"
#include "cli/command.h"

int main(int argc, char **argv) {
    threads_wait_briefly(argv);
    return command_run(argc, argv);
}
