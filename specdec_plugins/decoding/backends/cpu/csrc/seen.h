// Which cached entries a query sees, as blocks of positions: attention reads nothing else of a cache.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "vectors.h"

namespace {

// The positions that a query sees: the union of these, at least one. A position's entry has the same index, except that for a
// node of a drafted tree the entries of positions from `branch` on are at `path`.
struct Seen {
    Seen(int64_t to = 0) : to(to) {}  // a dense prefix

    int64_t from = 0, to;             // a range
    int64_t sinks = 0;                // number of first positions
    const int64_t* listed = nullptr;  // positions in any order
    int64_t listed_count = 0;
    const int64_t* path = nullptr;
    int64_t branch = 0;

    bool dense() const { return !(from || sinks || listed_count); }
    // One past the last position seen.
    int64_t end() const {
        int64_t end = std::max(to, sinks);
        for (int64_t i = 0; i < listed_count; ++i) end = std::max(end, listed[i] + 1);
        return end;
    }
};

// W positions: the first one, a bit for each that is seen, and the first one's entry.
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

// Scratch memory, in floats, of a query's attention up to position `end` with at most `path` positions on a path, over entries
// `stride` floats apart.
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

// Gathers the entries of blocks that contain positions of a path, so that the code that computes a chain computes the path, too.
inline void collect(const Seen& seen, const float* entries, size_t stride, int width, Block* blocks, int count, float* to) {
    for (int b = 0; b < count; ++b) {
        Block& block = blocks[b];
        if (block.first + W <= seen.branch) continue;
        each_seen(block, [&](int lane) {
            const int64_t position = block.first + lane;
            const int64_t index = position < seen.branch ? position : seen.path[position - seen.branch];
            std::copy_n(entries + index * stride, width, to + lane * stride);
        });
        block.entries = to;
        to += W * stride;
    }
}

}  // namespace
