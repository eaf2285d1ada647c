/* test_attention_cases.cu - the cases of test_attention.cu, their inputs, and attention in double precision. */
#include "test_attention.h"

#include <math.h>
#include <string.h>

/* ---- cases ---- */

static problem make_problem(const std::string &name, std::vector<int> lengths, int padding, int H, int G, int d) {
    problem p = {};
    p.cu = {0};
    for (int n : lengths) p.cu.push_back(p.cu.back() + n);
    p.name = name + " d=" + std::to_string(d) + " " + std::to_string(H) + "/" + std::to_string(G);
    p.N = p.rows() + padding;
    p.H = H, p.G = G, p.d = d;
    p.scale = 1 / sqrtf((float)d);
    p.strided = H != G; /* both layouts get tested */
    return p;
}

std::vector<problem> test_problems() {
    std::vector<problem> all;
    const int heads[3][2] = {{4, 4}, {8, 2}, {8, 1}};
    std::vector<int> brief;
    for (int i = 0; i < 40; i++) brief.push_back(1 + i * 7919 % 37);
    for (int d : {64, 128, 256}) {
        for (const auto &h : heads) {
            all.push_back(make_problem("one document of 384", {384}, 0, h[0], h[1], d));
            all.push_back(make_problem("1, 127, 128, 129", {1, 127, 128, 129}, 3, h[0], h[1], d));
            all.push_back(make_problem("40 short ones", brief, 29, h[0], h[1], d));
            all.push_back(make_problem("odd N, 33 rows of padding", {5, 60, 33}, 33, h[0], h[1], d));
        }
        all.push_back(make_problem("one row", {1}, 0, 2, 1, d));
        all.push_back(make_problem("7, 300, 130", {7, 300, 130}, 0, 6, 2, d)); /* three heads do not pair */
        /* rows of a tile see far more than its other rows; more tiles and heads than a card has multiprocessors */
        all.push_back(make_problem("64, 600", {64, 600}, 3, 8, 2, d));
        all.push_back(make_problem("64, 600, 1, 900, 63, 700", {64, 600, 1, 900, 63, 700}, 17, 8, 8, d));
        all.push_back(make_problem("one of 600", {600}, 24, 4, 1, d));
        for (int window : {4, 100}) {
            problem p = make_problem("window " + std::to_string(window) + ", 300, 1, 150", {300, 1, 150}, 5, 8, 2, d);
            p.window = window;
            all.push_back(p);
        }
        problem p = make_problem("cap 5, 200, 70", {200, 70}, 5, 8, 2, d);
        p.cap = 5; /* scores reach past +-3: the bend shows */
        all.push_back(p);
        p.name = "window 100, " + p.name;
        p.window = 100;
        all.push_back(p);
        /* scores around +-110, so that most rows' lse is below -88.7 or as far above; 192 and 320 are 64 mod 128 */
        for (float mean : {-1.f, 1.f}) {
            p = make_problem(std::string("large ") + (mean < 0 ? "negative" : "positive") + " scores, 192, 64, 320",
                             {192, 64, 320}, 0, 4, 2, d);
            p.mean = mean * 27.5f / sqrtf((float)d); /* scale d 4 mean = 110 */
            all.push_back(p);
        }
    }
    return all;
}

std::vector<problem> speed_problems() {
    std::vector<problem> all;
    for (int n : {2048, 8192, 32768}) all.push_back(make_problem("one of " + std::to_string(n), {n}, 0, 32, 8, 128));
    for (int n : {256, 512, 1024, 2048})
        all.push_back(make_problem(std::to_string(8192 / n) + " of " + std::to_string(n), std::vector<int>(8192 / n, n),
                                   0, 32, 8, 128));
    std::vector<int> alpaca; /* about 60 documents, mean about 135 */
    uint32_t state = 1;
    for (int left = 8192; left > 0;) {
        state = state * 1664525u + 1013904223u;
        double u = ((state >> 8) + 0.5) / 16777216.0;
        int n = 45 + (int)(-90 * log(u));
        n = n > 1024 ? 1024 : n;
        alpaca.push_back(n < left ? n : left);
        left -= alpaca.back();
    }
    all.push_back(make_problem(std::to_string(alpaca.size()) + " Alpaca-like in 8192", alpaca, 0, 32, 8, 128));
    all.push_back(make_problem("one of 8192", {8192}, 0, 32, 8, 64));
    all.push_back(make_problem("one of 8192", {8192}, 0, 16, 8, 256));
    problem p = make_problem("window 1024, one of 8192", {8192}, 0, 32, 8, 128);
    p.window = 1024;
    all.push_back(p);
    return all;
}

