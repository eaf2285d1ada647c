/* dataset.c - the tokenized examples as one long list of tokens, with the places where examples begin. */
#include "data/dataset.h"
#include "base/array.h"
#include "base/fingerprint.h"

void dataset_free(dataset *d) {
    arrfree(d->tokens);
    arrfree(d->labels);
    arrfree(d->start);
    arrfree(d->source);
    arrfree(d->path);
    arrfree(d->drops);
    arrfree(d->notes);
    *d = (dataset){0};
}

int64_t dataset_count(const dataset *d) { return d->start ? arrlen(d->start) - 1 : 0; }

uint64_t dataset_fingerprint(const dataset *d) {
    uint64_t key = fingerprint(0, d->start, (size_t)arrlen(d->start) * sizeof *d->start);
    key = fingerprint(key, d->tokens, (size_t)arrlen(d->tokens) * sizeof *d->tokens);
    return fingerprint(key, d->labels, (size_t)arrlen(d->labels) * sizeof *d->labels);
}
