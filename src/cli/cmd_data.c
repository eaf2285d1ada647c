/* cmd_data.c - liger-sft data: what training would see of a data set.
 *
 * Prints what was read, kept and left out, a histogram of lengths, how well the rows are filled, and one document with
 * its labels marked.  --dump N prints rows of the first epoch as JSON lines instead, and the report on standard error;
 * with packing off they come in the file's order.
 * No weights are needed: a tokenizer and, when it is there, config.json for the number of vocabulary rows. */
#include "base/array.h"
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "cli/command.h"
#include "cli/load_data.h"
#include "data/dataset.h"
#include "weights/hub_cache.h"

#include <string.h>

typedef struct {
    const config *c;
    arena memory;
    const char *folder;
    tokenizer *tokens;
    chat_format *chat;
    dataset d;
    packing rows;
    int64_t label_tokens, slots;
} data_view;

/* Rows of the model's embedding; 0 when the folder does not say. */
static bool read_vocab(int *vocab, data_view *v, failure *f) {
    const char *path = path_join(&v->memory, v->folder, "config.json");
    *vocab = 0;
    if (!file_exists(path)) return true;
    cJSON *root;
    TRY(json_read(&root, path, f));
    const cJSON *text = json_find(root, "text_config");
    int64_t n = 0;
    bool ok = json_get_int(text ? text : root, "vocab_size", 1, INT32_MAX, &n, path, f);
    *vocab = (int)n;
    cJSON_Delete(root);
    return ok;
}

static bool open_text(data_view *v, failure *f) {
    const config *c = v->c;
    TRY(config_need(c, "model", f) && config_need(c, "dataset", f));
    v->folder = c->model; /* a folder that holds a tokenizer alone is enough here */
    if (!file_is_folder(c->model)) TRY(hub_find_model(&v->folder, c->model, &v->memory, f));
    TRY(tokenizer_open(&v->tokens, v->folder, f));
    return chat_format_open(&v->chat, c->template, v->folder, v->tokens, f);
}

static bool load(data_view *v, failure *f) {
    const config *c = v->c;
    int vocab;
    TRY(read_vocab(&vocab, v, f));
    dataset_options o = data_options(c, &c->dataset, vocab);
    TRY(dataset_load(&v->d, &o, v->tokens, v->chat, f));
    /* packed: the rows of the loader's first epoch; else the file's order, to be held against the file */
    bool shuffle = c->packing && c->dataset_shuffle;
    pack_rows(&v->rows, &v->d, (int)c->max_length, c->packing, shuffle, rng_fold((uint64_t)c->seed, 0));
    for (int64_t t = 0; t < arrlen(v->d.labels); t++) v->label_tokens += v->d.labels[t];
    v->slots = v->rows.rows * c->max_length;
    return true;
}

static int64_t example_length(const dataset *d, int64_t i) { return d->start[i + 1] - d->start[i]; }

static void put_counts(text_buf *out, const char *title, const drop_count *list) {
    if (arrlen(list)) text_printf(out, "%s\n", title);
    for (int64_t i = 0; i < arrlen(list); i++) {
        text_printf(out, "  %8lld  %s (%s: row", (long long)list[i].count, list[i].reason, list[i].path);
        for (int64_t k = 0; k < list[i].count && k < 5; k++)
            text_printf(out, "%s %lld", k ? "," : "", (long long)list[i].rows[k]);
        text_printf(out, "%s)\n", list[i].count > 5 ? ", ..." : "");
    }
}

static void put_histogram(text_buf *out, const dataset *d) {
    enum { BARS = 12, WIDTH = 50 };
    int64_t n = dataset_count(d), longest = 0, counts[BARS] = {0}, most = 0;
    for (int64_t i = 0; i < n; i++)
        if (example_length(d, i) > longest) longest = example_length(d, i);
    int64_t step = (longest + BARS - 1) / BARS;
    for (int64_t i = 0; i < n; i++) counts[(example_length(d, i) - 1) / step]++;
    for (int k = 0; k < BARS; k++)
        if (counts[k] > most) most = counts[k];
    text_puts(out, "tokens of an example\n");
    for (int k = 0; k < BARS && k * step < longest; k++) {
        int width = (int)((counts[k] * WIDTH + most - 1) / most);
        text_printf(out, "  %6lld - %6lld %7lld  %.*s\n", (long long)(k * step + 1), (long long)((k + 1) * step),
                    (long long)counts[k], width, "##################################################");
    }
}

/* The first document, what is learnt in [[ ]]. */
static void put_sample(text_buf *out, const data_view *v) {
    enum { MOST = 2000 };
    const dataset *d = &v->d;
    int32_t e = v->rows.example[0];
    int64_t end = d->start[e + 1] < d->start[e] + MOST ? d->start[e + 1] : d->start[e] + MOST;
    text_printf(out, "first document (row %lld of %s), what is learnt in [[ ]]\n", (long long)d->source[e],
                v->c->dataset.items[d->path[e]]);
    for (int64_t t = d->start[e], next; t < end; t = next) {
        bool label = d->labels[t];
        for (next = t; next < end && d->labels[next] == label; next++) continue;
        if (label) text_puts(out, "[[");
        tokenizer_decode(v->tokens, d->tokens + t, next - t, false, out);
        if (label) text_puts(out, "]]");
    }
    text_puts(out, end < d->start[e + 1] ? " ...\n" : "\n");
}

