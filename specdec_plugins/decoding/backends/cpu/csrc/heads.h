// Heads on hidden states, one per drafted token: x + swish(W_k [x, e] + b_k) for a row's hidden state x and, if the heads read
// it, the embedding e of its last token. B rows, S source positions, K heads, D width, V vocabulary.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "batch.h"
#include "linear.h"
#include "team.h"
#include "vectors.h"

namespace {

struct Heads {
    const Linear* linear;     // (K D, D), or (K D, 2 D)
    const float* embeddings;  // (V, D); NULL if the heads do not read the last token
    float scale;              // of the embeddings
    int64_t batch, width;     // B, D
    const float* states;      // (B, D)
    const int64_t* tokens;    // (B) the last ones; not read without embeddings
    float* to;                // (B, K, D)

    // Called before the team runs.
    void reserve(Engine& engine) const { engine.joined.resize(batch, linear->inputs, linear->quantises()); }

    // Each member calls it. Ends without waiting for the others.
    void run(Engine& engine, int member) const {
        Team& team = engine.team;
        Input& input = engine.joined;
        const Range mine = portion(int(batch), member, team.size);
        for (int64_t b = mine.from; b < mine.to; ++b) {
            float* x = &input.values[b * linear->inputs];
            std::copy_n(states + b * width, width, x);
            if (embeddings)
                for (int i = 0; i < width; i += W) store(x + width + i, load(embeddings + tokens[b] * width + i) * scale);
            if (linear->quantises()) input.quantise(int(b), *linear, x);
        }
        team.sync();
        multiply(
            *linear, input, {0, int(batch)}, portion(linear->panels, member, team.size),
            [&](int row, int column) { return to + int64_t(row) * linear->outputs + column; },
            [](float* at, Floats value) { store(at, swish(value)); });
        team.sync();
        for (int64_t b = mine.from; b < mine.to; ++b)
            for (float* vector = to + b * linear->outputs; vector < to + (b + 1) * linear->outputs; vector += width)
                for (int i = 0; i < width; i += W) store(vector + i, load(vector + i) + load(states + b * width + i));
    }
};

// W sum_s softmax(q h_s) h_s + b of an encoder's output h (S, D) -> to: a hidden state for a sentence before its first pass. The
// weights are float32, as a sentence needs them once. `weight` is (width, D), `query` (D).
void begin(const float* query, const float* weight, const float* bias, int64_t width, const float* encoded, int64_t length,
           int64_t size, std::vector<float>& mean, float* to) {
    const auto product = [&](const float* a, const float* b) {
        Floats total = 0;
        for (int64_t i = 0; i < size; i += W) total = fma(load(a + i), load(b + i), total);
        return sum(total);
    };
    mean.assign(size, 0);
    float most = -INFINITY, mass = 0;  // of the scores so far, and of their weights
    for (const float* each = encoded; each < encoded + length * size; each += size) {
        const float score = product(query, each), top = std::max(most, score);
        const float kept = exponential(most - top), part = exponential(score - top);
        for (int64_t i = 0; i < size; i += W) store(&mean[i], fma(load(each + i), part, load(&mean[i]) * kept));
        mass = fma(mass, kept, part), most = top;
    }
    for (int64_t o = 0; o < width; ++o) to[o] = product(weight + o * size, mean.data()) / mass + bias[o];
}

}  // namespace
