/* cmd_generate.c - one answer to `prompt` (or to standard input), with or without an adapter, printed as it grows.
 *
 * The text goes through the model's chat format as a user message, behind `system` when that is set.  The cache holds
 * the prompt and max_new_tokens, and no more than the model's positions. */
#include "base/array.h"
#include "base/log.h"
#include "cli/command.h"
#include "eval/generate.h"
#include "train/session.h"

#include <stdio.h>

enum { PROMPT_ROWS = 256, MAX_PROMPT_BYTES = 64 << 20 };

static bool read_input(text_buf *t, failure *f) {
    char block[4096];
    size_t n;
    while ((n = fread(block, 1, sizeof block, stdin)) > 0) {
        text_add(t, block, n);
        if (t->size > MAX_PROMPT_BYTES) return fail(f, FAIL_INPUT, "standard input: a prompt is at most 64 MiB");
    }
    if (ferror(stdin)) return fail_errno(f, FAIL_MACHINE, "standard input");
    while (t->size && (t->data[t->size - 1] == '\n' || t->data[t->size - 1] == '\r')) t->data[--t->size] = 0;
    return t->size || fail(f, FAIL_USAGE, "no prompt: give --prompt TEXT, or text on standard input");
}

static bool read_prompt(text_buf *t, const config *c, failure *f) {
    if (c->prompt[0]) text_puts(t, c->prompt);
    else TRY(read_input(t, f));
    size_t bad = utf8_check(t->data, t->size);
    return bad == t->size || fail(f, FAIL_INPUT, "the prompt: byte %zu is not UTF-8", bad);
}

static bool encode_prompt(const session *s, const text_buf *prompt, int32_t **ids, failure *f) {
    const char *system = s->c->system;
    chat_message messages[2] = {{.role = CHAT_SYSTEM, .content = system, .size = strlen(system)},
                                {.role = CHAT_USER, .content = prompt->data, .size = prompt->size}};
    tokenizer_scratch *scratch = tokenizer_scratch_new(s->tokens);
    uint8_t *labels = NULL;
    int first = system[0] ? 0 : 1;
    bool ok = chat_encode(s->chat, scratch, messages + first, 2 - first, true, ids, &labels, f);
    arrfree(labels);
    tokenizer_scratch_free(scratch);
    return ok;
}

typedef struct {
    const tokenizer *t;
    int32_t *ids; /* stb_ds: the answer so far */
    text_buf text;
    size_t shown; /* bytes of text printed */
} printer;

/* Prints what the new token adds. A broken byte run at the end may be completed by the next token, so it waits. */
static bool print_token(int32_t id, void *context, failure *f) {
    printer *p = context;
    (void)f;
    arrput(p->ids, id);
    text_clear(&p->text);
    tokenizer_decode(p->t, p->ids, arrlen(p->ids), true, &p->text);
    size_t end = p->text.size;
    while (end >= 3 && memcmp(p->text.data + end - 3, "\xEF\xBF\xBD", 3) == 0) end -= 3;
    if (end > p->shown) {
        fwrite(p->text.data + p->shown, 1, end - p->shown, stdout);
        fflush(stdout);
        p->shown = end;
    }
    return true;
}

static bool answer(session *s, const int32_t *prompt, failure *f) {
    const config *c = s->c;
    int64_t n = arrlen(prompt), context = n + c->max_new_tokens;
    if (s->model.max_position > 0 && context > s->model.max_position) context = s->model.max_position;
    s->n_context = (int)context;
    TRY(session_build(s, SESSION_GENERATE, n < PROMPT_ROWS ? (int)n : PROMPT_ROWS, RECOMPUTE_NONE, f));
    TRY(session_start(s, true, f));
    int32_t *stop = generate_stop_ids(&s->model, s->chat), *ids = NULL;
    generate_options o = {.sample = {.temperature = c->temperature, .top_p = c->top_p, .top_k = c->top_k},
                          .seed = (uint64_t)c->seed,
                          .max_new_tokens = c->max_new_tokens,
                          .stop = stop,
                          .n_stop = (int)arrlen(stop)};
    generator g;
    generator_open(&g, s->x, &s->g, &s->io, (int)context);
    printer p = {.t = s->tokens};
    answer_end end = ANSWER_STOPPED;
    bool ok = generate_answer(&g, prompt, n, &o, print_token, &p, &ids, &end, f);
    if (p.text.size > p.shown) fwrite(p.text.data + p.shown, 1, p.text.size - p.shown, stdout);
    if (ok) putchar('\n');
    if (ok && end == ANSWER_FULL)
        log_info("the answer was cut at %lld tokens (max_new_tokens %lld, model positions %d)", (long long)arrlen(ids),
                 (long long)c->max_new_tokens, s->model.max_position);
    generator_close(&g);
    arrfree(stop);
    arrfree(ids);
    arrfree(p.ids);
    text_free(&p.text);
    return ok;
}

bool cmd_generate(const config *c, failure *f) {
    session s = {0};
    text_buf prompt = {0};
    int32_t *ids = NULL;
    bool ok = read_prompt(&prompt, c, f) && session_open_model(&s, c, f) && session_open_text(&s, f) &&
              encode_prompt(&s, &prompt, &ids, f) && session_open_weights(&s, f) && answer(&s, ids, f);
    arrfree(ids);
    text_free(&prompt);
    session_close(&s);
    return ok;
}
