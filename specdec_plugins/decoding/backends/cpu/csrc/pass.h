// What a pass reads, writes and works on. N rows, V vocabulary, R width of the successor network.
#pragma once

#include <cstdint>
#include <vector>

#include "stack.h"

namespace {

// Keys and values by layer, slot and position: 2 G K numbers each. Strides count numbers.
struct Entries {
    float* data;
    int64_t layer, slot;
};

// Attention to the source.
struct AttentionSums {
    float* data = nullptr;  // (results, size), summed over heads; NULL if not wanted
    int64_t size = 0;       // positions, in whole blocks of attention
    int64_t layer = -1;     // -1: summed over all layers
    uint64_t heads = ~0ull;  // see `Query`

    float* of(int64_t target, int index) const { return data && (layer < 0 || layer == index) ? data + target * size : nullptr; }
};

// A pass's inputs and outputs besides its rows.
struct Pass {
    Entries cache;
    Entries memory;       // source side; no data for an encoder
    const float* copied;  // entries of the source copy, by source slot as in `memory`; NULL if the drafter has none
    bool block;           // position embeddings are added before every layer
    bool narrowed;        // some rows have no result: the last layer drops them after computing their keys and values
    float* output;        // (results, V) logits, or (results, D) of a stack without projection; at each row's `target`. NULL: the
                          // pass ends after the layer of `attention_sums`
    float* gates;         // (results, R); used if the stack has a gate
    float* features;      // (results, D), the input of the output layer; NULL if not wanted
    float* bounds = nullptr;  // (results, panels of the projection) upper bounds of logits in place of these; NULL: not wanted
    int bounded = 0;          // the first so many rows have bounds, the others logits
    const float* embeddings = nullptr;  // (.., D), indexed by the tokens in place of the token embeddings
    AttentionSums attention_sums{};
};

struct Row {
    int64_t token, slot, position;
    Seen visible;  // to its self-attention
    int64_t entry;  // index of its keys and values in the slot: its position, except for nodes of a drafted tree
    int64_t source_slot;
    Seen source;     // visible to its cross-attention
    int64_t target;  // index of its result
    bool mask;       // a mask of the block drafter; embeds the source copy, if any
    bool wanted;     // has a result
};

// Memory that passes reuse.
struct Scratch {
    std::vector<Row> rows;
    std::vector<int64_t> paths;  // of the nodes of drafted trees, concatenated
    std::vector<float> x, queries, entries, results;
    Input input, mixed, hidden, reduced;
    std::vector<float> panel_max;               // (N, panels of the projection) their largest approximate logits
    std::vector<Reach> reaches;                 // (N) of a pass for bounds
    std::vector<int> bounds;                    // the first row of each member's part
    std::vector<std::vector<float>> attention;  // of each member
};

}  // namespace
