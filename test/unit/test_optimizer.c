/* test_optimizer.c - learning rates, clipping, decay, and weights that do move (cases.md O01, O02, O03). */
#include "unit.h"

#include "base/array.h"
#include "train/optimizer.h"
#include "train/schedule.h"
#include "unit/program.h"

#include <math.h>
#include <string.h>

static config defaults(arena *a) {
    config c;
    failure f = {0};
    assert_done(config_read(&c, 0, NULL, a, &f), &f);
    return c;
}

/* O02: cosine, warm-up 2, total 10; the first step's rate is 0, as in transformers. */
static void cosine_with_warmup(void **state) {
    (void)state;
    arena a = {0};
    config c = defaults(&a);
    c.learning_rate = 1;
    c.warmup_steps = 2;
    schedule s = schedule_from_config(&c, 10);
    const double right[] = {0, .5, 1, .9619398, .8535534, .6913417, .5, .3086583, .1464466, .0380602};
    for (int i = 0; i < 10; i++) assert_float_equal(schedule_rate(&s, i), right[i], 1e-6);
    arena_free(&a);
}

static void warmup_is_counted_in_optimizer_steps(void **state) {
    (void)state;
    arena a = {0};
    config c = defaults(&a);
    c.warmup_ratio = 0.03;
    assert_int_equal(schedule_from_config(&c, 10).warmup, 1); /* ceil(.03 * 10) */
    assert_int_equal(schedule_from_config(&c, 100).warmup, 3);
    c.warmup_steps = 7; /* explicit steps win */
    assert_int_equal(schedule_from_config(&c, 100).warmup, 7);
    const char *const kinds[] = {"cosine", "linear", "constant", "constant_with_warmup"};
    for (int k = 0; k < 4; k++) /* nothing divides by zero */
        for (int64_t total = 0; total < 4; total++)
            for (int64_t warmup = 0; warmup < 4; warmup++) {
                c.lr_scheduler_type = kinds[k];
                c.warmup_ratio = 0;
                c.warmup_steps = warmup;
                schedule s = schedule_from_config(&c, total);
                for (int64_t i = 0; i < total; i++) {
                    double r = schedule_rate(&s, i);
                    assert_true(isfinite(r) && r >= 0 && r <= s.peak);
                }
            }
    arena_free(&a);
}

static void linear_falls_to_zero(void **state) {
    (void)state;
    arena a = {0};
    config c = defaults(&a);
    c.lr_scheduler_type = "linear";
    c.learning_rate = 2;
    schedule s = schedule_from_config(&c, 4);
    for (int i = 0; i < 4; i++) assert_true(fabs(schedule_rate(&s, i) - (2 - 0.5 * i)) < 1e-12);
    arena_free(&a);
}

/* A session around a program whose weights are all `start`, without files. */
static void open_session(session *s, const config *c, const program_kind *k, float start) {
    failure f = {0};
    *s = (session){.c = c, .b = &cpu_backend};
    s->io = program_build(&s->g, k, 8, &f);
    plan_make(&s->p, &s->g, s->b, true);
    assert_done(executor_open(&s->x, &s->g, &s->p, s->b, &f), &f);
    float *w = xmalloc(sizeof *w * 31 * 40);
    for (int i = 0; i < 31 * 40; i++) w[i] = start;
    for (vid v = 1; v < arrlen(s->g.values); v++)
        if (s->g.values[v].role == ROLE_PARAM) assert_done(executor_bind(s->x, v, w, DTYPE_F32, &f), &f);
    free(w);
}

static void close_session(session *s) {
    executor_close(s->x);
    plan_free(&s->p);
    graph_free(&s->g);
}

static void fill_gradients(session *s, float value) {
    for (vid v = 1; v < arrlen(s->g.values); v++) {
        float *g = s->g.values[v].grad ? executor_data(s->x, s->g.values[v].grad) : NULL;
        for (int64_t i = 0; g && i < value_count(&s->g.values[v]); i++) g[i] = value;
    }
}

static float first_weight(const session *s, const char *name) {
    return *(const float *)executor_data(s->x, graph_find(&s->g, name));
}

