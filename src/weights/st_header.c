/* st_header.c - reads a .safetensors header and believes none of it.
 *
 * A file is: 8 bytes little-endian header length, the header (JSON), the data.  Every tensor names its type, shape and
 * byte range.  The ranges, sorted, must tile the data exactly: no hole, no overlap, nothing behind the last one; and
 * each must be as long as its shape and type say.  So a shard that was cut, or a header that lies, is refused before
 * any weight is read.  Data may lie at any alignment, as the format allows. */
#include "weights/st_header.h"
#include "base/array.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

bool st_fail(failure *f, const char *path, const char *name, const char *format, ...) {
    char reason[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    text_buf quoted = {0};
    json_put_string(&quoted, name, strlen(name));
    fail(f, FAIL_INPUT, "%s: tensor %.300s: %s", path, quoted.data, reason);
    text_free(&quoted);
    for (char *c = f->text; *c; c++) /* the reason may quote the file too */
        if ((unsigned char)*c < 0x20) *c = '?';
    return false;
}

static bool is_index(const cJSON *item) {
    if (!cJSON_IsNumber(item)) return false;
    double x = item->valuedouble;
    return x >= 0 && x <= 0x1p53 && x == floor(x);
}

static bool read_type(const cJSON *item, const char *path, st_tensor *t, failure *f) {
    const cJSON *type = json_find(item, "dtype");
    if (!cJSON_IsString(type)) return st_fail(f, path, t->name, "dtype: found %s, expected a string", json_kind(type));
    const char *name = type->valuestring;
    if (dtype_parse(name, &t->type) && strcmp(dtype_name(t->type), name) == 0) return true;
    return st_fail(f, path, t->name, "the type %.40s is not supported; F32, BF16, F16 and I32 are", name);
}

static bool read_shape(const cJSON *item, const char *path, st_tensor *t, failure *f) {
    const cJSON *shape = json_find(item, "shape");
    if (!cJSON_IsArray(shape)) return st_fail(f, path, t->name, "shape: found %s, expected a list", json_kind(shape));
    t->count = 1;
    for (int i = 0; i < 4; i++) t->dim[i] = 1;
    for (const cJSON *d = shape->child; d; d = d->next) {
        if (t->n_dims == 4) return st_fail(f, path, t->name, "more than 4 dimensions");
        if (!is_index(d)) return st_fail(f, path, t->name, "shape: a dimension is no whole number from 0 up");
        int64_t size = (int64_t)d->valuedouble;
        t->dim[t->n_dims++] = size;
        if (__builtin_mul_overflow(t->count, size, &t->count))
            return st_fail(f, path, t->name, "the product of its dimensions overflows 64 bits");
    }
    return true;
}

static bool read_range(const cJSON *item, const char *path, const file_map *m, uint64_t data_start, st_tensor *t,
                       failure *f) {
    const cJSON *range = json_find(item, "data_offsets");
    if (!cJSON_IsArray(range) || cJSON_GetArraySize(range) != 2 || !is_index(range->child) ||
        !is_index(range->child->next))
        return st_fail(f, path, t->name, "data_offsets: expected two whole numbers from 0 up");
    int64_t begin = (int64_t)range->child->valuedouble, end = (int64_t)range->child->next->valuedouble, bytes;
    uint64_t data_size = m->size - data_start;
    if (begin > end)
        return st_fail(f, path, t->name, "its data begins at %lld, behind its end %lld", (long long)begin,
                       (long long)end);
    if ((uint64_t)end > data_size)
        return st_fail(f, path, t->name,
                       "its data ends at byte %lld, the file has only %llu bytes of data; was it copied or downloaded "
                       "in full?",
                       (long long)end, (unsigned long long)data_size);
    if (__builtin_mul_overflow(t->count, (int64_t)dtype_size(t->type), &bytes))
        return st_fail(f, path, t->name, "its size in bytes overflows 64 bits");
    if (bytes != end - begin)
        return st_fail(f, path, t->name, "%lld elements of %s need %lld bytes, its data range has %lld",
                       (long long)t->count, dtype_name(t->type), (long long)bytes, (long long)(end - begin));
    t->data = m->data + data_start + (uint64_t)begin;
    return true;
}

/* Values are text only; a number there may be a sign of another format. */
static bool read_metadata(const cJSON *item, const char *path, arena *a, st_meta **metadata, failure *f) {
    if (!cJSON_IsObject(item))
        return fail(f, FAIL_INPUT, "%s: __metadata__: found %s, expected an object", path, json_kind(item));
    for (const cJSON *m = item->child; m; m = m->next) {
        if (!cJSON_IsString(m))
            return fail(f, FAIL_INPUT, "%s: __metadata__: a value is a %s, only strings are allowed", path,
                        json_kind(m));
        arrput(*metadata, ((st_meta){arena_strdup(a, m->string), arena_strdup(a, m->valuestring)}));
    }
    return true;
}

typedef struct {
    const uint8_t *begin, *end;
    const char *name;
} byte_range;

static int by_place(const void *left, const void *right) {
    const byte_range *a = left, *b = right;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return (a->end > b->end) - (a->end < b->end);
}

/* The ranges of this file's tensors, those from `first` on, must tile [data_start, file's end). */
static bool check_tiling(const st_tensor *tensors, ptrdiff_t first, const char *path, const file_map *m,
                         uint64_t data_start, failure *f) {
    ptrdiff_t n = arrlen(tensors) - first;
    byte_range *ranges = xcalloc((size_t)n, sizeof *ranges);
    for (ptrdiff_t i = 0; i < n; i++) {
        const st_tensor *t = &tensors[first + i];
        const uint8_t *begin = t->data;
        ranges[i] = (byte_range){begin, begin + (size_t)t->count * dtype_size(t->type), t->name};
    }
    qsort(ranges, (size_t)n, sizeof *ranges, by_place);
    const uint8_t *data = m->data + data_start, *at = data;
    bool ok = true;
    for (ptrdiff_t i = 0; i < n && ok; i++) {
        if (ranges[i].begin > at)
            ok = st_fail(f, path, ranges[i].name, "%lld bytes in front of its data belong to no tensor",
                         (long long)(ranges[i].begin - at));
        else if (ranges[i].begin < at)
            ok = st_fail(f, path, ranges[i].name, "its data overlaps that of another tensor (at byte %lld)",
                         (long long)(ranges[i].begin - data));
        at = ranges[i].end;
    }
    free(ranges);
    if (ok && at != m->data + m->size)
        ok = fail(f, FAIL_INPUT, "%s: %lld bytes behind the last tensor belong to none", path,
                  (long long)(m->data + m->size - at));
    return ok;
}

static bool read_entries(const cJSON *root, const file_map *m, const char *path, uint64_t data_start, arena *a,
                         st_tensor **tensors, st_meta **metadata, failure *f) {
    ptrdiff_t first = arrlen(*tensors);
    for (const cJSON *item = root->child; item; item = item->next) {
        if (strcmp(item->string, "__metadata__") == 0) {
            TRY(read_metadata(item, path, a, metadata, f));
            continue;
        }
        st_tensor t = {.name = arena_strdup(a, item->string)};
        if (!cJSON_IsObject(item)) return st_fail(f, path, t.name, "found %s, expected an object", json_kind(item));
        TRY(read_type(item, path, &t, f));
        TRY(read_shape(item, path, &t, f));
        TRY(read_range(item, path, m, data_start, &t, f));
        arrput(*tensors, t);
    }
    return check_tiling(*tensors, first, path, m, data_start, f);
}

/* What a clone without git-lfs leaves in place of the weights. */
static bool is_lfs_pointer(const file_map *m) {
    static const char start[] = "version https://git-lfs.github.com/spec/";
    return m->size >= sizeof start - 1 && memcmp(m->data, start, sizeof start - 1) == 0;
}

static bool header_length(const file_map *m, const char *path, uint64_t *length, failure *f) {
    if (is_lfs_pointer(m))
        return fail(f, FAIL_INPUT,
                    "%s: a Git LFS pointer, a text of %zu bytes in place of the weights; fetch them with `git lfs "
                    "pull`",
                    path, m->size);
    if (m->size < 8)
        return fail(f, FAIL_INPUT, "%s: %zu bytes, a safetensors file has at least 8; was it copied in full?", path,
                    m->size);
    for (int i = 7; i >= 0; i--) *length = *length << 8 | m->data[i];
    if (*length > m->size - 8)
        return fail(f, FAIL_INPUT, "%s: the header is said to have %llu bytes, only %zu follow; was it copied in full?",
                    path, (unsigned long long)*length, m->size - 8);
    if (*length > ST_MAX_HEADER)
        return fail(f, FAIL_INPUT, "%s: a header of %llu bytes, at most %d are allowed", path,
                    (unsigned long long)*length, ST_MAX_HEADER);
    if (*length == 0 || m->data[8] != '{')
        return fail(f, FAIL_INPUT, "%s: the header does not begin with '{'; is it a safetensors file?", path);
    return true;
}

bool st_header_read(const file_map *m, const char *path, arena *a, st_tensor **tensors, st_meta **metadata,
                    failure *f) {
    uint64_t length = 0;
    TRY(header_length(m, path, &length, f));
    char *text = xmalloc((size_t)length + 1); /* cJSON wants a NUL behind the text */
    memcpy(text, m->data + 8, (size_t)length);
    text[length] = 0;
    cJSON *root = NULL;
    bool ok = json_parse(&root, text, (size_t)length, path, f);
    free(text);
    if (ok) ok = read_entries(root, m, path, 8 + length, a, tensors, metadata, f);
    cJSON_Delete(root);
    return ok;
}
