// Sums of products: a few rows of inputs times one panel of weights, which registers hold.
//
// Inputs and weights are as in linear.h. Shape letter: R rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "input.h"
#include "vectors.h"
#include "weights.h"

namespace {

constexpr int C = TILE / W;  // vectors per row of a panel
// Rows whose sums registers have room for: at most.
constexpr int MAX_ROWS = VECTORS >= 32 ? 14 : 3;

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

}  // namespace
