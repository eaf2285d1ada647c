/* test_rank_folds.c - which norms dissolve among ranks: rank 0's times decide, the others neither look nor time, and
 * all build one program. With a stand-in for a card's name, so that times count on the CPU. */
#include "base/array.h"
#include "base/file.h"
#include "base/log.h"
#include "mpi/ranks_test.h"
#include "train/fold_choice.h"
#include "train/trainer.h"

#include <string.h>
#include <unistd.h>

static const char *stand_in_platform(void) { return "stand-in"; }

/* Folded ops of both kinds. */
static void count_folded(const graph *g, int *qkv, int *mlp) {
    *qkv = *mlp = 0;
    for (int i = 0; i < arrlen(g->ops); i++) {
        *qkv += g->ops[i].kind == OP_norm_qkv_rope && g->ops[i].in[NQR_RA];
        *mlp += g->ops[i].kind == OP_gate_up_glu && g->ops[i].in[GUG_RSTD];
    }
}

static void check_choice(comm *c, session *s, const char *path, int choice) {
    failure f = {0};
    if (comm_rank(c) == 0) {
        uint64_t key;
        bool differ;
        fold_times t = {{2e-3, 2e-3, 2e-3, 2e-3}};
        t.of[choice] = 1e-3;
        DONE(c, fold_times_key(s, &key, &differ, &f), &f);
        fold_times_add(path, key, &t);
    }
    DONE(c, train_build(s, &f), &f);
    int qkv, mlp;
    count_folded(&s->g, &qkv, &mlp);
    RIGHT(c, s->folds == choice);
    RIGHT(c, qkv == (choice & FOLD_QKV ? 1 : 0) && mlp == (choice & FOLD_MLP ? 2 : 0)); /* of two layers */
    RIGHT(c, comm_rank(c) == 0 || !file_exists(path));
    session_drop_program(s);
}

int main(void) {
    comm *c = ranks_test_open(60);
    char *flags[] = {"--model", TEST_DIR "/fixtures/models/llama", "--device", "cpu", "--max_length", "32"};
    char folder[] = "/tmp/liger-test-XXXXXX";
    arena a = {0};
    failure f = {0};
    config settings;
    session s;
    log_quiet(true);
    RIGHT(c, mkdtemp(folder) && setenv("XDG_CACHE_HOME", folder, 1) == 0); /* each rank's own */
    DONE(c, config_read(&settings, 6, flags, &a, &f), &f);
    DONE(c, session_open_model(&s, &settings, &f) && session_open_backend(&s, &f), &f);
    backend b = *s.b;
    b.platform = stand_in_platform;
    s.b = &b, s.ranks = c;
    const char *path = path_join(&a, folder, "liger-sft/folds-1-stand-in.txt");
    for (int choice = FOLD_NONE; choice <= FOLD_ALL; choice++) check_choice(c, &s, path, choice);
    session_close(&s);
    file_remove(folder, &f);
    arena_free(&a);
    comm_close(c);
    return 0;
}
