// Vectors of sixteen numbers, on any instruction set, and elementary functions on them, with the same results to the last bit.
//
// The compiler fuses nothing by itself (-ffp-contract=off): what is rounded once says `fma`.
//
// All headers here belong to one translation unit, api.cpp, which is compiled once per instruction set. Everything in them has
// internal linkage: the variants' code stays apart when several are loaded, and the compiler is free to inline it.
#pragma once

#include <cmath>

#if defined(__AVX512VNNI__)
#include "simd/avx512.h"
#elif defined(__AVX2__)
#include "simd/avx2.h"
#else
#include "simd/generic.h"
#endif

namespace {

constexpr int W = 16;                              // lanes
constexpr int VECTORS = REGISTERS * BYTES / (4 * W);  // that registers have room for

using Floats = Wide<float, W>;
using Ints = Wide<int32_t, W>;
using Words = Wide<uint32_t, W>;
using Longs = Wide<uint64_t, W / 2>;

INLINE Floats load(const float* from) { return load_wide<float, W>(from); }
// bfloat16, widened.
template <int N = W>
INLINE Wide<float, N> load_bfloat16(const uint16_t* from) {
    if constexpr (IS_REGISTER<float, N>)
        return widened(from);
    else
        return {load_bfloat16<N / 2>(from), load_bfloat16<N / 2>(from + N / 2)};
}
INLINE Floats load(const uint16_t* from) { return load_bfloat16(from); }

template <int N>
INLINE Wide<float, N> fma(Wide<float, N> a, Wide<float, N> b, std::type_identity_t<Wide<float, N>> c) {
    return map([](auto x, auto y, auto z) __attribute__((always_inline)) { return fma(x, y, z); }, a, b, c);
}
INLINE Floats fma(Floats a, float b, Floats c) { return fma(a, Floats(b), c); }
INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
// a where the mask is true, else b.
INLINE Floats select(Ints mask, Floats a, Floats b) {
    return map([](auto m, auto x, auto y) __attribute__((always_inline)) { return m ? x : y; }, mask, a, b);
}
INLINE Ints select(Ints mask, Ints a, Ints b) {
    return map([](auto m, auto x, auto y) __attribute__((always_inline)) { return m ? x : y; }, mask, a, b);
}
INLINE Floats magnitude(Floats value) { return bits_as<float>(bits_as<int32_t>(value) & 0x7fffffff); }

// Keeps a vector in its registers. GCC would reload or convert it for each row, and the row would wait.
template <class T, int N>
INLINE void hold(Wide<T, N>& vector) {
    vector = map([](auto value) __attribute__((always_inline)) { return held(value); }, vector);
}

constexpr auto add = [](auto a, auto b) __attribute__((always_inline)) { return a + b; };
constexpr auto greater = [](auto a, auto b) __attribute__((always_inline)) { return a > b ? a : b; };
// The first lane.
INLINE float first(Floats value) {
    float all[W];
    store(all, value);
    return all[0];
}
INLINE float sum(Floats value) { return reduce(folded(value, add), add); }
INLINE float largest(Floats value) { return reduce(folded(value, greater), greater); }

// Lane i is `sum(values[i])`, for as many registers as one has lanes: two permutations a sum instead of one for each step.
template <int STEP = BYTES / 8>
INLINE FloatRegister sums_of(FloatRegister* values) {
#pragma GCC unroll 16
    for (int i = 0; i < STEP; ++i)
        values[i] = join_lanes<STEP>(values[i], values[i + STEP], add, std::make_integer_sequence<int, BYTES / 4>{});
    if constexpr (STEP == 1)
        return values[0];
    else
        return sums_of<STEP / 2>(values);
}
// Lane i is `sum(values[i])`, for N vectors.
template <int N = W>
INLINE Wide<float, N> sums(const Floats* values) {
    if constexpr (IS_REGISTER<float, N>) {
        FloatRegister each[N];
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) each[i] = folded(values[i], add);
        return sums_of(each);
    } else {
        return {sums<N / 2>(values), sums<N / 2>(values + N / 2)};
    }
}

// Whether a comparison holds in some lane.
INLINE bool any(Ints mask) {
    return any(folded(mask, [](auto a, auto b) { return a | b; }));
}

