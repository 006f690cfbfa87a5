// AVX2 with FMA, with or without AVX-VNNI.
#pragma once

#include <immintrin.h>

namespace {
constexpr int BYTES = 32, REGISTERS = 16;
}
#include "wide.h"

namespace {

using FloatRegister = Wide<float, 8>::Register;
using IntRegister = Wide<int32_t, 8>::Register;
using LongRegister = Wide<uint64_t, 4>::Register;

INLINE FloatRegister fma(FloatRegister a, FloatRegister b, FloatRegister c) {
    return (FloatRegister)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
INLINE FloatRegister widened(const uint16_t* from) {
    const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return (FloatRegister)_mm256_slli_epi32(words, 16);
}
INLINE bool any(IntRegister mask) { return _mm256_movemask_ps((__m256)mask) != 0; }
INLINE LongRegister multiply_low(LongRegister a, uint32_t by) {
    return (LongRegister)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(by));
}
template <class Register>
INLINE Register held(Register value) {
    __asm__("" : "+x"(value));
    return value;
}

INLINE __m256i four_of_each(const uint8_t* from) {
    int32_t all;
    std::memcpy(&all, from, 4);
    return _mm256_set1_epi32(all);
}

#if defined(__AVXVNNI__)
// The unsigned operand has 128 for zero: each sum is 128 times its output's weights too large.
constexpr int PREPARED = 1, ROW_CHAINS = 2;
constexpr bool OFFSET = true, NEGATIVE = false, HOLDS = false;

struct Quad {
    __m256i x;
};
INLINE Quad quad(const uint8_t* prepared) { return {four_of_each(prepared)}; }
INLINE void prepare(uint8_t* to, Wide<int32_t, 16> x) {
    const __m256i low = (__m256i)x.low.value, high = (__m256i)x.high.value;
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_xor_si128(bytes, _mm_set1_epi8(char(0x80))));
}
INLINE IntRegister dot(IntRegister sums, Quad inputs, IntRegister weights) {
    return (IntRegister)_mm256_dpbusd_avx_epi32((__m256i)sums, inputs.x, (__m256i)weights);
}
#else
// x w = |x| w for x >= 0, and |x| ~w + |x| otherwise: so a mask is all that the weights need. Products of two inputs, at most
// 2 * 127 * 128, fit into 16 bits, and what is left to add, |x| of the negative inputs, is the same for all outputs of a row.
constexpr int PREPARED = 2, ROW_CHAINS = 1;
constexpr bool OFFSET = false, NEGATIVE = true, HOLDS = false;

struct Quad {
    __m256i magnitude, negative;
};
INLINE Quad quad(const uint8_t* prepared) { return {four_of_each(prepared), four_of_each(prepared + 4)}; }
INLINE void prepare(uint8_t* to, Wide<int32_t, 16> x) {  // four magnitudes, then their masks
    const __m256i low = (__m256i)x.low.value, high = (__m256i)x.high.value;
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    const __m128i magnitude = _mm_abs_epi8(bytes), negative = _mm_cmpgt_epi8(_mm_setzero_si128(), bytes);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_unpacklo_epi32(magnitude, negative));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16), _mm_unpackhi_epi32(magnitude, negative));
}
INLINE IntRegister dot(IntRegister sums, Quad inputs, IntRegister weights) {
    const __m256i products = _mm256_maddubs_epi16(inputs.magnitude, _mm256_xor_si256(inputs.negative, (__m256i)weights));
    return sums + (IntRegister)_mm256_madd_epi16(products, _mm256_set1_epi16(1));
}
#endif

}  // namespace
