/* safetensors.h - one .safetensors file (mapped, its header checked before any data is touched), a model folder of one
 * or many of them, and a writer that leaves a whole file or none. */
#ifndef WEIGHTS_SAFETENSORS_H
#define WEIGHTS_SAFETENSORS_H
#include "base/dtype.h"
#include "base/file.h"

typedef struct {
    const char *name;
    dtype type;
    int n_dims;
    int64_t dim[4];   /* unused ones are 1 */
    int64_t count;    /* elements */
    const void *data; /* into the mapping; may have any alignment */
} st_tensor;

typedef struct st_set st_set; /* the tensors of one file or of one folder */

/* Refuses a file whose header lies (see cases R01, R02, R04): names the tensor and the reason. F64, I64, I8 ... tensors
 * are refused by name. */
bool st_open_file(st_set **out, const char *path, failure *f);
/* model.safetensors.index.json with exactly its shards, or model.safetensors. See case R03. */
bool st_open_folder(st_set **out, const char *folder, failure *f);
void st_close(st_set *s);
int st_count(const st_set *s);
const st_tensor *st_at(const st_set *s, int i);
const st_tensor *st_find(const st_set *s, const char *name); /* NULL when there is none */
const char *st_metadata(const st_set *s, const char *key);   /* NULL when there is none; first file's */
const char *st_path(const st_set *s, const st_tensor *t);    /* the file it lies in */

/* What to write: data is n elements of `type`, laid out row-major. */
typedef struct {
    const char *name;
    dtype type;
    int n_dims;
    int64_t dim[4];
    const void *data;
} st_entry;
/* One file, tensors in the order given, metadata {"format": "pt"}; temporary name, fsync, rename. */
bool st_write(const char *path, const st_entry *entries, int n, failure *f);

/* The same piece by piece, for files larger than memory: the entries' data pointers are not read; st_writer_add gives
 * the bytes of all entries in their order, in pieces of any size. commit frees w, also on failure. */
typedef struct st_writer st_writer;
bool st_writer_open(st_writer **w, const char *path, const st_entry *entries, int n, failure *f);
bool st_writer_add(st_writer *w, const void *data, size_t bytes, failure *f);
bool st_writer_commit(st_writer *w, failure *f);
void st_writer_abort(st_writer *w); /* NULL is fine */
#endif
