// Attention of queries over the cached entries that they see: softmax(q k) v.
//
// Queries over the same entries are taken together, so that memory is read once for all of them: with long sources and large
// batches that is what a pass takes its time for.
//
// Entries are taken in blocks of W positions that begin at multiples of W. An entry's lane and the order of every sum depend on
// its position only, and entries that are not seen take no part: so a result is the same, bit for bit, however its entries were
// asked for, and wherever they lie. Shape letters: D width.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "query.h"
#include "seen.h"

namespace {

// Positions whose entries are taken at a time: what is read of them stays in a first- or second-level cache until all queries
// have had it, and of values all columns.
constexpr int POSITIONS_PER_STEP = 32;

// Queries that share what is loaded of an entry, as registers have room for their sums: at most.
constexpr int SIDE_BY_SIDE = 4;
// Vectors of weighted sums that registers have room for, beside what is multiplied.
constexpr int SUMS = VECTORS / 2;
// How many sums of each of N queries fit: a power of two.
constexpr int most_together(int N, int bound) { return std::min(bound, int(std::bit_floor(unsigned(std::max(1, SUMS / N))))); }
template <int N>
using Number = std::integral_constant<int, N>;

// Whether two queries' blocks, some that both have next, are the same ones.
inline bool alike(const Query& one, const Query& other, int first, int end) {
    for (int b = first; b < end; ++b)
        if (one.blocks[b].seen != other.blocks[b].seen || one.blocks[b].entries != other.blocks[b].entries) return false;
    return true;
}

constexpr size_t NEAR = (512 << 10) / sizeof(float);  // numbers that a second-level cache holds, beside others'

// Whether a query's entries are more than a second-level cache holds.
inline bool far(const Query& query, size_t stride) { return query.count * W * stride > NEAR; }

// How many floats ahead of the entry being read to prefetch: for a far query its own next block; otherwise the same entry of
// `next`, the entries of the queries that come next; 0: nothing.
inline ptrdiff_t ahead_of(const Query& query, size_t stride, const float* entries, const float* next) {
    if (far(query, stride)) return W * stride;
    return next ? next - entries : 0;
}

// Calls todo(queries, N, first, end) for the blocks of every query in order, some positions at a time; N, a type with the number
// as its value, queries side by side have the same of these blocks.
template <class Do>
inline void in_turn(Query* queries, int number, size_t stride, Do&& todo) {
    const auto call = [&](Query* group, int members, int first, int end) {
        static_assert(SIDE_BY_SIDE == 4);
        if (members == 1) todo(group, Number<1>{}, first, end);
        if (members == 2) todo(group, Number<2>{}, first, end);
        if (members == 3) todo(group, Number<3>{}, first, end);
        if (members == 4) todo(group, Number<4>{}, first, end);
    };
    if (number == 1 && !far(*queries, stride)) return call(queries, 1, 0, queries->count);
    for (int q = 0; q < number; ++q) queries[q].next = 0;
    bool more = true;
    for (int32_t end = POSITIONS_PER_STEP; more; end += POSITIONS_PER_STEP) {
        more = false;
        Query* group = queries;
        int members = 0, from = 0, to = 0;  // of the group, and its blocks
        for (int q = 0; q < number; ++q) {
            Query& query = queries[q];
            const int first = query.next;
            while (query.next < query.count && query.blocks[query.next].first < end) ++query.next;
            more |= query.next < query.count;
            const bool joins = members < SIDE_BY_SIDE && first == from && query.next == to && alike(query, *group, from, to);
            if (members && !joins) {
                if (from < to) call(group, members, from, to);
                members = 0;
            }
            if (!members) group = &query, from = first, to = query.next;
            ++members;
        }
        if (from < to) call(group, members, from, to);
    }
}

// q k of N queries' heads, from `column` on, with keys from `shared` on, for the entries of a block that are seen -> W scores of
// each; anything for the others.
template <int N>
inline void dot_products(const Query* queries, int column, int shared, size_t stride, int size, const Block& block,
                         ptrdiff_t ahead, Floats* scores) {
    constexpr int L = most_together(N, W);  // lanes at a time
    const int whole = size / W * W;
    const float* keys = block.entries + shared;
    Floats totals[N][W] = {};
    if (block.seen == Block::ALL)
        for (int lane = 0; lane < W; lane += L) {
            Floats sums[N][L] = {};
            for (int i = 0; i < whole; i += W) {
                Floats q[N];
                for (int n = 0; n < N; ++n) q[n] = load(queries[n].from + column + i);
#pragma GCC unroll 16
                for (int l = 0; l < L; ++l) {
                    if (ahead) __builtin_prefetch(keys + (lane + l) * stride + i + ahead, 0, 2);
                    const Floats key = load(keys + (lane + l) * stride + i);
#pragma GCC unroll 4
                    for (int n = 0; n < N; ++n) sums[n][l] = fma(q[n], key, sums[n][l]);
                }
            }
            for (int n = 0; n < N; ++n)
#pragma GCC unroll 16
                for (int l = 0; l < L; ++l) totals[n][lane + l] = sums[n][l];
        }
    else
        each_seen(block, [&](int lane) {
            const float* key = keys + lane * stride;
            Floats sums[N] = {};
            for (int i = 0; i < whole; i += W) {
                if (ahead) __builtin_prefetch(key + i + ahead, 0, 2);
#pragma GCC unroll 4
                for (int n = 0; n < N; ++n) sums[n] = fma(load(queries[n].from + column + i), load(key + i), sums[n]);
            }
            for (int n = 0; n < N; ++n) totals[n][lane] = sums[n];
        });
    for (int n = 0; n < N; ++n) {
        scores[n] = sums(totals[n]);
        if (whole == size) continue;
        float each[W];
        store(each, scores[n]);
        each_seen(block, [&](int lane) {
            for (int i = whole; i < size; ++i) each[lane] = fma(queries[n].from[column + i], keys[lane * stride + i], each[lane]);
        });
        scores[n] = load(each);
    }
}

// Adds, for N queries, G times V vectors of the weighted sums of some blocks' values, from column i on; each V lie within a head,
// and where heads share values, G is 1.
// An entry's values come after its keys. The sum over a query's last block is final.
template <int N, int G, int V>
inline void weighted_sum(const Query* queries, int first, int end, const HeadShape& shape, size_t stride, int i,
                         ptrdiff_t ahead) {
    const auto head = [&](int g) { return (i + g * V * W) / shape.size; };
    const int values = shape.keys() + shape.shared(i);
    Floats mixed[N][G * V] = {};
    const float* own[N][G];
    for (int n = 0; n < N; ++n)
        for (int g = 0; g < G; ++g) own[n][g] = queries[n].weights + head(g) * queries[n].count * W;
    if (first)
        for (int n = 0; n < N; ++n)
#pragma GCC unroll 8
            for (int v = 0; v < G * V; ++v) mixed[n][v] = load(queries[n].to + i + v * W);
    for (int b = first; b < end; ++b) {
        const float* from = queries->blocks[b].entries + values;
        each_seen(queries->blocks[b], [&](int lane) {
#pragma GCC unroll 8
            for (int v = 0; v < G * V; ++v) {
                const float* value = from + lane * stride + v * W;
                if (ahead) __builtin_prefetch(value + ahead, 0, 2);
#pragma GCC unroll 4
                for (int n = 0; n < N; ++n) mixed[n][v] = fma(load(value), own[n][v / V][b * W + lane], mixed[n][v]);
            }
        });
    }
    for (int n = 0; n < N; ++n)
#pragma GCC unroll 8
        for (int v = 0; v < G * V; ++v) {
            const bool last = end == queries[n].count;
            store(queries[n].to + i + v * W, last ? mixed[n][v] * queries[n].norms[head(v / V)] : mixed[n][v]);
        }
}

// Makes weights, not normed, of a query's scores.
inline void soften(const Query& query, int heads) {
    const int count = query.count;
    for (int head = 0; head < heads; ++head) {
        float* own = query.weights + head * count * W;
        Floats most = load(own), total = 0;
        for (int b = 1; b < count; ++b) most = maximum(most, load(own + b * W));
        const float top = largest(most);
        for (int b = 0; b < count; ++b) {
            const Floats weight = exponential(load(own + b * W) - top);
            total += weight;
            store(own + b * W, weight);
        }
        query.norms[head] = 1 / sum(total);
    }
    for (int b = 0; query.attention_sum && b < query.summed; ++b) {
        float* to = query.attention_sum + query.blocks[b].first;
        Floats total = query.added ? load(to) : Floats(0);
        for (int head = 0; head < heads; ++head)
            if (query.heads == ~0ull || (head < 64 && query.heads >> head & 1))
                total = fma(load(query.weights + (head * count + b) * W), query.norms[head], total);
        store(to, total);
    }
}

// softmax(score(q k)) v for queries over some entries -> `to` of each: the same, bit for bit, whatever other queries there are.
// An entry has keys (G K,), then values (G K,); they are `stride` numbers apart. `scratch` has room for each query. `next` are
// the entries of the queries that are taken next; NULL: not known.
__attribute__((noinline)) void attend(Query* queries, int number, const float* entries, size_t stride, const HeadShape& shape,
                                      float* scratch, const float* next = nullptr) {
    const int heads = shape.heads, size = shape.size, width = heads * size;
    for (int q = 0; q < number; ++q) {
        Query& query = queries[q];
        query.blocks = reinterpret_cast<Block*>(scratch);
        query.summed = query.memory ? blocks_of(query.source, query.memory, stride, query.blocks) : 0;
        Block* own = query.blocks + query.summed;
        const int count = blocks_of(query.seen, entries, stride, own);
        query.count = query.summed + count;
        query.weights = reinterpret_cast<float*>(query.blocks + query.count);
        query.norms = query.weights + heads * query.count * W;
        if (query.seen.path)
            collect(query.seen, entries, stride, 2 * shape.keys(), own, count, query.norms + heads);
        const int64_t path = query.seen.path ? query.seen.to - query.seen.branch : 0;
        int64_t end = query.seen.end();
        if (query.memory) {  // its own positions follow the source's
            const int64_t first = blocks_up_to(query.source.end()) * W;
            for (int b = 0; b < count; ++b) own[b].first += int32_t(first);
            end += first;
        } else {
            query.summed = count;
        }
        scratch += attention_scratch(heads, end, path, stride);
    }
    in_turn(queries, number, stride, [&](const Query* group, auto n, int first, int end) {
        constexpr int N = decltype(n)::value;
        const ptrdiff_t ahead = group == queries ? ahead_of(*group, stride, entries, next) : 0;
        for (int b = first; b < end; ++b)
            for (int head = 0; head < heads; ++head) {
                Floats scores[N];
                dot_products<N>(group, head * size, head / shape.group * size, stride, size, group->blocks[b], ahead, scores);
                const Ints seen = lanes_of(group->blocks[b].seen);
                for (int n = 0; n < N; ++n) {
                    const Floats score = shape.score(scores[n], head, group[n].blocks[b].first, group[n].position);
                    store(group[n].weights + (head * group[n].count + b) * W, select(seen, score, -INFINITY));
                }
            }
    });
    for (int q = 0; q < number; ++q) soften(queries[q], heads);
    const int vectors = size % W == 0 ? width / W : 0;
    in_turn(queries, number, stride, [&](const Query* group, auto n, int first, int end) {
        constexpr int N = decltype(n)::value, V = most_together(N, 4), G = 2 * N * V <= SUMS ? 2 : 1;
        const ptrdiff_t ahead = group == queries ? ahead_of(*group, stride, entries, next) : 0;
        int v = 0;
        if (size % (V * W) == 0) {
            for (; shape.group == 1 && v + G * V <= vectors; v += G * V)
                weighted_sum<N, G, V>(group, first, end, shape, stride, v * W, ahead);
            for (; v < vectors; v += V) weighted_sum<N, 1, V>(group, first, end, shape, stride, v * W, ahead);
        }
        for (; v < vectors; ++v) weighted_sum<N, 1, 1>(group, first, end, shape, stride, v * W, ahead);
    });
    for (int q = 0; q < number; ++q)
        for (int column = vectors * W; column < width; ++column) {  // heads narrower than a vector, or no multiple of it
            const Query& query = queries[q];
            const float* own = query.weights + column / size * query.count * W;
            float mixed = 0;
            for (int b = 0; b < query.count; ++b)
                each_seen(query.blocks[b], [&](int lane) {
                    const float* values = query.blocks[b].entries + lane * stride + shape.keys();
                    mixed = fma(own[b * W + lane], values[shape.shared(column)], mixed);
                });
            query.to[column] = mixed * query.norms[column / size];
        }
}

}  // namespace
