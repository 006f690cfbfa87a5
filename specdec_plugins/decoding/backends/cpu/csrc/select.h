// Choosing tokens by logits: the best, the best few, and their scores after a given token.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "vectors.h"

namespace {

inline float largest(const float* values, int64_t count) {
    Floats most[4];  // several, so that one comparison need not wait for the last
    for (int part = 0; part < 4; ++part) most[part] = -INFINITY;
    int64_t i = 0;
    for (; i + 4 * W <= count; i += 4 * W)
        for (int part = 0; part < 4; ++part) most[part] = maximum(most[part], load(values + i + part * W));
    for (; i + W <= count; i += W) most[0] = maximum(most[0], load(values + i));
    float top = largest(maximum(maximum(most[0], most[1]), maximum(most[2], most[3])));
    for (; i < count; ++i) top = std::max(top, values[i]);
    return top;
}

constexpr int64_t PART = 16 * W;  // values that are skipped together if none is large enough

// The index of the largest of `count` values, the first among equals; 0 if all are minus infinity.
inline int64_t best_of(const float* values, int64_t count) {
    const float top = largest(values, count);
    int64_t i = 0;
    for (; i + PART <= count; i += PART) {
        Ints equal = 0;
        for (int64_t part = 0; part < PART; part += W) equal |= load(values + i + part) == top;
        if (any(equal)) break;
    }
    const float *end = values + count, *found = std::find(values + i, end, top);
    return found == end ? 0 : found - values;
}

// The indices of the `few` largest values, largest first and equal ones in order.
inline void best_few(const float* values, int64_t count, int64_t few, int64_t* to) {
    int64_t found = 0;
    float least = -INFINITY;  // the smallest of those found, once there are `few`
    const auto take = [&](int64_t from, int64_t end) {
        for (int64_t i = from; i < end; ++i) {
            if (found == few && values[i] <= least) continue;
            int64_t at = found < few ? found++ : few - 1;
            for (; at && values[to[at - 1]] < values[i]; --at) to[at] = to[at - 1];
            to[at] = i;
            if (found == few) least = values[to[few - 1]];
        }
    };
    for (int64_t start = 0; start < count; start += PART) {
        const int64_t end = std::min(start + PART, count);
        if (found == few && largest(values + start, end - start) <= least) continue;  // true of most parts soon
        int64_t i = start;
        for (; i + W <= end; i += W)
            if (found < few || any(load(values + i) > least)) take(i, i + W);
        take(i, end);
    }
}

// A candidate's score after a token: its logit plus out . relu(gate + token), which the successor network adds. `gate` and
// `token` (width,) belong to the position and to the token before it, `out` (width,) to the candidate.
inline float successor_score(float logit, const float* gate, const float* token, const float* out, int64_t width) {
    Floats total = 0;
    for (int64_t i = 0; i < width; i += W) total = fma(maximum(load(gate + i) + load(token + i), 0.0f), load(out + i), total);
    return logit + sum(total);
}

}  // namespace
