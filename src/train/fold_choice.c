/* fold_choice.c - which norms dissolve, by timing whole layers; see fold_choice.h.
 *
 * All choices stand beside each other in the device's memory and are visited in rounds, up and down in turn, so that a
 * card that warms up meanwhile favours none. A card that was idle does not hold still at first (one program took 13.3,
 * a second later 15.3 to 16.2 ms a layer on an H200, and about 13.5 in a long run): it is kept busy for WARM_SECONDS
 * before anything counts, and when it drifts all the same, what counts is each choice's share. */
#include "train/fold_choice.h"
#include "base/array.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/fingerprint.h"
#include "base/log.h"
#include "train/excerpt.h"
#include "train/trainer.h"
#include "weights/hub_cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHOICES = FOLD_ALL + 1, LAYERS = 3, VOCABULARY = 512, ROUNDS = 4, MOST_LINES = 64, MOST_FILE = 1 << 16 };
static const double WARM_SECONDS = 1.5, TIE = 0.01, STEADY = 1.1, SHARE = 1.02;

static const char *const choice_names[CHOICES] = {[FOLD_NONE] = "none dissolves",
                                                  [FOLD_QKV] = "those before q, k, v dissolve",
                                                  [FOLD_MLP] = "those before gate, up dissolve",
                                                  [FOLD_ALL] = "all dissolve"};

/* What a fold adds to a layer's seconds: the mean of what it adds with and without the other. */
static double effect(const fold_times *t, int fold) {
    int other = FOLD_ALL - fold;
    return (t->of[fold] - t->of[FOLD_NONE] + t->of[FOLD_ALL] - t->of[other]) / 2;
}

int fold_choose(const fold_times *t) {
    double tie = TIE * t->of[FOLD_NONE];
    return (effect(t, FOLD_QKV) <= tie ? FOLD_QKV : 0) | (effect(t, FOLD_MLP) <= tie ? FOLD_MLP : 0);
}

/* ---- the file: a line for each shape: key, seconds, and a check of these ---- */

static bool read_line(const char *line, uint64_t *key, fold_times *t) {
    unsigned long long head, check;
    int n = 0, end = 0;
    if (sscanf(line, "%16llx %lf %lf %lf %lf%n %16llx%n", &head, &t->of[0], &t->of[1], &t->of[2], &t->of[3], &n, &check,
               &end) != 6)
        return false;
    *key = head;
    return line[end] == 0 && fingerprint(0, line, (size_t)n) == check;
}

/* The lines of a file that hold, each in a text of its own (stb_ds of malloc'ed). */
static char **read_lines(const char *path) {
    char **lines = NULL, *text = NULL;
    size_t n;
    failure ignored = {0};
    if (!file_exists(path) || !file_read(&text, &n, MOST_FILE, path, &ignored)) return NULL;
    for (char *line = text, *next; *line; line = next) {
        uint64_t key;
        fold_times t;
        next = strchr(line, '\n');
        if (!next) break;
        *next++ = 0;
        if (read_line(line, &key, &t)) arrput(lines, xstrdup(line));
    }
    free(text);
    return lines;
}

static void free_lines(char **lines) {
    for (int i = 0; i < arrlen(lines); i++) free(lines[i]);
    arrfree(lines);
}

bool fold_times_find(const char *path, uint64_t key, fold_times *out) {
    char **lines = read_lines(path);
    bool found = false;
    for (int i = 0; i < arrlen(lines); i++) {
        uint64_t other;
        fold_times t;
        if (!read_line(lines[i], &other, &t) || other != key) continue;
        *out = t, found = true;
    }
    free_lines(lines);
    return found;
}

void fold_times_add(const char *path, uint64_t key, const fold_times *t) {
    char **lines = read_lines(path);
    text_buf all = {0}, line = {0};
    failure ignored = {0};
    arena names = {0};
    int n = (int)arrlen(lines);
    for (int i = n < MOST_LINES ? 0 : n - MOST_LINES + 1; i < n; i++) text_printf(&all, "%s\n", lines[i]);
    text_printf(&line, "%016llx %.6e %.6e %.6e %.6e", (unsigned long long)key, t->of[0], t->of[1], t->of[2], t->of[3]);
    text_printf(&all, "%s %016llx\n", line.data, (unsigned long long)fingerprint(0, line.data, line.size));
    if (file_make_folders(path_folder(&names, path), &ignored)) file_write(path, all.data, all.size, &ignored);
    arena_free(&names);
    text_free(&line);
    text_free(&all);
    free_lines(lines);
}

