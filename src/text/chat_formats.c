/* chat_formats.c - the chat formats, each as the function that writes it, and their table.
 *
 * A format gives the same ids as its model's own template (apply_chat_template) for a conversation that ends with an
 * answer; docs/data.md lists where a choice had to be made.  Labels are the answers and the token that ends each. */
#include "text/chat_writer.h"

#include <string.h>

#define ROLES_ALL     (1u << CHAT_SYSTEM | 1u << CHAT_USER | 1u << CHAT_ASSISTANT | 1u << CHAT_TOOL)
#define ROLES_NO_TOOL (1u << CHAT_SYSTEM | 1u << CHAT_USER | 1u << CHAT_ASSISTANT)

static const char *const role_names[] = {"system", "user", "assistant", "tool"};

/* ---- Llama 3: <|start_header_id|>role<|end_header_id|>\n\n text <|eot_id|> ---- */

static bool llama3_header(chat_writer *w, const char *role, failure *f) {
    TRY(chat_put_control(w, CHAT_START, false, f));
    chat_puts(w, role);
    TRY(chat_put_control(w, CHAT_HEADER_END, false, f));
    chat_puts(w, "\n\n");
    return true;
}

static bool llama3_turn(chat_writer *w, const chat_message *m, const char *role, failure *f) {
    const char *text = m->content;
    size_t n = m->size;
    chat_trim(&text, &n);
    TRY(llama3_header(w, role, f));
    bool answer = m->role == CHAT_ASSISTANT;
    if (answer) TRY(chat_put_answer(w, text, n, m->train, f));
    else chat_put_text(w, text, n);
    return chat_put_control(w, CHAT_END, answer && m->train, f);
}

static bool encode_llama3(chat_writer *w, const chat_message *m, int n, bool prompt, failure *f) {
    TRY(chat_put_control(w, CHAT_BOS, false, f));
    for (int i = 0; i < n; i++) TRY(llama3_turn(w, &m[i], role_names[m[i].role], f));
    return !prompt || llama3_header(w, "assistant", f);
}

/* The result of a tool is written as a JSON string under the role ipython. */
static bool llama31_tool(chat_writer *w, const chat_message *m, failure *f) {
    static const char plain[] = "\"\\\n\t\r\b\f";
    static const char *const escaped[] = {"\\\"", "\\\\", "\\n", "\\t", "\\r", "\\b", "\\f", "\\u0000"};
    TRY(llama3_header(w, "ipython", f));
    chat_puts(w, "\"");
    for (size_t i = 0; i < m->size; i++) {
        char c = m->content[i];
        const char *at = strchr(plain, c);
        if (at) chat_puts(w, escaped[at - plain]);
        else if ((unsigned char)c < 0x20) text_printf(&w->text, "\\u%04x", c);
        else chat_put_text(w, &c, 1);
    }
    chat_puts(w, "\"");
    return chat_put_control(w, CHAT_END, false, f);
}

/* The date is the template's own default, not the clock's, so that a run can be repeated. */
static bool encode_llama31(chat_writer *w, const chat_message *m, int n, bool prompt, failure *f) {
    TRY(chat_put_control(w, CHAT_BOS, false, f));
    TRY(llama3_header(w, "system", f));
    chat_puts(w, "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n");
    int first = m[0].role == CHAT_SYSTEM;
    if (first) {
        const char *text = m[0].content;
        size_t size = m[0].size;
        chat_trim(&text, &size);
        chat_put_text(w, text, size);
    }
    TRY(chat_put_control(w, CHAT_END, false, f));
    for (int i = first; i < n; i++) {
        if (m[i].role == CHAT_TOOL) TRY(llama31_tool(w, &m[i], f));
        else TRY(llama3_turn(w, &m[i], role_names[m[i].role], f));
    }
    return !prompt || llama3_header(w, "assistant", f);
}

/* ---- ChatML: <|im_start|>role\n text <|im_end|>\n ---- */

