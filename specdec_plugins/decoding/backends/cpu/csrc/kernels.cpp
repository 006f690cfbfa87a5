// The Transformer's forward on a CPU, for few rows at a time, where eager PyTorch spends most of its time on starting operations.
//
// A *row* is one position of one sentence. Rows of a pass may belong to any sentences, at any positions, in any number: nothing
// is padded. Every row's result is computed by the same operations in the same order whatever rows are beside it, so a block
// scored in one pass gets, bit for bit, the scores of its tokens one at a time: speculation is exact in every data type.
//
// Weights are float32, bfloat16 (widened when read) or int8 with a scale a column; with int8 and VNNI the inputs are quantised
// too, with a scale a row. Everything else is float32. Shape letters: N rows, D width, O outputs, I inputs.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>
#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace {

// ---- vectors

#if defined(__AVX512F__)
constexpr int W = 16, MOST_ROWS = 12;  // lanes; rows of a tile, so that the sums stay in registers
#elif defined(__AVX2__)
constexpr int W = 8, MOST_ROWS = 3;
#else
constexpr int W = 4, MOST_ROWS = 3;
#endif
constexpr int TILE = 32;  // columns of a panel of weights
constexpr int APART = 8;  // rows for each of the team's members from which on they work apart
constexpr int C = TILE / W;

typedef float Floats __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef uint16_t Halves __attribute__((vector_size(2 * W), aligned(2), may_alias));
typedef int8_t Bytes __attribute__((vector_size(W), aligned(1), may_alias));

inline Floats all(float value) { return value - Floats{}; }
inline Floats load(const float* from) { return *reinterpret_cast<const Floats*>(from); }
inline Floats load(const uint16_t* from) {  // bfloat16
    return (Floats)(__builtin_convertvector(*reinterpret_cast<const Halves*>(from), Words) << 16);
}
inline Floats load(const int8_t* from) { return __builtin_convertvector(*reinterpret_cast<const Bytes*>(from), Floats); }
inline void store(float* to, Floats value) { *reinterpret_cast<Floats*>(to) = value; }
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

// Lanes in other orders: each with the one that is W / 2, W / 4, .. 1 away.
struct Exchanges {
    int32_t lanes[4][W] = {};
    constexpr Exchanges() {
        for (int turn = 0, step = W / 2; step; ++turn, step /= 2)
            for (int lane = 0; lane < W; ++lane) lanes[turn][lane] = lane ^ step;
    }
};
constexpr Exchanges EXCHANGES;  // constants, as the compiler would put them together lane by lane otherwise

template <class Join>
inline float joined(Floats value, Join&& join) {
    for (int turn = 0, step = W / 2; step; ++turn, step /= 2)
        value = join(value, __builtin_shuffle(value, *reinterpret_cast<const Ints*>(EXCHANGES.lanes[turn])));
    return value[0];
}
inline float sum(Floats value) {
    return joined(value, [](Floats a, Floats b) { return a + b; });
}
inline float largest(Floats value) { return joined(value, larger); }

inline Floats exponential(Floats x) {  // relative error below 2e-7; 0 for what is far below 0
    const float magic = 12582912.0f;   // 1.5 * 2^23: adding it rounds to an integer
    Floats clipped = larger(x, all(-87.0f));
    Floats shifted = clipped * 1.44269504f + magic;
    Floats power = shifted - magic;
    Floats r = clipped - power * 0.693359375f + power * 2.12194440e-4f;
    Floats y = all(1.9875691500e-4f);
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    Ints bits = (Ints)y + (((Ints)shifted) << 23);
    return x < -87.0f ? Floats{} : (Floats)bits;
}

inline Floats gelu(Floats x) {  // x / 2 (1 + erf(x / sqrt 2)); erf by Abramowitz and Stegun 7.1.26, to 1.5e-7
    Floats z = larger(x, -x) * 0.70710678f;
    Floats t = 1.0f / (1.0f + 0.3275911f * z);
    Floats y = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    Floats error = 1.0f - y * exponential(-z * z);
    return 0.5f * x * (1.0f + (x < 0.0f ? -error : error));
}

inline Floats gelu_tanh(Floats x) {
    Floats u = 0.79788456f * (x + 0.044715f * x * x * x);
    Floats t = exponential(-2.0f * larger(u, -u));
    Floats tanh = (1.0f - t) / (1.0f + t);
    return 0.5f * x * (1.0f + (u < 0.0f ? -tanh : tanh));
}

// ---- threads: a team goes through a pass together, and meets at barriers. They spin, because a phase takes microseconds.

inline void breathe(int& spins) {
    if (++spins < 4000) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    } else {
        std::this_thread::yield();
    }
}

class Team {
  public:
    explicit Team(int size) : size(size) {
        for (int member = 1; member < size; ++member) workers.emplace_back([this, member] { serve(member); });
    }
    ~Team() {
        job = nullptr;
        begin();
        for (auto& worker : workers) worker.join();
    }
    template <class Job>
    void run(Job&& todo) {
        if (size == 1) return todo(0);
        job = [&](int member) { todo(member); };
        begin();
        todo(0);
        sync();
    }
    void sync() {
        if (size == 1) return;
        unsigned turn = round.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) == size - 1) {
            arrived.store(0, std::memory_order_relaxed);
            round.store(turn + 1, std::memory_order_release);
        } else {
            for (int spins = 0; round.load(std::memory_order_acquire) == turn;) breathe(spins);
        }
    }
    const int size;

  private:
    void begin() {
        if (size == 1) return;
        calls.fetch_add(1, std::memory_order_release);
        calls.notify_all();
    }
    void serve(int member) {
        for (unsigned seen = 0;; ++seen) {
            for (int spins = 0; calls.load(std::memory_order_acquire) == seen && spins < 20000;) {
                ++spins;
#if defined(__x86_64__)
                __builtin_ia32_pause();
#endif
            }
            calls.wait(seen, std::memory_order_acquire);
            if (!job) return;
            job(member);
            sync();
        }
    }
    std::function<void(int)> job;
    std::vector<std::thread> workers;
    std::atomic<unsigned> calls{0}, round{0};
    std::atomic<int> arrived{0};
};

