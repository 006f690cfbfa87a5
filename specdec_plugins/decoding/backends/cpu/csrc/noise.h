// Random numbers that depend on nothing but a seed, a purpose, a position and a token: the twin of noise.py, which says more.
// The random bits are the same; they come from Philox4x32-10 (Salmon et al. 2011).
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

#include "vectors.h"

namespace {

enum Purpose : uint32_t { SAMPLE, DRAFT, ACCEPT, RECOVER };

// A row's noise at one position. The first word of Philox's counter is a token's number by 4; it gives 4 tokens their bits.
struct Noise {
    uint64_t seed;
    uint32_t position, purpose;
};

constexpr int ROUNDS = 10;
constexpr uint32_t MULTIPLIERS[] = {0xD2511F53, 0xCD9E8D57}, KEY_STEPS[] = {0x9E3779B9, 0xBB67AE85};

// A token's 32 random bits.
inline uint32_t token_bits(const Noise& noise, int64_t token) {
    uint32_t a = uint32_t(token >> 2), b = noise.position, c = noise.purpose, d = 0;
    uint32_t low = uint32_t(noise.seed), high = uint32_t(noise.seed >> 32);
    for (int round = 0; round < ROUNDS; ++round) {
        const uint64_t first = uint64_t(a) * MULTIPLIERS[0], second = uint64_t(c) * MULTIPLIERS[1];
        a = uint32_t(second >> 32) ^ b ^ low, b = uint32_t(second);
        c = uint32_t(first >> 32) ^ d ^ high, d = uint32_t(first);
        low += KEY_STEPS[0], high += KEY_STEPS[1];
    }
    const uint32_t words[] = {a, b, c, d};
    return words[token & 3];
}

// Between 0 and 1, neither included.
inline double uniform(uint32_t bits) { return (bits + 0.5) * 0x1p-32; }

// Exponentially distributed; never less than `uniform`.
inline double exponential_of(uint32_t bits) { return -std::log1p(-uniform(bits)); }

// ---- the same for many tokens at once

constexpr int TWINS = 2;               // vectors of counters side by side: each waits for its own last product only
constexpr int BLOCK = TWINS * 2 * W;  // tokens: 4 for each 64-bit lane
constexpr int PARTS = BLOCK / W;

typedef uint64_t Longs __attribute__((vector_size(4 * W), aligned(4), may_alias));

// Products of the low halves of each lane. Not every compiler knows from a mask that one instruction does it.
inline Longs multiply_low(Longs a, uint32_t by) {
#if defined(__AVX512F__)
    return (Longs)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, _mm512_set1_epi64(by));  // of the plain one GCC warns
#elif defined(__AVX2__)
    return (Longs)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(by));
#elif defined(__SSE2__)
    return (Longs)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(by));
#else
    return (a & 0xFFFFFFFF) * by;
#endif
}

template <int... LANE>
inline Longs counting(std::integer_sequence<int, LANE...>) {
    return Longs{LANE...};
}

// Lanes of 64 bits of `a` and `b` in turn, from number FIRST of each on.
template <int FIRST, int... LANE>
inline Words in_turn(Longs a, Longs b, std::integer_sequence<int, LANE...>) {
    return (Words)pick<((LANE >> 1 & 1) ? W : 0) + 2 * (FIRST + LANE / 4) + (LANE & 1)...>((Floats)a, (Floats)b);
}

// The bits of BLOCK tokens from number `first` on, a multiple of 4. High halves of the lanes are not kept clean in between:
// products do not see them.
inline void block_bits(const Noise& noise, int64_t first, Words bits[PARTS]) {
    Longs a[TWINS], b[TWINS], c[TWINS], d[TWINS];
    for (int i = 0; i < TWINS; ++i) {
        a[i] = counting(std::make_integer_sequence<int, W / 2>{}) + uint64_t((first >> 2) + i * W / 2);
        b[i] = Longs{} + noise.position, c[i] = Longs{} + noise.purpose, d[i] = Longs{};
    }
    uint32_t low = uint32_t(noise.seed), high = uint32_t(noise.seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < ROUNDS; ++round) {
#pragma GCC unroll 2
        for (int i = 0; i < TWINS; ++i) {
            const Longs one = multiply_low(a[i], MULTIPLIERS[0]), two = multiply_low(c[i], MULTIPLIERS[1]);
            a[i] = (two >> 32) ^ b[i] ^ uint64_t(low), b[i] = two;
            c[i] = (one >> 32) ^ d[i] ^ uint64_t(high), d[i] = one;
        }
        low += KEY_STEPS[0], high += KEY_STEPS[1];
    }
    for (int i = 0; i < TWINS; ++i) {
        const Longs even = (a[i] & 0xFFFFFFFF) | b[i] << 32, odd = (c[i] & 0xFFFFFFFF) | d[i] << 32;
        bits[2 * i] = in_turn<0>(even, odd, Lanes{});
        bits[2 * i + 1] = in_turn<W / 4>(even, odd, Lanes{});
    }
}

inline Floats uniform(Words bits) { return (__builtin_convertvector(bits, Floats) + 0.5f) * 0x1p-32f; }

// -log(1 - u) with a relative error below 1e-6, for u near 0 and near 1, too: 1 - u is made of the bits, not of u. With
// 1 - u = 2^e (1 + f) and 1 + f from sqrt(1/2) to sqrt(2), log(1 + f) is a polynomial (that of Cephes' logf).
inline Floats exponential_of(Words bits) {
    const Floats rest = uniform(~bits);
    const int32_t half = 0x3f3504f3;  // sqrt(1/2)
    const Ints shifted = (Ints)rest - half;
    const Floats power = __builtin_convertvector(shifted >> 23, Floats);
    const Floats f = rest > 0.70710678f ? -uniform(bits) : (Floats)((shifted & 0x7fffff) + half) - 1.0f;
    Floats y = broadcast(7.0376836292e-2f);
    y = y * f - 1.1514610310e-1f;
    y = y * f + 1.1676998740e-1f;
    y = y * f - 1.2420140846e-1f;
    y = y * f + 1.4249322787e-1f;
    y = y * f - 1.6668057665e-1f;
    y = y * f + 2.0000714765e-1f;
    y = y * f - 2.4999993993e-1f;
    y = y * f + 3.3333331174e-1f;
    y = y * f * f * f + power * -2.12194440e-4f - 0.5f * f * f + f;
    return -(power * 0.693359375f + y);
}

}  // namespace
