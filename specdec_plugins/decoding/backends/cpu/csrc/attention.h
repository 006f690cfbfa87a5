// Attention of one query over cached entries: which it sees, and softmax(q k) v over them.
//
// Entries are taken in blocks of W positions that begin at multiples of W. An entry's lane and the order of every sum depend on
// its position only, and entries that are not seen take no part: so a result is the same, bit for bit, however its entries were
// asked for, and wherever they lie. Shape letters: D width.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "vectors.h"

namespace {

// The positions that a query sees: all that any of these names. At least one. A position's entry lies at the place of the same
// number; but of a node of a drafted tree those from position `branch` on lie at the places `path`.
struct Seen {
    Seen(int64_t to) : to(to) {}  // a dense prefix

    int64_t from = 0, to;             // a range
    int64_t sinks = 0;                // so many first positions
    const int64_t* listed = nullptr;  // positions in any order
    int64_t listed_count = 0;
    const int64_t* path = nullptr;
    int64_t branch = 0;

    bool dense() const { return !(from || sinks || listed_count); }
    // No position from there on is seen.
    int64_t end() const {
        int64_t end = std::max(to, sinks);
        for (int64_t i = 0; i < listed_count; ++i) end = std::max(end, listed[i] + 1);
        return end;
    }
};

// W positions, bits for those of them that are seen, and the first one's entry.
struct Block {
    static constexpr uint32_t ALL = (1u << W) - 1;
    int32_t first;
    uint32_t seen;
    const float* entries;
};

inline int64_t blocks_up_to(int64_t end) { return (end + W - 1) / W; }

// The blocks in which something is seen, in order -> their number. `to` has room for all blocks up to the end. Entries are
// `stride` numbers apart.
inline int blocks_of(const Seen& seen, const float* entries, size_t stride, Block* to) {
    const int count = int(blocks_up_to(seen.end()));
    for (int i = 0; i < count; ++i) to[i] = {i * W, seen.dense() ? Block::ALL : 0, entries + i * W * stride};
    if (seen.dense()) {
        to[count - 1].seen = Block::ALL >> (count * W - seen.to);
        return count;
    }
    const auto add = [&](int64_t position) { to[position / W].seen |= 1u << position % W; };
    for (int64_t i = 0; i < seen.sinks; ++i) add(i);
    for (int64_t i = seen.from; i < seen.to; ++i) add(i);
    for (int64_t i = 0; i < seen.listed_count; ++i) add(seen.listed[i]);
    return int(std::remove_if(to, to + count, [](const Block& block) { return !block.seen; }) - to);
}

// Numbers of scratch memory that attention takes, up to position `end` and on paths of at most `path` positions, over entries
// that are `stride` numbers apart.
inline size_t attention_scratch(int heads, int64_t end, int64_t path, size_t stride) {
    const size_t copied = path ? (blocks_up_to(path) + 1) * W * stride : 0;
    return size_t(blocks_up_to(end)) * (heads * W + sizeof(Block) / sizeof(float)) + heads + copied;
}

// Calls todo(lane) for the lanes of a block that are seen, in order.
template <class Do>
inline void each_seen(const Block& block, Do&& todo) {
    for (uint32_t left = block.seen; left; left &= left - 1) todo(__builtin_ctz(left));
}

// Copies the entries of blocks in which a path has positions, each to its position's place in its block: so that it is the same
// code, and not only the same operations, that then computes what it computes in a chain.
inline void collect(const Seen& seen, const float* entries, size_t stride, int width, Block* blocks, int count, float* to) {
    for (int b = 0; b < count; ++b) {
        Block& block = blocks[b];
        if (block.first + W <= seen.branch) continue;
        each_seen(block, [&](int lane) {
            const int64_t position = block.first + lane;
            const int64_t place = position < seen.branch ? position : seen.path[position - seen.branch];
            std::copy_n(entries + place * stride, 2 * width, to + lane * stride);
        });
        block.entries = to;
        to += W * stride;
    }
}

// q k for the entries of a block that are seen, which are `stride` numbers apart; anything for the others.
inline Floats dot_products(const float* query, const float* keys, size_t stride, int size, const Block& block) {
    const int whole = size / W * W;
    Floats totals[W] = {};
    if (block.seen == Block::ALL)
        for (int i = 0; i < whole; i += W) {
            const Floats q = load(query + i);
#pragma GCC unroll 16
            for (int lane = 0; lane < W; ++lane) totals[lane] += q * load(keys + lane * stride + i);
        }
    else
        each_seen(block, [&](int lane) {
            const float* key = keys + lane * stride;
            Floats total{};
            for (int i = 0; i < whole; i += W) total += load(query + i) * load(key + i);
            totals[lane] = total;
        });
    Floats found = sums(totals);
    if (whole < size)
        each_seen(block, [&](int lane) {
            float score = found[lane];
            for (int i = whole; i < size; ++i) score += query[i] * keys[lane * stride + i];
            found[lane] = score;
        });
    return found;
}

// V vectors of the weighted sums of the values, from column i on. Every vector lies within one head. An entry's values come after
// `values` numbers.
template <int V>
inline void weighted_sum(const float* weights, const float* norms, const Block* blocks, int count, int values, size_t stride,
                         int size, int i, float* to) {
    Floats mixed[V] = {};
    const float* own[V];
    for (int v = 0; v < V; ++v) own[v] = weights + (i + v * W) / size * count * W;
    for (int b = 0; b < count; ++b) {
        const float* from = blocks[b].entries + values + i;
        each_seen(blocks[b], [&](int lane) {
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) mixed[v] += own[v][b * W + lane] * load(from + lane * stride + v * W);
        });
    }
    for (int v = 0; v < V; ++v) store(to + i + v * W, mixed[v] * norms[(i + v * W) / size]);
}

