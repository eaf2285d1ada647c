/* session.h - a model ready to run: folder -> config, tokenizer, chat format, program, plan, executor with weights
 * bound.
 *
 * The one place where the pieces are put together; train, eval, generate, plan and graph all start here. */
#ifndef TRAIN_SESSION_H
#define TRAIN_SESSION_H
#include "config/config.h"
#include "exec/executor.h"
#include "model/model.h"
#include "pass/pass.h"
#include "text/chat.h"
#include "weights/adapter.h"

typedef enum {
    SESSION_TRAIN,    /* forward and backward, trainable params */
    SESSION_EVAL,     /* forward to nll and loss */
    SESSION_GENERATE, /* forward to the logits of chosen rows */
} session_kind;

/* What ranks do not all keep whole; see the settings of these names. */
typedef struct {
    int zero_stage; /* 0 to 3 */
    bool shard_base;
} sharding;

typedef struct {
    const config *c;
    comm *ranks;     /* set behind session_open_model; NULL: one */
    int plan_ranks;  /* plan: as if there were so many */
    sharding spread; /* of the program that is built */
    arena memory;
    const char *folder; /* of the model, resolved */
    model_config model;
    bool untied_by_file; /* config.json ties the head, the files hold another one: config.json is not to be believed */
    tokenizer *tokens;
    chat_format *chat;
    st_set *weights, *adapter; /* adapter: the one named by the config, NULL when none */
    adapter_config lora;       /* of the adapter trained or loaded; rank 0 when there is none */
    int folds;                 /* where fuse_rules leaves it open: set before session_build (fold_choice.h) */
    const char *fold_note;     /* ... and why; NULL: there was nothing to choose */
    int n_context;             /* SESSION_GENERATE: longest sequence; set before session_build */
    graph g;
    model_io io;
    recompute_level level;
    plan p;
    const backend *b;
    executor *x;
    void *random;   /* bench: host memory of the random matrices, ... */
    void **vectors; /* ... and, stb_ds, of the vectors that are used in place */
} session;

/* The model folder and config.json alone: enough for plan and graph. */
bool session_open_model(session *s, const config *c, failure *f);
/* The backend that the config names; nothing when it is open. */
bool session_open_backend(session *s, failure *f);
/* Tokenizer and chat format of the model folder. */
bool session_open_text(session *s, failure *f);
/* Weights and adapter files (headers checked, data mapped). */
bool session_open_weights(session *s, failure *f);
/* Appends the program for n_rows slots for the backend that the config names (opened here when it is not yet) and runs
 * the passes up to `level`; stored types come from the weights when these are open. */
bool session_build(session *s, session_kind kind, int n_rows, recompute_level level, failure *f);
/* Plan, memory, weights (random ones when none are open: bench). `planned` false gives each temporary its own memory
 * (tests). */
bool session_start(session *s, bool planned, failure *f);
void session_close(session *s);

/* Ops of the whole program. */
int session_ops(const session *s);
/* Drops the program and its memory, so that another can be built for the same weights. */
void session_drop_program(session *s);
#endif
