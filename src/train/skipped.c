/* skipped.c - finds and names the rows of a step that is left out; see skipped.h. */
#include "train/skipped.h"
#include "base/array.h"
#include "base/json.h"
#include "train/trainer.h"

#include <math.h>
#include <string.h>

/* Document k of a micro-batch as one of its own; its arrays are the micro-batch's. */
static micro_batch document(const micro_batch *b, int k, int32_t cu[2]) {
    int from = b->cu[k], n = b->cu[k + 1] - from;
    micro_batch one = {.ids = b->ids + from,
                       .pos = b->pos + from,
                       .target = b->target + from,
                       .example = b->example + from,
                       .cu = cu,
                       .info = b->info};
    one.info.rows = one.info.longest = n;
    one.info.docs = 1;
    one.info.labels = 0;
    for (int t = 0; t < n; t++) one.info.labels += one.target[t] >= 0;
    cu[0] = 0;
    cu[1] = n;
    return one;
}

static bool find_in(session *s, const micro_batch *b, int32_t **bad, int *tried, failure *f) {
    for (int k = 0; k < b->info.docs && arrlen(*bad) < SKIPPED_MOST_BAD; k++) {
        int32_t cu[2];
        double loss;
        micro_batch one = document(b, k, cu);
        if (!one.info.labels) continue;
        TRY(train_loss(s, &one, &loss, f));
        ++*tried;
        if (!isfinite(loss)) arrput(*bad, one.example[0]);
    }
    return true;
}

bool skipped_find(session *s, const micro_batch *batches, int n, int32_t **bad, int *tried, failure *f) {
    *tried = 0;
    for (int i = 0; i < n && arrlen(*bad) < SKIPPED_MOST_BAD; i++) {
        double loss;
        TRY(train_loss(s, &batches[i], &loss, f));
        if (!isfinite(loss)) TRY(find_in(s, &batches[i], bad, tried, f));
    }
    return train_losses_end(s, f);
}

int32_t *skipped_examples(const micro_batch *batches, int n) {
    int32_t *out = NULL;
    for (int i = 0; i < n && !batches[i].info.stand_in; i++)
        for (int k = 0; k < batches[i].info.docs; k++) arrput(out, batches[i].example[batches[i].cu[k]]);
    return out;
}

typedef struct {
    int32_t path;
    int64_t row;
} place;

static int by_place(const void *a, const void *b) {
    const place *x = a, *y = b;
    if (x->path != y->path) return x->path < y->path ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

/* Sorted by file and row; stb_ds. */
static place *places_of(const dataset *d, const int32_t *examples) {
    place *list = NULL;
    for (int64_t i = 0; i < arrlen(examples); i++)
        arrput(list, ((place){d->path[examples[i]], d->source[examples[i]]}));
    if (list) qsort(list, (size_t)arrlen(list), sizeof *list, by_place);
    return list;
}

/* One behind the last of the places from i on that follow each other in one file. */
static int64_t range_end(const place *list, int64_t i) {
    int64_t end = i + 1;
    while (end < arrlen(list) && list[end].path == list[i].path && list[end].row == list[end - 1].row + 1) end++;
    return end;
}

void skipped_put_rows(text_buf *out, const dataset *d, const char *const *paths, const int32_t *examples, int most) {
    place *list = places_of(d, examples);
    int64_t n = arrlen(list);
    for (int64_t i = 0, end; i < n; i = end, most--) {
        if (most == 0) {
            text_printf(out, " and %lld more", (long long)(n - i));
            break;
        }
        end = range_end(list, i);
        bool first = i == 0 || list[i].path != list[i - 1].path;
        if (first) text_printf(out, "%s%s row ", i ? "; " : "", paths[list[i].path]);
        else text_puts(out, ", ");
        text_printf(out, "%lld", (long long)list[i].row);
        if (end > i + 1) text_printf(out, "-%lld", (long long)list[end - 1].row);
    }
    arrfree(list);
}

void skipped_put_json(text_buf *out, const dataset *d, const char *const *paths, const int32_t *examples) {
    place *list = places_of(d, examples);
    text_puts(out, "{");
    for (int64_t i = 0; i < arrlen(list); i++) {
        if (i == 0 || list[i].path != list[i - 1].path) {
            const char *path = paths[list[i].path];
            text_puts(out, i ? "], " : "");
            json_put_string(out, path, strlen(path));
            text_puts(out, ": [");
        } else text_puts(out, ", ");
        text_printf(out, "%lld", (long long)list[i].row);
    }
    text_puts(out, arrlen(list) ? "]}" : "}");
    arrfree(list);
}
