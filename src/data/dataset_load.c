/* dataset_load.c - rows of all files -> token ids and labels, with every row left out counted under its reason.
 *
 * Rows are cut from the file one after the other, parsed and tokenized by all threads a batch at a time, and appended
 * in the file's order, so the result does not depend on the number of threads.  Each thread has its own parser and
 * tokenizer scratch; the arrays of a slot are used again from batch to batch. */
#include "base/array.h"
#include "data/dataset.h"
#include "data/examples.h"

#include <omp.h>
#include <stdio.h>
#include <string.h>

enum { BATCH_ROWS = 2048 };

typedef struct {
    data_row row;
    int32_t *ids;    /* stb_ds */
    uint8_t *labels; /* stb_ds */
    size_t from, to; /* what truncation keeps */
    unsigned notes;
    bool cut, ok, strict;
    const char *reason;
    char detail[512];
} slot;

typedef struct {
    example example;
    tokenizer_scratch *scratch;
} worker;

typedef struct {
    dataset *d;
    const dataset_options *o;
    const chat_format *chat;
    slot *slots; /* [BATCH_ROWS] */
    worker *workers;
    int threads;
} load;

static void slot_bad(slot *s, const char *reason, const char *detail, bool strict) {
    s->ok = false;
    s->reason = reason;
    s->strict = strict;
    snprintf(s->detail, sizeof s->detail, "%.511s", detail);
}

static int64_t count_labels(const slot *s) {
    int64_t n = 0;
    for (size_t t = s->from; t < s->to; t++) n += s->labels[t];
    return n;
}

/* Length, labels and ids: sets from, to, cut, or refuses. */
static void slot_check(slot *s, const dataset_options *o) {
    char text[160];
    size_t n = (size_t)arrlen(s->ids), most = (size_t)o->max_length;
    for (size_t t = 0; o->vocab > 0 && t < n; t++) {
        if (s->ids[t] < o->vocab) continue;
        snprintf(text, sizeof text, "token id %d, the model has rows for 0 to %d", s->ids[t], o->vocab - 1);
        slot_bad(s, "a token past the model's vocabulary", text, true);
        return;
    }
    s->from = 0;
    s->to = n;
    s->cut = n > most;
    if (s->cut && o->truncation == TRUNCATE_DELETE) {
        snprintf(text, sizeof text, "%zu tokens, max_length is %zu", n, most);
        slot_bad(s, "longer than max_length", text, false);
        return;
    }
    if (s->cut && o->truncation == TRUNCATE_LEFT) s->from = n - most;
    else if (s->cut) s->to = most;
    if (s->to > s->from) s->labels[s->from] = 0; /* nothing before it could predict it */
    if (count_labels(s) == 0)
        slot_bad(s, s->cut ? "no label left after the cut to max_length" : "no label", "", !s->cut);
}

static void slot_make(slot *s, worker *w, const load *l) {
    failure f = {0};
    example *e = &w->example;
    s->ok = true;
    arrsetlen(s->ids, 0);
    arrsetlen(s->labels, 0);
    if (!example_read(e, &s->row, l->o->system, &f)) {
        slot_bad(s, e->reason, f.text, true);
        return;
    }
    s->notes = e->notes;
    if (!chat_encode(l->chat, w->scratch, e->messages, (int)arrlen(e->messages), false, &s->ids, &s->labels, &f)) {
        slot_bad(s, "not expressible in the chat format", f.text, true);
        return;
    }
    slot_check(s, l->o);
}

static void count(drop_count **list, const char *reason, const char *path, int64_t row) {
    drop_count *at = NULL;
    for (int64_t i = 0; i < arrlen(*list) && !at; i++)
        if ((*list)[i].reason == reason && (*list)[i].path == path) at = &(*list)[i];
    if (!at) {
        arrput(*list, ((drop_count){.reason = reason, .path = path}));
        at = &arrlast(*list);
    }
    if (at->count < 5) at->rows[at->count] = row;
    at->count++;
}