/* ---- measuring ---- */

/* The level of the run; of auto, the one that is tried first. */
static recompute_level level_of(const config *c) {
    for (recompute_level level = 0; level < RECOMPUTE_COUNT; level++)
        if (strcmp(c->gradient_checkpointing, recompute_name(level)) == 0) return level;
    return RECOMPUTE_NONE;
}

/* The program with a choice of folds, not started yet. */
static bool build(excerpt *e, const session *s, int folds, failure *f) {
    config c = *s->c;
    c.bench_mean_length = 0;
    return excerpt_build(e, s, &c, folds, LAYERS, VOCABULARY, level_of(s->c), f);
}

/* Two programs are one when their lists of ops are; rows as long as max_length are part of what is timed. */
static uint64_t mark(const excerpt *e) {
    char *text = NULL;
    size_t n = 0;
    FILE *memory = open_memstream(&text, &n);
    if (memory) graph_print(&e->s.g, memory, false);
    if (memory) fprintf(memory, "rows of %lld\n", (long long)e->c.max_length);
    if (memory) fclose(memory);
    uint64_t key = fingerprint(0, text, n);
    free(text);
    return key;
}

/* One choice's program, opened. Choices that make one program share the first of them (twin). */
typedef struct {
    excerpt e;
    uint64_t mark;
    int twin;
} contender;

/* Seconds of a layer, over about so many seconds without a gap. */
static bool run_for(contender *c, double seconds, double *layer, failure *f) {
    double started = clock_seconds();
    TRY(excerpt_run(&c->e, f) && excerpt_wait(&c->e, f));
    int runs = 1 + (int)(seconds / (clock_seconds() - started + 1e-9));
    started = clock_seconds();
    for (int i = 0; i < runs; i++) TRY(excerpt_run(&c->e, f));
    TRY(excerpt_wait(&c->e, f));
    *layer = (clock_seconds() - started) / runs / c->e.s.model.n_layer;
    return true;
}

static bool open_contenders(contender *list, const session *s, failure *f) {
    for (int i = 0; i < CHOICES; i++) {
        contender *c = &list[i];
        TRY(build(&c->e, s, i, f));
        c->mark = mark(&c->e);
        while (list[c->twin].mark != c->mark) c->twin++;
        if (c->twin == i) TRY(excerpt_start(&c->e, true, f));
    }
    return true;
}

/* By choice, the sum of two rounds beside each other, as a share of the sum over all choices. Returns that sum. */
static double shares_of(const fold_times *pair, fold_times *share) {
    double sum = 0;
    for (int i = 0; i < CHOICES; i++) sum += share->of[i] = pair[0].of[i] + pair[1].of[i];
    for (int i = 0; i < CHOICES; i++) share->of[i] /= sum;
    return sum;
}

static double ratio(double a, double b) { return fmax(a, b) / fmin(a, b); }

bool fold_settle(const fold_times *rounds, int n, fold_times *out) {
    fold_times last, before;
    double sum = shares_of(&rounds[n - 2], &last), apart = 1, shares = 1;
    before = last;
    if (n >= 4) shares_of(&rounds[n - 4], &before);
    for (int i = 0; i < CHOICES; i++) {
        apart = fmax(apart, ratio(rounds[n - 2].of[i], rounds[n - 1].of[i]));
        shares = fmax(shares, ratio(last.of[i], before.of[i]));
        out->of[i] = (last.of[i] + before.of[i]) / 2 * sum / 2;
    }
    return apart <= STEADY || (n >= 4 && shares <= SHARE);
}

static bool measure(contender *list, const session *s, double warm, fold_times *out, failure *f) {
    fold_times rounds[ROUNDS];
    double ignored;
    TRY(open_contenders(list, s, f) && run_for(&list[0], warm, &ignored, f));
    for (int round = 0; round < ROUNDS; round++) {
        double *times = rounds[round].of;
        for (int k = 0; k < CHOICES; k++) {
            int i = round % 2 ? CHOICES - 1 - k : k;
            if (list[i].twin == i) TRY(run_for(&list[i], warm / 6, &times[i], f));
        }
        for (int i = 0; i < CHOICES; i++) times[i] = times[list[i].twin];
        if (round && fold_settle(rounds, round + 1, out)) return true;
    }
    return fail(f, FAIL_MACHINE, "the times of one program do not agree: something else uses the %s", s->b->name);
}