static bool chatml_header(chat_writer *w, const char *role, failure *f) {
    TRY(chat_put_control(w, CHAT_START, false, f));
    chat_puts(w, role);
    chat_puts(w, "\n");
    return true;
}

static bool chatml_end(chat_writer *w, bool label, failure *f) {
    TRY(chat_put_control(w, CHAT_END, label, f));
    chat_puts(w, "\n");
    return true;
}

static bool chatml_default_system(chat_writer *w, const chat_message *m, failure *f) {
    const char *text = w->c->spec->default_system;
    if (!text || m[0].role == CHAT_SYSTEM) return true;
    TRY(chatml_header(w, "system", f));
    chat_puts(w, text);
    return chatml_end(w, false, f);
}

static bool chatml_turn(chat_writer *w, const chat_message *m, failure *f) {
    TRY(chatml_header(w, role_names[m->role], f));
    bool answer = m->role == CHAT_ASSISTANT;
    if (answer) TRY(chat_put_answer(w, m->content, m->size, m->train, f));
    else chat_put_text(w, m->content, m->size);
    return chatml_end(w, answer && m->train, f);
}

static bool encode_chatml(chat_writer *w, const chat_message *m, int n, bool prompt, failure *f) {
    TRY(chatml_default_system(w, m, f));
    for (int i = 0; i < n; i++) TRY(chatml_turn(w, &m[i], f));
    if (prompt) TRY(chatml_header(w, "assistant", f));
    return chat_flush(w, false, f);
}

/* Qwen: results of tools are a user's turn, neighbours share one. */
static bool qwen_tool(chat_writer *w, const chat_message *m, int n, int i, failure *f) {
    if (i == 0 || m[i - 1].role != CHAT_TOOL) {
        TRY(chat_put_control(w, CHAT_START, false, f));
        chat_puts(w, "user");
    }
    chat_puts(w, "\n<tool_response>\n");
    chat_put_text(w, m[i].content, m[i].size);
    chat_puts(w, "\n</tool_response>");
    return i + 1 < n && m[i + 1].role == CHAT_TOOL ? true : chatml_end(w, false, f);
}

static bool encode_qwen(chat_writer *w, const chat_message *m, int n, bool prompt, failure *f) {
    TRY(chatml_default_system(w, m, f));
    for (int i = 0; i < n; i++) {
        if (m[i].role == CHAT_TOOL) TRY(qwen_tool(w, m, n, i, f));
        else TRY(chatml_turn(w, &m[i], f));
    }
    if (prompt) TRY(chatml_header(w, "assistant", f));
    return chat_flush(w, false, f);
}

/* ---- Qwen3: ChatML with a block of thoughts in front of the answers after the last question ---- */

typedef struct {
    const char *text;
    size_t n;
} piece;

static const char *find(piece p, const char *needle) { return memmem(p.text, p.n, needle, strlen(needle)); }

static piece strip_lines(piece p, bool left, bool right) {
    while (left && p.n && p.text[0] == '\n') p.text++, p.n--;
    while (right && p.n && p.text[p.n - 1] == '\n') p.n--;
    return p;
}

/* Content -> thoughts and the rest, as the template takes them apart. */
static void split_thoughts(const chat_message *m, piece *thoughts, piece *rest) {
    static const char open[] = "<think>", close[] = "</think>";
    piece whole = {m->content, m->size};
    *thoughts = (piece){m->content, 0};
    *rest = whole;
    const char *end = find(whole, close);
    if (!end) return;
    *thoughts = strip_lines((piece){whole.text, (size_t)(end - whole.text)}, false, true);
    for (const char *at; (at = find(*thoughts, open));) {
        size_t skip = (size_t)(at - thoughts->text) + sizeof open - 1;
        *thoughts = (piece){thoughts->text + skip, thoughts->n - skip};
    }
    *thoughts = strip_lines(*thoughts, true, true);
    for (const char *at; (at = find(*rest, close));) {
        size_t skip = (size_t)(at - rest->text) + sizeof close - 1;
        *rest = (piece){rest->text + skip, rest->n - skip};
    }
    *rest = strip_lines(*rest, true, false);
}