struct Range {
    int from, to;
};
inline Range share(int total, int member, int size) {
    return {int(int64_t(total) * member / size), int(int64_t(total) * (member + 1) / size)};
}

// ---- products

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

Memory allocate(size_t bytes) {
    const size_t page = bytes >= (1 << 21) ? 1 << 21 : 64;
    void* memory = std::aligned_alloc(page, (bytes + page - 1) / page * page);
#if defined(__linux__)
    if (memory && page > 64) madvise(memory, bytes, MADV_HUGEPAGE);  // fewer misses of address translation
#endif
    return Memory(memory);
}

enum Kind { FLOAT32, BFLOAT16, INT8 };
#if defined(__AVX512VNNI__)
constexpr bool QUANTISED_INPUT = true;
#else
constexpr bool QUANTISED_INPUT = false;
#endif

uint16_t to_bfloat16(float value) {  // to the nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// Weights (O, I) in panels of TILE outputs: for each input, the weights of the panel's outputs side by side; for int8 with
// quantised inputs, four inputs' weights of an output side by side.
struct Linear {
    int outputs, inputs, panels;
    Kind kind;
    Memory weights;
    std::vector<float> bias, scale;
    std::vector<int32_t> offset;  // what 128 added to each input adds to the sum

    Linear(const float* w, const float* b, int outputs, int inputs, Kind kind)
        : outputs(outputs), inputs(inputs), panels((outputs + TILE - 1) / TILE), kind(kind), bias(panels * TILE),
          scale(panels * TILE, 1.0f), offset(panels * TILE) {
        const size_t size = kind == FLOAT32 ? 4 : kind == BFLOAT16 ? 2 : 1, count = size_t(panels) * TILE * inputs;
        weights = allocate(count * size);
        std::memset(weights.get(), 0, count * size);
        if (b) std::copy(b, b + outputs, bias.begin());
        for (int o = 0; o < outputs; ++o) {
            const float* row = w + size_t(o) * inputs;
            const size_t panel = size_t(o / TILE) * TILE * inputs, column = o % TILE;
            if (kind == INT8) {
                float most = 0;
                for (int i = 0; i < inputs; ++i) most = std::max(most, std::fabs(row[i]));
                scale[o] = most > 0 ? most / 127 : 1;
            }
            for (int i = 0; i < inputs; ++i) {
                const size_t place = panel + size_t(i) * TILE + column;
                if (kind == FLOAT32) static_cast<float*>(weights.get())[place] = row[i];
                if (kind == BFLOAT16) static_cast<uint16_t*>(weights.get())[place] = to_bfloat16(row[i]);
                if (kind == INT8) {
                    const int8_t value = int8_t(std::lrintf(row[i] / scale[o]));
                    const size_t quartet = panel + size_t(i / 4) * TILE * 4 + column * 4 + i % 4;
                    static_cast<int8_t*>(weights.get())[QUANTISED_INPUT ? quartet : place] = value;
                    offset[o] += 128 * value;
                }
            }
        }
    }
};

// The input of a product: float32 rows, and the same quantised where the weights ask for it.
struct Input {
    std::vector<float> values;  // (N, I)
    std::vector<uint8_t> bytes;  // (N, I), 128 is zero
    std::vector<float> scale;   // (N,)

    void resize(size_t rows, size_t inputs, bool quantised) {
        if (values.size() < rows * inputs) values.resize(rows * inputs);
        if (quantised && bytes.size() < rows * inputs) bytes.resize(rows * inputs);
        if (scale.size() < rows) scale.resize(rows);
    }
    void quantise(int row, int inputs) {
        const float* x = values.data() + size_t(row) * inputs;
        Floats most{};
        for (int i = 0; i < inputs; i += W) most = larger(most, larger(load(x + i), -load(x + i)));
        const float bound = largest(most);
        scale[row] = bound / 127;
        const float factor = bound > 0 ? 127 / bound : 0;
        uint8_t* to = bytes.data() + size_t(row) * inputs;
        for (int i = 0; i < inputs; ++i) to[i] = uint8_t(int(x[i] * factor + 128.5f));
    }
};

constexpr int AHEAD = 2048;  // bytes: weights are read from one end to the other, but the CPU's own prefetching stops at each page

// The sums stay in registers only if the loops over them are unrolled early: the compiler has to be told.
template <int R, class Weight>
inline void product(const float* x, int inputs, const Weight* w, float* to) {
    Floats total[R][C] = {};
    for (int i = 0; i < inputs; ++i, w += TILE) {
        for (size_t line = 0; line < TILE * sizeof(Weight); line += 64)
            __builtin_prefetch(reinterpret_cast<const char*>(w) + AHEAD + line);
        Floats column[C];
        for (int c = 0; c < C; ++c) column[c] = load(w + c * W);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
            for (int c = 0; c < C; ++c) total[r][c] += x[size_t(r) * inputs + i] * column[c];
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) store(to + r * TILE + c * W, total[r][c]);
}

#if defined(__AVX512VNNI__)
template <int R>
inline void product(const uint8_t* x, int inputs, const int8_t* w, float* to) {
    __m512i total[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) total[r][0] = total[r][1] = _mm512_setzero_si512();
    for (int i = 0; i < inputs; i += 4, w += 4 * TILE) {
        const __m512i left = _mm512_loadu_si512(w), right = _mm512_loadu_si512(w + 64);
        __builtin_prefetch(w + AHEAD);
        __builtin_prefetch(w + AHEAD + 64);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            int32_t quartet;
            std::memcpy(&quartet, x + size_t(r) * inputs + i, 4);
            const __m512i value = _mm512_set1_epi32(quartet);
            total[r][0] = _mm512_dpbusd_epi32(total[r][0], value, left);
            total[r][1] = _mm512_dpbusd_epi32(total[r][1], value, right);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)  // whole numbers for now: the caller takes the offset away before they become floats
        for (int c = 0; c < 2; ++c) _mm512_storeu_si512(to + r * TILE + 16 * c, total[r][c]);
}
#endif

template <int R, class X, class Weight>
void product_of(int rows, const X* x, int inputs, const Weight* w, float* to) {
    if constexpr (R > 1)
        if (rows < R) return product_of<R - 1>(rows, x, inputs, w, to);
    product<R>(x, inputs, w, to);
}

// Calls done(row, first column, values of TILE columns) for the rows and panels given.
template <class Done>
void multiply(const Linear& linear, const Input& input, Range rows, Range panels, Done&& done) {
    alignas(64) float to[MOST_ROWS * TILE];
    const int total = rows.to - rows.from, blocks = (total + MOST_ROWS - 1) / MOST_ROWS;
    for (int panel = panels.from; panel < panels.to; ++panel) {
        const size_t start = size_t(panel) * TILE * linear.inputs;
        const float *bias = &linear.bias[panel * TILE], *scale = &linear.scale[panel * TILE];
        const int32_t* offset = &linear.offset[panel * TILE];
        for (int block = 0; block < blocks; ++block) {
            Range part = share(total, block, blocks);
            part = {part.from + rows.from, part.to + rows.from};
            const int count = part.to - part.from;
            const float* x = input.values.data() + size_t(part.from) * linear.inputs;
            if (linear.kind == FLOAT32)
                product_of<MOST_ROWS>(count, x, linear.inputs, static_cast<const float*>(linear.weights.get()) + start, to);
            else if (linear.kind == BFLOAT16)
                product_of<MOST_ROWS>(count, x, linear.inputs, static_cast<const uint16_t*>(linear.weights.get()) + start, to);
            else {
                const int8_t* w = static_cast<const int8_t*>(linear.weights.get()) + start;
#if defined(__AVX512VNNI__)
                product_of<MOST_ROWS>(count, input.bytes.data() + size_t(part.from) * linear.inputs, linear.inputs, w, to);
#else
                product_of<MOST_ROWS>(count, x, linear.inputs, w, to);
#endif
            }
            for (int r = 0; r < count; ++r) {
                float* values = to + r * TILE;
                for (int c = 0; c < TILE; c += W) {
                    Floats value = load(values + c);
                    if (linear.kind == INT8) {
                        if (QUANTISED_INPUT) {
                            const Ints whole = (Ints)value - *reinterpret_cast<const Ints*>(offset + c);
                            value = __builtin_convertvector(whole, Floats) * input.scale[part.from + r];
                        }
                        value *= load(scale + c);
                    }
                    store(values + c, value + load(bias + c));
                }
                done(part.from + r, panel * TILE, values);
            }
        }
    }
}

// ---- the parts of a layer

struct Norm {
    std::vector<float> weight, bias;

    void operator()(const float* x, float* to) const {  // x and to may be the same
        const int width = int(weight.size());
        float mean = 0, variance = 0;
        Floats total{};
        for (int i = 0; i < width; i += W) total += load(x + i);
        mean = sum(total) / width;
        total = Floats{};
        for (int i = 0; i < width; i += W) total += (load(x + i) - mean) * (load(x + i) - mean);
        variance = sum(total) / width;
        const float factor = 1 / std::sqrt(variance + 1e-5f);
        for (int i = 0; i < width; i += W) store(to + i, (load(x + i) - mean) * factor * load(&weight[i]) + load(&bias[i]));
    }
};

// V vectors of the values' weighted sums, from column i on; every vector is within one head.
template <int V>
inline void mix(const float* weights, const float* norms, int span, const float* values, size_t stride, int count, int size, int i,
                float* to) {
    Floats mixed[V] = {};
    const float* own[V];
    for (int v = 0; v < V; ++v) own[v] = weights + (i + v * W) / size * span;
    for (int t = 0; t < count; ++t)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) mixed[v] += own[v][t] * load(values + t * stride + i + v * W);
    for (int v = 0; v < V; ++v) store(to + i + v * W, mixed[v] * norms[(i + v * W) / size]);
}

