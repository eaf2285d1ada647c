/* generate.h - answers: tokens after a prompt, one by one, through the program with key/value caches. */
#ifndef EVAL_GENERATE_H
#define EVAL_GENERATE_H
#include "eval/sample.h"
#include "exec/executor.h"
#include "model/model.h"
#include "text/chat.h"

typedef struct {
    sample_options sample;
    uint64_t seed;
    int64_t max_new_tokens;
    const int32_t *stop; /* ids that end an answer; they are not part of it */
    int n_stop;
} generate_options;

/* The ids at which answers stop: the chat format's and the model's eos ids, each once. An stb_ds array. */
int32_t *generate_stop_ids(const model_config *m, const chat_format *c);

typedef enum { ANSWER_STOPPED, ANSWER_FULL /* max_new_tokens or the cache's end */ } answer_end;

/* A started program of model_build_inference, and room for one row of its logits. Zero-initialise, then
 * generator_open; the executor must outlive it. */
typedef struct {
    executor *x;
    const graph *g;
    model_io io;
    int n_rows, n_context, vocab;
    void *raw;     /* one row of logits as the device has them */
    float *logits; /* the same in float32 */
} generator;

void generator_open(generator *r, executor *x, const graph *g, const model_io *io, int n_context);
void generator_close(generator *r);

/* Called with each new token; false stops the answer (f may be set: then it is a failure). */
typedef bool (*token_sink)(int32_t id, void *context, failure *f);

/* Appends the answer to prompt[n] to *answer (an stb_ds array). `sink` may be NULL. A prompt that leaves no room for
 * one token in n_context is a failure. */
bool generate_answer(generator *r, const int32_t *prompt, int64_t n, const generate_options *o, token_sink sink,
                     void *context, int32_t **answer, answer_end *end, failure *f);
#endif
