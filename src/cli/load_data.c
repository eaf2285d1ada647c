/* load_data.c - one place where train, eval and data read their files; see load_data.h. */
#include "cli/load_data.h"
#include "base/array.h"
#include "base/log.h"

#include <math.h>
#include <string.h>

static truncation truncation_of(const config *c) {
    if (strcmp(c->truncation_strategy, "left") == 0) return TRUNCATE_LEFT;
    return strcmp(c->truncation_strategy, "right") == 0 ? TRUNCATE_RIGHT : TRUNCATE_DELETE;
}

static void say(const drop_count *list, const char *what) {
    for (int i = 0; i < arrlen(list); i++) {
        const drop_count *d = &list[i];
        text_buf rows = {0};
        for (int k = 0; k < 5 && k < d->count; k++) text_printf(&rows, "%s%lld", k ? ", " : "", (long long)d->rows[k]);
        log_warning("%s: %lld rows %s: %s (row %s%s)", d->path, (long long)d->count, what, d->reason, rows.data,
                    d->count > 5 ? ", ..." : "");
        text_free(&rows);
    }
}

dataset_options data_options(const config *c, const string_list *paths, int vocab) {
    return (dataset_options){.paths = paths->items,
                             .n_paths = paths->n,
                             .max_length = (int)c->max_length,
                             .truncation = truncation_of(c),
                             .strict = c->strict,
                             .vocab = vocab,
                             .system = c->system[0] ? c->system : NULL,
                             .threads = (int)c->threads};
}

static void warn_of_positions(const dataset *d, const char *key, int positions) {
    int64_t longer = 0;
    for (int64_t i = 0; i < dataset_count(d); i++) longer += d->start[i + 1] - d->start[i] > positions;
    if (longer && positions > 0)
        log_warning("%s: %lld rows are longer than the %d positions that the model was made for", key,
                    (long long)longer, positions);
}

bool load_files(dataset *d, const string_list *paths, const char *key, const session *s, failure *f) {
    const config *c = s->c;
    dataset_options o = data_options(c, paths, s->model.vocab);
    TRY(config_need(c, key, f));
    memory_doing("reading the data set",
                 "take fewer rows (FILE#N takes the first N), or end what else uses the memory");
    if (!dataset_load(d, &o, s->tokens, s->chat, f)) return fail_in(f, "%s", key);
    say(d->drops, "left out");
    say(d->notes, "changed");
    if (d->dropped_characters)
        log_warning("%s: %lld characters are not in the vocabulary and were dropped", key,
                    (long long)d->dropped_characters);
    warn_of_positions(d, key, s->model.max_position);
    return true;
}

/* Moves the last `n` examples of `from` to `to`. */
static void split_off(dataset *from, dataset *to, int64_t n) {
    int64_t keep = dataset_count(from) - n, first = from->start[keep], end = from->start[keep + n];
    for (int64_t i = 0; i <= n; i++) arrput(to->start, from->start[keep + i] - first);
    for (int64_t t = first; t < end; t++) {
        arrput(to->tokens, from->tokens[t]);
        arrput(to->labels, from->labels[t]);
    }
    for (int64_t i = keep; i < keep + n; i++) {
        arrput(to->source, from->source[i]);
        arrput(to->path, from->path[i]);
    }
    arrsetlen(from->start, keep + 1);
    arrsetlen(from->source, keep);
    arrsetlen(from->path, keep);
    arrsetlen(from->tokens, first);
    arrsetlen(from->labels, first);
}

bool load_training_data(dataset *train, dataset *eval, const session *s, failure *f) {
    const config *c = s->c;
    TRY(load_files(train, &c->dataset, "dataset", s, f));
    if (c->val_dataset.n) return load_files(eval, &c->val_dataset, "val_dataset", s, f);
    int64_t rows = dataset_count(train), n = (int64_t)ceil(c->split_dataset_ratio * (double)rows);
    if (n >= rows)
        return fail(f, FAIL_INPUT, "split_dataset_ratio: %g of %lld rows leaves none to train on",
                    c->split_dataset_ratio, (long long)rows);
    if (n > 0) split_off(train, eval, n);
    return true;
}