std::vector<problem> probe_problems() {
    std::vector<problem> all;
    const std::vector<int> docs(60, 130);
    for (int d : {64, 128, 256}) all.push_back(make_problem("documents", docs, 392, 32, 8, d));
    all.push_back(make_problem("as many key heads", docs, 392, 8, 8, 128));
    all.push_back(make_problem("one document", {8192}, 0, 32, 8, 128));
    all.push_back(make_problem("q, k, v apart", docs, 392, 32, 8, 128));
    all.back().strided = false;
    all.push_back(make_problem("window 100", docs, 392, 32, 8, 128));
    all.back().window = 100;
    return all;
}

/* ---- inputs ---- */

static uint16_t to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static double from_bf16(uint16_t b) {
    uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static void fill_normal(std::vector<uint16_t> &x, size_t n, float mean, uint64_t seed) {
    uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
    const size_t period = 1048573; /* a prime: long buffers repeat, out of step with their rows */
    x.resize(n);
    for (size_t i = 0; i < n; i++) {
        if (i >= period) {
            x[i] = x[i - period];
            continue;
        }
        float sum = -6; /* twelve uniforms: near enough to a normal, and the same everywhere */
        for (int j = 0; j < 12; j++) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            sum += (float)(state >> 40) * (1.f / 16777216);
        }
        x[i] = to_bf16(sum + mean);
    }
}

inputs make_inputs(const problem &p) {
    inputs in;
    size_t q = (size_t)p.N * p.H * p.d, k = (size_t)p.N * p.G * p.d;
    fill_normal(in.q, q, p.mean != 0 ? 4 : 0, 1);
    fill_normal(in.k, k, p.mean != 0 ? p.mean : 0, 2);
    fill_normal(in.v, k, 0, 3);
    fill_normal(in.dout, q, 0, 4);
    return in;
}

/* ---- reference ---- */

/* One head: q, k, v, dout [rows, d] in; o .. dv [rows, d] and lse [rows] out.  stored: the o of the gradients. */
struct head_work {
    const problem &p;
    std::vector<double> q, k, v, dout, stored, o, lse, dq, dk, dv;
};

static std::vector<double> slice(const std::vector<uint16_t> &x, const problem &p, int heads, int head) {
    std::vector<double> out((size_t)p.rows() * p.d);
    for (int t = 0; t < p.rows(); t++)
        for (int c = 0; c < p.d; c++) out[(size_t)t * p.d + c] = from_bf16(x[((size_t)t * heads + head) * p.d + c]);
    return out;
}
static double dot(const double *a, const double *b, int n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}
static void add(double *to, double factor, const double *from, int n) {
#pragma omp simd
    for (int i = 0; i < n; i++) to[i] += factor * from[i];
}

/* Row t, whose keys are first .. t: o, lse and the row's share of the gradients. */
static void reference_row(head_work &x, int t, int first) {
    const problem &p = x.p;
    const int n = t - first + 1, d = p.d;
    const size_t row = (size_t)t * d;
    std::vector<double> s(n), bend(n, 1.0);
    double max = -1e300, sum = 0;
    for (int j = 0; j < n; j++) {
        s[j] = p.scale * dot(&x.q[row], &x.k[(size_t)(first + j) * d], d);
        if (p.cap > 0) {
            double th = tanh(s[j] / p.cap);
            s[j] = p.cap * th;
            bend[j] = 1 - th * th;
        }
        max = s[j] > max ? s[j] : max;
    }
    for (int j = 0; j < n; j++) sum += s[j] = exp(s[j] - max);
    x.lse[t] = max + log(sum);
    for (int j = 0; j < n; j++) add(&x.o[row], s[j] /= sum, &x.v[(size_t)(first + j) * d], d);
    const double delta = dot(&x.dout[row], x.stored.empty() ? &x.o[row] : &x.stored[row], d);
    for (int j = 0; j < n; j++) {
        const size_t key = (size_t)(first + j) * d;
        double ds = s[j] * (dot(&x.dout[row], &x.v[key], d) - delta) * bend[j] * p.scale;
        add(&x.dq[row], ds, &x.k[key], d);
        add(&x.dk[key], ds, &x.q[row], d);
        add(&x.dv[key], s[j], &x.dout[row], d);
    }
}

