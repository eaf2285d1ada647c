/* model_rope.c - rotary embedding: its three spellings in config.json, and the table of inverse frequencies.
 *
 * Old files have rope_theta and rope_scaling{type | rope_type, ...}, new ones rope_parameters{rope_type, rope_theta,
 * ...}.  Where two places say different things, or a kind is not known, the model is refused: a wrong table shows only
 * in long texts.  The kinds are those of transformers' modeling_rope_utils.py. */
#include "model/model_rope.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_POSITION = 1 << 30 };

static bool read_positive(const cJSON *object, const char *key, double *out, const char *place, failure *f) {
    TRY(json_need(object, key, place, f));
    TRY(json_get_double(object, key, out, place, f));
    if (*out > 0) return true;
    return fail(f, FAIL_INPUT, "%s: %s: found %g, expected more than 0", place, key, *out);
}

static bool read_kind(const cJSON *object, rope_kind *kind, const char *place, failure *f) {
    const char *name = NULL, *old = NULL;
    TRY(json_get_string(object, "rope_type", &name, place, f));
    TRY(json_get_string(object, "type", &old, place, f));
    if (name && old && strcmp(name, old) != 0)
        return fail(f, FAIL_INPUT, "%s: rope_type is \"%.60s\", type is \"%.60s\": which one holds?", place, name, old);
    if (!name) name = old;
    if (!name && json_find(object, "factor")) return fail(f, FAIL_INPUT, "%s: has a factor but no rope_type", place);
    *kind = ROPE_DEFAULT;
    if (!name || strcmp(name, "default") == 0) return true;
    *kind = ROPE_LINEAR;
    if (strcmp(name, "linear") == 0) return true;
    *kind = ROPE_LLAMA3;
    if (strcmp(name, "llama3") == 0) return true;
    return fail(f, FAIL_INPUT, "%s: rope_type: \"%.60s\" is not supported; default, linear and llama3 are", place,
                name);
}

static bool read_llama3(const cJSON *root, const cJSON *object, rope_config *r, int max_position, const char *place,
                        failure *f) {
    TRY(read_positive(object, "factor", &r->factor, place, f));
    TRY(read_positive(object, "low_freq_factor", &r->low_freq_factor, place, f));
    TRY(read_positive(object, "high_freq_factor", &r->high_freq_factor, place, f));
    if (r->high_freq_factor <= r->low_freq_factor)
        return fail(f, FAIL_INPUT, "%s: high_freq_factor %g is not above low_freq_factor %g", place,
                    r->high_freq_factor, r->low_freq_factor);
    int64_t inner = 0, outer = 0;
    TRY(json_get_int(object, "original_max_position_embeddings", 1, MAX_POSITION, &inner, place, f));
    TRY(json_get_int(root, "original_max_position_embeddings", 1, MAX_POSITION, &outer, place, f));
    if (inner && outer && inner != outer)
        return fail(f, FAIL_INPUT, "%s: original_max_position_embeddings is %lld here and %lld at the top", place,
                    (long long)inner, (long long)outer);
    r->original_max_position = inner ? (int)inner : outer ? (int)outer : max_position;
    return true;
}

/* One of the two objects; *theta stays 0 when it names none. */
static bool read_object(const cJSON *root, const cJSON *object, rope_config *r, int max_position, const char *place,
                        failure *f) {
    if (!cJSON_IsObject(object))
        return fail(f, FAIL_INPUT, "%s: found %s, expected an object", place, json_kind(object));
    for (const cJSON *item = object->child; item; item = item->next)
        if (cJSON_IsObject(item))
            return fail(f, FAIL_INPUT, "%s: %.60s: a rotation of its own for each kind of layer is not supported",
                        place, item->string);
    *r = (rope_config){.factor = 1};
    TRY(read_kind(object, &r->kind, place, f));
    if (json_find(object, "rope_theta")) TRY(read_positive(object, "rope_theta", &r->theta, place, f));
    double part = 1;
    TRY(json_get_double(object, "partial_rotary_factor", &part, place, f));
    if (part != 1) return fail(f, FAIL_INPUT, "%s: partial_rotary_factor: found %g, only 1 is supported", place, part);
    if (r->kind == ROPE_LINEAR) return read_positive(object, "factor", &r->factor, place, f);
    if (r->kind == ROPE_LLAMA3) return read_llama3(root, object, r, max_position, place, f);
    return true;
}

static bool same_scaling(const rope_config *a, const rope_config *b) {
    return a->kind == b->kind && a->factor == b->factor && a->low_freq_factor == b->low_freq_factor &&
           a->high_freq_factor == b->high_freq_factor && a->original_max_position == b->original_max_position;
}

bool model_rope_read(const cJSON *root, rope_config *out, int max_position, const char *place, failure *f) {
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    double theta = 0;
    if (json_find(root, "rope_theta")) TRY(read_positive(root, "rope_theta", &theta, place, f));
    *out = (rope_config){.factor = 1};
    bool seen = false;
    for (int i = 0; i < 2; i++) {
        const cJSON *object = json_find(root, keys[i]);
        if (!object) continue;
        char here[1024];
        snprintf(here, sizeof here, "%.900s: %s", place, keys[i]);
        rope_config r;
        TRY(read_object(root, object, &r, max_position, here, f));
        if (seen && !same_scaling(&r, out))
            return fail(f, FAIL_INPUT, "%s: rope_scaling and rope_parameters say different things: which one holds?",
                        place);
        if (theta && r.theta && theta != r.theta)
            return fail(f, FAIL_INPUT, "%s: rope_theta is %g here and %g elsewhere in the file: which one holds?", here,
                        r.theta, theta);
        if (r.theta) theta = r.theta;
        *out = r;
        seen = true;
    }
    out->theta = theta ? theta : 10000;
    return true;
}

/* Wavelengths beyond original / low are stretched by factor, those under original / high stay, between it is mixed. */
static double llama3_frequency(const rope_config *r, double frequency) {
    double wavelength = 2 * 3.14159265358979323846 / frequency, original = r->original_max_position;
    if (wavelength > original / r->low_freq_factor) return frequency / r->factor;
    if (wavelength < original / r->high_freq_factor) return frequency;
    double s = (original / wavelength - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - s) * frequency / r->factor + s * frequency;
}

void model_rope_frequencies(const model_config *m, float *out) {
    for (int i = 0; i < m->head_dim / 2; i++) {
        double frequency = pow(m->rope.theta, -2.0 * i / m->head_dim);
        if (m->rope.kind == ROPE_LINEAR) frequency /= m->rope.factor;
        else if (m->rope.kind == ROPE_LLAMA3) frequency = llama3_frequency(&m->rope, frequency);
        out[i] = (float)frequency;
    }
}
