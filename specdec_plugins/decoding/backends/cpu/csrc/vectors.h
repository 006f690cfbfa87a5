// SIMD vectors of the instruction set that this is compiled for, and elementary functions on them.
//
// All headers here belong to one translation unit, api.cpp, which is compiled once per instruction set. Everything in them has
// internal linkage: the variants' code stays apart when several are loaded, and the compiler is free to inline it.
#pragma once

#include <cstdint>
#include <utility>

namespace {

#if defined(__AVX512F__)
constexpr int W = 16;         // lanes
constexpr int MAX_ROWS = 12;  // rows of a tile of a product: as many as have their sums in registers
#elif defined(__AVX2__)
constexpr int W = 8, MAX_ROWS = 3;
#else
constexpr int W = 4, MAX_ROWS = 3;
#endif

typedef float Floats __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef uint16_t Halves __attribute__((vector_size(2 * W), aligned(2), may_alias));
typedef int8_t Bytes __attribute__((vector_size(W), aligned(1), may_alias));

inline Floats broadcast(float value) { return value - Floats{}; }
inline Floats load(const float* from) { return *reinterpret_cast<const Floats*>(from); }
inline Floats load(const uint16_t* from) {  // bfloat16
    return (Floats)(__builtin_convertvector(*reinterpret_cast<const Halves*>(from), Words) << 16);
}
inline Floats load(const int8_t* from) { return __builtin_convertvector(*reinterpret_cast<const Bytes*>(from), Floats); }
inline void store(float* to, Floats value) { *reinterpret_cast<Floats*>(to) = value; }
inline Floats maximum(Floats a, Floats b) { return a > b ? a : b; }

// Exchanges each lane with the one STEP away. The lanes are constants, or the compiler would assemble the result lane by lane.
template <int STEP, int... LANES>
inline Floats exchanged(Floats value, std::integer_sequence<int, LANES...>) {
#if defined(__clang__)
    return __builtin_shufflevector(value, value, (LANES ^ STEP)...);
#else
    return __builtin_shuffle(value, Ints{(LANES ^ STEP)...});
#endif
}

template <int STEP = W / 2, class Join>
inline float reduce(Floats value, Join&& join) {
    if constexpr (STEP == 0)
        return value[0];
    else
        return reduce<STEP / 2>(join(value, exchanged<STEP>(value, std::make_integer_sequence<int, W>())), join);
}
inline float sum(Floats value) {
    return reduce(value, [](Floats a, Floats b) { return a + b; });
}
inline float largest(Floats value) { return reduce(value, maximum); }

// e^x with a relative error below 2e-7 for x <= 88; 0 below -87.
inline Floats exponential(Floats x) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    Floats clipped = maximum(x, broadcast(-87.0f));
    Floats shifted = clipped * 1.44269504f + magic;
    Floats power = shifted - magic;
    Floats r = clipped - power * 0.693359375f + power * 2.12194440e-4f;
    Floats y = broadcast(1.9875691500e-4f);
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    Ints bits = (Ints)y + (((Ints)shifted) << 23);
    return x < -87.0f ? Floats{} : (Floats)bits;
}

// x / 2 (1 + erf(x / sqrt 2)); erf by Abramowitz and Stegun 7.1.26, with an absolute error below 1.5e-7.
inline Floats gelu(Floats x) {
    Floats z = maximum(x, -x) * 0.70710678f;
    Floats t = 1.0f / (1.0f + 0.3275911f * z);
    Floats y = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    Floats error = 1.0f - y * exponential(-z * z);
    return 0.5f * x * (1.0f + (x < 0.0f ? -error : error));
}

// The approximation of gelu by tanh: x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
inline Floats gelu_tanh(Floats x) {
    Floats u = 0.79788456f * (x + 0.044715f * x * x * x);
    Floats t = exponential(-2.0f * maximum(u, -u));
    Floats tanh = (1.0f - t) / (1.0f + t);
    return 0.5f * x * (1.0f + (u < 0.0f ? -tanh : tanh));
}

// x sigmoid(x), by e^-|x|, which cannot overflow.
inline Floats swish(Floats x) {
    Floats t = exponential(-maximum(x, -x));
    return x * (x < 0.0f ? t : broadcast(1.0f)) / (1.0f + t);
}

}  // namespace
