/* json.h - JSON from outside, read with cJSON and checked.
 *
 * json_parse refuses trailing text, duplicate keys, NUL characters, invalid UTF-8, more than 1,000 levels and more than
 * JSON_MAX_VALUES values; errors name line and column.  It takes O(n log n) whatever the text.  Getters name the place
 * ("PATH: key.sub") and both sides ("found string, expected number"). */
#ifndef BASE_JSON_H
#define BASE_JSON_H
#include "base/failure.h"
#include "base/text.h"
#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

/* cJSON needs about 100 bytes for each. The largest tokenizers have two million. */
enum { JSON_MAX_VALUES = 8000000, JSON_MAX_BYTES = 256 << 20 /* json_read's */ };

/* Has cJSON allocate with xmalloc, so that no memory is not taken for wrong JSON. Once, before the first thread. */
void json_check_memory(void);

/* text[n] must be NUL. `place` names the source in errors. The caller frees with cJSON_Delete. */
bool json_parse(cJSON **out, const char *text, size_t n, const char *place, failure *f);
bool json_read(cJSON **out, const char *path, failure *f);

const char *json_kind(const cJSON *item); /* "null", "string", ... ; "nothing" for NULL */
/* NULL when the key is absent or null. */
const cJSON *json_find(const cJSON *object, const char *key);
/* Optional members: true and *out untouched when absent or null; false and a failure when of another kind. */
bool json_get_int(const cJSON *object, const char *key, int64_t low, int64_t high, int64_t *out, const char *place,
                  failure *f);
bool json_get_double(const cJSON *object, const char *key, double *out, const char *place, failure *f);
bool json_get_bool(const cJSON *object, const char *key, bool *out, const char *place, failure *f);
/* *out points into the document. */
bool json_get_string(const cJSON *object, const char *key, const char **out, const char *place, failure *f);
/* Fails when the key is absent. Use before a getter. */
bool json_need(const cJSON *object, const char *key, const char *place, failure *f);

/* Writing: text with escapes, quotes included. */
void json_put_string(text_buf *t, const char *s, size_t n);
/* The shortest decimal that reads back as the same double; null for NaN and infinities. */
void json_put_double(text_buf *t, double x);
#endif
