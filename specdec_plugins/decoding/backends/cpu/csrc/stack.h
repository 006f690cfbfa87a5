// What an encoder or a decoder consists of, as calls.h describes it: embedding, layers, norms, output layer.
// Shape letters: D width, V vocabulary, H heads, G key heads, K width of a head.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "attention.h"
#include "calls.h"
#include "linear.h"
#include "screen.h"
#include "vectors.h"

namespace {

struct Norm {
    std::vector<float> weight, bias;
    float eps = 0;
    bool rms = false;

    Norm() = default;
    Norm(const NormCall& call, int width) : eps(float(call.eps)), rms(call.rms) {
        if (call.weight) weight.assign(call.weight, call.weight + width), bias.resize(width);
        if (call.bias) bias.assign(call.bias, call.bias + width);
    }
    bool empty() const { return weight.empty(); }
    void operator()(const float* x, float* to) const {  // x and to may be the same
        const int width = int(weight.size());
        float mean = 0, variance = 0;
        Floats total = 0;
        if (!rms) {
            for (int i = 0; i < width; i += W) total += load(x + i);
            mean = sum(total) / width;
        }
        total = 0;
        for (int i = 0; i < width; i += W) total = fma(load(x + i) - mean, load(x + i) - mean, total);
        variance = sum(total) / width;
        const float factor = 1 / std::sqrt(variance + eps);
        for (int i = 0; i < width; i += W) store(to + i, fma((load(x + i) - mean) * factor, load(&weight[i]), load(&bias[i])));
    }
};

enum Activation { RELU, GELU, GELU_TANH, SWISH };

// The norms around a part of a layer.
struct Residual {
    Norm norm, after;  // before the part or after the sum; and after the part, before the sum
};

struct Layer {
    const Linear *qkv, *out, *cross_query, *cross_out, *fc1, *fc2, *gate;  // the cross ones are NULL in an encoder
    Residual self, cross, final;
    Norm query, key, cross_query_norm, cross_key;  // of each head
    std::vector<float> relative;                   // see `HeadShape`
    int reach;
    const float* rotation;
    int64_t turned, before, after;  // see `LayerCall`
    int64_t entries;                // the layer of the caches that it reads and writes

    Layer(const LayerCall& call, int width, int head_width, int heads)
        : qkv(call.qkv), out(call.out), cross_query(call.cross_query), cross_out(call.cross_out), fc1(call.fc1), fc2(call.fc2),
          gate(call.gate), self{{call.norm, width}, {call.after_norm, width}},
          cross{{call.cross_norm, width}, {call.cross_after_norm, width}},
          final{{call.final_norm, width}, {call.final_after_norm, width}}, query(call.query_norm, head_width),
          key(call.key_norm, head_width), cross_query_norm(call.cross_query_norm, head_width),
          cross_key(call.cross_key_norm, head_width), reach(int(call.reach)), rotation(call.rotation), turned(call.turned),
          before(call.before), after(call.after), entries(call.entries) {
        for (int head = 0; call.relative && head < heads; ++head)
            for (int ahead = -reach - W; ahead < reach + W; ++ahead)
                relative.push_back(call.relative[head * (2 * reach + 1) + std::clamp(ahead, -reach, reach) + reach]);
    }
    // What a token at `position` attends to of what it could.
    Seen within(Seen seen, int64_t position) const {
        if (!before) return seen;
        seen.to = std::min(seen.to, position + after + 1);
        if (position < before) return seen;
        seen.from = std::max(seen.from, position - before + 1), seen.sinks = 0;
        return seen;
    }
};

enum Table { TABLE_FLOAT32, TABLE_BFLOAT16, TABLE_FLOAT16 };

struct Embedding {
    const void* tokens;      // (V, D), of this `kind`
    Table kind;
    const float* positions;  // (positions, D); NULL: tokens are not placed
    float scale;
    int64_t first, last;  // rows of `positions` for position 0 and for the last one
    bool zero_start;      // the token embedding at position 0 counts as zero
    Norm norm;            // empty if there is none

    // A token's embedding: in the table, or widened -> to (D).
    const float* of(int64_t token, int width, float* to) const {
        if (kind == TABLE_FLOAT32) return static_cast<const float*>(tokens) + token * width;
        const uint16_t* from = static_cast<const uint16_t*>(tokens) + token * width;
        return kind == TABLE_BFLOAT16 ? widened<from_bfloat16>(from, width, to) : widened<from_float16>(from, width, to);
    }

  private:
    // A parameter of the template, not of the function, so that the loop is one of vectors.
    template <float (*Widen)(uint16_t)>
    static const float* widened(const uint16_t* from, int width, float* to) {
        std::transform(from, from + width, to, Widen);
        return to;
    }
};

enum Norms { AFTER, BEFORE, BOTH };

struct Stack {
    int width, heads, key_heads, size;  // D, H, G, K
    Activation activation;
    Norms norms;
    bool merged;       // attention
    float scale, cap;  // of attention scores
    Embedding embedding;
    Norm last;                 // empty if there is none
    const Linear* projection;  // NULL in an encoder
    const Linear* gate;        // of the successor network; NULL if there is none
    const Linear *basis, *screen;  // of a drafter's screen: see `Forward::screen`; NULL if it has none
    const Plane* plane;            // of the projection; NULL if it has none
    float logits_cap;
    std::vector<int64_t> ends;  // tokens that end an output, eos first; empty: eos alone
    std::vector<Layer> layers{};

    explicit Stack(const StackCall& call)
        : width(int(call.width)), heads(int(call.heads)), key_heads(int(call.key_heads)), size(int(call.head_width)),
          activation(Activation(call.activation)), norms(Norms(call.norms)), merged(call.merged),
          scale(call.scale ? float(call.scale) : 1 / std::sqrt(float(call.head_width))), cap(float(call.cap)),
          embedding{call.tokens, Table(call.kind), call.positions, float(call.embedding_scale), call.first, call.last,
                    bool(call.zero_start), {call.embedding_norm, int(call.width)}},
          last(call.last_norm, int(call.width)), projection(call.projection), gate(call.gate), basis(call.basis),
          screen(call.screen), plane(call.plane), logits_cap(float(call.logits_cap)),
          ends(call.ends, call.ends + call.ends_count) {}
    int queries() const { return heads * size; }            // numbers of a query
    int entry() const { return 2 * key_heads * size; }      // and of an entry
    Floats activate(Floats value) const {
        return activation == RELU        ? maximum(value, 0.0f)
               : activation == GELU      ? gelu(value)
               : activation == GELU_TANH ? gelu_tanh(value)
                                         : swish(value);
    }
    // Tokens that end an output exchange their logits, so that eos, the first, has the largest and stands for all of them.
    void order_ends(float* logits) const {
        for (size_t sorted = 0; sorted < ends.size(); ++sorted)
            for (size_t at = sorted; at && logits[ends[at - 1]] < logits[ends[at]]; --at)
                std::swap(logits[ends[at - 1]], logits[ends[at]]);
    }
    HeadShape shape(const Layer* layer) const {  // of self-attention in a layer; NULL: of cross-attention
        HeadShape found{heads, size, heads / key_heads, scale, cap};
        if (layer && !layer->relative.empty()) found.relative = layer->relative.data(), found.reach = layer->reach;
        return found;
    }
};

}  // namespace
