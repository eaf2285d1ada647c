/* wgmma_epilogue.cuh - from the sums of a warpgroup, which lie in registers, to rows of bf16 in global memory.
 *
 * A piece is 64 rows by 64 columns: rounded, written to shared memory in the layout that TMA expects, stored by TMA
 * while the next piece is made.  What a thread holds: see wgmma::multiply.  A head's two halves, and the gate and up of
 * one place, are in the same thread, because the tile has all of a head, and the same columns of both weights. */
#ifndef CUDA_WGMMA_EPILOGUE_CUH
#define CUDA_WGMMA_EPILOGUE_CUH
#include "activation.cuh"
#include "cuda.cuh"
#include "wgmma.cuh"

namespace wgmma {
enum { PIECE_ROWS = 64, PIECE_BYTES = PIECE_ROWS * 128 };

struct tile_maps {
    CUtensorMap a, a2, b[2], b2[2], c[3], in[2]; /* c: of what is stored, c, c_up, y */
};

/* What epilogues need beside the sums and the maps. */
struct epilogue_args {
    int rows;
    const float *row_scale; /* [rows]; NULL: 1 */
    const float *sum_scale; /* [rows]; NULL: 1 */
    const int32_t *pos;     /* [rows] */
    const float *table;     /* [positions, head width / 2, 2]: cosines and sines */
    int rope_cols;
    activation act;
    float *row_sums; /* [parts, rows]: eight rows of a warp fill a sector; NULL: not wanted */
    int stored;      /* of tile_maps.c: how many are wanted */
};

WGMMA_INLINE uint32_t two(float a, float b) {
    __nv_bfloat162 x = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&x);
}
WGMMA_INLINE float low_of(uint32_t x) { return __uint_as_float(x << 16); }
WGMMA_INLINE float high_of(uint32_t x) { return __uint_as_float(x & 0xFFFF0000u); }

/* Where this lane's row of columns 8g .. 8g + 15 lies in a piece: rows of 128 bytes with the 128-byte swizzle. */
WGMMA_INLINE uint32_t piece_address(uint32_t piece, int g) {
    uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
    return piece + row * 128 + (((g + lane / 16) ^ (row % 8)) << 4);
}

/* Pieces on their way through SLOTS slots of shared memory. These belong to the warpgroup; where warpgroups take tiles
 * in turns and read pieces, to the one whose epilogue it is. */
template <int SLOTS> struct pieces {
    uint32_t slots, loaded; /* `loaded`: the warpgroup's own barriers, one for each place of fetch() */
    int group, at;          /* the warpgroup's own named barrier; the slot of the next piece of put() */
    uint32_t phases;        /* of `loaded`, a bit for each */
    bool first;             /* the thread that talks to TMA */

    WGMMA_INLINE uint32_t slot(int i) const { return slots + i * PIECE_BYTES; }
    /* What the warpgroup has written into `n` slots, N at most, goes to as many maps. */
    template <int N> WGMMA_INLINE void send(uint32_t from, const CUtensorMap *maps, int n, int col, int row) {
        fence_async_proxy();
        named_sync(group, 128);
        if (!first) return;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (i < n) tma_store(&maps[i], from + i * PIECE_BYTES, col, row);
        tma_store_commit();
    }
    /* Columns 64 piece .. 64 piece + 63 of sums. */
    template <int N>
    WGMMA_INLINE void put(const float (&sums)[N], int piece, const CUtensorMap *map, int col, int row) {
        if (first) tma_store_wait_read<SLOTS - 1>();
        named_sync(group, 128);
#pragma unroll
        for (int g = 0; g < 8; g += 2) {
            const float *s = &sums[(piece * 8 + g) * 4];
            stmatrix_x4(piece_address(slot(at), g), two(s[0], s[1]), two(s[2], s[3]), two(s[4], s[5]), two(s[6], s[7]));
        }
        send<1>(slot(at), map, 1, col, row);
        at = at + 1 == SLOTS ? 0 : at + 1;
    }
    /* One piece of each of N maps, on its way into slots from `from` on, told by barrier `place`, once all that was
     * sent has left. Every thread is past reading these slots: it has been in send() since. */
    template <int N> WGMMA_INLINE void fetch(uint32_t from, int place, const CUtensorMap *maps, int col, int row) {
        if (!first) return;
        tma_store_wait_read<0>();
        barrier_expect(loaded + 8 * place, N * PIECE_BYTES);
#pragma unroll
        for (int i = 0; i < N; i++) tma_load(from + i * PIECE_BYTES, &maps[i], loaded + 8 * place, col, row);
    }
    WGMMA_INLINE void wait_for(int place) {
        barrier_wait(loaded + 8 * place, phases >> place & 1);
        phases ^= 1u << place;
    }
};

