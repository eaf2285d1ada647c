/* chat_writer.h - what the chat formats are written with: control tokens by id, text in segments, answers.
 *
 * Text between two control tokens is one segment and is tokenized as a whole, as Hugging Face does with a rendered
 * template; only an answer is tokenized apart from the header before it, because at generation the header ends there.
 * Text never becomes a special token, whatever it holds. */
#ifndef TEXT_CHAT_WRITER_H
#define TEXT_CHAT_WRITER_H
#include "base/text.h"
#include "text/chat.h"

enum { CHAT_END, CHAT_START, CHAT_HEADER_END, CHAT_BOS, CHAT_CONTROLS };

typedef struct chat_writer chat_writer;
typedef struct {
    const char *name;
    const char *control[CHAT_CONTROLS]; /* tokens that the tokenizer must have; NULL: none. END ends an answer */
    bool (*encode)(chat_writer *w, const chat_message *m, int n, bool prompt, failure *f);
    const char *default_system; /* of a conversation without one; NULL: none */
    unsigned roles;             /* bit per chat_role that it can express */
    bool alternate;             /* user and assistant must take turns */
} chat_spec;

struct chat_format {
    const chat_spec *spec;
    const tokenizer *t;
    int32_t control[CHAT_CONTROLS];
    int32_t *before;       /* stb_ds: what the post-processor puts in front of plain text (BOS) */
    int32_t *line;         /* stb_ds: ids of "\n" */
    bool prefixes;         /* the tokenizer puts a blank in front of a text ... */
    bool prefixes_segment; /* ... also of one that follows a control token */
    int32_t stop[4];
    int n_stop;
};

struct chat_writer {
    const chat_format *c;
    tokenizer_scratch *s;
    int32_t **ids;
    uint8_t **labels;
    text_buf text, longer; /* waiting; working space */
    bool after_control, in_segment;
};

bool chat_put_control(chat_writer *w, int which, bool label, failure *f);
void chat_put_text(chat_writer *w, const char *text, size_t n); /* waits for the rest of its segment */
void chat_puts(chat_writer *w, const char *text);
bool chat_put_answer(chat_writer *w, const char *text, size_t n, bool label, failure *f);
bool chat_put_before(chat_writer *w, failure *f); /* the ids that the post-processor puts in front */
bool chat_flush(chat_writer *w, bool label, failure *f);

extern const chat_spec chat_specs[];
extern const int chat_n_specs;

/* text[n] without the white space that Python's str.strip() takes off, which is what `trim` in a template means. */
void chat_trim(const char **text, size_t *n);
#endif