// One query (D,) over the first `count` entries, each `stride` numbers: keys (D,), then values (D,). Entry by entry, as they lie
// in memory.
void attend(const float* query, const float* entries, size_t stride, int count, int width, int heads, float scale, float* to) {
    thread_local std::vector<float> buffer;
    const int size = width / heads, span = (count + 2 * W - 1) / W * W;
    if (buffer.size() < size_t(heads) * (span + 1)) buffer.resize(2 * heads * (span + 1));
    float *weights = buffer.data(), *norms = weights + heads * span;  // (heads, span), (heads,)
    for (int t = 0; t < count; ++t)
        for (int head = 0; head < heads; ++head) {
            const float *q = query + head * size, *k = entries + t * stride + head * size;
            Floats total{};
            int i = 0;
            for (; i + W <= size; i += W) total += load(q + i) * load(k + i);
            float score = sum(total);
            for (; i < size; ++i) score += q[i] * k[i];
            weights[head * span + t] = score * scale;
        }
    for (int head = 0; head < heads; ++head) {
        float* own = weights + head * span;
        for (int t = count; t < span; ++t) own[t] = -INFINITY;
        Floats most = load(own), total{};
        for (int t = W; t < count; t += W) most = larger(most, load(own + t));
        const float top = largest(most);
        for (int t = 0; t < count; t += W) {
            const Floats weight = exponential(load(own + t) - top);
            total += weight;
            store(own + t, weight);
        }
        norms[head] = 1 / sum(total);
    }
    const float* values = entries + width;
    int i = 0;
    if (size % W == 0) {
        for (; i + 8 * W <= width; i += 8 * W) mix<8>(weights, norms, span, values, stride, count, size, i, to);
        for (; i < width; i += W) mix<1>(weights, norms, span, values, stride, count, size, i, to);
    }
    for (; i < width; ++i) {
        const float* own = weights + i / size * span;
        float mixed = 0;
        for (int t = 0; t < count; ++t) mixed += own[t] * values[t * stride + i];
        to[i] = mixed * norms[i / size];
    }
}

