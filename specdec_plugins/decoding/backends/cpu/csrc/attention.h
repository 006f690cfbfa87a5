// Attention of queries over cached entries: which each sees, and softmax(q k) v over them.
//
// Queries over the same entries are taken together, so that memory is read once for all of them: with long sources and large
// batches that is what a pass takes its time for.
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
    Seen(int64_t to = 0) : to(to) {}  // a dense prefix

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

// Numbers of scratch memory that attention of a query takes, up to position `end` and on paths of at most `path` positions, over entries
// that are `stride` numbers apart.
inline size_t attention_scratch(int heads, int64_t end, int64_t path, size_t stride) {
    const size_t copied = path ? (blocks_up_to(path) + 1) * W * stride : 0;
    const size_t size = size_t(blocks_up_to(end)) * (heads * W + sizeof(Block) / sizeof(float)) + heads + copied;
    return (size + W - 1) / W * W;  // so that a further query's blocks are aligned
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

// A query: what it sees, and where its result goes.
struct Query {
    const float* from;  // (D,)
    Seen seen;
    float* to;             // (D,)
    float* mass = nullptr;  // its weights, summed over heads, at each position up to the end, in whole blocks; NULL: not wanted
    bool added = false;     // to what is there

    // Of `attend`.
    Block* blocks = nullptr;
    float *weights = nullptr, *norms = nullptr;  // (heads, count, W) and (heads,)
    int count = 0, next = 0;                     // blocks; the first one that is not computed yet
};

// Positions whose entries are taken at a time for all queries: their keys, or 8 vectors of their values, fit into a first- or
// second-level cache beside the queries.
constexpr int TOGETHER = 32;

// Calls todo(query, first, end) for blocks of every query in order: all queries' blocks among some positions, then the next ones.
template <class Do>
inline void in_turn(Query* queries, int number, Do&& todo) {
    for (int q = 0; q < number; ++q) queries[q].next = 0;
    if (number == 1) return todo(*queries, 0, queries->count);
    bool more = true;
    for (int32_t end = TOGETHER; more; end += TOGETHER) {
        more = false;
        for (int q = 0; q < number; ++q) {
            Query& query = queries[q];
            const int first = query.next;
            while (query.next < query.count && query.blocks[query.next].first < end) ++query.next;
            if (first < query.next) todo(query, first, query.next);
            more |= query.next < query.count;
        }
    }
}

// Adds V vectors of the weighted sums of some blocks' values, from column i on; every vector lies within one head. An entry's
// values come after `values` numbers. The sum over the query's last block is final.
template <int V>
inline void weighted_sum(const Query& query, int first, int end, int values, size_t stride, int size, int i) {
    Floats mixed[V] = {};
    const float* own[V];
    for (int v = 0; v < V; ++v) {
        own[v] = query.weights + (i + v * W) / size * query.count * W;
        if (first) mixed[v] = load(query.to + i + v * W);
    }
    for (int b = first; b < end; ++b) {
        const float* from = query.blocks[b].entries + values + i;
        each_seen(query.blocks[b], [&](int lane) {
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) mixed[v] += own[v][b * W + lane] * load(from + lane * stride + v * W);
        });
    }
    for (int v = 0; v < V; ++v)
        store(query.to + i + v * W, end < query.count ? mixed[v] : mixed[v] * query.norms[(i + v * W) / size]);
}

// Makes weights, not normed, of a query's scores.
inline void soften(const Query& query, int heads) {
    const int count = query.count;
    for (int head = 0; head < heads; ++head) {
        float* own = query.weights + head * count * W;
        Floats most = load(own), total{};
        for (int b = 1; b < count; ++b) most = maximum(most, load(own + b * W));
        const float top = largest(most);
        for (int b = 0; b < count; ++b) {
            const Floats weight = exponential(load(own + b * W) - top);
            total += weight;
            store(own + b * W, weight);
        }
        query.norms[head] = 1 / sum(total);
    }
    for (int b = 0; query.mass && b < count; ++b) {
        float* to = query.mass + query.blocks[b].first;
        Floats total = query.added ? load(to) : Floats{};
        for (int head = 0; head < heads; ++head) total += load(query.weights + (head * count + b) * W) * query.norms[head];
        store(to, total);
    }
}

// softmax(q k * scale) v for queries over some entries -> `to` of each: the same, bit for bit, whatever other queries there are.
// An entry has keys (D,), then values (D,); they are `stride` numbers apart. `scratch` has room for each query.
inline void attend(Query* queries, int number, const float* entries, size_t stride, int width, int heads, float scale,
                   float* scratch) {
    const int size = width / heads;
    for (int q = 0; q < number; ++q) {
        Query& query = queries[q];
        query.blocks = reinterpret_cast<Block*>(scratch);
        query.count = blocks_of(query.seen, entries, stride, query.blocks);
        query.weights = reinterpret_cast<float*>(query.blocks + query.count);
        query.norms = query.weights + heads * query.count * W;
        if (query.seen.path) collect(query.seen, entries, stride, width, query.blocks, query.count, query.norms + heads);
        const int64_t path = query.seen.path ? query.seen.to - query.seen.branch : 0;
        scratch += attention_scratch(heads, query.seen.end(), path, stride);
    }
    in_turn(queries, number, [&](const Query& query, int first, int end) {
        for (int b = first; b < end; ++b)
            for (int head = 0; head < heads; ++head) {
                const Block& block = query.blocks[b];
                const float *q = query.from + head * size, *keys = block.entries + head * size;
                const Floats scores = scale * dot_products(q, keys, stride, size, block);
                store(query.weights + (head * query.count + b) * W,
                      lanes_of(block.seen, Lanes{}) ? scores : broadcast(-INFINITY));
            }
    });
    for (int q = 0; q < number; ++q) soften(queries[q], heads);
    int i = 0;
    if (size % W == 0) {
        for (; i + 8 * W <= width; i += 8 * W)
            in_turn(queries, number, [&](const Query& query, int first, int end) {
                weighted_sum<8>(query, first, end, width, stride, size, i);
            });
        for (; i < width; i += W)
            in_turn(queries, number, [&](const Query& query, int first, int end) {
                weighted_sum<1>(query, first, end, width, stride, size, i);
            });
    }
    for (int q = 0; q < number; ++q)
        for (int column = i; column < width; ++column) {  // heads narrower than a vector, or no multiple of it
            const Query& query = queries[q];
            const float* own = query.weights + column / size * query.count * W;
            float mixed = 0;
            for (int b = 0; b < query.count; ++b)
                each_seen(query.blocks[b], [&](int lane) {
                    mixed += own[b * W + lane] * query.blocks[b].entries[lane * stride + width + column];
                });
            query.to[column] = mixed * query.norms[column / size];
        }
}

}  // namespace
