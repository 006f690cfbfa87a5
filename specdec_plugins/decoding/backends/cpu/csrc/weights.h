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

enum Kind { FLOAT32, BFLOAT16, INT8, INT4 };
enum class Int4 : uint8_t {};  // two weights in a byte

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
// one unsigned factor; int4 weights 8, of the first 16 outputs in the lower four bits. The panel's trailer follows its weights, so
// a pass reads and prefetches one stream of memory. The layout is the same for all instruction sets.
struct Linear {
    int outputs, inputs, panels;
    Kind kind;

    // Without weights until `pack` has been called for all outputs.
    Linear(int outputs, int inputs, Kind kind)
        : outputs(outputs), inputs(inputs), panels((outputs + TILE - 1) / TILE),
          kind(kind), panel_bytes(sizeof(Trailer) + bytes_of(size_t(TILE) * inputs)),
          memory(allocate(panels * panel_bytes)) {
        if (panels) std::memset(memory.get() + (panels - 1) * panel_bytes, 0, panel_bytes);
    }
    bool quantises() const { return kind >= INT8; }  // its inputs
    // Sets output o's weights (I) and bias.
    void pack(const float* row, float bias, int o) {
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
        const float bound = largest_magnitude(row);
        scale = bound > 0 ? bound / 127 : 1;
        if (kind == INT8) return pack_bytes(row, scale, weights + column * 4);
        scale = nibble_scale(row, bound) / 16;  // products see 16 times the weights
        pack_nibbles(row, 16 * scale, weights + column % 16 * 4, column < 16);
    }
    // The weights of a panel: float, uint16_t, uint8_t or Int4.
    template <class Weight>
    const Weight* weights(int panel) const {
        return reinterpret_cast<const Weight*>(memory.get() + panel * panel_bytes);
    }
    template <class Weight>
    Weight* weights(int panel) {
        return reinterpret_cast<Weight*>(memory.get() + panel * panel_bytes);
    }
    const Trailer& trailer(int panel) const {
        return *reinterpret_cast<const Trailer*>(weights<char>(panel + 1) - sizeof(Trailer));
    }
    Trailer& trailer(int panel) { return *reinterpret_cast<Trailer*>(weights<char>(panel + 1) - sizeof(Trailer)); }

  private:
    size_t bytes_of(size_t count) const {
        return kind == FLOAT32 ? 4 * count : kind == BFLOAT16 ? 2 * count : kind == INT8 ? count : count / 2;
    }
    // By the bits of magnitudes, which have their order: compilers vectorise the maximum of integers.
    float largest_magnitude(const float* row) const {
        int32_t most = 0;
        for (int i = 0; i < inputs; ++i) most = std::max(most, std::bit_cast<int32_t>(row[i]) & 0x7fffffff);
        return std::bit_cast<float>(most);
    }
    // These round TILE weights at a time, so that compilers vectorise it, and store those of four inputs together.
    void pack_bytes(const float* row, float scale, char* to) const {
        for (int i = 0; i < inputs; i += TILE) {
            uint8_t values[TILE];
            for (int j = 0; j < TILE; ++j) values[j] = uint8_t(rounded(row[i + j] / scale) + 128);
            for (int j = 0; j < TILE; j += 4) std::memcpy(to + size_t(i + j) * TILE, values + j, 4);
        }
    }
    // Outputs are packed in order: those of the `lower` four bits clear the upper ones.
    void pack_nibbles(const float* row, float scale, char* to, bool lower) const {
        for (int i = 0; i < inputs; i += TILE) {
            uint8_t values[TILE];
            for (int j = 0; j < TILE; ++j) values[j] = uint8_t(std::clamp(rounded(row[i + j] / scale), -7, 7) + 8);
            for (int j = 0; j < TILE; j += 4) {
                uint32_t four, both;
                char* at = to + size_t(i + j) * TILE / 2;
                std::memcpy(&four, values + j, 4), std::memcpy(&both, at, 4);
                both = lower ? four : both | four << 4;
                std::memcpy(at, &both, 4);
            }
        }
    }
    // The scale with the smallest squared error: cutting off the largest weights leaves more steps for the others.
    float nibble_scale(const float* row, float bound) const {
        constexpr int TRIED = 6;  // 10 to 5 seventieths of the bound, each in a lane
        constexpr float ROUNDS = 0x1.8p23f;
        if (bound == 0) return 1;
        float scales[W], errors[W];
        for (int part = 0; part < W; ++part) scales[part] = bound * std::max(10 - part, 5) / 70;
        const Floats scale = load(scales);
        Floats error = 0;
        for (int i = 0; i < inputs; ++i) {
            const Floats whole = Floats(row[i]) / scale + ROUNDS - ROUNDS, nibble = -maximum(-maximum(whole, -7.0f), -7.0f);
            const Floats difference = nibble * scale - row[i];
            error += difference * difference;
        }
        store(errors, error);
        return scales[std::min_element(errors, errors + TRIED) - errors];
    }
    const size_t panel_bytes;
    const Memory memory;
};

}  // namespace
