/* post_process.h - the "post_processor": which ids stand before and behind a text (BOS, EOS). */
#ifndef TEXT_POST_PROCESS_H
#define TEXT_POST_PROCESS_H
#include "base/json.h"

typedef struct {
    int32_t *before, *behind; /* stb_ds */
    bool seen;                /* a template was read */
} post_processor;             /* zero-initialise */

/* `size`: ids are below it. `item` may be NULL. */
bool post_processor_open(post_processor *p, const cJSON *item, int32_t size, failure *f);
void post_processor_close(post_processor *p);
#endif