/* O01: 100 steps of -6e-4 from 1.0 end at .94 in the float32 master; a bf16 weight would never move. */
static void small_updates_add_up(void **state) {
    (void)state;
    arena a = {0};
    failure f = {0};
    config c = defaults(&a);
    session s;
    optimizer *o;
    c.tuner_type = "full";
    c.weight_decay = 0;
    open_session(&s, &c, &(program_kind){.full = true}, 1);
    assert_done(optimizer_open(&o, &s, &f), &f);
    for (int i = 0; i < 100; i++) {
        double norm;
        fill_gradients(&s, 1e-3f);
        assert_done(optimizer_step(o, 6e-4, &norm, &f), &f); /* a constant gradient: Adam moves by the rate */
    }
    float w = first_weight(&s, "model.layers.0.mlp.up_proj.weight");
    assert_float_equal(w, 0.940002f, 2e-5);
    assert_float_equal(bf16_to_f32(bf16_from_f32(w)), 0.94140625f, 0);
    optimizer_close(o);
    close_session(&s);
    arena_free(&a);
}

/* O03: the norm is over all gradients; clipping scales by max / (norm + 1e-6); 0 turns it off. */
static void clipping_uses_the_global_norm(void **state) {
    (void)state;
    arena a = {0};
    failure f = {0};
    config c = defaults(&a);
    c.adam_beta1 = c.adam_beta2 = 0; /* the update is then grad / (|grad| + eps): eps shows the scale */
    c.adam_epsilon = 1;
    c.weight_decay = 0;
    for (int clip = 0; clip < 2; clip++) {
        session s;
        optimizer *o;
        double norm;
        c.max_grad_norm = clip ? 1 : 0;
        open_session(&s, &c, &(program_kind){.rank = 2}, 1);
        assert_done(optimizer_open(&o, &s, &f), &f);
        fill_gradients(&s, 0.5f);
        assert_done(optimizer_step(o, 1, &norm, &f), &f);
        double right = 0.5 * sqrt((double)optimizer_params(o));
        assert_true(fabs(norm - right) <= 1e-6 * right);
        double g = clip ? 0.5 / (norm + 1e-6) : 0.5;
        float w = first_weight(&s, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
        assert_true(fabs(w - (1 - g / (g + 1))) < 1e-6);
        fill_gradients(&s, NAN);
        assert_done(optimizer_step(o, 1, &norm, &f), &f); /* said, and nothing is changed */
        assert_false(isfinite(norm));
        assert_true(first_weight(&s, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight") == w);
        optimizer_close(o);
        close_session(&s);
    }
    arena_free(&a);
}

/* Decay reaches matrices and adapters, not norms and biases. */
static void decay_spares_norms_and_biases(void **state) {
    (void)state;
    arena a = {0};
    failure f = {0};
    config c = defaults(&a);
    session s;
    optimizer *o;
    c.weight_decay = 0.1;
    open_session(&s, &c, &(program_kind){.full = true, .bias = true, .qk_norm = true}, 1);
    assert_done(optimizer_open(&o, &s, &f), &f);
    double norm;
    fill_gradients(&s, 0);
    assert_done(optimizer_step(o, 0.5, &norm, &f), &f);
    assert_true(norm == 0);
    assert_float_equal(first_weight(&s, "model.layers.1.mlp.up_proj.weight"), 0.95, 1e-6);
    assert_float_equal(first_weight(&s, "model.embed_tokens.weight"), 0.95, 1e-6);
    assert_float_equal(first_weight(&s, "model.layers.1.input_layernorm.weight"), 1, 0);
    assert_float_equal(first_weight(&s, "model.layers.1.self_attn.q_norm.weight"), 1, 0);
    assert_float_equal(first_weight(&s, "model.layers.1.self_attn.q_proj.bias"), 1, 0);
    assert_float_equal(first_weight(&s, "model.norm.weight"), 1, 0);
    assert_true(optimizer_decays("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"));
    optimizer_close(o);
    close_session(&s);
    arena_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cosine_with_warmup),
        cmocka_unit_test(warmup_is_counted_in_optimizer_steps),
        cmocka_unit_test(linear_falls_to_zero),
        cmocka_unit_test(small_updates_add_up),
        cmocka_unit_test(clipping_uses_the_global_norm),
        cmocka_unit_test(decay_spares_norms_and_biases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
