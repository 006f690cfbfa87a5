// Weights of linear layers, packed for products: see linear.h. O outputs, I inputs.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "memory.h"
#include "vectors.h"

namespace {

constexpr int TILE = 32;  // outputs per panel of weights

enum Kind { FLOAT32, BFLOAT16, INT8, INT4, INT4_GROUPS };
enum class Int4 : uint8_t {};    // two weights in a byte, a scale per output
enum class Groups : uint8_t {};  // the same, a scale per output and group of inputs

constexpr int GROUP = 32;  // inputs
constexpr size_t GROUP_BYTES = GROUP * TILE / 2 + 2 * TILE;  // of a panel

inline uint16_t to_bfloat16(float value) {  // to the nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline float from_bfloat16(uint16_t value) { return std::bit_cast<float>(uint32_t(value) << 16); }
inline float from_float16(uint16_t value) {  // finite; the factor moves the exponent's bias, for subnormal numbers, too
    const float magnitude = std::bit_cast<float>(uint32_t(value & 0x7fff) << 13) * 0x1p112f;
    return value & 0x8000 ? -magnitude : magnitude;
}

// A small number rounded to the nearest integer, ties to even: `lrintf` without the call. The sum's last bits are the integer.
inline int32_t rounded(float value) { return std::bit_cast<int32_t>(value + 0x1.8p23f) - std::bit_cast<int32_t>(0x1.8p23f); }

// A panel's data besides its weights.
struct Trailer {
    float bias[TILE], scale[TILE];
};

// Weights (O, I) in panels of TILE outputs, the last one padded with zeros. For each input, a panel holds the weights of its
// outputs side by side; of int8 and int4, each output's weights of four inputs. Int8 weights have 128 for zero, as products take
// one unsigned factor; int4 weights 8, of the first 16 outputs in the lower four bits. In groups, the weights of every GROUP inputs
// are followed by the scales of the outputs, in bfloat16. The panel's trailer follows its weights, so a pass reads and prefetches
// one stream of memory. The layout is the same for all instruction sets.
struct Linear {
    int outputs, inputs, panels;
    Kind kind;

    // Of `packed` panels, which stay the caller's; NULL: without weights until `pack` has been called for all outputs.
    Linear(int outputs, int inputs, Kind kind, char* packed = nullptr)
        : outputs(outputs), inputs(inputs), panels((outputs + TILE - 1) / TILE),
          kind(kind), panel_bytes(sizeof(Trailer) + TILE * output_bytes()),
          memory(packed ? Memory() : allocate(bytes())), data(packed ? packed : memory.get()) {
        if (panels && !packed) std::memset(data + (panels - 1) * panel_bytes, 0, panel_bytes);
    }
    size_t bytes() const { return panels * panel_bytes; }
    bool quantises() const { return kind >= INT8; }  // its inputs
    // Sets output o's weights (I) and bias. In groups, `scales` (I / GROUP) are the weights' own; NULL: those of the least error.
    void pack(const float* row, float bias, int o, const float* scales = nullptr) {
        const size_t column = o % TILE;
        char* weights = this->weights<char>(o / TILE);
        Trailer& trailer = this->trailer(o / TILE);
        trailer.bias[column] = bias;
        float& scale = trailer.scale[column] = 1;
        if (kind == FLOAT32)
            for (int i = 0; i < inputs; ++i) reinterpret_cast<float*>(weights)[size_t(i) * TILE + column] = row[i];
        if (kind == BFLOAT16)
            for (int i = 0; i < inputs; ++i) reinterpret_cast<uint16_t*>(weights)[size_t(i) * TILE + column] = to_bfloat16(row[i]);
        if (kind < INT8) return;
        if (kind == INT4_GROUPS) return pack_groups(row, scales, weights, int(column));
        const float bound = std::fabs(largest_weight(row, inputs));
        scale = bound > 0 ? bound / 127 : 1;
        if (kind == INT8) return pack_bytes(row, scale, weights + column * 4);
        scale = nibble_scale(row, bound) / 16;  // products see 16 times the weights
        pack_nibbles(row, inputs, 16 * scale, -7, weights + column % 16 * 4, column < 16);
    }
    // The weights of a panel: float, uint16_t, uint8_t or Int4.
    template <class Weight>
    const Weight* weights(int panel) const {
        return reinterpret_cast<const Weight*>(data + panel * panel_bytes);
    }
    template <class Weight>
    Weight* weights(int panel) {
        return reinterpret_cast<Weight*>(data + panel * panel_bytes);
    }
    const Trailer& trailer(int panel) const {
        return *reinterpret_cast<const Trailer*>(weights<char>(panel + 1) - sizeof(Trailer));
    }
    Trailer& trailer(int panel) { return *reinterpret_cast<Trailer*>(weights<char>(panel + 1) - sizeof(Trailer)); }

  private:
    size_t output_bytes() const {
        const size_t count = inputs;
        if (kind == INT4_GROUPS) return count / GROUP * GROUP_BYTES / TILE;
        return kind == FLOAT32 ? 4 * count : kind == BFLOAT16 ? 2 * count : kind == INT8 ? count : count / 2;
    }
    // The one of the largest magnitude, by the bits of magnitudes, which have their order: compilers vectorise the maximum of
    // integers.
    static float largest_weight(const float* row, int count) {
        int32_t most = 0, negative = 0;
        for (int i = 0; i < count; ++i) most = std::max(most, std::bit_cast<int32_t>(row[i]) & 0x7fffffff);
        for (int i = 0; i < count; ++i) negative |= std::bit_cast<uint32_t>(row[i]) == (uint32_t(most) | 0x80000000u);
        return negative ? -std::bit_cast<float>(most) : std::bit_cast<float>(most);
    }
    // These round TILE weights at a time, so that compilers vectorise it, and store those of four inputs together.
    void pack_bytes(const float* row, float scale, char* to) const {
        for (int i = 0; i < inputs; i += TILE) {
            uint8_t values[TILE];
            for (int j = 0; j < TILE; ++j) values[j] = uint8_t(rounded(row[i + j] / scale) + 128);
            for (int j = 0; j < TILE; j += 4) std::memcpy(to + size_t(i + j) * TILE, values + j, 4);
        }
    }
    // Outputs are packed in order: those of the `lower` four bits clear the upper ones. From `least` to 7.
    static void pack_nibbles(const float* row, int count, float scale, int least, char* to, bool lower) {
        for (int i = 0; i < count; i += TILE) {
            uint8_t values[TILE];
            for (int j = 0; j < TILE; ++j) values[j] = uint8_t(std::clamp(rounded(row[i + j] / scale), least, 7) + 8);
            for (int j = 0; j < TILE; j += 4) {
                uint32_t four, both;
                char* at = to + size_t(i + j) * TILE / 2;
                std::memcpy(&four, values + j, 4), std::memcpy(&both, at, 4);
                both = lower ? four : both | four << 4;
                std::memcpy(at, &both, 4);
            }
        }
    }
    void pack_groups(const float* row, const float* scales, char* weights, int column) const {
        for (int group = 0; group < inputs / GROUP; ++group, row += GROUP, weights += GROUP_BYTES) {
            const uint16_t scale = to_bfloat16(scales ? scales[group] : group_scale(row));
            pack_nibbles(row, GROUP, from_bfloat16(scale), -8, weights + column % 16 * 4, column < 16);
            std::memcpy(weights + GROUP_BYTES - 2 * TILE + 2 * column, &scale, 2);
        }
    }
    // Cutting off the largest weights leaves more steps for the others: 10 to 5 seventieths of the bound are tried.
    float nibble_scale(const float* row, float bound) const {
        float scales[W];
        for (int lane = 0; lane < W; ++lane) scales[lane] = bound * std::max(10 - lane, 5) / 70;
        return bound == 0 ? 1 : best_scale(scales, 6, row, inputs, -7);
    }
    // Of either sign, as there is one more step below zero than above.
    static float group_scale(const float* row) {
        const float most = largest_weight(row, GROUP);
        if (std::fabs(most) < 1e-30f) return 1;
        float scales[W];
        for (int lane = 0; lane < W; ++lane)
            scales[lane] = from_bfloat16(to_bfloat16(most * (1 - 0.05f * float(lane / 2)) / (lane % 2 ? 7 : -8)));
        return best_scale(scales, W, row, GROUP, -8);
    }
    // The one of the scales (W), each in a lane, with the smallest squared error; the first few are tried.
    static float best_scale(const float* scales, int tried, const float* row, int count, float least) {
        constexpr float ROUNDS = 0x1.8p23f;
        float errors[W];
        const Floats scale = load(scales);
        Floats error = 0;
        for (int i = 0; i < count; ++i) {
            const Floats whole = Floats(row[i]) / scale + ROUNDS - ROUNDS, nibble = -maximum(-maximum(whole, least), -7.0f);
            const Floats difference = nibble * scale - row[i];
            error += difference * difference;
        }
        store(errors, error);
        return scales[std::min_element(errors, errors + tried) - errors];
    }
    const size_t panel_bytes;
    const Memory memory;
    char* const data;
};

}  // namespace
