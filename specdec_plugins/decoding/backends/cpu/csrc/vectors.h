// SIMD vectors of the instruction set that this is compiled for, and elementary functions on them.
//
// All headers here belong to one translation unit, api.cpp, which is compiled once per instruction set. Everything in them has
// internal linkage: the variants' code stays apart when several are loaded, and the compiler is free to inline it.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>
#include <utility>

namespace {

#if defined(__AVX512F__)
constexpr int W = 16, REGISTERS = 32;  // lanes
constexpr int MAX_ROWS = 14;           // rows of a tile of a product: as many as have their sums in registers
#elif defined(__AVX2__)
constexpr int W = 8, REGISTERS = 16, MAX_ROWS = 3;
#else
constexpr int W = 4, REGISTERS = 16, MAX_ROWS = 3;
#endif

typedef float Floats __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef uint16_t Halves __attribute__((vector_size(2 * W), aligned(2), may_alias));
typedef int8_t Bytes __attribute__((vector_size(W), aligned(1), may_alias));

typedef uint8_t Octets __attribute__((vector_size(W), aligned(1), may_alias));

inline Floats broadcast(float value) { return value - Floats{}; }
inline Floats load(const float* from) { return *reinterpret_cast<const Floats*>(from); }
// bfloat16 and int8, widened. By themselves compilers do it in parts, some number by number. (AVX-512 multiplies int8 as it is.)
inline Floats load(const uint16_t* from) {
#if defined(__AVX512F__)
    return (Floats)((Words)_mm512_maskz_cvtepu16_epi32(-1, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))) << 16);
#elif defined(__AVX2__)
    return (Floats)((Words)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))) << 16);
#elif defined(__SSE2__)
    return (Floats)_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#else
    return (Floats)(__builtin_convertvector(*reinterpret_cast<const Halves*>(from), Words) << 16);
#endif
}
inline Floats load(const int8_t* from) {
#if defined(__AVX512F__) || !defined(__SSE2__)
    return __builtin_convertvector(*reinterpret_cast<const Bytes*>(from), Floats);
#elif defined(__AVX2__)
    return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
    int32_t quartet;
    std::memcpy(&quartet, from, 4);
    const __m128i bytes = _mm_cvtsi32_si128(quartet), pairs = _mm_unpacklo_epi8(bytes, bytes);
    return (Floats)_mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(pairs, pairs), 24));
#endif
}
inline void store(uint8_t* to, Ints value) { *reinterpret_cast<Octets*>(to) = __builtin_convertvector(value, Octets); }
inline void store(float* to, Floats value) { *reinterpret_cast<Floats*>(to) = value; }
inline Floats magnitude(Floats value) { return (Floats)((Ints)value & 0x7fffffff); }
inline Floats maximum(Floats a, Floats b) { return a > b ? a : b; }

// Some lanes of `a` and `b`; those of `b` are counted from W on.
template <int... LANES>
inline Floats pick(Floats a, Floats b) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, LANES...);
#else
    return __builtin_shuffle(a, b, Ints{LANES...});
#endif
}

// One step of a reduction of two vectors side by side: each lane joins the one STEP away. Then lanes whose number has the bit
// STEP are of `b`, the others of `a`; a vector by itself, given twice, is reduced in every lane. The joins of a vector's numbers
// are the same in every lane, so a result does not depend on how many vectors are reduced together.
template <int STEP, class Join, int... LANE>
inline Floats join_lanes(Floats a, Floats b, Join&& join, std::integer_sequence<int, LANE...>) {
    return join(pick<(LANE & STEP ? W + LANE : LANE)...>(a, b), pick<(LANE & STEP ? W : 0) + (LANE ^ STEP)...>(a, b));
}
using Lanes = std::make_integer_sequence<int, W>;

// True in each lane whose bit is set.
template <int... LANE>
inline Ints lanes_of(uint32_t bits, std::integer_sequence<int, LANE...>) {
    return ((int32_t(bits) - Ints{}) & Ints{(1 << LANE)...}) != 0;
}

template <int STEP = W / 2, class Join>
inline float reduce(Floats value, Join&& join) {
    if constexpr (STEP == 0)
        return value[0];
    else
        return reduce<STEP / 2>(join_lanes<STEP>(value, value, join, Lanes{}), join);
}
inline Floats add(Floats a, Floats b) { return a + b; }
inline float sum(Floats value) { return reduce(value, add); }
inline float largest(Floats value) { return reduce(value, maximum); }

// Lane i is `sum(values[i])`, for W vectors, which this overwrites: two permutations a sum instead of one for each step.
template <int STEP = W / 2>
inline Floats sums(Floats* values) {
#pragma GCC unroll 16
    for (int i = 0; i < STEP; ++i) values[i] = join_lanes<STEP>(values[i], values[i + STEP], add, Lanes{});
    if constexpr (STEP == 1)
        return values[0];
    else
        return sums<STEP / 2>(values);
}

// Whether a comparison holds in some lane.
inline bool any(Ints truth) {
#if defined(__AVX512DQ__)
    return _mm512_movepi32_mask((__m512i)truth) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps((__m256)truth) != 0;
#elif defined(__SSE2__)
    return _mm_movemask_ps((__m128)truth) != 0;
#else
    return largest(truth ? broadcast(1.0f) : Floats{}) > 0;
#endif
}

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
