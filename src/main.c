/* main.c - argv -> command -> exit code. Nothing else ends the program. */
#include "cli/command.h"

int main(int argc, char **argv) { return command_run(argc, argv); }
