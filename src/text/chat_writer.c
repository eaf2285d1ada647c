/* chat_writer.c - control tokens and text segments to ids and labels.
 *
 * SentencePiece-style tokenizers put a blank in front of whatever text they are given.  A piece of text that continues
 * a segment must not get one, so it is tokenized behind a line end (which merges with nothing in those vocabularies)
 * and the ids of the line end are taken off again. */
#include "text/chat_writer.h"
#include "base/array.h"

#include <string.h>

void chat_put_text(chat_writer *w, const char *text, size_t n) { text_add(&w->text, text, n); }
void chat_puts(chat_writer *w, const char *text) { text_puts(&w->text, text); }

static void pad_labels(chat_writer *w, bool label) {
    size_t from = (size_t)arrlen(*w->labels), n = (size_t)arrlen(*w->ids) - from;
    if (n) memset(arraddnptr(*w->labels, n), label, n);
}

static bool encode_continued(chat_writer *w, failure *f) {
    const chat_format *c = w->c;
    int64_t from = arrlen(*w->ids), line = arrlen(c->line);
    text_clear(&w->longer);
    text_puts(&w->longer, "\n");
    text_add(&w->longer, w->text.data, w->text.size);
    TRY(tokenizer_encode(c->t, w->s, w->longer.data, w->longer.size, ENCODE_PLAIN, w->ids, f));
    if (!line) return true; /* a vocabulary without line ends: nothing is to be taken off */
    if (arrlen(*w->ids) - from >= line && memcmp(*w->ids + from, c->line, (size_t)line * sizeof **w->ids) == 0) {
        arrdeln(*w->ids, from, line);
        return true;
    }
    arrsetlen(*w->ids, from);
    return tokenizer_encode(c->t, w->s, w->text.data, w->text.size, ENCODE_PLAIN, w->ids, f);
}

bool chat_flush(chat_writer *w, bool label, failure *f) {
    const chat_format *c = w->c;
    if (!w->text.size) return true;
    bool continued = c->prefixes && (w->in_segment || (w->after_control && !c->prefixes_segment));
    if (continued) TRY(encode_continued(w, f));
    else TRY(tokenizer_encode(c->t, w->s, w->text.data, w->text.size, ENCODE_PLAIN, w->ids, f));
    pad_labels(w, label);
    text_clear(&w->text);
    w->in_segment = true;
    return true;
}

bool chat_put_control(chat_writer *w, int which, bool label, failure *f) {
    TRY(chat_flush(w, false, f));
    arrput(*w->ids, w->c->control[which]);
    pad_labels(w, label);
    w->in_segment = false;
    w->after_control = true;
    return true;
}

bool chat_put_answer(chat_writer *w, const char *text, size_t n, bool label, failure *f) {
    TRY(chat_flush(w, false, f));
    chat_put_text(w, text, n);
    return chat_flush(w, label, f);
}

bool chat_put_before(chat_writer *w, failure *f) {
    TRY(chat_flush(w, false, f));
    for (int64_t i = 0; i < arrlen(w->c->before); i++) arrput(*w->ids, w->c->before[i]);
    pad_labels(w, false);
    w->after_control |= arrlen(w->c->before) > 0;
    return true;
}

static bool is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

void chat_trim(const char **text, size_t *n) {
    uint32_t code;
    int len;
    while ((len = utf8_next(*text, *n, &code)) > 0 && is_space(code)) *text += len, *n -= (size_t)len;
    while (*n > 0) {
        size_t back = 1;
        while (back < *n && back < 4 && ((*text)[*n - back] & 0xC0) == 0x80) back++;
        if (utf8_next(*text + *n - back, back, &code) != (int)back || !is_space(code)) return;
        *n -= back;
    }
}