/* The two rows that a thread holds values of, 8 apart. The rows behind the last are never stored; they read the last
 * one's factors. */
struct thread_rows {
    int row[2];
    WGMMA_INLINE thread_rows(const epilogue_args &args, int from) {
        int mine = from + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
        row[0] = min(mine, args.rows - 1), row[1] = min(mine + 8, args.rows - 1);
    }
    WGMMA_INLINE float factor(const float *of_rows, int which) const { return of_rows ? of_rows[row[which]] : 1.0f; }
    /* Four lanes hold a row: their sums together, in a fixed order. Rows behind the last hold zeros. */
    static WGMMA_INLINE void write_sums(const epilogue_args &args, const float (&sum)[2], int from, int part) {
        int mine = from + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
        for (int w = 0; w < 2; w++) {
            float x = sum[w];
            x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
            x += __shfl_xor_sync(0xFFFFFFFFu, x, 2);
            if (args.row_sums && threadIdx.x % 4 == 0 && mine + w * 8 < args.rows)
                args.row_sums[(int64_t)part * args.rows + mine + w * 8] = x;
        }
    }
};

/* An epilogue has
 *   store()  from sums of 64 rows from `row` on, in each of PARTS, and of columns from `col` on, to global memory;
 *   fetch()  runs before: loads what store() reads first.
 * SOURCES: matrices that b's columns come from, half a tile from each. READS: whether there is anything to fetch. */

/* Of epilogues that read nothing by TMA. */
struct reads_nothing {
    enum { READS = 0 };
    template <int PARTS, int N, int SLOTS>
    static WGMMA_INLINE void fetch(const tile_maps &, pieces<SLOTS> &, int, int) {}
};

struct plain_epilogue : reads_nothing {
    enum { SOURCES = 1 };
    template <int PARTS, int N, int SLOTS>
    static WGMMA_INLINE void store(float (&sums)[PARTS][N], const epilogue_args &, const tile_maps &maps,
                                   pieces<SLOTS> &out, int row, int col) {
#pragma unroll
        for (int part = 0; part < PARTS; part++)
#pragma unroll
            for (int piece = 0; piece < N / 32; piece++)
                out.put(sums[part], piece, &maps.c[0], col + piece * 64, row + part * PIECE_ROWS);
    }
};

/* Rows scaled; heads of HEAD columns turned. Reads 8 bytes per pair from the table, which stays in L2. */
template <int HEAD> struct rope_epilogue : reads_nothing {
    enum { SOURCES = 1 };
    template <int N, int SLOTS>
    static WGMMA_INLINE void store(float (&all)[1][N], const epilogue_args &args, const tile_maps &maps,
                                   pieces<SLOTS> &out, int row, int col) {
        float(&sums)[N] = all[0];
        static_assert(N * 2 % HEAD == 0, "a tile has whole heads");
        thread_rows mine(args, row);
#pragma unroll
        for (int w = 0; w < 2; w++) {
            float scale = mine.factor(args.row_scale, w);
            const float *turns = args.table + (int64_t)args.pos[mine.row[w]] * HEAD + threadIdx.x % 4 * 4;
#pragma unroll
            for (int i = 0; i < HEAD / 16; i++) { /* 8 columns of the low half and those HEAD/2 further */
                float4 t = __ldg(reinterpret_cast<const float4 *>(turns + i * 16));
#pragma unroll
                for (int head = 0; head < N * 2 / HEAD; head++) {
                    float *low = &sums[head * HEAD / 2 + i * 4 + w * 2], *high = low + HEAD / 4;
                    bool turned = col + head * HEAD < args.rope_cols;
                    rotate(low[0], high[0], scale, turned ? t.x : 1.0f, turned ? t.y : 0.0f);
                    rotate(low[1], high[1], scale, turned ? t.z : 1.0f, turned ? t.w : 0.0f);
                }
            }
        }
#pragma unroll
        for (int piece = 0; piece < N / 32; piece++) out.put(sums, piece, &maps.c[0], col + piece * 64, row);
    }
    static WGMMA_INLINE void rotate(float &a, float &b, float scale, float cosine, float sine) {
        float x = a * scale, y = b * scale;
        a = x * cosine - y * sine;
        b = y * cosine + x * sine;
    }
};

