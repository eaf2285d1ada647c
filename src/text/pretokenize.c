/* pretokenize.c - runs the steps. Each takes all pieces of the one before and cuts them; matches never see beyond their
 * piece. Pieces are places in s->text; a step that writes other text moves s->text to a buffer. */
#include "text/pretokenize.h"
#include "base/array.h"
#include "text/normalize.h"
#include "text/unicode.h"

#include <string.h>

void pretokenize_scratch_free(pretokenize_scratch *s) {
    arrfree(s->pieces);
    arrfree(s->other);
    text_free(&s->buffer[0]);
    text_free(&s->buffer[1]);
}

/* Collects delimiters and what lies between, left to right, and joins them by the behavior. */
typedef struct {
    split_behavior behavior;
    bool invert, previous, waiting; /* the last was a delimiter; one waits for its follower (MERGED_WITH_NEXT) */
    text_piece parent, held;
    ptrdiff_t begin; /* pieces of this parent begin here */
    text_piece **out;
} joiner;

static void joiner_put(joiner *j, size_t start, size_t end, bool delimiter) {
    text_piece part = {j->parent.start + (uint32_t)start, (uint32_t)(end - start), j->parent.first && start == 0};
    bool any = arrlen(*j->out) > j->begin, join = false;
    delimiter ^= j->invert;
    switch (j->behavior) {
    case SPLIT_ISOLATED: break;
    case SPLIT_REMOVED:
        if (delimiter) return;
        break;
    case SPLIT_CONTIGUOUS: join = any && delimiter == j->previous; break;
    case SPLIT_MERGED_WITH_PREVIOUS: join = any && delimiter && !j->previous; break;
    case SPLIT_MERGED_WITH_NEXT:
        if (j->waiting && !delimiter) part = (text_piece){j->held.start, j->held.size + part.size, j->held.first};
        else if (j->waiting) arrput(*j->out, j->held);
        j->waiting = delimiter;
        if (delimiter) {
            j->held = part;
            return;
        }
        break;
    }
    j->previous = delimiter;
    if (join) arrlast(*j->out).size += part.size;
    else arrput(*j->out, part);
}

static void joiner_end(joiner *j) {
    if (j->waiting) arrput(*j->out, j->held);
}

static joiner joiner_begin(const pretokenize_step *step, text_piece parent, text_piece **out) {
    return (joiner){
        .behavior = step->behavior, .invert = step->invert, .parent = parent, .begin = arrlen(*out), .out = out};
}

static bool split_by_pattern(const pretokenize_step *step, pattern_scratch *p, const char *text, text_piece piece,
                             text_piece **out, failure *f) {
    joiner j = joiner_begin(step, piece, out);
    pattern_walk walk = {0};
    size_t done = 0, start, end;
    pattern_result r;
    while ((r = pattern_next(&step->pattern, p, text + piece.start, piece.size, &walk, &start, &end, f)) ==
           PATTERN_FOUND) {
        if (done < start) joiner_put(&j, done, start, false);
        joiner_put(&j, start, end, true);
        done = end;
    }
    if (done < piece.size) joiner_put(&j, done, piece.size, false);
    joiner_end(&j);
    return r == PATTERN_NONE;
}

static void split_by_class(const pretokenize_step *step, const char *text, text_piece piece, text_piece **out) {
    joiner j = joiner_begin(step, piece, out);
    size_t done = 0, i = 0;
    while (i < piece.size) {
        int len;
        bool delimiter = step->is_delimiter(utf8_read(text + piece.start + i, &len));
        if (delimiter) {
            if (done < i) joiner_put(&j, done, i, false);
            joiner_put(&j, i, i + (size_t)len, true);
            done = i + (size_t)len;
        }
        i += (size_t)len;
    }
    if (done < i) joiner_put(&j, done, i, false);
    joiner_end(&j);
}

/* The buffer that s->text does not lie in. */
static text_buf *free_buffer(pretokenize_scratch *s) {
    text_buf *b = &s->buffer[s->buffer[0].data && s->text == s->buffer[0].data];
    text_clear(b);
    return b;
}

static bool starts_with(const char *text, text_piece p, const char *what, size_t n) {
    return p.size >= n && memcmp(text + p.start, what, n) == 0;
}

static void put_mapped(text_buf *to, const char *text, text_piece p, bool map) {
    if (!map) {
        text_add(to, text + p.start, p.size);
        return;
    }
    for (uint32_t i = 0; i < p.size; i++) {
        char bytes[4];
        text_add(to, bytes, (size_t)utf8_put(bytes, byte_char((uint8_t)text[p.start + i])));
    }
}

/* Writes all pieces anew: ByteLevel's blank in front, or its mapping, or Metaspace's replacement. */
static void rewrite(const pretokenize_step *step, pretokenize_scratch *s, bool prefix, bool map) {
    text_buf *to = free_buffer(s);
    text_add(to, "", 0);
    for (ptrdiff_t i = 0; i < arrlen(s->pieces); i++) {
        text_piece *p = &s->pieces[i];
        size_t start = to->size;
        if (!p->size) continue;
        if (step->kind == STEP_BYTE_LEVEL) {
            if (prefix && !starts_with(s->text, *p, " ", 1)) text_puts(to, " ");
            put_mapped(to, s->text, *p, map);
        } else {
            const char *mark = step->pattern.literal;
            size_t n = step->pattern.literal_size;
            bool marked = starts_with(s->text, *p, mark, n) || starts_with(s->text, *p, " ", 1);
            if (!marked && (step->prepend == PREPEND_ALWAYS || (step->prepend == PREPEND_FIRST && p->first)))
                text_add(to, mark, n);
            for (uint32_t k = 0; k < p->size; k++) {
                char c = s->text[p->start + k];
                text_add(to, c == ' ' ? mark : &c, c == ' ' ? n : 1);
            }
        }
        p->start = (uint32_t)start;
        p->size = (uint32_t)(to->size - start);
    }
    s->text = to->data;
}

static bool split_all(const pretokenize_step *step, pretokenize_scratch *s, pattern_scratch *p, failure *f) {
    arrsetlen(s->other, 0);
    for (ptrdiff_t i = 0; i < arrlen(s->pieces); i++) {
        text_piece piece = s->pieces[i];
        if (!piece.size) continue;
        if (step->kind == STEP_CHARS) split_by_class(step, s->text, piece, &s->other);
        else TRY(split_by_pattern(step, p, s->text, piece, &s->other, f));
    }
    text_piece *pieces = s->pieces;
    s->pieces = s->other;
    s->other = pieces;
    return true;
}

bool pretokenize(const pretokenize_step *steps, pretokenize_scratch *s, pattern_scratch *p, const char *text, size_t n,
                 bool first, failure *f) {
    s->text = text;
    arrsetlen(s->pieces, 0);
    arrput(s->pieces, ((text_piece){0, (uint32_t)n, first}));
    for (ptrdiff_t i = 0; i < arrlen(steps); i++) {
        const pretokenize_step *step = &steps[i];
        bool bytes = step->kind == STEP_BYTE_LEVEL, meta = step->kind == STEP_METASPACE;
        if (meta || (bytes && step->add_prefix_space)) rewrite(step, s, true, false);
        if ((!bytes && !meta) || (bytes && step->use_regex) || (meta && step->split)) TRY(split_all(step, s, p, f));
        if (bytes && step->map_bytes) rewrite(step, s, false, true);
        if (s->text != text && s->buffer[s->text == s->buffer[1].data].size > growth_limit(n))
            return fail(f, FAIL_INPUT, "pre-tokenisation blew a text up to more than %d times its size", GROWTH_MAX);
    }
    return true;
}
