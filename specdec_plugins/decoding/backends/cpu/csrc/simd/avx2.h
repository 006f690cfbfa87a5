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

using Quad = __m256i;
INLINE Quad quad(const int8_t* prepared) {
    int32_t all;
    std::memcpy(&all, prepared, 4);
    return _mm256_set1_epi32(all);
}
INLINE void prepare(int8_t* to, Wide<int32_t, 16> x) {
    const __m256i low = (__m256i)x.low.value, high = (__m256i)x.high.value;
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}
#if defined(__AVXVNNI__)
constexpr int ROW_CHAINS = 2;
constexpr bool HOLDS = false, SPLITS = false;
constexpr ScreenedRows SCREENED_ROWS{9, 3};

INLINE bool crowded(const int8_t*) { return false; }
INLINE IntRegister dot(IntRegister sums, Quad inputs, IntRegister weights) {
    return (IntRegister)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)weights, inputs);
}
#else
constexpr int ROW_CHAINS = 1;
// Products of two neighbours are added in 16 bits, up to 255 times the sum of the inputs' magnitudes.
constexpr bool HOLDS = false, SPLITS = true;
constexpr ScreenedRows SCREENED_ROWS{9, 2};

INLINE bool crowded(const int8_t* x) {
    const __m128i magnitudes = _mm_abs_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
    const __m128i pairs = _mm_maddubs_epi16(magnitudes, _mm_set1_epi8(1));
    return _mm_movemask_epi8(_mm_cmpgt_epi16(pairs, _mm_set1_epi16(MOST_OF_PAIR))) != 0;
}
INLINE IntRegister dot(IntRegister sums, Quad inputs, IntRegister weights) {
    const __m256i products = _mm256_maddubs_epi16((__m256i)weights, inputs);
    return sums + (IntRegister)_mm256_madd_epi16(products, _mm256_set1_epi16(1));
}
#endif

}  // namespace
