// The matrix unit, for int8 products of many rows.
#pragma once

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "../memory.h"
#include "../weights.h"

namespace {

// The matrix unit multiplies tiles, registers of 16 rows of 64 bytes: inputs of 16 rows, or weights of 16 outputs for 64 inputs,
// in a panel's own layout. Its integer sums equal the vector unit's.
class MatrixUnit {
  public:
    static constexpr int ROWS = 32, INPUTS = 64;  // maximum rows of a product; the number of inputs is a multiple of INPUTS
    ~MatrixUnit() {
        if (rows) _tile_release();  // saves the system 8 KB per thread switch
    }
    // `rows` rows times one panel -> to (rows, TILE), still integers.
    void product(int rows, const int8_t* x, int inputs, const uint8_t* w, float* to) {
        if (rows != this->rows) configure(rows);
        written(x);
        const bool both = rows > HALF;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int i = 0; i < inputs; i += INPUTS, w += INPUTS * TILE) {
            prefetch<INPUTS * TILE>(w, AHEAD);
            _tile_loadd(6, w, 4 * TILE);
            _tile_loadd(7, w + 64, 4 * TILE);
            _tile_loadd(4, x + i, inputs);
            _tile_dpbsud(0, 4, 6);
            _tile_dpbsud(1, 4, 7);
            if (both) {
                _tile_loadd(5, x + size_t(HALF) * inputs + i, inputs);
                _tile_dpbsud(2, 5, 6);
                _tile_dpbsud(3, 5, 7);
            }
        }
        _tile_stored(0, to, 4 * TILE);
        _tile_stored(1, to + 16, 4 * TILE);
        if (both) {
            _tile_stored(2, to + HALF * TILE, 4 * TILE);
            _tile_stored(3, to + HALF * TILE + 16, 4 * TILE);
        }
    }

  private:
    static constexpr int HALF = ROWS / 2;

    // GCC does not know that the intrinsics read memory, and could move earlier writes behind them.
    static void written(const void* there) { __asm__ volatile("" ::"r"(there) : "memory"); }

    // Tiles 0 to 3: sums, for each half of the rows and each half of the panel; 4, 5: rows; 6, 7: weights.
    void configure(int rows) {
        const uint8_t first = std::min(rows, HALF), second = std::max(rows - HALF, 1);
        const struct alignas(64) {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16];
        } shape{.rows = {first, first, second, second, first, second, 16, 16}};
        written(&shape);
        _tile_loadconfig(&shape);
        this->rows = rows;
    }
    int rows = 0;  // for which the registers are configured
};

// Asks the system, once per process, for the matrix unit; returns whether it may be used.
inline bool matrix_unit_is_allowed() {
    constexpr int REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

}  // namespace
