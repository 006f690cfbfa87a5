// AVX-512 with VNNI.
#pragma once

#include <immintrin.h>

namespace {
constexpr int BYTES = 64, REGISTERS = 32;
}
#include "wide.h"

namespace {

using FloatRegister = Wide<float, 16>::Register;
using IntRegister = Wide<int32_t, 16>::Register;
using LongRegister = Wide<uint64_t, 8>::Register;

INLINE FloatRegister fma(FloatRegister a, FloatRegister b, FloatRegister c) {
    return (FloatRegister)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
INLINE FloatRegister widened(const uint16_t* from) {  // of intrinsics without a mask GCC warns
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return (FloatRegister)((IntRegister)_mm512_maskz_cvtepu16_epi32(-1, all) << 16);
}
INLINE bool any(IntRegister mask) { return _mm512_movepi32_mask((__m512i)mask) != 0; }
INLINE LongRegister multiply_low(LongRegister a, uint32_t by) {
    return (LongRegister)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, _mm512_set1_epi64(by));
}
template <class Register>
INLINE Register held(Register value) {
    __asm__("" : "+v"(value));
    return value;
}

constexpr int ROW_CHAINS = 4;
constexpr bool HOLDS = true, SPLITS = false;
constexpr ScreenedRows SCREENED_ROWS{14, 9};

using Quad = __m512i;
INLINE Quad quad(const int8_t* prepared) {
    int32_t all;
    std::memcpy(&all, prepared, 4);
    return _mm512_set1_epi32(all);
}
INLINE void prepare(int8_t* to, Wide<int32_t, 16> x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_maskz_cvtepi32_epi8(-1, (__m512i)x.value));
}
INLINE bool crowded(const int8_t*) { return false; }
INLINE IntRegister dot(IntRegister sums, Quad inputs, IntRegister weights) {
    return (IntRegister)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, inputs);
}

}  // namespace