bool fold_measure(const session *s, double warm, fold_times *out, failure *f) {
    contender *list = xcalloc(CHOICES, sizeof *list);
    bool ok = measure(list, s, warm, out, f);
    for (int i = 0; i < CHOICES; i++) excerpt_close(&list[i].e);
    free(list);
    return ok;
}

/* ---- the choice ---- */

/* Own kernels are part of the program file. */
static uint64_t program_mark(void) {
    file_map m;
    failure ignored = {0};
    if (!file_map_open(&m, "/proc/self/exe", &ignored)) return 0;
    uint64_t key = fingerprint(0, m.data, m.size);
    file_map_close(&m);
    return key;
}

static const char *cache_file(session *s) {
    const char *folder = hub_own_cache(&s->memory);
    return folder ? arena_printf(&s->memory, "%s/folds-1-%s.txt", folder, s->b->platform()) : NULL;
}

bool fold_times_key(const session *s, uint64_t *key, bool *differ, failure *f) {
    uint64_t marks[CHOICES + 1] = {0};
    bool ok = true;
    excerpt *e = xcalloc(1, sizeof *e);
    for (int i = 0; i < CHOICES && ok; i++) {
        ok = build(e, s, i, f);
        if (ok) marks[i] = mark(e);
        excerpt_close(e);
    }
    free(e);
    *differ = marks[FOLD_ALL] != marks[FOLD_NONE];
    if (*differ) marks[CHOICES] = program_mark();
    *key = fingerprint(0, marks, sizeof marks);
    return ok;
}

static void note_times(session *s, const fold_times *t, const char *from) {
    s->fold_note =
        arena_printf(&s->memory,
                     "fold: of the norms inside layers %s: ms a layer, forward and backward: %.3f with none, "
                     "%.3f q k v, %.3f gate up, %.3f both (%s; a norm stays when dissolving it costs more than 1 %%)",
                     choice_names[s->folds], 1e3 * t->of[FOLD_NONE], 1e3 * t->of[FOLD_QKV], 1e3 * t->of[FOLD_MLP],
                     1e3 * t->of[FOLD_ALL], from);
}

/* Rank 0's. */
static void choose(session *s) {
    const char *forced = "fuse_rules all,fold does it anyway";
    failure f = {0};
    uint64_t key;
    bool differ;
    fold_times t;
    s->folds = FOLD_NONE;
    if (!s->b->platform)
        s->fold_note = "fold: no norm dissolves: that is timed on cards only; fuse_rules all,fold does it";
    else if (s->c->deterministic)
        s->fold_note =
            arena_printf(&s->memory, "fold: no norm dissolves: deterministic takes no timed choice; %s", forced);
    if (s->fold_note) return;
    bool ok = fold_times_key(s, &key, &differ, &f);
    if (ok && !differ) { /* the pass says why */
        s->folds = FOLD_ALL;
        return;
    }
    const char *path = ok ? cache_file(s) : NULL;
    bool known = path && fold_times_find(path, key, &t);
    if (ok && !known) ok = fold_measure(s, WARM_SECONDS, &t, &f);
    if (!ok) {
        s->fold_note =
            arena_printf(&s->memory, "fold: no norm dissolves: it could not be timed (%s); %s", f.text, forced);
        return;
    }
    s->folds = fold_choose(&t);
    note_times(s, &t, known ? "timed before" : "timed now");
    if (path && !known) fold_times_add(path, key, &t);
}

bool fold_choice_make(session *s, failure *f) {
    s->folds = FOLD_NONE, s->fold_note = NULL;
    if (!s->c->use_liger_kernel || !fuse_leaves_folds_open(s->c->fuse_rules)) return true;
    if (comm_rank(s->ranks) == 0) choose(s);
    return comm_broadcast(s->ranks, &s->folds, sizeof s->folds, 0, "which norms dissolve", f);
}