static void put_report(text_buf *out, const data_view *v) {
    const dataset *d = &v->d;
    int64_t kept = dataset_count(d), tokens = arrlen(d->tokens);
    double filled = (double)tokens / (double)v->slots;
    text_printf(out, "chat format %s, model %s\n", chat_format_name(v->chat), v->folder);
    text_printf(out, "%lld rows read, %lld kept, %lld left out\n", (long long)d->rows_read, (long long)kept,
                (long long)(d->rows_read - kept));
    put_counts(out, "left out", d->drops);
    put_counts(out, "kept, with a rule applied", d->notes);
    if (d->dropped_characters)
        text_printf(out, "%lld characters that the vocabulary cannot express were dropped\n",
                    (long long)d->dropped_characters);
    put_histogram(out, d);
    text_printf(out, "%s: %lld rows of %lld slots, %.2f %% filled\n", v->c->packing ? "packed" : "not packed",
                (long long)v->rows.rows, (long long)v->c->max_length, 100 * filled);
    put_sample(out, v);
    text_printf(out,
                "data rows_read=%lld kept=%lld left_out=%lld rows=%lld tokens=%lld label_tokens=%lld slots=%lld "
                "packing_efficiency=%.4f\n",
                (long long)d->rows_read, (long long)kept, (long long)(d->rows_read - kept), (long long)v->rows.rows,
                (long long)tokens, (long long)v->label_tokens, (long long)v->slots, filled);
}

typedef enum { DUMP_IDS, DUMP_LABELS, DUMP_POSITIONS } dump_list;

static void put_list(text_buf *out, const char *key, dump_list list, const data_view *v, int64_t row) {
    const dataset *d = &v->d;
    const char *comma = "";
    text_printf(out, ",\"%s\":[", key);
    for (int64_t i = v->rows.row_start[row]; i < v->rows.row_start[row + 1]; i++) {
        int64_t from = d->start[v->rows.example[i]], to = d->start[v->rows.example[i] + 1];
        for (int64_t t = from; t < to; t++) {
            int64_t x = list == DUMP_POSITIONS ? t - from : list == DUMP_IDS || d->labels[t] ? d->tokens[t] : -100;
            text_printf(out, "%s%lld", comma, (long long)x);
            comma = ",";
        }
    }
    text_puts(out, "]");
}

/* Labels stand at their own token, as in Hugging Face's batches; the first token of a document has none. */
static void put_row(text_buf *out, text_buf *text, const data_view *v, int64_t row) {
    const dataset *d = &v->d;
    text_clear(text);
    int64_t number = v->c->packing ? row + 1 : d->source[v->rows.example[v->rows.row_start[row]]];
    text_printf(out, "{\"row\":%lld", (long long)number);
    put_list(out, "input_ids", DUMP_IDS, v, row);
    put_list(out, "labels", DUMP_LABELS, v, row);
    put_list(out, "position_ids", DUMP_POSITIONS, v, row);
    text_puts(out, ",\"source_rows\":[");
    for (int64_t i = v->rows.row_start[row]; i < v->rows.row_start[row + 1]; i++) {
        int32_t e = v->rows.example[i];
        text_printf(out, "%s%lld", i > v->rows.row_start[row] ? "," : "", (long long)d->source[e]);
        tokenizer_decode(v->tokens, d->tokens + d->start[e], example_length(d, e), false, text);
    }
    text_puts(out, "],\"text\":");
    json_put_string(out, text->data ? text->data : "", text->size);
    text_puts(out, "}\n");
}

static bool write_out(text_buf *t, failure *f) {
    bool ok = fwrite(t->data, 1, t->size, stdout) == t->size;
    text_clear(t);
    return ok || fail_errno(f, FAIL_MACHINE, "standard output");
}

static bool print(const data_view *v, failure *f) {
    text_buf out = {0}, text = {0};
    bool ok = true;
    put_report(&out, v);
    if (v->c->dump < 0) ok = write_out(&out, f);
    else fwrite(out.data, 1, out.size, stderr);
    text_clear(&out);
    int64_t n = v->c->dump < 0 ? 0 : v->c->dump == 0 ? v->rows.rows : v->c->dump;
    for (int64_t r = 0; ok && r < n && r < v->rows.rows; r++) {
        put_row(&out, &text, v, r);
        ok = write_out(&out, f);
    }
    text_free(&out);
    text_free(&text);
    return ok;
}

bool cmd_data(const config *c, failure *f) {
    data_view v = {.c = c};
    bool ok = open_text(&v, f) && load(&v, f) && print(&v, f);
    packing_free(&v.rows);
    dataset_free(&v.d);
    chat_format_close(v.chat);
    tokenizer_close(v.tokens);
    arena_free(&v.memory);
    return ok;
}
