/* failure.h - how a function says that it could not do its work.
 *
 * A function that can fail takes a `failure *` last and returns bool: true when done, false after fail().  TRY()
 * relays a failure upward; fail_in() puts the caller's place in front of the text ("config.json: ...").  The kind is
 * the exit code of the program.  Our own mistakes are assert()s, never failures. */
#ifndef BASE_FAILURE_H
#define BASE_FAILURE_H
#include <stdbool.h>

typedef enum {
    FAIL_NONE = 0,
    FAIL_INPUT = 1,       /* a file or value of the user's is wrong */
    FAIL_USAGE = 2,       /* the command line is wrong */
    FAIL_MACHINE = 3,     /* device, disk, memory, network */
    FAIL_INTERRUPT = 130, /* stopped by a signal after saving */
} failure_kind;

typedef struct {
    failure_kind kind;
    char text[2048]; /* one or more lines: what was found, what was expected, what to do */
} failure;

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if (!(call)) return false;                                                                                     \
    } while (0)

/* Sets kind and text; always returns false, so that `return fail(...)` reads well. */
bool fail(failure *f, failure_kind kind, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Like fail(), with the text of errno behind ("PATH: No space left on device"). */
bool fail_errno(failure *f, failure_kind kind, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Puts "PLACE: " in front of a failure already set; always returns false. */
bool fail_in(failure *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
#endif
