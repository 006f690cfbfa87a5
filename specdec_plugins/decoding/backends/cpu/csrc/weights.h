// Weights of linear layers, packed for products: see linear.h. O outputs, I inputs.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "memory.h"

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
inline int8_t rounded(float value) { return int8_t(std::bit_cast<int32_t>(value + 0x1.8p23f) - std::bit_cast<int32_t>(0x1.8p23f)); }

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
        float bound = 0;
        for (int i = 0; i < inputs; ++i) bound = std::max(bound, std::fabs(row[i]));
        scale = bound > 0 ? bound / 127 : 1;
        if (kind == INT4) scale = nibble_scale(row, bound) / 16;  // products see 16 times the weights
        for (int i = 0; i < inputs; ++i) {
            if (kind == INT4) {  // outputs are packed in order
                const uint8_t value = nibble(row[i] / (16 * scale)) + 8;
                char& both = weights[size_t(i / 4) * TILE * 2 + column % 16 * 4 + i % 4];
                both = column < 16 ? char(value) : char(uint8_t(both) | value << 4);
            } else {
                weights[size_t(i / 4) * TILE * 4 + column * 4 + i % 4] = char(rounded(row[i] / scale) + 128);
            }
        }
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
    static int8_t nibble(float value) { return std::clamp<int8_t>(rounded(std::clamp(value, -100.0f, 100.0f)), -7, 7); }
    // The scale with the smallest squared error: cutting off the largest weights leaves more steps for the others.
    float nibble_scale(const float* row, float bound) const {
        float best = 1, least = INFINITY;
        for (int part = 10; part >= 5 && bound > 0; --part) {
            const float scale = bound * part / 70;
            float error = 0;
            for (int i = 0; i < inputs; ++i) {
                const float difference = nibble(row[i] / scale) * scale - row[i];
                error += difference * difference;
            }
            if (error < least) least = error, best = scale;
        }
        return best;
    }
    const size_t panel_bytes;
    const Memory memory;
};

}  // namespace
