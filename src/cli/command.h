/* command.h - the commands of liger-sft; each is one file, cmd_X.c, and one line of the table in command.c. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H
#include "base/failure.h"
#include "config/config.h"

typedef struct {
    const char *name, *sentence; /* for --help */
    bool (*run)(const config *c, failure *f);
    bool ranks; /* runs as several processes too */
} command;

/* Runs what argv asks for and returns the exit code (design: 0 done, 1 input, 2 usage, 3 machine, 130 interrupted). */
int command_run(int argc, char **argv);

bool cmd_train(const config *c, failure *f);
bool cmd_plan(const config *c, failure *f);
bool cmd_graph(const config *c, failure *f);
bool cmd_data(const config *c, failure *f);
bool cmd_eval(const config *c, failure *f);
bool cmd_generate(const config *c, failure *f);
bool cmd_bench(const config *c, failure *f);
bool cmd_merge(const config *c, failure *f);
#endif
