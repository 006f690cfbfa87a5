// Linear layers: weights packed for the kernels, and their products with rows of inputs.
//
// Weights are float32, bfloat16 (widened when read), int8 or int4, both with a scale per output. With the latter two and AVX-512
// VNNI the inputs are quantised, too, with a scale per row; without VNNI int4 weights are kept as int8. Sums, biases and results
// are float32. Shape letters: N rows, O outputs, I inputs.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <type_traits>
#include <vector>
#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "team.h"
#include "vectors.h"

namespace {

constexpr int TILE = 32;  // outputs per panel of weights
constexpr int C = TILE / W;  // vectors per row of a panel

using Memory = std::shared_ptr<char>;

// Uninitialised, next to what was allocated before: small weights share huge pages, too, for fewer TLB misses, and because lines
// of scattered small pages evict each other from the second-level cache. Throws std::bad_alloc.
inline Memory allocate(size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
#if defined(__linux__)
    constexpr size_t page = 1 << 21, usual = 64 << 20;  // reserved; pages that are never touched take no memory
    static std::mutex mutex;
    static std::weak_ptr<char> region;
    static size_t used, size;
    const std::lock_guard lock(mutex);
    Memory all = region.lock();
    if (!all || size - used < bytes) {
        size = std::max(usual, (bytes + page - 1) / page * page), used = 0;
        const size_t mapping = size + page;
        void* mapped = mmap(nullptr, mapping, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) throw std::bad_alloc();
        char* first = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(mapped) + page - 1) / page * page);
        all.reset(first, [=](char*) { munmap(mapped, mapping); });
        madvise(first, size, MADV_HUGEPAGE);
        region = all;
    }
    used += bytes;
    return Memory(all, all.get() + used - bytes);
#else
    char* memory = static_cast<char*>(std::aligned_alloc(64, bytes));
    if (!memory) throw std::bad_alloc();
    return Memory(memory, std::free);
#endif
}

enum Kind { FLOAT32, BFLOAT16, INT8, INT4 };
enum class Int4 : uint8_t {};  // two weights in a byte
#if defined(__AVX512VNNI__)
constexpr bool QUANTISED_INPUT = true;
#else
constexpr bool QUANTISED_INPUT = false;
#endif