/* Rows scaled; gate and up kept in c[0] and c[1], their product with the activation in y, of gate and up as they are
 * stored: whoever makes y again has no others. */
struct glu_epilogue : reads_nothing {
    enum { SOURCES = 2 };
    template <int N, int SLOTS>
    static WGMMA_INLINE void store(float (&all)[1][N], const epilogue_args &args, const tile_maps &maps,
                                   pieces<SLOTS> &out, int row, int col) {
        float(&sums)[N] = all[0];
        thread_rows mine(args, row);
        float scale[2] = {mine.factor(args.row_scale, 0), mine.factor(args.row_scale, 1)};
#pragma unroll
        for (int i = 0; i < N; i++) sums[i] *= scale[i / 2 % 2];
#pragma unroll
        for (int piece = 0; piece < N / 64; piece++) {
            out.put(sums, piece, &maps.c[0], col + piece * 64, row);
            out.put(sums, piece + N / 64, &maps.c[1], col + piece * 64, row);
            if (args.stored < 3) continue; /* y is not wanted */
#pragma unroll
            for (int i = piece * 32; i < piece * 32 + 32; i++) {
                uint32_t stored = two(sums[i], sums[i + N / 2]);
                float gate = low_of(stored);
                sums[i] = activated(gate, high_of(stored), sigmoid_of(gate, args.act.one, args.act.three));
            }
            out.put(sums, piece, &maps.c[2], col + piece * 64, row);
        }
    }
};

/* Of epilogues that read pieces of E::READ matrices and store pieces of E::STORED, through the same slots, which are a
 * place. An E is made for 64 rows, and once per piece gets its 32 sums and the address of the place's first slot (the
 * next is PIECE_BYTES further): change(). end() is for what it has summed up by row. */
template <typename E> struct reads_pieces {
    enum { SOURCES = 1, READS = 1, READ = E::READ, STORED = E::STORED, PLACE = READ > STORED ? READ : STORED };
    template <int N, int SLOTS> struct steps {
        enum { OF_PART = N / 32, AHEAD = SLOTS / PLACE }; /* pieces of a part; places */
    };
    template <int N, int SLOTS>
    static WGMMA_INLINE void fetch_one(int step, const tile_maps &maps, pieces<SLOTS> &out, int row, int col) {
        typedef steps<N, SLOTS> at;
        int place = step % at::AHEAD;
        out.template fetch<READ>(out.slot(PLACE * place), place, maps.in, col + step % at::OF_PART * 64,
                                 row + step / at::OF_PART * PIECE_ROWS);
    }
    template <int PARTS, int N, int SLOTS>
    static WGMMA_INLINE void fetch(const tile_maps &maps, pieces<SLOTS> &out, int row, int col) {
        typedef steps<N, SLOTS> at;
#pragma unroll
        for (int step = 0; step < at::AHEAD && step < PARTS * at::OF_PART; step++)
            fetch_one<N>(step, maps, out, row, col);
    }
    template <int PARTS, int N, int SLOTS>
    static WGMMA_INLINE void store(float (&sums)[PARTS][N], const epilogue_args &args, const tile_maps &maps,
                                   pieces<SLOTS> &out, int row, int col) {
        typedef steps<N, SLOTS> at;
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            int from = row + part * PIECE_ROWS;
            E rows(args, from);
#pragma unroll
            for (int piece = 0; piece < at::OF_PART; piece++) {
                int step = part * at::OF_PART + piece, place = step % at::AHEAD;
                uint32_t slot = out.slot(PLACE * place);
                out.wait_for(place);
                rows.change(args, &sums[part][piece * 32], slot);
                out.template send<STORED>(slot, maps.c, args.stored, col + piece * 64, from);
                if (step + at::AHEAD < PARTS * at::OF_PART) fetch_one<N>(step + at::AHEAD, maps, out, row, col);
            }
            rows.end(args, from, col / (N * 2));
        }
    }
};

