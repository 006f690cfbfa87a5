// The source side: encoded sentences, and the keys and values of them that cross-attention reads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "batch.h"
#include "calls.h"
#include "forward.h"
#include "linear.h"
#include "team.h"

namespace {

// Rows that a member of the team encodes at a time: their activations, some 8 KB a row, stay in its second-level cache. On an
// Intel Xeon with 1 MB of it a row takes 44 us, and 55 us if 32 sentences are encoded together.
constexpr int64_t ENCODED_ROWS = 32;

// Encodes sentences of these lengths -> output (B, longest, D). Leaves positions past a sentence's end undefined.
inline void encode(Engine& engine, const Stack& stack, int64_t batch, int64_t longest, const int64_t* lengths, const int64_t* tokens,
                   float* output) {
    const int64_t most = ENCODED_ROWS * engine.team.size;
    auto& rows = engine.scratch.rows;
    auto& entries = engine.scratch.entries;
    for (int64_t first = 0, end; first < batch; first = end) {
        rows.clear();
        for (end = first; end < batch && (end == first || int64_t(rows.size()) + lengths[end] <= most); ++end)
            for (int64_t s = 0; s < lengths[end]; ++s)
                rows.push_back({.token = *tokens++, .slot = end - first, .position = s, .visible = lengths[end], .entry = s,
                                .source_slot = 0, .source = 0, .target = end * longest + s, .mask = false, .wanted = true});
        grow(entries, size_t(end - first) * longest * stack.entry());
        const Pass pass{{entries.data(), 0, longest * stack.entry()}, {}, nullptr, false, false, output, nullptr, nullptr};
        Forward forward(stack, pass, engine.team, engine.scratch);
        engine.team.run([&](int member) { forward.run(member); });
    }
}

// Computes keys and values of all layers: products of `linear`, `width` a layer, with encoded (.., longest, I) -> memory. Keys are
// normed as the layers of `stack` norm them; NULL: not.
inline void remember(Engine& engine, const Stack* stack, const Linear& linear, std::span<const RememberRow> sentences, int64_t longest,
                     const float* encoded, int64_t width, const Entries& memory) {
    auto& rows = engine.scratch.rows;
    rows.clear();
    for (const RememberRow& each : sentences)
        for (int64_t s = 0; s < each.length; ++s)
            rows.push_back({.token = 0, .slot = each.slot, .position = s, .visible = 0, .entry = s, .source_slot = 0, .source = 0,
                            .target = each.sentence * longest + s, .mask = false, .wanted = true});
    Input& input = engine.scratch.input;
    const int count = int(rows.size()), inputs = linear.inputs;
    input.resize(count, inputs, linear.quantises());
    const auto entry = [&](int row, int64_t layer) {
        return memory.data + layer * memory.layer + rows[row].slot * memory.slot + rows[row].position * width;
    };
    Team& team = engine.team;
    team.run([&](int member) {
        const Range mine = portion(count, member, team.size);
        for (int row = mine.from; row < mine.to; ++row) {
            const float* from = encoded + rows[row].target * inputs;
            if (linear.quantises())
                input.quantise(row, linear, from);
            else
                std::copy(from, from + inputs, &input.values[size_t(row) * inputs]);
        }
        team.sync();
        multiply(linear, input, {0, count}, portion(linear.panels, member, team.size),
                 [&](int row, int column) { return entry(row, column / width) + column % width; }, keep);
        if (!stack || stack->layers.empty() || stack->layers[0].cross_key.empty()) return;
        team.sync();
        for (int row = mine.from; row < mine.to; ++row)
            for (size_t layer = 0; layer < stack->layers.size(); ++layer)
                for (float *head = entry(row, layer), *end = head + width / 2; head < end; head += stack->size)
                    stack->layers[layer].cross_key(head, head);
    });
}

}  // namespace
