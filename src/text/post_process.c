/* post_process.c - TemplateProcessing (its "single" form), ByteLevel (which changes offsets only), Sequence of them. */
#include "text/post_process.h"
#include "base/array.h"
#include "text/normalize.h"

#include <math.h>
#include <string.h>

enum { PARTS_MAX = 64, IDS_MAX = 64 }; /* of a template, and in front of or behind a text; known files have three */

static bool put_special(int32_t **ids, const cJSON *specials, const char *name, int32_t size, failure *f) {
    const cJSON *entry = json_find(specials, name), *list = json_find(entry, "ids");
    if (!cJSON_IsArray(list))
        return fail(f, FAIL_INPUT, "post_processor.special_tokens: no ids for \"%.100s\", which the template names",
                    name);
    for (const cJSON *item = list->child; item; item = item->next) {
        double id = item->valuedouble;
        if (!cJSON_IsNumber(item) || id != floor(id) || id < 0 || id >= size)
            return fail(f, FAIL_INPUT,
                        "post_processor.special_tokens: \"%.100s\": an id is no id of the vocabulary (%g)", name,
                        cJSON_IsNumber(item) ? id : NAN);
        if (arrlen(*ids) == IDS_MAX)
            return fail(f, FAIL_INPUT, "post_processor.special_tokens: more than %d ids on one side of a text",
                        IDS_MAX);
        arrput(*ids, (int32_t)id);
    }
    return true;
}

static bool read_template(post_processor *p, const cJSON *item, int32_t size, failure *f) {
    const char *place = "post_processor.TemplateProcessing";
    const cJSON *single = json_find(item, "single");
    if (p->seen) return fail(f, FAIL_INPUT, "%s: a second template is not supported", place);
    if (!cJSON_IsArray(single))
        return fail(f, FAIL_INPUT, "%s.single: found %s, expected a list", place, json_kind(single));
    if (cJSON_GetArraySize(single) > PARTS_MAX)
        return fail(f, FAIL_INPUT, "%s.single: more than %d parts", place, PARTS_MAX);
    for (const cJSON *part = single->child; part; part = part->next) {
        const cJSON *special = json_find(part, "SpecialToken"), *sequence = json_find(part, "Sequence");
        const char *id = NULL;
        TRY(json_get_string(special ? special : sequence, "id", &id, place, f));
        if (id && special)
            TRY(put_special(p->seen ? &p->behind : &p->before, json_find(item, "special_tokens"), id, size, f));
        else if (id && strcmp(id, "A") == 0 && !p->seen) p->seen = true;
        else return fail(f, FAIL_INPUT, "%s.single: expected special tokens and once the sequence A", place);
    }
    return p->seen || fail(f, FAIL_INPUT, "%s.single: the sequence A is missing", place);
}

static bool read_processor(post_processor *p, const cJSON *item, int32_t size, int depth, failure *f) {
    const char *type = NULL;
    if (!cJSON_IsObject(item))
        return fail(f, FAIL_INPUT, "post_processor: found %s, expected an object", json_kind(item));
    if (depth > SEQUENCE_DEPTH_MAX)
        return fail(f, FAIL_INPUT, "post_processor: more than %d levels", SEQUENCE_DEPTH_MAX);
    TRY(json_need(item, "type", "post_processor", f));
    TRY(json_get_string(item, "type", &type, "post_processor", f));
    if (strcmp(type, "ByteLevel") == 0) return true;
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(p, item, size, f);
    if (strcmp(type, "Sequence") != 0)
        return fail(
            f, FAIL_INPUT,
            "post_processor: the type \"%.100s\" is not supported (known: TemplateProcessing, ByteLevel, Sequence)",
            type);
    const cJSON *list = json_find(item, "processors");
    if (!cJSON_IsArray(list))
        return fail(f, FAIL_INPUT, "post_processor.processors: found %s, expected a list", json_kind(list));
    for (const cJSON *child = list->child; child; child = child->next)
        TRY(read_processor(p, child, size, depth + 1, f));
    return true;
}

bool post_processor_open(post_processor *p, const cJSON *item, int32_t size, failure *f) {
    return !item || read_processor(p, item, size, 0, f);
}

void post_processor_close(post_processor *p) {
    arrfree(p->before);
    arrfree(p->behind);
}
