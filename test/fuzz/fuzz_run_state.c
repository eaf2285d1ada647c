/* fuzz_run_state.c - run_state.json of a checkpoint, behind a 0x1E its trainer_state.json, behind another the
 * metrics.jsonl that a resumed run appends to. What was read is written again, and must read back. */
#include "config/config.h"
#include "fuzz/fuzz.h"
#include "report/metrics_file.h"
#include "train/run_state.h"

#include <string.h>

static void write_again(run_state *s) {
    failure f = {0};
    arena a = {0};
    config c;
    text_buf state = {0}, trainer = {0}, again = {0};
    run_state back = {0};
    fuzz_expect(config_read(&c, 0, NULL, &a, &f), "the defaults are settings");
    run_state_put(&state, s, &c);
    run_state_put_trainer(&trainer, s, &c);
    fuzz_file("run_state.json", state.data, state.size);
    fuzz_file("trainer_state.json", trainer.data, trainer.size);
    if (!run_state_read(&back, fuzz_folder(), &f)) fuzz_expect(false, f.text);
    run_state_put(&again, &back, &c);
    fuzz_expect(strcmp(state.data, again.data) == 0, "a written state reads back the same");
    run_state_free(&back);
    text_free(&state);
    text_free(&trainer);
    text_free(&again);
    arena_free(&a);
}

static void keep_lines(fuzz_bytes lines, int64_t step) {
    failure f = {0};
    metrics_file m;
    fuzz_file("metrics.jsonl", lines.data, lines.size);
    if (!fuzz_check(metrics_file_open(&m, fuzz_path("metrics.jsonl"), true, &f), &f)) return;
    fuzz_check(metrics_file_keep(&m, step, false, &f), &f);
    fuzz_check(metrics_file_append(&m, "{}\n", 3, &f), &f);
    metrics_file_close(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    failure f = {0};
    run_state s = {0};
    fuzz_bytes rest, lines, file = fuzz_cut((fuzz_bytes){data, size}, &rest), trainer = fuzz_cut(rest, &lines);
    fuzz_file("run_state.json", file.data, file.size);
    fuzz_file("trainer_state.json", trainer.data, trainer.size);
    if (fuzz_check(run_state_read(&s, fuzz_folder(), &f), &f)) write_again(&s);
    if (lines.data) keep_lines(lines, s.step ? s.step : 2);
    run_state_free(&s);
    return 0;
}
