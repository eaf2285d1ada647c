/* chat.h - chat formats as code: messages -> token ids with a label mask. */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H
#include "base/memory.h"
#include "text/tokenizer.h"

typedef enum { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL } chat_role;
typedef struct {
    chat_role role;
    const char *content;
    size_t size;
    bool train; /* assistant turns: false masks this answer */
} chat_message;

typedef struct chat_format chat_format;

/* `name`: "auto" (recognised from the model's own chat template: FOLDER/chat_template.jinja, then chat_template in
 * tokenizer_config.json), or one of chat_format_names(). An unknown name or template is a failure that lists them. */
bool chat_format_open(chat_format **out, const char *name, const char *model_folder, const tokenizer *t, failure *f);
void chat_format_close(chat_format *c);
const char *chat_format_name(const chat_format *c);
const char *const *chat_format_names(int *n);
int chat_format_n_stop(const chat_format *c); /* ids that end an answer (generate stops there) */
const int32_t *chat_format_stop(const chat_format *c);

/* Appends ids and, for each, whether it is a label (assistant text and its end-of-turn token). `prompt`: end with the
 * header that asks for an answer. Contents are tokenized apart from the control text, special tokens in them stay text.
 * A conversation that the format cannot express is a failure (the row's, not the run's). */
bool chat_encode(const chat_format *c, tokenizer_scratch *s, const chat_message *messages, int n, bool prompt,
                 int32_t **ids, uint8_t **labels, failure *f);
#endif
