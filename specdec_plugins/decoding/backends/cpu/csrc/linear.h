// Linear layers: weights packed for the kernels, and their products with rows of inputs.
//
// Weights are float32, bfloat16 (widened when read), int8 or int4, both with a scale per output, or int4 with a scale per output and
// group of inputs. For the latter three the inputs are quantised, too, with a scale per row, and sums of products are exact, in
// groups each group's. Sums, biases and results are float32. Shape letters: N rows, O outputs, I inputs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "input.h"
#include "products.h"
#if defined(__AMX_INT8__)
#include "simd/amx.h"
#endif
#include "team.h"
#include "vectors.h"
#include "weights.h"

namespace {

// What an exact sum means: monotone in it, so also in its rounding.
INLINE Floats result_of(Ints sum, float scale, Floats factor, Floats bias) { return fma(convert<float>(sum) * scale, factor, bias); }

// Turns the sums of a product with a panel, (count, TILE), into its results: see `multiply`. `start`, `scale`: of the rows.
template <class Weight, class Place, class Write>
[[gnu::always_inline]] inline void finish(const Trailer& trailer, float* sums, int count, const int32_t* start, const float* scale,
                                          int padding, Place&& place, Write&& write) {
    Floats factor[C], bias[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) factor[c] = load(trailer.scale + c * W), bias[c] = load(trailer.bias + c * W);
    for (int r = 0; r < count; ++r, sums += TILE) {
        Floats values[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            values[c] = load(sums + c * W);
            if constexpr (is_grouped<Weight>) {
                values[c] = fma(values[c], scale[r], bias[c]);
            } else if constexpr (is_scaled<Weight>) {
                const Ints exact = bits_as<int32_t>(values[c]) + start[r];
                values[c] = result_of(exact, scale[r], factor[c], bias[c]);
            } else {
                values[c] += bias[c];
            }
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

// Multiplies rows with panels of one kind of weights. take(panel, first row, count, sums) takes the sums (count, TILE), integers where
// inputs are quantised and weights not in groups. Inlined code for one row keeps its sums in registers.
template <class Weight, class Take>
void multiply_by(const Linear& linear, const Input& input, Range rows, Range panels, Take&& finish) {
    constexpr bool SCALED = is_scaled<Weight>;
    const int total = rows.to - rows.from, inputs = linear.inputs;
    const auto x = [&](int row) {
        if constexpr (is_grouped<Weight>)
            return InputRows{input, row};
        else if constexpr (SCALED)
            return input.prepared.data() + size_t(row) * inputs;
        else
            return input.values.data() + size_t(row) * inputs;
    };
    const auto take = [&](int panel, int first, int count, float* sums) __attribute__((always_inline)) {
        if constexpr (SCALED && SPLITS && !is_grouped<Weight>)
            for (int r = 0; r < count; ++r)
                if (input.rests[first + r]) add_rests(input, first + r, inputs, linear.weights<Weight>(panel), sums + r * TILE);
        finish(panel, first, count, sums);
    };
    if (total == 1) {
        const auto only = x(rows.from);
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
    const bool matrix = std::is_same_v<Weight, uint8_t> && inputs % MatrixUnit::INPUTS == 0 && total > MAX_ROWS;
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
            if constexpr (std::is_same_v<Weight, uint8_t>)
                if (matrix) unit.product(count, x(first), inputs, weights, to);
            if (!matrix)
#endif
                product_of<MAX_ROWS>(count, x(first), inputs, weights, to);
            take(panel, first, count, to);
        }
    }
}

// A `write` that stores results as they are. A function in its place would be called for each vector.
constexpr auto keep = [](float* to, Floats value) __attribute__((always_inline)) { store(to, value); };

// Multiplies rows with panels. place(row, first output) returns the destination of a row's TILE results; write(to, vector) stores
// them there. The last panel's results are stored without the padding, and without `write`.
template <class Place, class Write>
void multiply(const Linear& linear, const Input& input, Range rows, Range panels, Place&& place, Write&& write) {
    const auto by = [&]<class Weight>(Weight) {
        multiply_by<Weight>(linear, input, rows, panels, [&](int panel, int first, int count, float* sums) __attribute__((always_inline)) {
            const int column = panel * TILE, padding = std::max(0, column + TILE - linear.outputs);
            finish<Weight>(linear.trailer(panel), sums, count, input.start.data() + first, input.scale.data() + first, padding,
                                      [&](int r) { return place(first + r, column); }, write);
        });
    };
    if (linear.kind == FLOAT32) return by(float{});
    if (linear.kind == BFLOAT16) return by(uint16_t{});
    if (linear.kind == INT4) return by(Int4{});
    if (linear.kind == INT4_GROUPS) return by(Groups{});
    by(uint8_t{});
}

}  // namespace