inline uint16_t to_bfloat16(float value) {  // to the nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline float from_bfloat16(uint16_t value) { return std::bit_cast<float>(uint32_t(value) << 16); }
inline float from_float16(uint16_t value) {  // finite; the factor moves the exponent's bias, for subnormal numbers, too
    const float magnitude = std::bit_cast<float>(uint32_t(value & 0x7fff) << 13) * 0x1p112f;
    return value & 0x8000 ? -magnitude : magnitude;
}

// A small number rounded to the nearest integer, ties to even: `lrintf` without the call. The sum's last bits are the integer.
inline int8_t rounded(float value) { return int8_t(std::bit_cast<int32_t>(value + 0x1.8p23f) - std::bit_cast<int32_t>(0x1.8p23f)); }

// A panel's data besides its weights.
struct Trailer {
    float bias[TILE], scale[TILE];
    int32_t offset[TILE];  // 128 x the sum of an output's weights: the contribution of the quantised inputs' zero point
};

// Weights (O, I) in panels of TILE outputs, the last one padded with zeros. For each input, a panel holds the weights of its
// outputs side by side. With quantised inputs, it holds each output's weights of four inputs side by side; a byte of int4 is one
// of the first 16 outputs' weights plus 16 times one of the others'. The panel's trailer follows its weights, so a pass reads and
// prefetches one stream of memory.
struct Linear {
    int outputs, inputs, panels;
    Kind kind;

    // Without weights until `pack` has been called for all outputs.
    Linear(int outputs, int inputs, Kind kind)
        : outputs(outputs), inputs(inputs), panels((outputs + TILE - 1) / TILE),
          kind(kind == INT4 && !QUANTISED_INPUT ? INT8 : kind), panel_bytes(sizeof(Trailer) + bytes_of(size_t(TILE) * inputs)),
          memory(allocate(panels * panel_bytes)) {
        if (panels) std::memset(memory.get() + (panels - 1) * panel_bytes, 0, panel_bytes);
    }
    bool quantises() const { return QUANTISED_INPUT && kind >= INT8; }  // its inputs
    // Sets output o's weights (I) and bias.
    void pack(const float* row, float bias, int o) {
        const size_t column = o % TILE;
        char* weights = const_cast<char*>(this->weights<char>(o / TILE));
        Trailer& trailer = const_cast<Trailer&>(this->trailer(o / TILE));
        trailer.bias[column] = bias;
        trailer.offset[column] = 0;
        float& scale = trailer.scale[column] = 1;
        if (kind == FLOAT32)
            for (int i = 0; i < inputs; ++i) reinterpret_cast<float*>(weights)[size_t(i) * TILE + column] = row[i];
        if (kind == BFLOAT16)
            for (int i = 0; i < inputs; ++i) reinterpret_cast<uint16_t*>(weights)[size_t(i) * TILE + column] = to_bfloat16(row[i]);
        if (kind < INT8) return;
        float bound = 0;
        for (int i = 0; i < inputs; ++i) bound = std::max(bound, std::fabs(row[i]));
        scale = bound > 0 ? bound / 127 : 1;
        if (kind == INT4) scale = nibble_scale(row, bound) / 16;  // products see 16 times the weights
        int sum = 0;
        for (int i = 0; i < inputs; ++i) {
            const int8_t value = kind == INT4 ? nibble(row[i] / (16 * scale)) * 16 : rounded(row[i] / scale);
            if (kind == INT4) {  // outputs are packed in order
                char& both = weights[size_t(i / 4) * TILE * 2 + column % 16 * 4 + i % 4];
                both = column < 16 ? char(value / 16) : char(both + value);
            } else {
                const size_t quartet = size_t(i / 4) * TILE * 4 + column * 4 + i % 4;
                weights[QUANTISED_INPUT ? quartet : size_t(i) * TILE + column] = char(value);
            }
            sum += value;
        }
        trailer.offset[column] = 128 * sum;
    }
    // The weights of a panel: float, uint16_t or int8_t.
    template <class Weight>
    const Weight* weights(int panel) const {
        return reinterpret_cast<const Weight*>(memory.get() + panel * panel_bytes);
    }
    const Trailer& trailer(int panel) const {
        return *reinterpret_cast<const Trailer*>(weights<char>(panel + 1) - sizeof(Trailer));
    }

  private:
    size_t bytes_of(size_t count) const {
        return kind == FLOAT32 ? 4 * count : kind == BFLOAT16 ? 2 * count : kind == INT8 ? count : count / 2;
    }
    static int8_t nibble(float value) { return std::clamp<int8_t>(rounded(std::clamp(value, -100.0f, 100.0f)), -7, 7); }
    // The scale with the smallest squared error: cutting off the largest weights leaves more steps for the others.
    float nibble_scale(const float* row, float bound) const {
        float best = 1, least = INFINITY;
        for (int part = 10; part >= 5 && bound > 0; --part) {
            const float scale = bound * part / 70;
            float error = 0;
            for (int i = 0; i < inputs; ++i) {
                const float difference = nibble(row[i] / scale) * scale - row[i];
                error += difference * difference;
            }
            if (error < least) least = error, best = scale;
        }
        return best;
    }
    const size_t panel_bytes;
    const Memory memory;
};

// A product's input rows: float32, and also quantised if the weights need it.
struct Input {
    std::vector<float> values;   // (N, I)
    std::vector<uint8_t> bytes;  // (N, I); 128 stands for zero
    std::vector<float> scale;    // (N,)

    void resize(size_t rows, size_t inputs, bool quantised) {
        if (values.size() < rows * inputs) values.resize(rows * inputs);
        if (quantised && bytes.size() < rows * inputs) bytes.resize(rows * inputs);
        if (scale.size() < rows) scale.resize(rows);
    }
    void quantise(int row, int inputs, const float* x) {
        Floats most[2]{};  // two independent chains of comparisons; TILE inputs are at least two vectors
        for (int i = 0; i < inputs; i += 2 * W)
            for (int part = 0; part < 2; ++part) most[part] = maximum(most[part], magnitude(load(x + i + part * W)));
        const float bound = largest(maximum(most[0], most[1]));
        scale[row] = bound / 127;
        const float factor = bound > 0 ? 127 / bound : 0;
        uint8_t* to = bytes.data() + size_t(row) * inputs;
        for (int i = 0; i < inputs; i += W) store(to + i, __builtin_convertvector(load(x + i) * factor + 128.5f, Ints));
    }
};

// Weights are read sequentially, but hardware prefetching stops at each page, and a product with many rows outruns it: without
// these instructions it takes up to 20 % longer. With few rows AMD's hardware does better alone: they cost 3 to 20 % of a pass on
// Zen 4.
constexpr int AHEAD = 2048, FAR_AHEAD = 4096;  // distances in bytes, for few and for many rows
#if defined(__x86_64__)
const bool PREFETCHES = (__builtin_cpu_init(), !__builtin_cpu_is("amd"));  // with few rows, too
#else
constexpr bool PREFETCHES = true;
#endif
template <class Weight>
constexpr int BITS = std::is_same_v<Weight, Int4> ? 4 : 8 * sizeof(Weight);
// Whether R rows are many: multiplying a cache line of weights takes at least six cycles.
template <int R, class X, class Weight>
constexpr bool MANY = R * (512 / BITS<Weight>) / (std::is_same_v<X, float> ? 16 : 64) >= 6;

template <int BYTES>
inline void prefetch(const void* from, int ahead) {
    for (int line = 0; line < BYTES; line += 64) __builtin_prefetch(static_cast<const char*>(from) + ahead + line);
}

// Keeps a vector in its register. GCC would reload or convert it for each row, and the row would wait. Not a template: type
// deduction drops `aligned(4)` from `Floats`, and the reference would promise an alignment that vectors on the stack lack (UBSan).
inline void hold(Floats& vector) {
#if defined(__AVX512F__)
    __asm__("" : "+v"(vector));
#elif defined(__SSE2__)
    __asm__("" : "+x"(vector));
#endif
}
#if defined(__AVX512VNNI__)
inline void hold(__m512i& vector) { __asm__("" : "+v"(vector)); }
#endif

// R rows times one panel -> to (R, TILE). The sums stay in registers only if their loops are unrolled early, hence the pragmas.
// The remaining registers hold a panel's row of weights, or the inputs of a few rows.
template <int R, class Weight>
[[gnu::always_inline]] inline void product(const float* x, int inputs, const Weight* w, float* to) {
    Floats total[R][C] = {};
    constexpr bool many = MANY<R, float, Weight>;
    const bool fetches = many || PREFETCHES;  // a local, so that the compiler makes two loops of one
    for (int i = 0; i < inputs; ++i, w += TILE) {
        if (fetches) prefetch<TILE * BITS<Weight> / 8>(w, many ? FAR_AHEAD : AHEAD);
        if constexpr ((R + 1) * C < REGISTERS) {
            Floats column[C];
            for (int c = 0; c < C; ++c) {
                column[c] = load(w + c * W);
                if (R > 1) hold(column[c]);
            }
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r)
                for (int c = 0; c < C; ++c) total[r][c] += x[size_t(r) * inputs + i] * column[c];
        } else {
            Floats value[R];
            for (int r = 0; r < R; ++r) hold(value[r] = broadcast(x[size_t(r) * inputs + i]));
#pragma GCC unroll 16
            for (int c = 0; c < C; ++c) {
                Floats weights = load(w + c * W);
                hold(weights);
                for (int r = 0; r < R; ++r) total[r][c] += value[r] * weights;
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) store(to + r * TILE + c * W, total[r][c]);
}

#if defined(__AVX512VNNI__)
// The weights of four inputs, of a panel's first 16 outputs and of the others; moves on.
inline void take(const int8_t*& w, __m512i& left, __m512i& right) {
    left = _mm512_loadu_si512(w), right = _mm512_loadu_si512(w + 64);
    w += 128;
}
inline void take(const Int4*& w, __m512i& left, __m512i& right) {  // 16 times the first, and what both make together
    right = _mm512_loadu_si512(w);
    hold(right);
    left = _mm512_and_si512(_mm512_slli_epi16(right, 4), _mm512_set1_epi8(char(0xf0)));
    w += 64;
}
// Adds the products of four inputs to each sum. Without `hold`, GCC keeps many rows' sums on the stack. A copy is held, because a
// reference to the array would put it there, too.
inline void add_products(__m512i& sums, __m512i inputs, __m512i weights) {
    __m512i sum = _mm512_dpbusd_epi32(sums, inputs, weights);
    hold(sum);
    sums = sum;
}

template <int R, class Weight>
[[gnu::always_inline]] inline void product(const uint8_t* x, int inputs, const Weight* w, float* to) {
    constexpr int CHAINS = R == 1 ? 4 : 1;  // sums of one row would wait for each other
    __m512i total[CHAINS][R][2];
    constexpr bool many = MANY<R, uint8_t, Weight>;
    const bool fetches = many || PREFETCHES;
#pragma GCC unroll 16
    for (int r = 0; r < CHAINS * R; ++r) total[r / R][r % R][0] = total[r / R][r % R][1] = _mm512_setzero_si512();
    for (int i = 0; i < inputs; i += 4 * CHAINS) {
#pragma GCC unroll 4
        for (int chain = 0; chain < CHAINS; ++chain) {
            if (fetches) prefetch<4 * TILE * BITS<Weight> / 8>(w, many ? FAR_AHEAD : AHEAD);
            __m512i left, right;
            take(w, left, right);
            hold(left);
            hold(right);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                int32_t quartet;
                std::memcpy(&quartet, x + size_t(r) * inputs + i + 4 * chain, 4);
                const __m512i value = _mm512_set1_epi32(quartet);
                add_products(total[chain][r][0], value, left);
                add_products(total[chain][r][1], value, right);
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {  // still integers: the caller subtracts the offset and converts them
        __m512i &left = total[0][r][0], &right = total[0][r][1];
#pragma GCC unroll 4
        for (int chain = 1; chain < CHAINS; ++chain) {
            left = _mm512_add_epi32(left, total[chain][r][0]);
            right = _mm512_add_epi32(right, total[chain][r][1]);
        }
        if constexpr (std::is_same_v<Weight, Int4>) right = (__m512i)((Ints)right - ((Ints)left >> 4));
        _mm512_storeu_si512(to + r * TILE, left);
        _mm512_storeu_si512(to + r * TILE + 16, right);
    }
}
#endif

#if defined(__AMX_INT8__)
// The matrix unit multiplies tiles, registers of 16 rows of 64 bytes: inputs of 16 rows, or weights of 16 outputs for 64 inputs,
// in a panel's own layout. Its integer sums equal the vector unit's.
class MatrixUnit {
  public:
    static constexpr int ROWS = 32, INPUTS = 64;  // maximum rows of a product; the number of inputs is a multiple of INPUTS
    ~MatrixUnit() {
        if (rows) _tile_release();  // saves the system 8 KB per thread switch
    }
    // `rows` rows times one panel -> to (rows, TILE), still integers.
    void product(int rows, const uint8_t* x, int inputs, const int8_t* w, float* to) {
        if (rows != this->rows) configure(rows);
        written(x);
        const bool both = rows > HALF;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int i = 0; i < inputs; i += INPUTS, w += INPUTS * TILE) {
            prefetch<INPUTS * TILE>(w, AHEAD);
            _tile_loadd(6, w, 4 * TILE);
            _tile_loadd(7, w + 64, 4 * TILE);
            _tile_loadd(4, x + i, inputs);
            _tile_dpbusd(0, 4, 6);
            _tile_dpbusd(1, 4, 7);
            if (both) {
                _tile_loadd(5, x + size_t(HALF) * inputs + i, inputs);
                _tile_dpbusd(2, 5, 6);
                _tile_dpbusd(3, 5, 7);
            }
        }
        _tile_stored(0, to, 4 * TILE);
        _tile_stored(1, to + 16, 4 * TILE);
        if (both) {
            _tile_stored(2, to + HALF * TILE, 4 * TILE);
            _tile_stored(3, to + HALF * TILE + 16, 4 * TILE);
        }
    }

  private:
    static constexpr int HALF = ROWS / 2;

    // GCC does not know that the intrinsics read memory, and could move earlier writes behind them.
    static void written(const void* there) { __asm__ volatile("" ::"r"(there) : "memory"); }

    // Tiles 0 to 3: sums, for each half of the rows and each half of the panel; 4, 5: rows; 6, 7: weights.
    void configure(int rows) {
        const uint8_t first = std::min(rows, HALF), second = std::max(rows - HALF, 1);
        const struct alignas(64) {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16];
        } shape{.rows = {first, first, second, second, first, second, 16, 16}};
        written(&shape);
        _tile_loadconfig(&shape);
        this->rows = rows;
    }
    int rows = 0;  // for which the registers are configured
};

// Asks the system, once per process, for the matrix unit; returns whether it may be used.
inline bool matrix_unit_is_allowed() {
    constexpr int REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}
#endif

// `product` for a number of rows known only at run time, at most R.
template <int R, class X, class Weight>
void product_of(int rows, const X* x, int inputs, const Weight* w, float* to) {
    if constexpr (R > 1)
        if (rows < R) return product_of<R - 1>(rows, x, inputs, w, to);
    product<R>(x, inputs, w, to);
}

// Turns the sums of a product with a panel, (count, TILE), into its results: see `multiply`. `scale`: of the rows' inputs.
template <bool INTEGERS, class Place, class Write>
[[gnu::always_inline]] inline void finish(const Trailer& trailer, float* sums, int count, const float* scale, int padding,
                                          Place&& place, Write&& write) {
    Ints offset[C];
    Floats factor[C], bias[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
        offset[c] = *reinterpret_cast<const Ints*>(trailer.offset + c * W);
        factor[c] = load(trailer.scale + c * W), bias[c] = load(trailer.bias + c * W);
    }
    for (int r = 0; r < count; ++r, sums += TILE) {
        Floats values[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            values[c] = load(sums + c * W);
            if (INTEGERS && QUANTISED_INPUT) values[c] = __builtin_convertvector((Ints)values[c] - offset[c], Floats) * scale[r];
            if (INTEGERS) values[c] *= factor[c];
            values[c] += bias[c];
        }
        float* to = place(r);
        if (padding) {
            for (int c = 0; c < C; ++c) store(sums + c * W, values[c]);
            std::copy(sums, sums + TILE - padding, to);
        } else {
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) write(to + c * W, values[c]);
        }
    }
}

// `multiply` for weights of one kind. Inlined code for one row keeps its sums in registers.
template <class Weight, class Place, class Write>
void multiply_by(const Linear& linear, const Input& input, Range rows, Range panels, Place&& place, Write&& write) {
    constexpr bool SCALED = std::is_same_v<Weight, int8_t> || std::is_same_v<Weight, Int4>;
    const int total = rows.to - rows.from, inputs = linear.inputs;
    const auto x = [&](int row) {
        if constexpr (SCALED && QUANTISED_INPUT)
            return input.bytes.data() + size_t(row) * inputs;
        else
            return input.values.data() + size_t(row) * inputs;
    };
    const auto take = [&](int panel, int first, int count, float* sums) __attribute__((always_inline)) {
        const int column = panel * TILE, padding = std::max(0, column + TILE - linear.outputs);
        finish<SCALED>(linear.trailer(panel), sums, count, input.scale.data() + first, padding,
                       [&](int r) { return place(first + r, column); }, write);
    };
    if (total == 1) {
        const auto* only = x(rows.from);
        for (int panel = panels.from; panel < panels.to; ++panel) {
            alignas(64) float to[TILE];
            product<1>(only, inputs, linear.weights<Weight>(panel), to);
            take(panel, rows.from, 1, to);
        }
        return;
    }
    int most = MAX_ROWS;
#if defined(__AMX_INT8__)
    MatrixUnit unit;
    const bool matrix = std::is_same_v<Weight, int8_t> && inputs % MatrixUnit::INPUTS == 0 && total > MAX_ROWS;
    if (matrix) most = MatrixUnit::ROWS;
    alignas(64) float to[MatrixUnit::ROWS * TILE];
#else
    alignas(64) float to[MAX_ROWS * TILE];
#endif
    const int blocks = (total + most - 1) / most, size = blocks ? (total + blocks - 1) / blocks : 0;
    for (int panel = panels.from; panel < panels.to; ++panel) {
        const Weight* weights = linear.weights<Weight>(panel);
        for (int first = rows.from; first < rows.to; first += size) {
            const int count = std::min(size, rows.to - first);
#if defined(__AMX_INT8__)
            if constexpr (std::is_same_v<Weight, int8_t>)
                if (matrix) unit.product(count, x(first), inputs, weights, to);
            if (!matrix)
#endif
                product_of<MAX_ROWS>(count, x(first), inputs, weights, to);
            take(panel, first, count, to);
        }
    }
}

// Multiplies rows with panels. place(row, first output) returns the destination of a row's TILE results; write(to, vector) stores
// them there. The last panel's results are stored without the padding, and without `write`.
template <class Place, class Write>
void multiply(const Linear& linear, const Input& input, Range rows, Range panels, Place&& place, Write&& write) {
    if (linear.kind == FLOAT32) return multiply_by<float>(linear, input, rows, panels, place, write);
    if (linear.kind == BFLOAT16) return multiply_by<uint16_t>(linear, input, rows, panels, place, write);
#if defined(__AVX512VNNI__)
    if (linear.kind == INT4) return multiply_by<Int4>(linear, input, rows, panels, place, write);
#endif
    multiply_by<int8_t>(linear, input, rows, panels, place, write);
}

}  // namespace
