/* examples.h - one row of a data file -> the messages of a conversation.
 *
 * Layouts are told apart by their keys (the table in examples.c): messages with role and content, conversations with
 * from and value, Alpaca with instruction, input and output.  A row that cannot be used has a reason: a static text
 * that rows are counted under, and a failure with the details of this row.  docs/data.md lists the rules. */
#ifndef DATA_EXAMPLES_H
#define DATA_EXAMPLES_H
#include "base/json.h"
#include "data/rows.h"
#include "text/chat.h"

typedef enum { /* rules applied to a row that was kept; bits */
               NOTE_SURROGATE = 1,
               NOTE_NUMBER = 2,
               NOTE_TOOLS = 4,
               NOTE_LABEL = 8,
               NOTE_COUNT = 4,
} example_note;
const char *example_note_text(int bit); /* 0..NOTE_COUNT-1 */

/* One per thread; what it points to lives until the next example_read. */
typedef struct {
    chat_message *messages; /* stb_ds */
    unsigned notes;
    const char *reason; /* after a failure */
    text_buf row;       /* the row's JSON, NUL-terminated */
    cJSON *root;
    arena texts; /* texts that are no string of the row */
} example;

/* `system`: added in front of a conversation that has no system message; NULL: none. */
bool example_read(example *e, const data_row *row, const char *system, failure *f);
void example_free(example *e);

/* For the layouts. */
bool example_bad(example *e, failure *f, const char *reason, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The text of a string, number, true or false; NULL with *ok true for nothing, null. */
const char *example_text(example *e, const cJSON *item, const char *key, bool *ok, failure *f);
void example_add(example *e, chat_role role, const char *content, bool train);
bool example_read_alpaca(example *e, const cJSON *row, failure *f);
bool example_read_turns(example *e, const cJSON *row, const char *key, failure *f);
#endif