/* What was there is added; the squares of what is stored are summed by row. */
struct add_rows {
    enum { READ = 1, STORED = 1 };
    float squares[2] = {0, 0};
    WGMMA_INLINE add_rows(const epilogue_args &, int) {}
    WGMMA_INLINE void change(const epilogue_args &, const float *sums, uint32_t slot) {
#pragma unroll
        for (int g = 0; g < 8; g += 2) {
            const float *s = &sums[g * 4];
            uint32_t at = piece_address(slot, g), x[4];
            ldmatrix_x4(x, at);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] = two(s[2 * i] + low_of(x[i]), s[2 * i + 1] + high_of(x[i]));
                squares[i % 2] += low_of(x[i]) * low_of(x[i]) + high_of(x[i]) * high_of(x[i]);
            }
            stmatrix_x4(at, x[0], x[1], x[2], x[3]);
        }
    }
    WGMMA_INLINE void end(const epilogue_args &args, int row, int part) {
        thread_rows::write_sums(args, squares, row, part);
    }
};
typedef reads_pieces<add_rows> add_epilogue;

/* The sums are dy of y = act(gate) up: dgate, dup, and y once more, with the bits that the forward half gave it. Short:
 * the kernel's code is 107 KB; with 157 KB this epilogue took three times as long (docs/kernels/wgmma.md). */
struct glu_bwd_rows {
    enum { READ = 2, STORED = 3 };
    float dots[2] = {0, 0};
    WGMMA_INLINE glu_bwd_rows(const epilogue_args &, int) {}
    WGMMA_INLINE void change(const epilogue_args &args, const float *sums, uint32_t slot) {
#pragma unroll
        for (int g = 0; g < 8; g += 2) {
            uint32_t at[3], gate[4], up[4], y[4];
#pragma unroll
            for (int i = 0; i < 3; i++) at[i] = piece_address(slot + i * PIECE_BYTES, g);
            ldmatrix_x4(gate, at[0]);
            ldmatrix_x4(up, at[1]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float g0 = low_of(gate[i]), g1 = high_of(gate[i]), u0 = low_of(up[i]), u1 = high_of(up[i]);
                backward x(args.act, sums[g * 4 + i * 2], g0, u0), next(args.act, sums[g * 4 + i * 2 + 1], g1, u1);
                gate[i] = two(x.dgate, next.dgate), up[i] = two(x.dup, next.dup), y[i] = two(x.y, next.y);
                dots[i % 2] += low_of(gate[i]) * g0 + high_of(gate[i]) * g1 + low_of(up[i]) * u0 + high_of(up[i]) * u1;
            }
            stmatrix_x4(at[0], gate[0], gate[1], gate[2], gate[3]);
            stmatrix_x4(at[1], up[0], up[1], up[2], up[3]);
            stmatrix_x4(at[2], y[0], y[1], y[2], y[3]);
        }
    }
    WGMMA_INLINE void end(const epilogue_args &args, int row, int part) {
        thread_rows::write_sums(args, dots, row, part);
    }
    struct backward {
        float dgate, dup, y;
        WGMMA_INLINE backward(const activation &act, float dy, float gate, float up) {
            float s = sigmoid_of(gate, act.one, act.three);
            dgate = dgate_of(dy, gate, up, s, act.one + 3 * act.three * gate * gate);
            dup = dup_of(dy, gate, s), y = activated(gate, up, s);
        }
    };
};
typedef reads_pieces<glu_bwd_rows> glu_bwd_epilogue;

/* Sums times a factor by row; two matrices added, the second times another. */
struct norm_bwd_rows {
    enum { READ = 2, STORED = 1 };
    float by[2], scale[2];
    WGMMA_INLINE norm_bwd_rows(const epilogue_args &args, int row) {
        thread_rows mine(args, row);
#pragma unroll
        for (int w = 0; w < 2; w++) by[w] = mine.factor(args.sum_scale, w), scale[w] = mine.factor(args.row_scale, w);
    }
    WGMMA_INLINE void change(const epilogue_args &, const float *sums, uint32_t slot) {
#pragma unroll
        for (int g = 0; g < 8; g += 2) {
            const float *s = &sums[g * 4];
            uint32_t at0 = piece_address(slot, g), x[4], h[4];
            ldmatrix_x4(x, at0);
            ldmatrix_x4(h, piece_address(slot + PIECE_BYTES, g));
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = two(by[i % 2] * s[2 * i] + low_of(x[i]) + scale[i % 2] * low_of(h[i]),
                           by[i % 2] * s[2 * i + 1] + high_of(x[i]) + scale[i % 2] * high_of(h[i]));
            stmatrix_x4(at0, x[0], x[1], x[2], x[3]);
        }
    }
    WGMMA_INLINE void end(const epilogue_args &, int, int) {}
};
typedef reads_pieces<norm_bwd_rows> norm_bwd_epilogue;
} // namespace wgmma
#endif