// softmax(q k * scale) v for one query (D,) over the entries that it sees -> to (D,). An entry has keys (D,), then values (D,);
// they are `stride` numbers apart.
inline void attend(const float* query, const float* entries, size_t stride, const Seen& seen, int width, int heads, float scale,
                   float* scratch, float* to) {
    Block* blocks = reinterpret_cast<Block*>(scratch);
    const int size = width / heads, count = blocks_of(seen, entries, stride, blocks);
    float* weights = reinterpret_cast<float*>(blocks + count);  // (heads, count, W)
    float* norms = weights + heads * count * W;                 // (heads,)
    if (seen.path) collect(seen, entries, stride, width, blocks, count, norms + heads);
    for (int b = 0; b < count; ++b)
        for (int head = 0; head < heads; ++head) {
            const Block& block = blocks[b];
            const float *q = query + head * size, *keys = block.entries + head * size;
            const Floats scores = scale * dot_products(q, keys, stride, size, block);
            store(weights + (head * count + b) * W, lanes_of(block.seen, Lanes{}) ? scores : broadcast(-INFINITY));
        }
    for (int head = 0; head < heads; ++head) {
        float* own = weights + head * count * W;
        Floats most = load(own), total{};
        for (int b = 1; b < count; ++b) most = maximum(most, load(own + b * W));
        const float top = largest(most);
        for (int b = 0; b < count; ++b) {
            const Floats weight = exponential(load(own + b * W) - top);
            total += weight;
            store(own + b * W, weight);
        }
        norms[head] = 1 / sum(total);
    }
    int i = 0;
    if (size % W == 0) {
        for (; i + 8 * W <= width; i += 8 * W) weighted_sum<8>(weights, norms, blocks, count, width, stride, size, i, to);
        for (; i < width; i += W) weighted_sum<1>(weights, norms, blocks, count, width, stride, size, i, to);
    }
    for (; i < width; ++i) {  // heads narrower than a vector, or no multiple of it
        const float* own = weights + i / size * count * W;
        float mixed = 0;
        for (int b = 0; b < count; ++b)
            each_seen(blocks[b], [&](int lane) { mixed += own[b * W + lane] * blocks[b].entries[lane * stride + width + i]; });
        to[i] = mixed * norms[i / size];
    }
}

}  // namespace