static bool starts_with(piece p, const char *s) { return p.n >= strlen(s) && memcmp(p.text, s, strlen(s)) == 0; }
static bool ends_with(piece p, const char *s) {
    return p.n >= strlen(s) && memcmp(p.text + p.n - strlen(s), s, strlen(s)) == 0;
}

/* Index of the last turn of the user's that is no result of a tool in disguise; the last turn when there is none. */
static int last_question(const chat_message *m, int n) {
    for (int i = n - 1; i >= 0; i--) {
        piece p = {m[i].content, m[i].size};
        if (m[i].role == CHAT_USER && !(starts_with(p, "<tool_response>") && ends_with(p, "</tool_response>")))
            return i;
    }
    return n - 1;
}

/* An empty block of thoughts belongs to the header: it is what the template's prompt without thinking ends with. */
static bool qwen3_answer(chat_writer *w, const chat_message *m, bool after_question, bool last, failure *f) {
    piece thoughts, rest;
    split_thoughts(m, &thoughts, &rest);
    TRY(chatml_header(w, "assistant", f));
    if (after_question && (last || thoughts.n)) {
        rest = strip_lines(rest, true, false);
        if (thoughts.n) {
            TRY(chat_flush(w, false, f));
            chat_puts(w, "<think>\n");
            chat_put_text(w, thoughts.text, thoughts.n);
            chat_puts(w, "\n</think>\n\n");
            chat_put_text(w, rest.text, rest.n);
            TRY(chat_flush(w, m->train, f));
            return chatml_end(w, m->train, f);
        }
        chat_puts(w, "<think>\n\n</think>\n\n");
    }
    TRY(chat_put_answer(w, rest.text, rest.n, m->train, f));
    return chatml_end(w, m->train, f);
}

static bool encode_qwen3(chat_writer *w, const chat_message *m, int n, bool prompt, failure *f) {
    int question = last_question(m, n);
    for (int i = 0; i < n; i++) {
        if (m[i].role == CHAT_TOOL) TRY(qwen_tool(w, m, n, i, f));
        else if (m[i].role == CHAT_ASSISTANT) TRY(qwen3_answer(w, &m[i], i > question, i == n - 1, f));
        else TRY(chatml_turn(w, &m[i], f));
    }
    if (prompt) {
        TRY(chatml_header(w, "assistant", f));
        chat_puts(w, "<think>\n\n</think>\n\n");
    }
    return chat_flush(w, false, f);
}

/* ---- Gemma: <start_of_turn>role\n text <end_of_turn>\n, the system message in front of the first question ---- */

static bool encode_gemma(chat_writer *w, const chat_message *m, int n, bool prompt, failure *f) {
    int first = m[0].role == CHAT_SYSTEM;
    TRY(chat_put_control(w, CHAT_BOS, false, f));
    for (int i = first; i < n; i++) {
        bool answer = m[i].role == CHAT_ASSISTANT;
        const char *text = m[i].content;
        size_t size = m[i].size;
        chat_trim(&text, &size);
        TRY(chatml_header(w, answer ? "model" : "user", f));
        if (i == 1 && first) {
            chat_put_text(w, m[0].content, m[0].size);
            chat_puts(w, "\n\n");
        }
        if (answer) TRY(chat_put_answer(w, text, size, m[i].train, f));
        else chat_put_text(w, text, size);
        TRY(chatml_end(w, answer && m[i].train, f));
    }
    if (prompt) TRY(chatml_header(w, "model", f));
    return chat_flush(w, false, f);
}

/* ---- Mistral: v0.1 " [INST] Q [/INST] A</s>" as text; v0.3 with [INST] and [/INST] as control tokens ---- */

