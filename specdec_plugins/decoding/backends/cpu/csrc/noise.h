// Random numbers that depend on nothing but a seed, a purpose, a position and a token: the twin of backends/torch/noise.py.
// The random bits are the same; they come from Philox4x32-10 (Salmon et al. 2011).
#pragma once

#include <cstdint>

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

// ---- the same for many tokens at once

constexpr int TWINS = 2;           // vectors of counters side by side: each waits for its own last product only
constexpr int BLOCK = TWINS * 2 * W;  // tokens: 4 for each 64-bit lane
constexpr int PARTS = BLOCK / W;

// Products of the low halves of each lane.
INLINE Longs multiply_low(Longs a, uint32_t by) {
    return map([=](auto x) __attribute__((always_inline)) { return multiply_low(x, by); }, a);
}

// The bits of BLOCK tokens from number `first` on, a multiple of 4. High halves of the lanes are not kept clean in between:
// products do not see them.
inline void block_bits(const Noise& noise, int64_t first, Words bits[PARTS]) {
    alignas(64) static constexpr uint64_t COUNTING[W / 2] = {0, 1, 2, 3, 4, 5, 6, 7};
    Longs a[TWINS], b[TWINS], c[TWINS], d[TWINS];
    for (int i = 0; i < TWINS; ++i) {
        a[i] = load_wide<uint64_t, W / 2>(COUNTING) + uint64_t((first >> 2) + i * W / 2);
        b[i] = noise.position, c[i] = noise.purpose, d[i] = 0;
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
        const Longs even = (a[i] & 0xFFFFFFFF) | (b[i] << 32), odd = (c[i] & 0xFFFFFFFF) | (d[i] << 32);
        bits[2 * i] = bits_as<uint32_t>(zip<false>(even, odd));
        bits[2 * i + 1] = bits_as<uint32_t>(zip<true>(even, odd));
    }
}

INLINE Floats uniform(Words bits) { return (convert<float>(bits) + 0.5f) * 0x1p-32f; }

// Exponentially distributed, -log(1 - u), with a relative error below 1e-6 for u near 0 and near 1, too: 1 - u is made of the
// bits, not of u.
inline Floats exponential_of(Words bits) {
    const Floats rest = uniform(~bits);
    const Split parts = split(rest);
    return -logarithm(parts.power, select(rest > 0.70710678f, -uniform(bits), parts.f));
}
inline float exponential_of(uint32_t bits) { return first(exponential_of(Words(bits))); }

}  // namespace
