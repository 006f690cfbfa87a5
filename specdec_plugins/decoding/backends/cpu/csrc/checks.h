// Functions of the library for its tests only: random bits, warped weights, attention.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"
#include "calls.h"
#include "exported.h"
#include "noise.h"
#include "sample.h"

// Random bits of `count` tokens from `first`, a multiple of 4, on -> to, and exponential variates made of them ->
// variates, both in whole blocks of 64. Status 1: the scalar and the vector generator differ.
EXPORTED(int, noise, int64_t seed, int64_t purpose, int64_t position, int64_t first, int64_t count, uint32_t* to,
         float* variates) {
    const Noise noise{uint64_t(seed), uint32_t(position), uint32_t(purpose)};
    for (int64_t i = 0; i < count; i += BLOCK) {
        Words bits[PARTS];
        block_bits(noise, first + i, bits);
        for (int part = 0; part < PARTS; ++part) {
            store(to + i + part * W, bits[part]);
            store(variates + i + part * W, exponential_of(bits[part]));
        }
        for (int lane = 0; lane < BLOCK; ++lane)
            if (to[i + lane] != token_bits(noise, first + i + lane)) return 1;
    }
    return 0;
}

// Weights of a position's logits (V) after the row's prefix and k drafted tokens -> to (V in whole blocks of 64).
EXPORTED(int, warp, const Sampling* sampling, const float* logits, int64_t vocabulary, const int64_t* drafted, int64_t k,
         float* to) {
    return status_of([&] {
        std::vector<Draws> draws;
        warp(*take(sampling, 1, draws), logits, vocabulary, drafted, k, to);
    });
}

// Attention of N queries (N, D) over the entries that each sees -> to (N, D), together, as in a pass. Entries are keys
// (D,), then values (D,), `stride` numbers apart. `positions`: of each query the listed ones, then its path.
EXPORTED(int, attend, int64_t count, int64_t width, int64_t heads, float scale, const float* from, const float* entries,
         int64_t stride, const SeenRow* rows, const int64_t* positions, float* to) {
    return status_of([&] {
        std::vector<Query> queries;
        size_t room = 0;
        for (int64_t q = 0; q < count; ++q) {
            const SeenRow& row = rows[q];
            Seen seen(row.to);
            seen.from = row.from, seen.sinks = row.sinks, seen.listed_count = row.listed, seen.branch = row.branch;
            seen.listed = positions, positions += row.listed;
            seen.path = row.path ? positions : nullptr, positions += row.path;
            queries.push_back({from + q * width, seen, to + q * width});
            room += attention_scratch(int(heads), seen.end(), row.path, stride);
        }
        std::vector<float> scratch(room);
        attend(queries.data(), int(count), entries, stride, {int(heads), int(width / heads), 1, scale}, scratch.data());
    });
}
