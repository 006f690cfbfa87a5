// Attention of one query over cached entries. Shape letters: D width, T entries.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "vectors.h"

namespace {

// Room for a head's attention weights: whole vectors, and always more than `count`.
inline int64_t padded_count(int64_t count) { return (count + 2 * W - 1) / W * W; }

// V vectors of the weighted sums of the values, from column i on. Every vector lies within one head.
template <int V>
inline void weighted_sum(const float* weights, const float* norms, int span, const float* values, size_t stride, int count,
                         int size, int i, float* to) {
    Floats mixed[V] = {};
    const float* own[V];
    for (int v = 0; v < V; ++v) own[v] = weights + (i + v * W) / size * span;
    for (int t = 0; t < count; ++t)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) mixed[v] += own[v][t] * load(values + t * stride + i + v * W);
    for (int v = 0; v < V; ++v) store(to + i + v * W, mixed[v] * norms[(i + v * W) / size]);
}

// Numbers of scratch memory that attention over up to `count` entries takes.
inline size_t attention_scratch(int heads, int64_t count) { return size_t(heads) * (padded_count(count) + 1); }

// softmax(q k * scale) v for one query (D,) over the first `count` entries -> to (D,). An entry has keys (D,), then values (D,);
// they are `stride` numbers apart. Entries are read in memory order, all heads of one before the next.
inline void attend(const float* query, const float* entries, size_t stride, int count, int width, int heads, float scale,
                   float* scratch, float* to) {
    const int size = width / heads, span = int(padded_count(count));
    float *weights = scratch, *norms = weights + heads * span;  // (heads, span), (heads,)
    for (int t = 0; t < count; ++t)
        for (int head = 0; head < heads; ++head) {
            const float *q = query + head * size, *k = entries + t * stride + head * size;
            Floats total{};
            int i = 0;
            for (; i + W <= size; i += W) total += load(q + i) * load(k + i);
            float score = sum(total);
            for (; i < size; ++i) score += q[i] * k[i];
            weights[head * span + t] = score * scale;
        }
    for (int head = 0; head < heads; ++head) {
        float* own = weights + head * span;
        for (int t = count; t < span; ++t) own[t] = -INFINITY;
        Floats most = load(own), total{};
        for (int t = W; t < count; t += W) most = maximum(most, load(own + t));
        const float top = largest(most);
        for (int t = 0; t < count; t += W) {
            const Floats weight = exponential(load(own + t) - top);
            total += weight;
            store(own + t, weight);
        }
        norms[head] = 1 / sum(total);
    }
    const float* values = entries + width;
    int i = 0;
    if (size % W == 0) {
        for (; i + 8 * W <= width; i += 8 * W) weighted_sum<8>(weights, norms, span, values, stride, count, size, i, to);
        for (; i < width; i += W) weighted_sum<1>(weights, norms, span, values, stride, count, size, i, to);
    }
    for (; i < width; ++i) {  // heads narrower than a vector, or no multiple of it
        const float* own = weights + i / size * span;
        float mixed = 0;
        for (int t = 0; t < count; ++t) mixed += own[t] * values[t * stride + i];
        to[i] = mixed * norms[i / size];
    }
}

}  // namespace