struct Layer {
    const Linear *qkv, *out, *cross_query, *cross_out, *fc1, *fc2;
    Norm norm, cross_norm, final_norm;
};

enum Activation { RELU, GELU, GELU_TANH };

struct Embedding {
    const float *tokens, *places;  // (V, D), (positions, D)
    float scale;
    int64_t first, last;  // row of `places` for position 0, and its last row
    Norm norm;            // empty if there is none
};

struct Stack {
    int width, heads, activation;
    bool prenorm;
    Embedding embedding;
    std::vector<Layer> layers;
    Norm last;                 // empty if there is none
    const Linear* projection;  // NULL for an encoder
    const Linear* gate;        // of the successor network; NULL if there is none
};

// What a pass reads and writes beside its rows. Strides count numbers.
struct Entries {
    float* data;  // keys and values by layer, sentence and position
    int64_t layer, sentence;
};
struct Pass {
    Entries cache;
    Entries memory;             // the same of the source; no data for an encoder
    const float* copied;        // the source copy's entries, by sentence as in `memory`, for a drafter that has it
    bool block;                 // positions are added before every layer
    bool narrowed;              // some rows are not kept: the last layer goes on without them
    float* output;              // (results, O); row n's is number target[n]
    float* gates;               // (results, R), where the stack has a gate
};
struct Row {
    int64_t token, sentence, place, visible, source, target;  // `sentence` says where its entries are, `source` how long it is
    bool mask, kept;
};

// What passes need room for, kept from one to the next.
struct Scratch {
    std::vector<Row> rows;
    std::vector<float> x, queries, entries;
    Input input, hidden;
    std::vector<int> bounds;  // the first row of each member's part
    std::vector<int64_t> candidates;
};

class Forward {
  public:
    Forward(const Stack& stack, const Pass& pass, Team& team, Scratch& scratch)
        : stack(stack), pass(pass), team(team), rows(scratch.rows), values(scratch.x), queries(scratch.queries),
          input(scratch.input), hidden(scratch.hidden), bounds(scratch.bounds), count(int(rows.size())) {
        bool quantised = false;
        int inner = 0;
        for (const Layer& layer : stack.layers) {
            quantised |= QUANTISED_INPUT && layer.qkv->kind == INT8;
            inner = std::max(inner, layer.fc1->outputs);
        }
        input.resize(count, stack.width, quantised);
        hidden.resize(count, inner, quantised);
        const size_t size = size_t(count) * stack.width;
        if (values.size() < size) values.resize(size), queries.resize(size);
    }

    void operator()() {
        const bool apart = splits();
        team.run([&](int member) {
            Part part{member, apart, apart ? Range{bounds[member], bounds[member + 1]} : share(count, member, team.size)};
            each_row(part, [&](int row) { embed(row); });
            for (size_t index = 0; index < stack.layers.size(); ++index) layer(int(index), part);
            finish(part);
        });
    }

  private:
    // What a member of the team does. With few rows all compute all of them together: each some of a product's columns, and some
    // rows of what is no product. With enough sentences each takes some through the whole pass, apart from the others, and reads
    // all weights for it: that costs less than to wait for each other and to hand over what the other's cache holds.
    struct Part {
        int member;
        bool apart;
        Range rows;
    };

    float* x(int row) { return &values[size_t(row) * stack.width]; }

    // Whether the rows can be shared out evenly by sentence, as a sentence's rows see each other; says in `bounds` how.
    bool splits() {
        const int fair = count / team.size;
        if (team.size == 1 || fair < APART) return false;
        bounds.assign(team.size + 1, count);
        for (int member = 0; member < team.size; ++member) {
            int& row = bounds[member] = share(count, member, team.size).from;
            while (row && rows[row].sentence == rows[row - 1].sentence) --row;
        }
        for (int member = 0; member < team.size; ++member)
            if (bounds[member + 1] - bounds[member] > fair + fair / 4) return false;
        return true;
    }

