/* st_write.c - writes a .safetensors file: header first, then the tensors' bytes one after the other.
 *
 * The header is padded with blanks to a multiple of 8, so that data starts aligned.  The file appears under its name
 * only when every byte is on the disk (base/file.h). */
#include "base/json.h"
#include "weights/safetensors.h"

#include <assert.h>
#include <stdlib.h>

struct st_writer {
    file_writer *file;
    uint64_t expected, written; /* bytes of data */
};

static uint64_t entry_bytes(const st_entry *e) {
    uint64_t bytes = dtype_size(e->type);
    for (int i = 0; i < e->n_dims; i++) bytes *= (uint64_t)e->dim[i];
    return bytes;
}

static uint64_t put_header(text_buf *t, const st_entry *entries, int n) {
    uint64_t at = 0;
    text_puts(t, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < n; i++) {
        const st_entry *e = &entries[i];
        assert(e->n_dims >= 0 && e->n_dims <= 4);
        text_puts(t, ",");
        json_put_string(t, e->name, strlen(e->name));
        text_printf(t, ":{\"dtype\":\"%s\",\"shape\":[", dtype_name(e->type));
        for (int k = 0; k < e->n_dims; k++) text_printf(t, "%s%lld", k ? "," : "", (long long)e->dim[k]);
        uint64_t end = at + entry_bytes(e);
        text_printf(t, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at, (unsigned long long)end);
        at = end;
    }
    text_puts(t, "}");
    while (t->size % 8) text_puts(t, " ");
    return at;
}

bool st_writer_open(st_writer **out, const char *path, const st_entry *entries, int n, failure *f) {
    st_writer *w = xcalloc(1, sizeof *w);
    text_buf header = {0};
    w->expected = put_header(&header, entries, n);
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)header.size >> 8 * i);
    bool ok = file_writer_open(&w->file, path, f);
    if (ok && !(file_writer_write(w->file, length, 8, f) && file_writer_write(w->file, header.data, header.size, f))) {
        file_writer_abort(w->file);
        ok = false;
    }
    text_free(&header);
    if (ok) *out = w;
    else free(w);
    return ok;
}

bool st_writer_add(st_writer *w, const void *data, size_t bytes, failure *f) {
    w->written += bytes;
    assert(w->written <= w->expected);
    return file_writer_write(w->file, data, bytes, f);
}

bool st_writer_commit(st_writer *w, failure *f) {
    assert(w->written == w->expected);
    bool ok = file_writer_commit(w->file, f);
    free(w);
    return ok;
}

void st_writer_abort(st_writer *w) {
    if (!w) return;
    file_writer_abort(w->file);
    free(w);
}

bool st_write(const char *path, const st_entry *entries, int n, failure *f) {
    st_writer *w;
    TRY(st_writer_open(&w, path, entries, n, f));
    for (int i = 0; i < n; i++) {
        if (st_writer_add(w, entries[i].data, entry_bytes(&entries[i]), f)) continue;
        st_writer_abort(w);
        return false;
    }
    return st_writer_commit(w, f);
}
