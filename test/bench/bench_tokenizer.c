/* bench_tokenizer.c - encodes texts with our tokenizer: speed, or the ids themselves.
 *
 * bench_tokenizer FOLDER TEXTS ROUNDS   TEXTS: texts with a NUL behind each. Prints the seconds to load, MB/s of the
 *                                       first and of the best round, and the number of ids. Seconds are CPU time.
 * bench_tokenizer FOLDER TEXTS ids      one line of ids for each text, special tokens matched, none added.
 * scripts/bench_tokenizer.py builds and drives it. */
#include "base/array.h"
#include "base/file.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool encode_all(const tokenizer *t, tokenizer_scratch *s, const char *text, size_t size, bool print,
                       int32_t **ids, failure *f) {
    arrsetlen(*ids, 0);
    for (size_t at = 0, n; at < size; at += n + 1) {
        n = strlen(text + at);
        if (print) arrsetlen(*ids, 0);
        TRY(tokenizer_encode(t, s, text + at, n, ENCODE_MATCH_SPECIAL, ids, f));
        for (ptrdiff_t i = 0; i < arrlen(*ids) && print; i++) printf(i ? " %d" : "%d", (*ids)[i]);
        if (print) printf("\n");
    }
    return true;
}

static bool run(const char *folder, const char *path, const char *mode, failure *f) {
    char *text;
    size_t size;
    tokenizer *t;
    int32_t *ids = NULL;
    bool print = strcmp(mode, "ids") == 0;
    int64_t rounds = 1;
    TRY(print || text_to_int(mode, &rounds) || fail(f, FAIL_USAGE, "rounds: \"%s\" is no number", mode));
    double start = seconds(), best = 1e30;
    TRY(tokenizer_open(&t, folder, f));
    double load = seconds() - start;
    TRY(file_read(&text, &size, (size_t)1 << 30, path, f));
    tokenizer_scratch *s = tokenizer_scratch_new(t);
    bool ok = true;
    for (int64_t i = 0; i < rounds && ok; i++) {
        start = seconds();
        ok = encode_all(t, s, text, size, print, &ids, f);
        double took = seconds() - start;
        if (i == 0 && !print) printf("load=%.3f first=%.2f ", load, (double)size / took / 1e6);
        if (took < best) best = took;
    }
    if (!print) printf("best=%.2f ids=%td\n", (double)size / best / 1e6, arrlen(ids));
    arrfree(ids);
    tokenizer_scratch_free(s);
    tokenizer_close(t);
    free(text);
    return ok;
}

int main(int argc, char **argv) {
    failure f = {0};
    if (argc != 4) fail(&f, FAIL_USAGE, "usage: bench_tokenizer FOLDER TEXTS ROUNDS|ids");
    else if (run(argv[1], argv[2], argv[3], &f)) return 0;
    fprintf(stderr, "%s\n", f.text);
    return (int)f.kind;
}