    template <class Do>
    void each_row(const Part& part, Do&& todo) {
        for (int row = part.rows.from; row < part.rows.to; ++row) todo(row);
    }
    void sync(const Part& part) {
        if (!part.apart) team.sync();
    }
    template <class Done>
    void product(const Linear& linear, const Input& from, const Part& part, Done&& done) {
        if (part.apart)
            multiply(linear, from, part.rows, {0, linear.panels}, done);
        else
            multiply(linear, from, {0, count}, share(linear.panels, part.member, team.size), done);
    }

    const float* position(int row) const {
        const Embedding& from = stack.embedding;
        return from.places + std::min(rows[row].place + from.first, from.last) * stack.width;
    }

    void embed(int row) {
        const Row& what = rows[row];
        const int width = stack.width;
        const float* place = position(row);
        if (what.mask && pass.copied) {
            attend(place, pass.copied + what.sentence * pass.memory.sentence, 2 * width, int(what.source), width, 1,
                   1.0f, x(row));
            for (int i = 0; i < width; i += W) store(x(row) + i, load(x(row) + i) + load(place + i));
        } else {
            const float* token = stack.embedding.tokens + what.token * width;
            for (int i = 0; i < width; i += W) store(x(row) + i, load(token + i) * stack.embedding.scale + load(place + i));
        }
        if (!stack.embedding.norm.weight.empty()) stack.embedding.norm(x(row), x(row));
    }

    void quantise(Input& what, const Linear& linear, int row) {
        if (QUANTISED_INPUT && linear.kind == INT8) what.quantise(row, linear.inputs);
    }

    void prepare(const Linear& linear, const Norm* norm, const Part& part) {
        each_row(part, [&](int row) {
            float* to = &input.values[size_t(row) * stack.width];
            if (norm && !norm->weight.empty())
                (*norm)(x(row), to);
            else
                std::copy(x(row), x(row) + stack.width, to);
            quantise(input, linear, row);
        });
        sync(part);
    }

    const Norm* before(const Norm& norm) const { return stack.prenorm ? &norm : nullptr; }

    void residual(const Linear& linear, const Input& from, const Norm& norm, const Part& part) {
        product(linear, from, part, [&](int row, int column, const float* result) {
            float* to = x(row) + column;
            for (int c = 0; c < TILE; c += W) store(to + c, load(to + c) + load(result + c));
        });
        sync(part);
        if (!stack.prenorm) each_row(part, [&](int row) { norm(x(row), x(row)); });
    }

    void look(const Linear& next, const Entries& entries, int index, bool source, const Part& part) {
        const float* data = entries.data + index * entries.layer;
        const float scale = 1 / std::sqrt(float(stack.width / stack.heads));
        each_row(part, [&](int row) {
            const Row& what = rows[row];
            const int64_t seen = source ? what.source : what.visible;
            attend(&queries[size_t(row) * stack.width], data + what.sentence * entries.sentence, 2 * stack.width, int(seen),
                   stack.width, stack.heads, scale, &input.values[size_t(row) * stack.width]);
            quantise(input, next, row);
        });
        sync(part);
    }

    void layer(int index, Part& part) {
        const Layer& layer = stack.layers[index];
        const int width = stack.width;
        if (pass.block && index)
            each_row(part, [&](int row) {
                for (int i = 0; i < width; i += W) store(x(row) + i, load(x(row) + i) + load(position(row) + i));
            });
        prepare(*layer.qkv, before(layer.norm), part);
        float* cache = pass.cache.data + index * pass.cache.layer;
        product(*layer.qkv, input, part, [&](int row, int column, const float* result) {
            float* entry = cache + rows[row].sentence * pass.cache.sentence + rows[row].place * 2 * width;
            float* to = column < width ? &queries[size_t(row) * width] + column : entry + (column - width);
            std::memcpy(to, result, TILE * sizeof(float));
        });
        sync(part);
        if (pass.narrowed && index + 1 == int(stack.layers.size())) narrow(part);
        look(*layer.out, pass.cache, index, false, part);
        residual(*layer.out, input, layer.norm, part);
        if (layer.cross_query) {
            prepare(*layer.cross_query, before(layer.cross_norm), part);
            product(*layer.cross_query, input, part, [&](int row, int column, const float* result) {
                std::memcpy(&queries[size_t(row) * width] + column, result, TILE * sizeof(float));
            });
            sync(part);
            look(*layer.cross_out, pass.memory, index, true, part);
            residual(*layer.cross_out, input, layer.cross_norm, part);
        }
        prepare(*layer.fc1, before(layer.final_norm), part);
        const int inner = layer.fc1->outputs;
        product(*layer.fc1, input, part, [&](int row, int column, const float* result) {
            float* to = &hidden.values[size_t(row) * inner] + column;
            for (int c = 0; c < TILE; c += W) {
                const Floats value = load(result + c);
                store(to + c, stack.activation == RELU   ? larger(value, Floats{})
                              : stack.activation == GELU ? gelu(value)
                                                         : gelu_tanh(value));
            }
        });
        sync(part);
        if (QUANTISED_INPUT && layer.fc2->kind == INT8) {
            each_row(part, [&](int row) { hidden.quantise(row, inner); });
            sync(part);
        }
        residual(*layer.fc2, hidden, layer.final_norm, part);
    }

    // Leave out what is not kept.
    void narrow(Part& part) {
        if (part.apart) {
            part.rows.to = compacted(part.rows);
            return;
        }
        if (part.member == 0) count = compacted({0, count});
        team.sync();
        part.rows = share(count, part.member, team.size);
    }

