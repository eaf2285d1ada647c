/* dump_logits.c - writes a model's logits for one packed row, for scripts that compare them with another program's.
 *
 *   dump_logits ROW.safetensors OUT.safetensors --model FOLDER [--adapter FOLDER] [--key value ...]
 *
 * ROW holds input_ids and position_ids [N] and cu_seqlens [documents + 1], all I32; OUT gets logits [N,V], F32.
 * Further flags are config keys, as for liger-sft eval.  Built by `ninja dump_logits`, not by default. */
#include "base/log.h"
#include "train/trainer.h"
#include "weights/safetensors.h"

#include <stdlib.h>
#include <string.h>

static bool read_ints(int32_t **out, int *n, const st_set *set, const char *name, failure *f) {
    const st_tensor *t = st_find(set, name);
    if (!t || t->type != DTYPE_I32 || t->n_dims != 1 || t->count < 1)
        return fail(f, FAIL_INPUT, "%s: expected a list of I32", name);
    *out = xmalloc((size_t)t->count * sizeof **out);
    memcpy(*out, t->data, (size_t)t->count * sizeof **out);
    *n = (int)t->count;
    return true;
}

static bool read_row(micro_batch *b, const char *path, failure *f) {
    st_set *set;
    int n_pos, n_cu;
    TRY(st_open_file(&set, path, f));
    bool ok = read_ints(&b->ids, &b->info.rows, set, "input_ids", f) &&
              read_ints(&b->pos, &n_pos, set, "position_ids", f) && read_ints(&b->cu, &n_cu, set, "cu_seqlens", f);
    st_close(set);
    TRY(ok);
    int n = b->info.rows;
    b->info.docs = n_cu - 1;
    if (n_pos != n || b->info.docs < 1 || b->cu[0] != 0 || b->cu[b->info.docs] != n)
        return fail(f, FAIL_INPUT, "%s: input_ids, position_ids and cu_seqlens do not fit together", path);
    b->target = xmalloc((size_t)n * sizeof *b->target);
    for (int t = 0; t < n; t++) b->target[t] = -100;
    for (int d = 0; d < b->info.docs; d++) {
        int length = b->cu[d + 1] - b->cu[d];
        if (length < 1) return fail(f, FAIL_INPUT, "%s: document %d is empty", path, d);
        if (length > b->info.longest) b->info.longest = length;
    }
    return true;
}

static bool write_logits(const session *s, int n, const char *path, failure *f) {
    int64_t vocab = s->g.values[s->io.logits].cols;
    float *logits = xmalloc((size_t)(n * vocab) * sizeof *logits);
    st_entry entry = {.name = "logits", .type = DTYPE_F32, .n_dims = 2, .dim = {n, vocab}, .data = logits};
    bool ok = executor_download(s->x, s->io.logits, logits, n * vocab, f) && st_write(path, &entry, 1, f);
    free(logits);
    return ok;
}

static bool dump(session *s, micro_batch *b, int argc, char **argv, config *c, arena *a, failure *f) {
    TRY(read_row(b, argv[1], f));
    TRY(config_read(c, argc - 3, argv + 3, a, f));
    /* The fused head takes the place of the logits. */
    if (strcmp(c->fuse_rules, "all") == 0) c->fuse_rules = "linear_lora,norm_qkv_rope,gate_up_glu,add_rms_norm";
    TRY(session_open_model(s, c, f));
    TRY(session_open_weights(s, f));
    TRY(session_build(s, SESSION_EVAL, b->info.rows, RECOMPUTE_NONE, f));
    TRY(session_start(s, true, f));
    TRY(train_micro_batch(s, b, 0, false, f));
    return write_logits(s, b->info.rows, argv[2], f);
}

int main(int argc, char **argv) {
    if (argc < 5) {
        log_error("usage: dump_logits ROW.safetensors OUT.safetensors --model FOLDER [--key value ...]");
        return FAIL_USAGE;
    }
    failure f = {0};
    session s = {0};
    micro_batch b = {0};
    config c;
    arena a = {0};
    bool ok = dump(&s, &b, argc, argv, &c, &a, &f);
    if (!ok) log_error("%s", f.text);
    session_close(&s);
    free(b.ids), free(b.pos), free(b.cu), free(b.target);
    arena_free(&a);
    return ok ? 0 : (int)f.kind;
}
