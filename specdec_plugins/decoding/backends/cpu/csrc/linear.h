// Linear layers: weights packed for the kernels, and their products with rows of inputs.
//
// Weights are float32, bfloat16 (widened when read) or int8 with a scale per output. With int8 and AVX-512 VNNI the inputs are
// quantised too, with a scale per row. Sums, biases and results are float32. Shape letters: N rows, O outputs, I inputs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>
#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "team.h"
#include "vectors.h"

namespace {

constexpr int TILE = 32;  // outputs of a panel of weights
constexpr int C = TILE / W;  // vectors of a panel's row

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

// Uninitialised. Throws std::bad_alloc.
inline Memory allocate(size_t bytes) {
    const size_t page = bytes >= (1 << 21) ? 1 << 21 : 64;
    void* memory = std::aligned_alloc(page, (bytes + page - 1) / page * page);
#if defined(__linux__)
    if (memory && page > 64) madvise(memory, bytes, MADV_HUGEPAGE);  // huge pages: fewer misses of address translation
#endif
    if (!memory) throw std::bad_alloc();
    return Memory(memory);
}

enum Kind { FLOAT32, BFLOAT16, INT8 };
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

// Weights (O, I) in panels of TILE outputs, the last one padded with zeros. A panel holds for each input the weights of its
// outputs side by side; for int8 with quantised inputs, for each four inputs an output's four weights side by side.
struct Linear {
    int outputs, inputs, panels;
    Kind kind;
    Memory weights;  // before the others: a size beyond all memory fails at once
    std::vector<float> bias, scale;
    std::vector<int32_t> offset;  // 128 x the sum of an output's weights: what quantised inputs' zero point adds

    Linear(const float* w, const float* b, int outputs, int inputs, Kind kind)
        : outputs(outputs), inputs(inputs), panels((outputs + TILE - 1) / TILE), kind(kind), weights(allocate(bytes())),
          bias(size_t(panels) * TILE), scale(size_t(panels) * TILE, 1.0f), offset(size_t(panels) * TILE) {
        std::memset(weights.get(), 0, bytes());
        if (b) std::copy(b, b + outputs, bias.begin());
        for (int o = 0; o < outputs; ++o) pack(w + size_t(o) * inputs, o);
    }

  private:
    size_t bytes() const { return size_t(panels) * TILE * inputs * (kind == FLOAT32 ? 4 : kind == BFLOAT16 ? 2 : 1); }
    void pack(const float* row, int o) {
        const size_t panel = size_t(o / TILE) * TILE * inputs, column = o % TILE;
        if (kind == INT8) {
            float bound = 0;
            for (int i = 0; i < inputs; ++i) bound = std::max(bound, std::fabs(row[i]));
            scale[o] = bound > 0 ? bound / 127 : 1;
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
};

// Rows of inputs to a product: float32, and quantised as well where the weights need it.
struct Input {
    std::vector<float> values;   // (N, I)
    std::vector<uint8_t> bytes;  // (N, I); 128 stands for zero
    std::vector<float> scale;    // (N,)

    void resize(size_t rows, size_t inputs, bool quantised) {
        if (values.size() < rows * inputs) values.resize(rows * inputs);
        if (quantised && bytes.size() < rows * inputs) bytes.resize(rows * inputs);
        if (scale.size() < rows) scale.resize(rows);
    }
    void quantise(int row, int inputs) {
        const float* x = values.data() + size_t(row) * inputs;
        Floats most{};
        for (int i = 0; i < inputs; i += W) most = maximum(most, maximum(load(x + i), -load(x + i)));
        const float bound = largest(most);
        scale[row] = bound / 127;
        const float factor = bound > 0 ? 127 / bound : 0;
        uint8_t* to = bytes.data() + size_t(row) * inputs;
        for (int i = 0; i < inputs; ++i) to[i] = uint8_t(int(x[i] * factor + 128.5f));
    }
};

// Bytes that weights are prefetched ahead. They are read sequentially, but hardware prefetching stops at each page.
constexpr int PREFETCH = 2048;

// R rows times one panel -> to (R, TILE). The sums stay in registers only if the loops over them are unrolled early, which the
// compiler has to be told.
template <int R, class Weight>
inline void product(const float* x, int inputs, const Weight* w, float* to) {
    Floats total[R][C] = {};
    for (int i = 0; i < inputs; ++i, w += TILE) {
        for (size_t line = 0; line < TILE * sizeof(Weight); line += 64)
            __builtin_prefetch(reinterpret_cast<const char*>(w) + PREFETCH + line);
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
        __builtin_prefetch(w + PREFETCH);
        __builtin_prefetch(w + PREFETCH + 64);
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
    for (int r = 0; r < R; ++r)  // integers still: the caller subtracts the offset before they become floats
        for (int c = 0; c < 2; ++c) _mm512_storeu_si512(to + r * TILE + 16 * c, total[r][c]);
}
#endif

// `product` for a number of rows that is known at run time only, at most R.
template <int R, class X, class Weight>
void product_of(int rows, const X* x, int inputs, const Weight* w, float* to) {
    if constexpr (R > 1)
        if (rows < R) return product_of<R - 1>(rows, x, inputs, w, to);
    product<R>(x, inputs, w, to);
}

// Calls done(row, first output, values of TILE outputs) for the given rows and panels. Values beyond the last output are padding.
template <class Done>
void multiply(const Linear& linear, const Input& input, Range rows, Range panels, Done&& done) {
    alignas(64) float to[MAX_ROWS * TILE];
    const int total = rows.to - rows.from, blocks = (total + MAX_ROWS - 1) / MAX_ROWS;
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
                product_of<MAX_ROWS>(count, x, linear.inputs, static_cast<const float*>(linear.weights.get()) + start, to);
            else if (linear.kind == BFLOAT16)
                product_of<MAX_ROWS>(count, x, linear.inputs, static_cast<const uint16_t*>(linear.weights.get()) + start, to);
            else {
                const int8_t* w = static_cast<const int8_t*>(linear.weights.get()) + start;
#if defined(__AVX512VNNI__)
                product_of<MAX_ROWS>(count, input.bytes.data() + size_t(part.from) * linear.inputs, linear.inputs, w, to);
#else
                product_of<MAX_ROWS>(count, x, linear.inputs, w, to);
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

}  // namespace
