/* ranks_start.h - the ends of a run's life as ranks: starting them for --gpus N, joining them, leaving them. */
#ifndef CLI_RANKS_START_H
#define CLI_RANKS_START_H
#include "config/config.h"
#include "dist/comm.h"

/* Starts the ranks of --gpus N when this process is none itself, and waits for them: *code is then theirs, and *started
 * true. argv: the flags of the command that config_read read. */
bool ranks_start(const config *c, const char *command, char *const *argv, bool *started, int *code, failure *f);
/* A command that runs as one process was started as several. */
bool ranks_refuse(const char *command, failure *f);
/* Joins the other ranks, when there are any: *out is NULL else. Adapts c to their number (threads, accumulation) and
 * sends what this rank logs where it belongs. */
bool ranks_open(comm **out, config *c, failure *f);
/* Says the failure, if there is one, while the launcher still lets this rank speak: it may end all ranks when one ends.
 * A failure that the others do not know of ends them here; this may not return then. */
void ranks_say(comm *ranks, bool ok, const failure *f);
/* Leaves them, behind everything that has to be tidied up. NULL is fine. */
void ranks_close(comm *ranks);
#endif
