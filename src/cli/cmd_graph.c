/* cmd_graph.c - `liger-sft graph`: the program as a list of ops, and what fusing changes: kernel launches and bytes
 * moved per layer, by group, without and with use_liger_kernel. Needs config.json only. */
#include "base/array.h"
#include "cli/command.h"
#include "cli/traffic.h"
#include "train/fold_choice.h"
#include "train/trainer.h"

#include <stdio.h>
#include <string.h>

static bool count_variant(session *s, const config *c, bool fused, op_traffic out[GROUP_COUNT], failure *f) {
    config variant = *c;
    variant.use_liger_kernel = fused;
    s->c = &variant;
    session_drop_program(s);
    bool ok = session_build(s, SESSION_TRAIN, train_slots(c), RECOMPUTE_NONE, f);
    if (ok) traffic_count(&s->g, s->model.n_layer > 1 ? 2 : 1, out);
    s->c = c;
    return ok;
}

static bool print_graph(session *s, const config *c, failure *f) {
    op_traffic plain[GROUP_COUNT], fused[GROUP_COUNT];
    TRY(session_open_model(s, c, f));
    TRY(session_open_backend(s, f) && fold_choice_make(s, f));
    TRY(session_build(s, SESSION_TRAIN, train_slots(c), RECOMPUTE_NONE, f));
    graph_print(&s->g, stdout, c->explain);
    if (s->fold_note) printf("%s\n", s->fold_note);
    for (int i = 0; i < arrlen(s->g.notes); i++) printf("%s\n", s->g.notes[i]);
    TRY(count_variant(s, c, false, plain, f));
    TRY(count_variant(s, c, true, fused, f));
    traffic_print(plain, fused);
    return true;
}

bool cmd_graph(const config *c, failure *f) {
    session s = {0};
    bool ok = print_graph(&s, c, f);
    session_close(&s);
    return ok;
}
