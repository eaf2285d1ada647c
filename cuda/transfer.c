/* transfer.c - copies between host and device through pinned memory, in the order of the backend's stream.
 *
 * Weights come from mapped files, whose pages the device cannot read at full speed.  They go through two pinned
 * buffers: while one is on its way to the device, all processors fill the other.  What a micro-batch needs (ids,
 * positions, targets) is small: it goes through a ring, whose quarters are waited for only when the ring comes round.
 */
#include "device.h"

#include <stdio.h>
#include <string.h>

enum { QUARTERS = 4, PARTS = 2 };
static const size_t QUARTER = (size_t)1 << 20, STAGE = (size_t)64 << 20, SLICE = (size_t)1 << 20;

typedef struct {
    char *data;
    cudaEvent_t read; /* the device has read it */
} buffer;

static struct {
    buffer stage[PARTS]; /* STAGE bytes each, made at the first large copy */
    buffer ring[QUARTERS];
    int next, quarter; /* stage to fill next; quarter in use */
    size_t used;       /* bytes of that quarter */
} state;

static bool open_buffer(buffer *b, size_t bytes, failure *f) {
    if (b->data) return true;
    void *data;
    TRY(cuda_check(cudaEventCreateWithFlags(&b->read, cudaEventDisableTiming), "event", f));
    char what[64];
    snprintf(what, sizeof what, "%zu MiB of pinned host memory for copies", bytes >> 20);
    TRY(cuda_check(cudaHostAlloc(&data, bytes, cudaHostAllocDefault), what, f));
    b->data = data;
    return true;
}

static void close_buffer(buffer *b) {
    if (b->read) cudaEventDestroy(b->read);
    if (b->data) cudaFreeHost(b->data);
}

void transfer_close(void) {
    for (int i = 0; i < PARTS; i++) close_buffer(&state.stage[i]);
    for (int i = 0; i < QUARTERS; i++) close_buffer(&state.ring[i]);
    memset(&state, 0, sizeof state);
}

/* Room for `bytes` in the ring. */
static bool take_ring(char **out, size_t bytes, failure *f) {
    size_t size = cuda_round(bytes);
    buffer *b = &state.ring[state.quarter];
    TRY(open_buffer(b, QUARTER, f));
    if (state.used + size > QUARTER) {
        TRY(cuda_check(cudaEventRecord(b->read, cuda_stream()), "event", f));
        state.quarter = (state.quarter + 1) % QUARTERS;
        state.used = 0;
        b = &state.ring[state.quarter];
        TRY(open_buffer(b, QUARTER, f));
        TRY(cuda_check(cudaEventSynchronize(b->read), "waiting for a copy to the device", f));
    }
    *out = b->data + state.used;
    state.used += size;
    return true;
}

static bool up_small(void *to, const void *from, size_t bytes, failure *f) {
    char *pinned;
    TRY(take_ring(&pinned, bytes, f));
    memcpy(pinned, from, bytes);
    return cuda_check(cudaMemcpyAsync(to, pinned, bytes, cudaMemcpyHostToDevice, cuda_stream()), "copy to the device",
                      f);
}

/* By all processors: a mapped file's pages are entered one by one, and one processor cannot keep the bus busy. */
static void fill(char *to, const char *from, size_t bytes) {
    size_t slices = (bytes + SLICE - 1) / SLICE;
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < slices; i++) {
        size_t at = i * SLICE;
        memcpy(to + at, from + at, bytes - at < SLICE ? bytes - at : SLICE);
    }
}

/* One piece of at most STAGE bytes, as `rows` rows. */
static bool up_piece(char *to, size_t to_pitch, const char *from, size_t row_bytes, size_t rows, failure *f) {
    buffer *b = &state.stage[state.next];
    state.next = (state.next + 1) % PARTS;
    TRY(open_buffer(b, STAGE, f));
    TRY(cuda_check(cudaEventSynchronize(b->read), "waiting for a copy to the device", f));
    fill(b->data, from, row_bytes * rows);
    cudaError_t e = rows == 1 ? cudaMemcpyAsync(to, b->data, row_bytes, cudaMemcpyHostToDevice, cuda_stream())
                              : cudaMemcpy2DAsync(to, to_pitch, b->data, row_bytes, row_bytes, rows,
                                                  cudaMemcpyHostToDevice, cuda_stream());
    TRY(cuda_check(e, "copy to the device", f));
    return cuda_check(cudaEventRecord(b->read, cuda_stream()), "event", f);
}

static bool up_dense(char *to, const char *from, size_t bytes, failure *f) {
    for (size_t at = 0; at < bytes; at += STAGE) {
        size_t piece = bytes - at < STAGE ? bytes - at : STAGE;
        TRY(up_piece(to + at, piece, from + at, piece, 1, f));
    }
    return true;
}

bool transfer_up(void *to, size_t to_pitch, const void *from, size_t row_bytes, int64_t rows, failure *f) {
    size_t n = (size_t)rows, bytes = row_bytes * n;
    if (!bytes) return true;
    bool dense = to_pitch == row_bytes || n == 1;
    if (dense && bytes <= QUARTER / 2) return up_small(to, from, bytes, f);
    if (dense) return up_dense(to, from, bytes, f);
    if (row_bytes > STAGE) {
        for (size_t r = 0; r < n; r++)
            TRY(up_dense((char *)to + r * to_pitch, (const char *)from + r * row_bytes, row_bytes, f));
        return true;
    }
    for (size_t r = 0, most = STAGE / row_bytes; r < n; r += most) {
        size_t part = n - r < most ? n - r : most;
        TRY(up_piece((char *)to + r * to_pitch, to_pitch, (const char *)from + r * row_bytes, row_bytes, part, f));
    }
    return true;
}

bool transfer_down(void *to, const void *from, size_t bytes, failure *f) {
    for (size_t at = 0; at < bytes;) {
        bool small = bytes <= QUARTER / 2;
        size_t piece = small || bytes - at < STAGE ? bytes - at : STAGE;
        char *pinned;
        if (small) TRY(take_ring(&pinned, piece, f));
        else {
            buffer *b = &state.stage[state.next];
            state.next = (state.next + 1) % PARTS;
            TRY(open_buffer(b, STAGE, f));
            pinned = b->data;
        }
        TRY(cuda_check(cudaMemcpyAsync(pinned, (const char *)from + at, piece, cudaMemcpyDeviceToHost, cuda_stream()),
                       "copy from the device", f));
        TRY(cuda_check(cudaStreamSynchronize(cuda_stream()), "waiting for the device", f));
        memcpy((char *)to + at, pinned, piece);
        at += piece;
    }
    return true;
}