// True in each lane whose bit is set.
INLINE Ints lanes_of(uint32_t bits) {
    alignas(64) static constexpr int32_t BIT[W] = {1,      1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
                                                   1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
    return (load_wide<int32_t, W>(BIT) & int32_t(bits)) > 0;
}

// e^x with a relative error below 2e-7 for x <= 88; 0 below -87.
inline Floats exponential(Floats x) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    const Floats clipped = maximum(x, Floats(-87.0f)), shifted = fma(clipped, 1.44269504f, magic), power = shifted - magic;
    const Floats r = fma(power, 2.12194440e-4f, fma(power, -0.693359375f, clipped));
    Floats y = 1.9875691500e-4f;
    y = fma(y, r, 1.3981999507e-3f);
    y = fma(y, r, 8.3334519073e-3f);
    y = fma(y, r, 4.1665795894e-2f);
    y = fma(y, r, 1.6666665459e-1f);
    y = fma(y, r, 5.0000001201e-1f);
    y = fma(y * r, r, r) + 1.0f;
    const Ints bits = bits_as<int32_t>(y) + (bits_as<int32_t>(shifted) << 23);
    return select(x < -87.0f, 0.0f, bits_as<float>(bits));
}
inline float exponential(float x) { return first(exponential(Floats(x))); }

// log(2^power (1 + f)), for 1 + f from sqrt(1/2) to sqrt(2): a polynomial (that of Cephes' logf).
inline Floats logarithm(Floats power, Floats f) {
    Floats y = 7.0376836292e-2f;
    y = fma(y, f, -1.1514610310e-1f);
    y = fma(y, f, 1.1676998740e-1f);
    y = fma(y, f, -1.2420140846e-1f);
    y = fma(y, f, 1.4249322787e-1f);
    y = fma(y, f, -1.6668057665e-1f);
    y = fma(y, f, 2.0000714765e-1f);
    y = fma(y, f, -2.4999993993e-1f);
    y = fma(y, f, 3.3333331174e-1f);
    const Floats square = f * f, rest = fma(power, -2.12194440e-4f, y * f * square);
    return fma(power, 0.693359375f, fma(square, -0.5f, rest) + f);
}

// The exponent of x > 0, and what remains of x, less 1: x = 2^power (1 + f), 1 + f from sqrt(1/2) to sqrt(2).
struct Split {
    Floats power, f;
};
inline Split split(Floats x) {
    const int32_t half = 0x3f3504f3;  // sqrt(1/2)
    const Ints shifted = bits_as<int32_t>(x) - half;
    return {convert<float>(shifted >> 23), bits_as<float>((shifted & 0x7fffff) + half) - 1.0f};
}
// log(x) with a relative error below 1e-6 away from 1, for x > 0; x where it is infinite or no number.
inline float logarithm(float x) {
    const Split parts = split(x);
    return x < INFINITY ? first(logarithm(parts.power, parts.f)) : x;
}

// x / 2 (1 + erf(x / sqrt 2)); erf by Abramowitz and Stegun 7.1.26, with an absolute error below 1.5e-7.
inline Floats gelu(Floats x) {
    const Floats z = maximum(x, -x) * 0.70710678f, t = 1.0f / fma(z, 0.3275911f, 1.0f);
    Floats y = fma(t, 1.061405429f, -1.453152027f);
    y = fma(y, t, 1.421413741f);
    y = fma(y, t, -0.284496736f);
    y = fma(y, t, 0.254829592f);
    const Floats error = fma(-(y * t), exponential(-z * z), 1.0f);
    return 0.5f * x * (1.0f + select(x < 0.0f, -error, error));
}

inline Floats hyperbolic_tangent(Floats x) {
    const Floats t = exponential(-2.0f * maximum(x, -x)), of_size = (1.0f - t) / (1.0f + t);
    return select(x < 0.0f, -of_size, of_size);
}

// The approximation of gelu by tanh: x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
inline Floats gelu_tanh(Floats x) {
    const Floats u = 0.79788456f * fma(0.044715f * x * x, x, x);
    return 0.5f * x * (1.0f + hyperbolic_tangent(u));
}

inline Floats capped(Floats x, float cap) { return cap * hyperbolic_tangent(x / cap); }

// x sigmoid(x), by e^-|x|, which cannot overflow.
inline Floats swish(Floats x) {
    const Floats t = exponential(-maximum(x, -x));
    return x * select(x < 0.0f, t, 1.0f) / (1.0f + t);
}

}  // namespace