static void append(dataset *d, const slot *s, int path) {
    size_t n = s->to - s->from;
    memcpy(arraddnptr(d->tokens, n), s->ids + s->from, n * sizeof *d->tokens);
    memcpy(arraddnptr(d->labels, n), s->labels + s->from, n);
    arrput(d->start, arrlen(d->tokens));
    arrput(d->source, s->row.number);
    arrput(d->path, path);
}

static bool collect(load *l, int n, int path, const char *file, failure *f) {
    dataset *d = l->d;
    for (int i = 0; i < n; i++) {
        const slot *s = &l->slots[i];
        const char *name = l->o->paths[path];
        d->rows_read++;
        if (!s->ok && s->strict && l->o->strict)
            return fail(f, FAIL_INPUT, "%s: row %lld (from byte %zu): %s: %s", file, (long long)s->row.number,
                        s->row.offset, s->reason, s->detail);
        if (!s->ok) {
            count(&d->drops, s->reason, name, s->row.number);
            continue;
        }
        if (s->cut) count(&d->notes, "cut to max_length", name, s->row.number);
        for (int b = 0; b < NOTE_COUNT; b++)
            if (s->notes >> b & 1) count(&d->notes, example_note_text(b), name, s->row.number);
        if (arrlen(d->source) == INT32_MAX) return fail(f, FAIL_INPUT, "%s: more than 2^31 - 1 examples", file);
        append(d, s, path);
    }
    return true;
}

static bool load_file(load *l, int path, failure *f) {
    row_reader *r;
    TRY(row_reader_open(&r, l->o->paths[path], f));
    bool ok = true, more = true;
    while (ok && more) {
        int n = 0;
        bool read = true;
        while (n < BATCH_ROWS && more) {
            read = row_reader_next(r, &l->slots[n].row, f);
            more = read && l->slots[n].row.text;
            n += more;
        }
#pragma omp parallel for schedule(dynamic, 4) num_threads(l->threads)
        for (int i = 0; i < n; i++) slot_make(&l->slots[i], &l->workers[omp_get_thread_num()], l);
        failure bad_row; /* comes before a broken file, which is further on */
        if (!collect(l, n, path, row_reader_path(r), &bad_row)) {
            *f = bad_row;
            ok = false;
        } else ok = read;
    }
    row_reader_close(r);
    return ok;
}

/* Nothing to learn: says what became of the rows. */
static bool no_examples(const dataset *d, failure *f) {
    text_buf t = {0};
    for (int64_t i = 0; i < arrlen(d->drops) && i < 12; i++)
        text_printf(&t, "\n  %s: %lld rows: %s (first: row %lld)", d->drops[i].path, (long long)d->drops[i].count,
                    d->drops[i].reason, (long long)d->drops[i].rows[0]);
    fail(f, FAIL_INPUT, "no row of the data set leaves a label token; %lld rows were read%s", (long long)d->rows_read,
         t.size ? t.data : "");
    text_free(&t);
    return false;
}

bool dataset_load(dataset *d, const dataset_options *o, const tokenizer *t, const chat_format *c, failure *f) {
    *d = (dataset){0};
    if (o->n_paths == 0) return fail(f, FAIL_INPUT, "dataset: found no file, expected at least one");
    load l = {.d = d, .o = o, .chat = c, .threads = o->threads > 0 ? o->threads : omp_get_max_threads()};
    l.slots = xcalloc(BATCH_ROWS, sizeof *l.slots);
    l.workers = xcalloc((size_t)l.threads, sizeof *l.workers);
    for (int i = 0; i < l.threads; i++) l.workers[i].scratch = tokenizer_scratch_new(t);
    arrput(d->start, 0);
    bool ok = true;
    for (int i = 0; i < o->n_paths && ok; i++) ok = load_file(&l, i, f);
    for (int i = 0; i < l.threads; i++) {
        d->dropped_characters += tokenizer_dropped(l.workers[i].scratch);
        example_free(&l.workers[i].example);
        tokenizer_scratch_free(l.workers[i].scratch);
    }
    for (int i = 0; i < BATCH_ROWS; i++) {
        arrfree(l.slots[i].ids);
        arrfree(l.slots[i].labels);
    }
    free(l.workers);
    free(l.slots);
    if (ok && dataset_count(d) == 0) ok = no_examples(d, f);
    if (!ok) dataset_free(d);
    return ok;
}
