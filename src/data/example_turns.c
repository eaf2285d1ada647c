/* example_turns.c - rows that hold a list of turns: OpenAI's messages (role, content) and ShareGPT's conversations
 * (from, value).  Either list may use either pair of keys.
 *
 * An answer with "loss": false or "weight": 0 is context, not a label.  Calls of tools have a spelling of their own in
 * every chat format that is not written yet, so rows with them are refused rather than trained in a made-up form. */
#include "data/examples.h"

#include <string.h>

static const struct {
    const char *name;
    chat_role role;
} roles[] = {
    {"system", CHAT_SYSTEM}, {"user", CHAT_USER},       {"human", CHAT_USER}, {"assistant", CHAT_ASSISTANT},
    {"gpt", CHAT_ASSISTANT}, {"model", CHAT_ASSISTANT}, {"tool", CHAT_TOOL},  {"observation", CHAT_TOOL},
};

static bool find_role(example *e, const char *name, chat_role *role, failure *f) {
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        if (strcmp(name, roles[i].name) == 0) return *role = roles[i].role, true;
    if (strcmp(name, "function_call") == 0 || strcmp(name, "tool_call") == 0)
        return example_bad(e, f, "a call of a tool, which is not supported", "found a turn of role %s", name);
    return example_bad(e, f, "an unknown role",
                       "found role \"%.60s\", expected system, user, human, assistant, gpt, model, tool or observation",
                       name);
}

/* "loss": true/false and "weight": 0 or 1 */
static bool read_train(example *e, const cJSON *turn, bool *train, failure *f) {
    *train = true;
    const cJSON *loss = json_find(turn, "loss"), *weight = json_find(turn, "weight");
    if (loss && !cJSON_IsBool(loss))
        return example_bad(e, f, "a wrong loss or weight", "loss: found %s, expected true or false", json_kind(loss));
    if (weight && !(cJSON_IsNumber(weight) && (weight->valuedouble == 0 || weight->valuedouble == 1)))
        return example_bad(e, f, "a wrong loss or weight", "weight: found something else than 0 or 1");
    if (loss) *train = cJSON_IsTrue(loss);
    if (weight && weight->valuedouble == 0) *train = false;
    return true;
}

static bool read_turn(example *e, const cJSON *turn, failure *f) {
    if (!cJSON_IsObject(turn))
        return example_bad(e, f, "a turn that is no object", "found %s, expected an object", json_kind(turn));
    const cJSON *role_item = json_find(turn, "role"), *content = json_find(turn, "content");
    if (!role_item) role_item = json_find(turn, "from");
    if (!content) content = json_find(turn, "value");
    if (!role_item || !cJSON_IsString(role_item))
        return example_bad(e, f, "an unknown role", "role or from: found %s, expected a role's name",
                           json_kind(role_item));
    const cJSON *calls = json_find(turn, "tool_calls");
    if (calls && calls->child)
        return example_bad(e, f, "a call of a tool, which is not supported", "found tool_calls in a turn");
    chat_role role = CHAT_USER;
    bool ok, train;
    TRY(find_role(e, role_item->valuestring, &role, f));
    const char *text = example_text(e, content, "content", &ok, f);
    TRY(ok);
    if (!text) return example_bad(e, f, "a turn without content", "content or value: found nothing, expected text");
    TRY(read_train(e, turn, &train, f));
    example_add(e, role, text, train);
    return true;
}

bool example_read_turns(example *e, const cJSON *row, const char *key, failure *f) {
    const cJSON *list = json_find(row, key);
    if (!cJSON_IsArray(list))
        return example_bad(e, f, "turns that are no list", "%s: found %s, expected a list", key, json_kind(list));
    bool ok;
    const char *system = example_text(e, cJSON_GetObjectItemCaseSensitive(row, "system"), "system", &ok, f);
    TRY(ok);
    if (system && system[0]) example_add(e, CHAT_SYSTEM, system, false);
    for (const cJSON *turn = list->child; turn; turn = turn->next) TRY(read_turn(e, turn, f));
    return true;
}
