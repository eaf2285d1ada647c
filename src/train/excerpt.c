/* excerpt.c - a few layers of a run's model; see excerpt.h. */
#include "train/excerpt.h"
#include "train/random_batch.h"
#include "train/trainer.h"

bool excerpt_build(excerpt *e, const session *of, const config *c, int folds, int layers, int vocab,
                   recompute_level level, failure *f) {
    *e = (excerpt){.c = *c, .s = {.model = of->model, .b = of->b, .folds = folds}};
    e->s.c = &e->c;
    e->s.folder = of->folder;
    e->c.adapter = "";
    e->c.layers_to_transform.n = 0;
    if (of->adapter) { /* the adapter that the run goes on with */
        e->c.lora_rank = of->lora.rank;
        if (of->lora.regex) e->c.target_regex = of->lora.targets[0];
        else e->c.target_regex = "", e->c.target_modules = (string_list){of->lora.targets, of->lora.n_targets};
    }
    if (e->s.model.n_layer > layers) e->s.model.n_layer = layers;
    if (e->s.model.vocab > vocab) e->s.model.vocab = vocab;
    return session_build(&e->s, SESSION_TRAIN, train_slots(c), level, f);
}

bool excerpt_start(excerpt *e, bool planned, failure *f) {
    TRY(session_start(&e->s, planned, f));
    micro_batch_init(&e->batch, train_slots(&e->c));
    random_batch_fill(&e->batch, &e->c, train_slots(&e->c), e->s.model.vocab, 0);
    return executor_clear(e->s.x, ROLE_GRAD, f) && executor_clear(e->s.x, ROLE_OUTPUT, f) && excerpt_run(e, f) &&
           excerpt_wait(e, f);
}

void excerpt_close(excerpt *e) {
    session_drop_program(&e->s);
    arena_free(&e->s.memory);
    if (e->batch.ids) micro_batch_free(&e->batch);
    *e = (excerpt){0};
}

bool excerpt_run(excerpt *e, failure *f) {
    return train_micro_batch(&e->s, &e->batch, 1 / (float)e->batch.info.labels, true, f);
}

bool excerpt_wait(excerpt *e, failure *f) {
    float loss;
    return executor_download(e->s.x, e->s.io.loss, &loss, 1, f);
}
