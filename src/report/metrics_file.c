/* metrics_file.c - appends with one write per line to a file opened with O_APPEND, so that a killed run leaves whole
 * lines (the page cache keeps them); a line torn all the same, by a power cut, is cut off when a run goes on.  See
 * metrics_file.h. */
#include "report/metrics_file.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool cut(const metrics_file *m, size_t size, failure *f) {
    if (ftruncate(m->fd, (off_t)size) == 0) return true;
    return fail_errno(f, FAIL_MACHINE, "%s: cannot be cut to its whole lines", m->path);
}

/* Where the line that ends at `end` begins. */
static size_t line_start(const char *text, size_t end) {
    size_t at = end - 1;
    while (at && text[at - 1] != '\n') at--;
    return at;
}

/* The "step" of a line, whose last byte becomes NUL; -1 when it is none of ours. *evaluation: what kind it is. */
static int64_t step_of(char *line, size_t n, bool *evaluation) {
    failure ignored;
    cJSON *root;
    line[n - 1] = 0;
    *evaluation = false;
    if (!json_parse(&root, line, n - 1, "line", &ignored)) return -1;
    int64_t step = -1;
    bool ours = cJSON_IsObject(root) && json_get_int(root, "step", 0, INT64_MAX / 2, &step, "line", &ignored);
    *evaluation = ours && cJSON_HasObjectItem(root, "eval_loss");
    cJSON_Delete(root);
    return ours ? step : -1;
}

/* The whole file; *whole: its bytes up to and with the last line end. */
static bool read_lines(const metrics_file *m, char **text, size_t *size, size_t *whole, failure *f) {
    TRY(file_read(text, size, (size_t)1 << 40, m->path, f));
    *whole = *size && (*text)[*size - 1] != '\n' ? line_start(*text, *size) : *size;
    return true;
}

static bool drop_torn_line(metrics_file *m, failure *f) {
    char *text;
    size_t size, whole;
    TRY(read_lines(m, &text, &size, &whole, f));
    free(text);
    if (whole == size) return true;
    log_warning("%s: the last line was not finished; its %zu bytes are cut off", m->path, size - whole);
    return cut(m, whole, f);
}

bool metrics_file_open(metrics_file *m, const char *path, bool goes_on, failure *f) {
    *m = (metrics_file){.fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (goes_on ? 0 : O_TRUNC), 0644)};
    if (m->fd < 0) return fail_errno(f, FAIL_MACHINE, "%s: cannot write", path);
    m->path = xstrdup(path);
    if (!goes_on || drop_torn_line(m, f)) return true;
    metrics_file_close(m);
    return false;
}

bool metrics_file_keep(metrics_file *m, int64_t step, bool evaluated, failure *f) {
    char *text;
    size_t size, at;
    TRY(read_lines(m, &text, &size, &at, f));
    for (size_t start; at; at = start) { /* steps stand in order: only the end of the file is looked at */
        start = line_start(text, at);
        bool evaluation;
        int64_t found = step_of(text + start, at - start, &evaluation);
        if (found < step || (found == step && (evaluated || !evaluation))) break;
    }
    free(text);
    return at == size || cut(m, at, f);
}

bool metrics_file_append(metrics_file *m, const char *line, size_t n, failure *f) {
    off_t before = lseek(m->fd, 0, SEEK_END);
    for (size_t done = 0; done < n;) {
        ssize_t r = write(m->fd, line + done, n - done);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) {
            fail_errno(f, FAIL_MACHINE, "%s: write failed", m->path);
            failure worse;
            if (done && before >= 0) (void)cut(m, (size_t)before, &worse); /* the first failure is the one to tell */
            return false;
        }
        done += (size_t)r;
    }
    return true;
}

void metrics_file_close(metrics_file *m) {
    if (m->fd >= 0) close(m->fd);
    free(m->path);
    *m = (metrics_file){.fd = -1};
}