static head_work reference_head(const problem &p, const inputs &in, const std::vector<uint16_t> *stored_o, int h) {
    const int group = h / (p.H / p.G);
    const size_t size = (size_t)p.rows() * p.d;
    std::vector<double> zero(size);
    head_work x = {p,
                   slice(in.q, p, p.H, h),
                   slice(in.k, p, p.G, group),
                   slice(in.v, p, p.G, group),
                   slice(in.dout, p, p.H, h),
                   {},
                   zero,
                   std::vector<double>((size_t)p.rows()),
                   zero,
                   zero,
                   zero};
    if (stored_o) x.stored = slice(*stored_o, p, p.H, h);
    for (int doc = 0; doc < p.docs(); doc++)
        for (int t = p.cu[doc]; t < p.cu[doc + 1]; t++)
            reference_row(x, t, p.window && t - p.window + 1 > p.cu[doc] ? t - p.window + 1 : p.cu[doc]);
    return x;
}

reference compute_reference(const problem &p, const inputs &in, const std::vector<uint16_t> *stored_o) {
    const size_t q = (size_t)p.rows() * p.H * p.d, k = (size_t)p.rows() * p.G * p.d;
    reference r = {std::vector<double>(q), std::vector<double>((size_t)p.rows() * p.H), std::vector<double>(q),
                   std::vector<double>(k), std::vector<double>(k)};
#pragma omp parallel for schedule(dynamic, 1)
    for (int h = 0; h < p.H; h++) {
        const head_work x = reference_head(p, in, stored_o, h);
#pragma omp critical
        for (int t = 0; t < p.rows(); t++) {
            const size_t from = (size_t)t * p.d, to = ((size_t)t * p.H + h) * p.d;
            const size_t key = ((size_t)t * p.G + h / (p.H / p.G)) * p.d;
            r.lse[(size_t)t * p.H + h] = x.lse[t];
            add(&r.o[to], 1, &x.o[from], p.d);
            add(&r.dq[to], 1, &x.dq[from], p.d);
            add(&r.dk[key], 1, &x.dk[from], p.d);
            add(&r.dv[key], 1, &x.dv[from], p.d);
        }
    }
    return r;
}

/* ---- rope ---- */

int position_of(const problem &p, int row) {
    int doc = 0;
    while (p.cu[doc + 1] <= row) doc++;
    return row - p.cu[doc];
}

float frequency_of(const problem &p, int pair) { return (float)pow(10000, -2.0 * pair / p.d); }

static void add_row_dots(reference *r, const std::vector<double> &dz, const std::vector<uint16_t> &z, int64_t cols) {
    for (size_t i = 0; i < dz.size(); i++) {
        const double term = dz[i] * from_bf16(z[i]);
        r->dot[i / (size_t)cols] += term;
        r->dot_size[i / (size_t)cols] += term * term;
    }
}

static void turn_back(const problem &p, std::vector<double> &dz, int heads) {
    for (int t = 0; t < p.rows(); t++)
        for (int j = 0; j < p.d / 2; j++) {
            const double angle = (double)((float)position_of(p, t) * frequency_of(p, j));
            const double cosine = cos(angle), sine = sin(angle);
            for (int h = 0; h < heads; h++) {
                double &low = dz[((size_t)t * heads + h) * p.d + j], &high = (&low)[p.d / 2], a = low, b = high;
                low = a * cosine + b * sine;
                high = b * cosine - a * sine;
            }
        }
}

void turn_reference(const problem &p, const inputs &in, reference *r) {
    r->dot.assign((size_t)p.rows(), 0);
    r->dot_size = r->dot;
    add_row_dots(r, r->dq, in.q, (int64_t)p.H * p.d);
    add_row_dots(r, r->dk, in.k, (int64_t)p.G * p.d);
    add_row_dots(r, r->dv, in.v, (int64_t)p.G * p.d);
    for (size_t t = 0; t < r->dot.size(); t++) r->dot_size[t] = fmax(sqrt(r->dot_size[t]), fabs(r->dot[t]));
    turn_back(p, r->dq, p.H);
    turn_back(p, r->dk, p.G);
}
