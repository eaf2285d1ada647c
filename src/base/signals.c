/* signals.c - see signals.h. A handler can only reach variables that live as long as the program; these two are theirs.
 */
#include "base/signals.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t holding, caught;

static void end_now(const char *text) {
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
    _exit(130);
}

static void handle(int number) {
    if (!holding) end_now("error: interrupted before there was anything to save\n");
    if (caught) end_now("error: interrupted twice: ended without saving; earlier checkpoints are whole\n");
    caught = number;
}

static void catch_one(int number) {
    struct sigaction old, own = {.sa_handler = handle, .sa_flags = SA_RESTART};
    sigemptyset(&own.sa_mask);
    if (sigaction(number, NULL, &old) == 0 && old.sa_handler == SIG_IGN) return;
    sigaction(number, &own, NULL);
}

void signals_catch(void) {
    holding = caught = 0;
    catch_one(SIGINT);
    catch_one(SIGTERM);
}

void signals_ignore(void) {
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
}

void signals_hold(bool hold) { holding = hold; }

int signals_caught(void) { return (int)caught; }

const char *signals_name(int number) { return number == SIGINT ? "SIGINT" : "SIGTERM"; }
