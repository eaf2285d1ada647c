/* exact_match.c - the prompt is everything before an example's last label span, the right answer that span.
 *
 * Texts are compared, not ids: another spelling in tokens of the same text is right.  An answer is left as soon as its
 * text is no longer a beginning of the right one, or when it has as many tokens as that has bytes: a token is at least
 * one byte. */
#include "eval/exact_match.h"
#include "base/array.h"

/* The last run of labels in tokens[n]: [*first, *end). False when there is none. */
static bool last_span(const uint8_t *labels, int64_t n, int64_t *first, int64_t *end) {
    while (n > 0 && !labels[n - 1]) n--;
    *end = n;
    while (n > 0 && labels[n - 1]) n--;
    *first = n;
    return *end > *first;
}

static bool is_stop(const int32_t *stop, int n_stop, int32_t id) {
    for (int i = 0; i < n_stop; i++)
        if (stop[i] == id) return true;
    return false;
}

typedef struct {
    generator *gen;
    const tokenizer *t;
    generate_options o;
    text_buf right, said;
    int32_t *answer, *ids; /* stb_ds; ids: what still_right saw of the answer */
} matcher;

/* Whether the answer so far begins the right text. A broken byte run at its end may be completed by the next token. */
static bool still_right(int32_t id, void *context, failure *f) {
    matcher *m = context;
    (void)f;
    arrput(m->ids, id);
    text_clear(&m->said);
    tokenizer_decode(m->t, m->ids, arrlen(m->ids), false, &m->said);
    size_t n = m->said.size;
    while (n >= 3 && memcmp(m->said.data + n - 3, "\xEF\xBF\xBD", 3) == 0) n -= 3;
    return n <= m->right.size && (n == 0 || memcmp(m->said.data, m->right.data, n) == 0);
}

static bool match_one(bool *exact, matcher *m, const int32_t *tokens, int64_t first, int64_t end, failure *f) {
    *exact = false;
    if (first == 0 || first >= m->gen->n_context) return true;
    while (end > first && is_stop(m->o.stop, m->o.n_stop, tokens[end - 1])) end--;
    text_clear(&m->right);
    tokenizer_decode(m->t, tokens + first, end - first, false, &m->right);
    m->o.max_new_tokens = (int64_t)m->right.size + 1;
    arrsetlen(m->answer, 0);
    arrsetlen(m->ids, 0);
    answer_end how;
    TRY(generate_answer(m->gen, tokens, first, &m->o, still_right, m, &m->answer, &how, f));
    text_clear(&m->said);
    tokenizer_decode(m->t, m->answer, arrlen(m->answer), false, &m->said);
    *exact = how == ANSWER_STOPPED && m->said.size == m->right.size &&
             (m->said.size == 0 || memcmp(m->said.data, m->right.data, m->said.size) == 0);
    return true;
}

bool eval_exact_match(match_result *r, generator *gen, const tokenizer *t, const dataset *d, const int32_t *stop,
                      int n_stop, failure *f) {
    matcher m = {.gen = gen, .t = t, .o = {.sample = {.top_p = 1}, .stop = stop, .n_stop = n_stop}};
    *r = (match_result){0};
    bool ok = true;
    for (int64_t e = 0; ok && e < dataset_count(d); e++) {
        int64_t at = d->start[e], first, end;
        if (!last_span(d->labels + at, d->start[e + 1] - at, &first, &end)) continue;
        bool exact;
        ok = match_one(&exact, &m, d->tokens + at, first, end, f);
        r->rows++;
        r->exact += ok && exact;
    }
    arrfree(m.answer);
    arrfree(m.ids);
    text_free(&m.right);
    text_free(&m.said);
    return ok;
}
