/* command.h - the commands of liger-sft; each is one file, cmd_X.c. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H
#include "base/failure.h"
#include "config/config.h"

typedef struct {
    const char *name, *sentence; /* for --help */
    bool (*run)(const config *c, failure *f);
} command;

bool cmd_train(const config *c, failure *f);
bool cmd_plan(const config *c, failure *f);
bool cmd_graph(const config *c, failure *f);
bool cmd_data(const config *c, failure *f);
bool cmd_eval(const config *c, failure *f);
bool cmd_generate(const config *c, failure *f);
bool cmd_merge(const config *c, failure *f);
#endif