static bool encode_mistral(chat_writer *w, const chat_message *m, int n, bool prompt, failure *f) {
    (void)prompt; /* a question ends with what asks for the answer */
    bool tokens = w->c->control[CHAT_START] >= 0;
    int first = m[0].role == CHAT_SYSTEM, last_user = n - 1;
    while (last_user > first && m[last_user].role != CHAT_USER) last_user--;
    int with_system = !first ? -1 : tokens ? last_user : first;
    TRY(chat_put_control(w, CHAT_BOS, false, f));
    for (int i = first; i < n; i++) {
        const char *text = m[i].content;
        size_t size = m[i].size;
        if (m[i].role == CHAT_ASSISTANT) {
            TRY(chat_flush(w, false, f));
            if (tokens) chat_trim(&text, &size);
            chat_puts(w, " ");
            chat_put_text(w, text, size);
            TRY(chat_flush(w, m[i].train, f));
            TRY(chat_put_control(w, CHAT_END, m[i].train, f));
            continue;
        }
        if (tokens) TRY(chat_put_control(w, CHAT_START, false, f));
        chat_puts(w, tokens ? " " : " [INST] ");
        if (i == with_system) {
            chat_put_text(w, m[0].content, m[0].size);
            chat_puts(w, "\n\n");
        }
        chat_put_text(w, text, size);
        if (tokens) TRY(chat_put_control(w, CHAT_HEADER_END, false, f));
        else chat_puts(w, " [/INST]");
    }
    return chat_flush(w, false, f);
}

/* ---- Alpaca: plain text under headings, after the preamble or the row's own system message ---- */

static bool encode_alpaca(chat_writer *w, const chat_message *m, int n, bool prompt, failure *f) {
    (void)prompt;
    int first = m[0].role == CHAT_SYSTEM;
    TRY(chat_put_before(w, f));
    if (first) chat_put_text(w, m[0].content, m[0].size);
    else
        chat_puts(w, "Below is an instruction that describes a task. "
                     "Write a response that appropriately completes the request.");
    for (int i = first; i < n; i++) {
        if (m[i].role == CHAT_ASSISTANT) {
            TRY(chat_put_answer(w, m[i].content, m[i].size, m[i].train, f));
            TRY(chat_put_control(w, CHAT_END, m[i].train, f));
            continue;
        }
        chat_puts(w, "\n\n### Instruction:\n");
        chat_put_text(w, m[i].content, m[i].size);
        chat_puts(w, "\n\n### Response:\n");
    }
    return chat_flush(w, false, f);
}

#define LLAMA3                                                                                                         \
    { "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>" }
#define CHATML                                                                                                         \
    { "<|im_end|>", "<|im_start|>" }

const chat_spec chat_specs[] = {
    {"llama3", LLAMA3, encode_llama3, NULL, ROLES_ALL, false},
    {"llama3.1", LLAMA3, encode_llama31, NULL, ROLES_ALL, false},
    {"chatml", CHATML, encode_chatml, NULL, ROLES_ALL, false},
    {"smollm2", CHATML, encode_chatml, "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
     ROLES_ALL, false},
    {"qwen2", CHATML, encode_chatml, "You are a helpful assistant.", ROLES_NO_TOOL, false},
    {"qwen", CHATML, encode_qwen, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", ROLES_ALL,
     false},
    {"qwen3", CHATML, encode_qwen3, NULL, ROLES_ALL, false},
    {"mistral-v0.1", {"</s>", NULL, NULL, "<s>"}, encode_mistral, NULL, ROLES_NO_TOOL, true},
    {"mistral-v0.3", {"</s>", "[INST]", "[/INST]", "<s>"}, encode_mistral, NULL, ROLES_NO_TOOL, true},
    {"gemma", {"<end_of_turn>", "<start_of_turn>", NULL, "<bos>"}, encode_gemma, NULL, ROLES_NO_TOOL, true},
    {"alpaca", {NULL}, encode_alpaca, NULL, ROLES_NO_TOOL, true},
};
const int chat_n_specs = sizeof chat_specs / sizeof chat_specs[0];