    int compacted(Range range) {
        int kept = range.from;
        for (int row = range.from; row < range.to; ++row)
            if (rows[row].kept) {
                std::copy(x(row), x(row) + stack.width, x(kept));
                const float* query = &queries[size_t(row) * stack.width];
                std::copy(query, query + stack.width, &queries[size_t(kept) * stack.width]);
                rows[kept++] = rows[row];
            }
        return kept;
    }

    void finish(const Part& part) {
        if (!stack.projection) {
            each_row(part, [&](int row) {
                float* to = pass.output + rows[row].target * stack.width;
                if (stack.last.weight.empty())
                    std::copy(x(row), x(row) + stack.width, to);
                else
                    stack.last(x(row), to);
            });
            return;
        }
        prepare(*stack.projection, &stack.last, part);
        project(*stack.projection, pass.output, part);
        if (stack.gate) project(*stack.gate, pass.gates, part);
    }

    void project(const Linear& linear, float* output, const Part& part) {
        product(linear, input, part, [&](int row, int column, const float* result) {
            float* to = output + rows[row].target * linear.outputs + column;
            std::memcpy(to, result, std::min(TILE, linear.outputs - column) * sizeof(float));
        });
    }

    const Stack& stack;
    const Pass& pass;
    Team& team;
    std::vector<Row>& rows;
    std::vector<float>&values, &queries;
    Input &input, &hidden;
    std::vector<int>& bounds;
    int count;  // of the rows that the pass goes on with
};

Norm norm_of(const float* const* pair, int width) {
    return pair[0] ? Norm{{pair[0], pair[0] + width}, {pair[1], pair[1] + width}} : Norm{};
}

// ---- what is said

float largest(const float* values, int64_t count) {
    Floats most = all(-INFINITY);
    int64_t i = 0;
    for (; i + W <= count; i += W) most = larger(most, load(values + i));
    float top = largest(most);
    for (; i < count; ++i) top = std::max(top, values[i]);
    return top;
}

constexpr int64_t PART = 16 * W;  // values that are skipped together when none of them is large enough

// The first of the largest of `count` values; 0 if there is none. Looks for it only in the first part that has it.
int64_t best_of(const float* values, int64_t count) {
    int64_t part = 0;
    float top = -INFINITY;
    for (int64_t i = 0; i < count; i += PART) {
        const float most = largest(values + i, std::min(PART, count - i));
        if (most > top) top = most, part = i;
    }
    const float *end = values + std::min(part + PART, count), *found = std::find(values + part, end, top);
    return found == end ? 0 : found - values;
}

// The `few` largest values' places, those of equal ones in order.
void best_few(const float* values, int64_t count, int64_t few, int64_t* to) {
    int64_t found = 0;
    float least = -INFINITY;  // of those found, once they are enough
    for (int64_t start = 0; start < count; start += PART) {
        const int64_t end = std::min(start + PART, count);
        if (found == few && largest(values + start, end - start) <= least) continue;  // soon true of most parts
        for (int64_t i = start; i < end; ++i) {
            if (found == few && values[i] <= least) continue;
            int64_t place = found < few ? found++ : few - 1;
            for (; place && values[to[place - 1]] < values[i]; --place) to[place] = to[place - 1];
            to[place] = i;
            if (found == few) least = values[to[few - 1]];
        }
    }
}

// The candidate that is best behind a token, by the logits and what the successor network adds to them.
int64_t follow(const float* logits, const int64_t* candidates, int64_t count, const float* gate, const float* token,
               const float* outs, int64_t width) {
    float most = -INFINITY;
    int64_t best = candidates[0];
    for (int64_t number = 0; number < count; ++number) {
        const float* out = outs + candidates[number] * width;
        Floats total{};
        for (int64_t i = 0; i < width; i += W) total += larger(load(gate + i) + load(token + i), Floats{}) * load(out + i);
        const float score = logits[candidates[number]] + sum(total);
        if (score > most) most = score, best = candidates[number];
    }
    return best;
}

float log_of_sum(const float* values, int64_t count, float most) {
    Floats total{};
    int64_t i = 0;
    for (; i + W <= count; i += W) total += exponential(load(values + i) - most);
    float rest = sum(total);
    for (; i < count; ++i) rest += std::exp(values[i] - most);
    return most + std::log(rest);
}

struct Rule {
    int64_t pad, eos, beta;
    double tau;

    // Whether a token that is not the best one passes all the same: Xia et al. 2023, section 3.3.
    bool tolerates(const float* values, int64_t count, int64_t best, int64_t token) const {
        const float own = values[token];
        if (beta < 2 || own == -INFINITY || double(values[best]) - double(own) > tau) return false;
        int64_t rank = 0;
        for (int64_t i = 0; i < count; ++i) rank += values[i] > own || (values[i] == own && i < token);
        return rank < beta;
    }

