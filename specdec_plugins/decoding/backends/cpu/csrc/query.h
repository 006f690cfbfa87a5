// A query of attention: what it sees, how its heads score keys, where its result goes.
//
// Shape letters: H heads, K width of a head, W positions of a block.
#pragma once

#include <algorithm>
#include <cstdint>

#include "seen.h"
#include "vectors.h"

namespace {

// H heads of width K. `group` of them, neighbours, share a head of keys and values.
struct HeadShape {
    int heads, size, group = 1;
    float scale, cap = 0;             // 0: no cap
    const float* relative = nullptr;  // a bias of scores, (H, 2 (reach + W)): of a key's distance ahead, from -reach - W
    int reach = 0;

    int keys() const { return heads / group * size; }  // numbers of an entry's keys; its values are as many
    // The column of keys, or of values, for a query's.
    int shared(int column) const { return group == 1 ? column : column / size / group * size + column % size; }
    // The biases of W keys from position `first` on; beyond `reach` all are alike.
    Floats bias(int head, int64_t first, int64_t position) const {
        const int64_t ahead = std::clamp<int64_t>(first - position, -reach - W, reach);
        return load(relative + head * 2 * (reach + W) + ahead + reach + W);
    }
    Floats score(Floats product, int head, int64_t first, int64_t position) const {
        Floats found = scale * product;
        if (cap) found = capped(found, cap);
        return relative ? found + bias(head, first, position) : found;
    }
};

// A query: what it sees, and where its result goes.
struct Query {
    const float* from;  // (H K,)
    Seen seen;
    float* to;             // (H K,)
    int64_t position = 0;  // its own
    // Its weights, summed over heads, at each position up to the end, in whole blocks; NULL: not wanted.
    float* attention_sum = nullptr;
    bool added = false;      // to what is there
    uint64_t heads = ~0ull;  // those that `attention_sum` sums, a bit for each of the first 64; ~0: all
    // Merged attention: a source's entries, which it sees as well and to which `attention_sum` refers; NULL: none.
    const float* memory = nullptr;
    Seen source{};  // of these

    // Of `attend`. The blocks of the source come first: queries of a sentence have them in common.
    Block* blocks = nullptr;
    float *weights = nullptr, *norms = nullptr;  // (heads, count, W) and (heads,)
    int count = 0, next = 0;                     // blocks; the first one that is not computed yet
    int summed = 0;                              // blocks that `attention_sum` has
};

}  // namespace
