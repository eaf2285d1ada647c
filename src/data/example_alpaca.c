/* example_alpaca.c - rows with instruction, input, output, and optionally system and history.
 *
 * The question is instruction + "\n" + input; a missing, null or empty part is left out with its line end.  history is
 * a list of [question, answer] pairs that come before. */
#include "data/examples.h"

#include <string.h>

static bool is_empty(const char *s) { return !s || !s[0]; }

static bool read_history(example *e, const cJSON *row, failure *f) {
    const cJSON *history = json_find(row, "history");
    if (!history) return true;
    if (!cJSON_IsArray(history))
        return example_bad(e, f, "a history that is no list of pairs", "history: found %s, expected a list",
                           json_kind(history));
    for (const cJSON *pair = history->child; pair; pair = pair->next) {
        if (!cJSON_IsArray(pair) || !pair->child || !pair->child->next || pair->child->next->next)
            return example_bad(e, f, "a history that is no list of pairs",
                               "history: found an element that is no pair of texts");
        bool ok;
        const char *question = example_text(e, pair->child, "history", &ok, f);
        TRY(ok);
        const char *answer = example_text(e, pair->child->next, "history", &ok, f);
        TRY(ok);
        if (is_empty(question) || is_empty(answer))
            return example_bad(e, f, "an empty text in the history", "history: found an empty question or answer");
        example_add(e, CHAT_USER, question, false);
        example_add(e, CHAT_ASSISTANT, answer, true);
    }
    return true;
}

bool example_read_alpaca(example *e, const cJSON *row, failure *f) {
    static const char *const keys[] = {"system", "instruction", "input", "output"};
    const char *text[4];
    for (int i = 0; i < 4; i++) {
        bool ok;
        text[i] = example_text(e, cJSON_GetObjectItemCaseSensitive(row, keys[i]), keys[i], &ok, f);
        TRY(ok);
    }
    const char *instruction = text[1], *input = text[2], *output = text[3];
    if (!output) return example_bad(e, f, "the output is missing", "output: found nothing, expected text");
    if (!output[0]) return example_bad(e, f, "the output is empty", "output: found an empty text");
    if (is_empty(instruction) && is_empty(input))
        return example_bad(e, f, "the instruction is empty", "instruction and input are both empty");
    if (!is_empty(text[0])) example_add(e, CHAT_SYSTEM, text[0], false);
    TRY(read_history(e, row, f));
    const char *query = is_empty(input)         ? instruction
                        : is_empty(instruction) ? input
                                                : arena_printf(&e->texts, "%s\n%s", instruction, input);
    example_add(e, CHAT_USER, query, false);
    example_add(e, CHAT_ASSISTANT, output, true);
    return true;
}
