// Rows of inputs of a product, quantised where its weights need it. Shape letters: N rows, I inputs.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "vectors.h"
#include "weights.h"

namespace {

constexpr float ROUNDED_UP = 1 + 0x1p-20f;  // makes a float with a few rounding errors an upper bound

// A product's input rows: float32, and also quantised if the weights need it. AVX2 adds the products of two neighbours in 16 bits.
// Where two are too large for that together, their four inputs are halved; the other halves are the row's rests.
struct Input {
    std::vector<float> values;     // (N, I)
    std::vector<int8_t> prepared;  // (N, I), from -127 to 127
    std::vector<float> scale;      // (N,)
    std::vector<int32_t> start;    // (N,) -128 times the sum of a row: corrects for weights that have 128 for zero
    std::vector<int32_t> starts;   // (N, I / GROUP) -8 times the sum of each group, for weights in groups
    std::vector<int8_t> rest;      // (N, I), four inputs after four
    std::vector<int32_t> rest_of;  // (N, I / 4) the number of the first of each four
    std::vector<int32_t> rests;    // (N,) how many fours

    void resize(size_t rows, size_t inputs, bool quantised) {
        if (values.size() < rows * inputs) values.resize(rows * inputs);
        if (quantised && prepared.size() < rows * inputs) {
            prepared.resize(rows * inputs), starts.resize(rows * inputs / GROUP);
            if (SPLITS) rest.resize(rows * inputs), rest_of.resize(rows * inputs / 4);
        }
        if (scale.size() < rows) scale.resize(rows), start.resize(rows), rests.resize(rows);
    }
    void quantise(int row, const Linear& next, const float* x) {
        const int inputs = next.inputs;
        const bool groups = next.kind == INT4_GROUPS;
        int32_t* starts = this->starts.data() + size_t(row) * inputs / GROUP;
        Floats most[2]{};  // two independent chains of comparisons; TILE inputs are two vectors
        for (int i = 0; i < inputs; i += 2 * W)
            for (int part = 0; part < 2; ++part) most[part] = maximum(most[part], magnitude(load(x + i + part * W)));
        const float bound = largest(maximum(most[0], most[1]));
        scale[row] = bound / 127;
        const float factor = bound > 0 ? 127 / bound : 0;
        int8_t* to = prepared.data() + size_t(row) * inputs;
        rests[row] = 0;
        Ints total{}, group{};
        for (int i = 0; i < inputs; i += W) {
            // Rounded to the nearest, by truncating a positive number. What is no number counts as -127 everywhere.
            const Ints rounded = convert<int32_t>(fma(load(x + i), factor, 128.5f)), whole = maximum(rounded, 1) - 128;
            prepare(to + i, whole);
            total += whole;
            if (groups) {
                group += whole;
                if ((i + W) % GROUP == 0) *starts++ = -8 * total_of(group), group = 0;
            }
            if (crowded(to + i)) split(row, inputs, i);
        }
        start[row] = -128 * total_of(total);
    }
    // The length of a quantised row, rounded up.
    float norm(int row, int inputs) const {
        const int8_t *x = prepared.data() + size_t(row) * inputs, *other = rest.data() + size_t(row) * inputs;
        int32_t total = 0;
        for (int i = 0; i < inputs; ++i) total += x[i] * x[i];
        for (int number = 0; number < rests[row]; ++number)  // (a + b)^2 = a^2 + b (2 a + b)
            for (int each = 0; each < 4; ++each) {
                const int32_t half = x[rest_of[size_t(row) * inputs / 4 + number] + each], b = other[4 * number + each];
                total += b * (2 * half + b);
            }
        return std::sqrt(float(total)) * ROUNDED_UP;
    }

  private:
    // Halves those fours of W inputs that have too large neighbours.
    void split(int row, int inputs, int first) {
        for (int i = first; i < first + W; i += 4) {
            int8_t* four = prepared.data() + size_t(row) * inputs + i;
            if (std::abs(four[0]) + std::abs(four[1]) <= MOST_OF_PAIR && std::abs(four[2]) + std::abs(four[3]) <= MOST_OF_PAIR)
                continue;
            const int number = rests[row]++;
            rest_of[size_t(row) * inputs / 4 + number] = i;
            int8_t* other = rest.data() + size_t(row) * inputs + 4 * number;
            for (int each = 0; each < 4; ++each) other[each] = four[each] / 2, four[each] -= other[each];
        }
    }
    static int32_t total_of(Ints value) {
        int32_t all[W], total = 0;
        store(all, value);
        for (int32_t each : all) total += each;
        return total;
    }
};

}  // namespace
