// Linear layers: weights packed for the kernels, and their products with rows of inputs.
//
// Weights are float32, bfloat16 (widened when read), int8 or int4, both with a scale per output, or int4 with a scale per output and
// group of inputs. For the latter three the inputs are quantised, too, with a scale per row, and sums of products are exact, in
// groups each group's. Sums, biases and results are float32. Shape letters: N rows, O outputs, I inputs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <type_traits>
#include <vector>

#include "memory.h"
#if defined(__AMX_INT8__)
#include "simd/amx.h"
#endif
#include "team.h"
#include "vectors.h"
#include "weights.h"

namespace {

constexpr int C = TILE / W;  // vectors per row of a panel
// Rows whose sums registers have room for: at most.
constexpr int MAX_ROWS = VECTORS >= 32 ? 14 : 3;

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

template <class Weight>
constexpr bool is_grouped = std::is_same_v<Weight, Groups>;
template <class Weight>  // and its inputs are quantised
constexpr bool is_scaled = std::is_same_v<Weight, uint8_t> || std::is_same_v<Weight, Int4> || is_grouped<Weight>;
template <class Weight>
constexpr int BITS = std::is_same_v<Weight, Int4> || is_grouped<Weight> ? 4 : 8 * sizeof(Weight);
// Whether R rows are many: multiplying a cache line of weights takes at least six cycles.
template <int R, class X, class Weight>
constexpr bool MANY = R * (512 / BITS<Weight>) / (std::is_same_v<X, float> ? 16 : 64) >= 6;

// A number in every lane, which one register holds.
struct Same {
    FloatRegister value;
    Same() = default;
    INLINE Same(float x) : value(x - FloatRegister{}) {}
};
template <int N>
INLINE Wide<float, N> fma(Same a, Wide<float, N> b, Wide<float, N> c) {
    return map([&](auto y, auto z) __attribute__((always_inline)) { return fma(a.value, y, z); }, b, c);
}

// R rows times one panel -> to (R, TILE). The sums stay in registers only if their loops are unrolled early, hence the pragmas.
// The remaining registers hold a panel's row of weights, or the inputs of a few rows.
template <int R, class Weight>
[[gnu::always_inline]] inline void product(const float* x, int inputs, const Weight* w, float* to) {
    Floats total[R][C] = {};
    constexpr bool many = MANY<R, float, Weight>;
    const bool fetches = many || PREFETCHES;  // a local, so that the compiler makes two loops of one
    for (int i = 0; i < inputs; ++i, w += TILE) {
        if (fetches) prefetch<TILE * BITS<Weight> / 8>(w, many ? FAR_AHEAD : AHEAD);
        if constexpr ((R + 1) * C < VECTORS) {
            Floats column[C];
            for (int c = 0; c < C; ++c) {
                column[c] = load(w + c * W);
                if (R > 1) hold(column[c]);
            }
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r)
                for (int c = 0; c < C; ++c) total[r][c] = fma(Same(x[size_t(r) * inputs + i]), column[c], total[r][c]);
        } else {
            Same value[R];
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                value[r] = Same(x[size_t(r) * inputs + i]);
                value[r].value = held(value[r].value);
            }
#pragma GCC unroll 16
            for (int c = 0; c < C; ++c) {
                const Floats weights = load(w + c * W);
                for (int r = 0; r < R; ++r) total[r][c] = fma(value[r], weights, total[r][c]);
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) store(to + r * TILE + c * W, total[r][c]);
}

// The weights of four inputs, of a panel's first 16 outputs and of the others; moves on.
INLINE void take(const uint8_t*& w, Ints& left, Ints& right) {
    left = load_wide<int32_t, W>(w), right = load_wide<int32_t, W>(w + 64);
    w += 128;
}
INLINE void take(const Int4*& w, Ints& left, Ints& right) {  // the first, and what both make together
    right = load_wide<int32_t, W>(w);
    if (HOLDS) hold(right);
    left = right & 0x0f0f0f0f;
    w += 64;
}
// Adds the products of four inputs to each sum. Without `hold`, GCC keeps many rows' sums on the stack. A copy is held, because a
// reference to the array would put it there, too.
INLINE void add_products(Ints& sums, Quad inputs, Ints weights) {
    Ints sum = map([&](auto s, auto w) __attribute__((always_inline)) { return dot(s, inputs, w); }, sums, weights);
    if (HOLDS) hold(sum);
    sums = sum;
}
// What the sums over int4 weights mean: 16 times the weights, as `Trailer::scale` has them, and 128 for zero, as int8 has it.
template <class Weight>
INLINE void separate(Ints& left, Ints& right) {
    if constexpr (std::is_same_v<Weight, Int4>) right = right - left, left = left << 4;
}

template <int R, class Weight>
[[gnu::always_inline]] inline void product(const int8_t* x, int inputs, const Weight* w, float* to) {
    constexpr int CHAINS = R == 1 ? ROW_CHAINS : 1;
    Ints total[CHAINS][R][2];
    constexpr bool many = MANY<R, int8_t, Weight>;
    const bool fetches = many || PREFETCHES;
#pragma GCC unroll 16
    for (int r = 0; r < CHAINS * R; ++r) total[r / R][r % R][0] = total[r / R][r % R][1] = 0;
    for (int i = 0; i < inputs; i += 4 * CHAINS) {
#pragma GCC unroll 4
        for (int chain = 0; chain < CHAINS; ++chain) {
            if (fetches) prefetch<4 * TILE * BITS<Weight> / 8>(w, many ? FAR_AHEAD : AHEAD);
            Ints left, right;
            take(w, left, right);
            if (HOLDS) hold(left), hold(right);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                const Quad value = quad(x + size_t(r) * inputs + i + 4 * chain);
                add_products(total[chain][r][0], value, left);
                add_products(total[chain][r][1], value, right);
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {  // still integers: `finish` corrects and converts them
        Ints left = total[0][r][0], right = total[0][r][1];
#pragma GCC unroll 4
        for (int chain = 1; chain < CHAINS; ++chain) left += total[chain][r][0], right += total[chain][r][1];
        separate<Weight>(left, right);
        store(reinterpret_cast<int32_t*>(to) + r * TILE, left);
        store(reinterpret_cast<int32_t*>(to) + r * TILE + W, right);
    }
}

// Adds the products of a row's rests to its sums (TILE).
template <class Weight>
void add_rests(const Input& input, int row, int inputs, const Weight* w, float* sums) {
    const int8_t* rest = input.rest.data() + size_t(row) * inputs;
    const int32_t* first = input.rest_of.data() + size_t(row) * inputs / 4;
    int32_t* to = reinterpret_cast<int32_t*>(sums);
    Ints total[2] = {0, 0};
    for (int number = 0; number < input.rests[row]; ++number) {
        const Weight* from = w + size_t(first[number]) * TILE * BITS<Weight> / 8;
        Ints left, right;
        take(from, left, right);
        const Quad value = quad(rest + 4 * number);
        add_products(total[0], value, left);
        add_products(total[1], value, right);
    }
    separate<Weight>(total[0], total[1]);
    store(to, load_wide<int32_t, W>(to) + total[0]);
    store(to + W, load_wide<int32_t, W>(to + W) + total[1]);
}

// Adds the products of a row's rests in a group of inputs, whose weights are `w`, to its sums; `number` rests have been added.
INLINE void add_rests(const Input& input, int row, int inputs, const Int4* w, int group, int& number, Ints* sums) {
    const int8_t* rest = input.rest.data() + size_t(row) * inputs;
    const int32_t* first = input.rest_of.data() + size_t(row) * inputs / 4;
    for (; number < input.rests[row] && first[number] < group + GROUP; ++number) {
        const Int4* from = w + size_t(first[number] - group) * TILE / 2;
        Ints left, right;
        take(from, left, right);
        const Quad value = quad(rest + 4 * number);
        add_products(sums[0], value, left);
        add_products(sums[1], value, right);
    }
}

// Rows of an input from the `first` on.
struct InputRows {
    const Input& input;
    int first;
};

// R rows times one panel of weights in groups -> to (R, TILE), without the scales of the rows. Each group's sum is an exact integer;
// groups are added in order.
template <int R>
[[gnu::always_inline]] inline void product(InputRows rows, int inputs, const Groups* weights, float* to) {
    const int8_t* x = rows.input.prepared.data() + size_t(rows.first) * inputs;
    const int32_t* starts = rows.input.starts.data() + size_t(rows.first) * inputs / GROUP;
    const Int4* w = reinterpret_cast<const Int4*>(weights);
    const bool many = MANY<R, int8_t, Int4>, fetches = many || PREFETCHES;
    int rests[R] = {};  // of each row, added so far
    for (int i = 0; i < C * R; ++i) store(to + i * W, Floats(0));
    for (int group = 0; group < inputs; group += GROUP, ++starts) {
        if (fetches) prefetch<int(GROUP_BYTES)>(w, many ? FAR_AHEAD : AHEAD);
        const Int4* const first = w;
        Ints sums[R][2];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {  // of lower four bits, and of whole bytes: see `separate`
            const int32_t start = starts[size_t(r) * inputs / GROUP];
            sums[r][0] = start, sums[r][1] = 17 * start;
        }
#pragma GCC unroll 2
        for (int i = group; i < group + GROUP; i += 4) {
            Ints left, right;
            take(w, left, right);
            if (HOLDS) hold(left), hold(right);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                const Quad value = quad(x + size_t(r) * inputs + i);
                add_products(sums[r][0], value, left);
                add_products(sums[r][1], value, right);
            }
        }
        const uint16_t* scales = reinterpret_cast<const uint16_t*>(w);
        const Floats left_scale = load(scales), right_scale = load(scales + W) * 0x1p-4f;
        w += 2 * TILE;
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            if constexpr (SPLITS) add_rests(rows.input, rows.first + r, inputs, first, group, rests[r], sums[r]);
            float* own = to + r * TILE;
            store(own, fma(convert<float>(sums[r][0]), left_scale, load(own)));
            store(own + W, fma(convert<float>(sums[r][1] - sums[r][0]), right_scale, load(own + W)));
        }
    }
}

// `product` for a number of rows known only at run time, at most R.
template <int R, class X, class Weight>
void product_of(int rows, X x, int inputs, const Weight* w, float* to) {
    if constexpr (R > 1)
        if (rows < R) return product_of<R - 1>(rows, x, inputs, w, to);
    product<R>(x, inputs, w, to);
}

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