    // One row: judges its draft by logits (K + 1, V), writes scores; returns how many tokens pass.
    int64_t judge(float* logits, int64_t vocabulary, const int64_t* draft, int64_t offered, bool empty, int64_t room,
                  int64_t* correction, int64_t* cut, float* scores) const {
        for (int64_t k = 0;; ++k) {
            float* values = logits + k * vocabulary;
            const float kept[] = {values[pad], values[eos]};
            values[pad] = -INFINITY;
            if (empty && k == 0) values[eos] = -INFINITY;
            int64_t best = best_of(values, vocabulary);
            const float most = std::max({values[best], kept[0], kept[1]});  // of all that the model would say, as in fairseq
            const bool limit = k >= room;
            *cut = limit && best != eos;
            if (limit) best = eos;
            const bool passes = k < offered && (draft[k] == best || (!limit && tolerates(values, vocabulary, best, draft[k])));
            const int64_t said = passes ? draft[k] : best;
            values[pad] = kept[0], values[eos] = kept[1];
            scores[k] = values[said] - log_of_sum(values, vocabulary, most);
            if (!passes) {
                *correction = best;
                return k;
            }
        }
    }
};

struct Engine {
    explicit Engine(int threads) : team(threads) {}
    Team team;
    Scratch scratch;
};

}  // namespace

// All tensors are contiguous but where a stride is given; tokens, places and lengths are int64, everything else float32.
extern "C" {

// Whether this CPU has the instructions that this library was compiled for.
int specdec_supported() {
#if defined(__AVX512VNNI__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
#elif defined(__AVX2__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 1;
#endif
}

Engine* specdec_engine(int threads) { return new Engine(threads); }
void specdec_engine_free(Engine* engine) { delete engine; }

Linear* specdec_linear(const float* weight, const float* bias, int outputs, int inputs, int kind) {
    return new Linear(weight, bias, outputs, inputs, Kind(kind));
}
void specdec_linear_free(Linear* linear) { delete linear; }

// Entries of the source side: products of encoded (.., S, I), of which each layer gets `width` outputs. `numbers` has, one after
// the other: the numbers of the sentences among those encoded (B), the rows of their entries (B), and how long they are (B).
void specdec_remember(Engine* engine, const Linear* linear, int64_t batch, int64_t longest, const int64_t* numbers,
                      const float* encoded, int64_t width, float* memory, int64_t memory_layer, int64_t memory_sentence) {
    const int64_t *slots = numbers + batch, *lengths = slots + batch;
    auto& rows = engine->scratch.rows;  // their target is where they are in `encoded`
    rows.clear();
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t s = 0; s < lengths[b]; ++s) rows.push_back({0, slots[b], s, 0, 0, numbers[b] * longest + s, false, true});
    Input& input = engine->scratch.input;
    const int count = int(rows.size()), inputs = linear->inputs;
    const bool quantised = QUANTISED_INPUT && linear->kind == INT8;
    input.resize(count, inputs, quantised);
    Team& team = engine->team;
    team.run([&](int member) {
        const Range mine = share(count, member, team.size);
        for (int row = mine.from; row < mine.to; ++row) {
            const float* from = encoded + rows[row].target * inputs;
            std::copy(from, from + inputs, &input.values[size_t(row) * inputs]);
            if (quantised) input.quantise(row, inputs);
        }
        team.sync();
        multiply(*linear, input, {0, count}, share(linear->panels, member, team.size), [&](int row, int column, const float* result) {
            float* entry = memory + column / width * memory_layer + rows[row].sentence * memory_sentence + rows[row].place * width;
            std::memcpy(entry + column % width, result, std::min(TILE, linear->outputs - column) * sizeof(float));
        });
    });
}

// `norms`: weight and bias of the norm after the embedding and of the one after the last layer; NULL where there is none.
Stack* specdec_stack(int width, int heads, int activation, int prenorm, const float* tokens, float scale, const float* places,
                     int first, int last, const float* const* norms, const Linear* projection, const Linear* gate) {
    Embedding embedding{tokens, places, scale, first, last, norm_of(norms, width)};
    return new Stack{width, heads, activation, bool(prenorm), embedding, {}, norm_of(norms + 2, width), projection, gate};
}
void specdec_stack_free(Stack* stack) { delete stack; }

// `linears`: qkv, out, cross query, cross out, fc1, fc2; `norms`: of self-attention, cross-attention, feed-forward.
void specdec_layer(Stack* stack, const Linear* const* linears, const float* const* norms) {
    stack->layers.push_back({linears[0], linears[1], linears[2], linears[3], linears[4], linears[5], norm_of(norms, stack->width),
                             norm_of(norms + 2, stack->width), norm_of(norms + 4, stack->width)});
}

// Sentences -> output (B, S, D), left alone behind a sentence. `numbers` has, one after the other: where each sentence's tokens begin,
// and the end of them all (B + 1); the tokens.
void specdec_encode(Engine* engine, const Stack* stack, int64_t batch, int64_t longest, const int64_t* numbers, float* output) {
    const int64_t *starts = numbers, *tokens = starts + batch + 1;
    auto& rows = engine->scratch.rows;
    rows.clear();
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t s = 0, length = starts[b + 1] - starts[b]; s < length; ++s)
            rows.push_back({tokens[starts[b] + s], b, s, length, 0, b * longest + s, false, true});
    auto& entries = engine->scratch.entries;
    if (entries.size() < size_t(batch * longest * 2 * stack->width)) entries.resize(batch * longest * 2 * stack->width);
    Pass pass{{entries.data(), 0, longest * 2 * stack->width}, {}, nullptr, false, false, output, nullptr};
    Forward(*stack, pass, engine->team, engine->scratch)();
}

