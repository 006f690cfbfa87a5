// Any machine, with the compiler's own vectors: the definition of what the other files do faster.
#pragma once

namespace {
constexpr int BYTES = 16, REGISTERS = 16;
}
#include "wide.h"

namespace {

using FloatRegister = Wide<float, 4>::Register;
using IntRegister = Wide<int32_t, 4>::Register;
using LongRegister = Wide<uint64_t, 2>::Register;

INLINE FloatRegister fma(FloatRegister a, FloatRegister b, FloatRegister c) {  // rounded once, in software if need be
    for (int lane = 0; lane < 4; ++lane) c[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
    return c;
}
// Four bfloat16 numbers.
INLINE FloatRegister widened(const uint16_t* from) {
    return (FloatRegister)IntRegister{from[0] << 16, from[1] << 16, from[2] << 16, from[3] << 16};
}
INLINE bool any(IntRegister mask) { return mask[0] | mask[1] | mask[2] | mask[3]; }
// Products of the low halves of each lane.
INLINE LongRegister multiply_low(LongRegister a, uint32_t by) { return (a & 0xFFFFFFFF) * by; }
template <class Register>
INLINE Register held(Register value) {
    return value;
}

// ---- int8: four inputs of a row, as `prepare` writes them, and the products with unsigned weights that are added to a sum

constexpr int ROW_CHAINS = 1;   // sums of one row side by side, which would otherwise wait for each other
constexpr bool HOLDS = false;   // whether registers have room for the weights of four inputs
constexpr bool SPLITS = false;  // whether `dot` is exact only for inputs that are not `crowded`: see `Input`
constexpr ScreenedRows SCREENED_ROWS{0, 0};

struct Quad {
    int8_t x[4];
};
INLINE Quad quad(const int8_t* prepared) {
    Quad all;
    std::memcpy(&all, prepared, 4);
    return all;
}
INLINE void prepare(int8_t* to, Wide<int32_t, 16> x) {  // from -127 to 127
    int32_t all[16];
    store(all, x);
    for (int i = 0; i < 16; ++i) to[i] = int8_t(all[i]);
}
INLINE bool crowded(const int8_t*) { return false; }
INLINE IntRegister dot(IntRegister sums, Quad inputs, IntRegister weights) {
    uint8_t w[16];
    std::memcpy(w, &weights, 16);
    for (int lane = 0; lane < 4; ++lane)
        for (int i = 0; i < 4; ++i) sums[lane] += inputs.x[i] * w[4 * lane + i];
    return sums;
}

}  // namespace