// Each sentence's tokens, behind what the cache holds -> output (B, width, V) at the last of them. `numbers` has, one after the
// other: where each sentence's tokens begin, and the end of them all (B + 1); where the first of them stands in its output (B); the
// number of the one from which on results are wanted (B); the row of its entries (B); how long its source is (B); the tokens.
// Behind a sentence's results the output is left alone. `gates` (B, width, R) is NULL if the stack has no gate.
void specdec_read(Engine* engine, const Stack* stack, int64_t batch, int64_t width, const int64_t* numbers, float* cache,
                  int64_t cache_layer, int64_t cache_sentence, float* memory, int64_t memory_layer, int64_t memory_sentence,
                  float* output, float* gates) {
    const int64_t *starts = numbers, *places = starts + batch + 1, *firsts = places + batch, *slots = firsts + batch;
    const int64_t *source_lengths = slots + batch, *tokens = source_lengths + batch;
    auto& rows = engine->scratch.rows;
    rows.clear();
    bool narrowed = false;
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t k = 0; k < starts[b + 1] - starts[b]; ++k) {
            const int64_t place = places[b] + k, target = b * width + k - firsts[b];
            rows.push_back({tokens[starts[b] + k], slots[b], place, place + 1, source_lengths[b], target, false, k >= firsts[b]});
            narrowed |= k < firsts[b];
        }
    Pass pass{{cache, cache_layer, cache_sentence}, {memory, memory_layer, memory_sentence}, nullptr, false, narrowed, output, gates};
    Forward(*stack, pass, engine->team, engine->scratch)();
}

// The block drafter: each sentence's prefix and K masks, all of which see each other -> output (B, K, V) at the masks.
// `copied` is NULL, or the source copy's entries; `numbers` has the rows of the sentences' entries (B), then how long their sources
// are (B); `cache` (.., T + K, 2 D) is room to work in, by the same rows.
void specdec_draft(Engine* engine, const Stack* stack, int64_t batch, const int64_t* prefix, int64_t prefix_stride,
                   const int64_t* lengths, int64_t drafted, int64_t mask, float* cache, int64_t cache_sentence, float* memory,
                   int64_t memory_layer, int64_t memory_sentence, const int64_t* numbers, const float* copied, float* output) {
    const int64_t *slots = numbers, *source_lengths = slots + batch;
    auto& rows = engine->scratch.rows;
    rows.clear();
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t t = 0; t < lengths[b] + drafted; ++t) {
            const bool masked = t >= lengths[b];
            const int64_t target = b * drafted + t - lengths[b];
            const int64_t token = masked ? mask : prefix[b * prefix_stride + t + 1];
            rows.push_back({token, slots[b], t, lengths[b] + drafted, source_lengths[b], target, masked, masked});
        }
    Pass pass{{cache, 0, cache_sentence}, {memory, memory_layer, memory_sentence}, copied, true, true, output, nullptr};
    Forward(*stack, pass, engine->team, engine->scratch)();
}

// A token for each of logits (B, K, V) -> to (B, K): not pad, and no eos where an output would be empty. Writes the logits.
// Without `gates` (B, K, R) the best one; with them, among the `candidates` best, the best behind the token chosen before it, by the
// successor network's tables (V, R): `tokens` for the one before, `outs` for the one after.
void specdec_choose(Engine* engine, float* logits, int64_t batch, int64_t drafted, int64_t vocabulary, int64_t pad, int64_t eos,
                    const int64_t* lengths, const float* gates, int64_t width, const float* tokens, const float* outs,
                    int64_t candidates, int64_t* to) {
    Team& team = engine->team;
    std::vector<int64_t>& best = engine->scratch.candidates;
    if (gates && int64_t(best.size()) < batch * drafted * candidates) best.resize(batch * drafted * candidates);
    team.run([&](int member) {
        Range mine = share(int(batch * drafted), member, team.size);
        for (int row = mine.from; row < mine.to; ++row) {
            float* values = logits + row * vocabulary;
            values[pad] = -INFINITY;
            if (row % drafted == 0 && lengths[row / drafted] == 0) values[eos] = -INFINITY;
            if (gates && row % drafted)
                best_few(values, vocabulary, candidates, &best[row * candidates]);
            else
                to[row] = best_of(values, vocabulary);
        }
        if (!gates) return;
        team.sync();
        mine = share(int(batch), member, team.size);
        for (int64_t row = mine.from * drafted; row < mine.to * drafted; ++row)
            if (row % drafted)
                to[row] = follow(logits + row * vocabulary, &best[row * candidates], candidates, gates + row * width,
                                 tokens + to[row - 1] * width, outs, width);
    });
}

// Judge drafts by logits (B, K + 1, V). `numbers` has, one after the other: where each row's draft begins, and the end of them all
// (B + 1); whether its output is empty (B); how many tokens it has room for (B); the drafts. `judged` gets how many tokens pass (B),
// the corrections (B), and whether the limit forced them (B).
void specdec_judge(Engine* engine, float* logits, int64_t batch, int64_t width, int64_t vocabulary, const int64_t* numbers,
                   int64_t pad, int64_t eos, int64_t beta, double tau, int64_t* judged, float* scores) {
    const int64_t *starts = numbers, *empty = starts + batch + 1, *room = empty + batch, *draft = room + batch;
    int64_t *accepted = judged, *corrections = accepted + batch, *cut = corrections + batch;
    const Rule rule{pad, eos, beta, tau};
    Team& team = engine->team;
    team.run([&](int member) {
        const Range mine = share(int(batch), member, team.size);
        for (int b = mine.from; b < mine.to; ++b)
            accepted[b] = rule.judge(logits + b * width * vocabulary, vocabulary, draft + starts[b], starts[b + 1] - starts[b],
                                     empty[b], room[b], corrections + b, cut + b, scores + b * width);
    });
}
}
