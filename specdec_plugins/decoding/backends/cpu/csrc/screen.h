// The best token by an output layer in int8, float32 or bfloat16, without reading all of its weights; exact.
//
// In units of its output's scale a weight is 16 h + l, and h a number of four bits; in int8 its upper four. The first product
// reads only the h of all weights, an eighth of float32's bytes. What the l add to a sum is at most |l| |x| (Cauchy and
// Schwarz), so it bounds each sum from above by an integer. In float32 and bfloat16 it multiplies quantised inputs, and the
// bound includes what these lose, at most |w| times its length, and what rounding adds to the exact sum, at most |w| |x| times
// half a unit in the last place for each input. The bound goes through the operations that make a logit of a sum: they are
// monotone, rounding included, so the result is an upper bound of the logit itself. Panels are then multiplied exactly, the
// largest bound first, until no bound reaches the best logit found.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "linear.h"
#include "select.h"

namespace {

// What the bounds of a row's logits depend on, in units of its inputs' scale.
struct Reach {
    float inputs = 0, rounding = 0;  // by which the lengths of an output's l and of its weights are multiplied
    bool bounded = false;            // whether the row has bounds: its logits are finite, and its scale is not too small
};

// The numbers h of a layer's weights, and what bounds the rest.
class Plane {
  public:
    // Of up to 65,536 inputs, so that bounds have 32 bits. Reads `exact` also later.
    explicit Plane(const Linear& exact)
        : exact(exact), upper(exact.outputs, exact.inputs, INT4), lower(size_t(exact.panels) * TILE), length(lower.size()),
          rounded_up(1 + float(exact.inputs + 32) * 0x1p-23f) {
        for (int panel = 0; panel < exact.panels; ++panel)
            exact.kind == INT8      ? take<uint8_t>(panel)
            : exact.kind == FLOAT32 ? take<float>(panel)
                                    : take<uint16_t>(panel);
    }

    // Rows of a pass up to which it is worth while. Measured on an Intel Xeon (Sapphire Rapids), one thread: with 30 MB of int8
    // weights (V 58,101, D 512) bounds take 0.46 to 0.64 of the time of logits for 1 to 14 rows with AVX-512, 0.56 to 0.67 for 1 to
    // 9 with AVX2; with 2 MB, which stay in caches, 0.5 for 1 to 5 and 0.76 for 9 with AVX-512, 0.5, 0.72 and 1 for 1, 2 and 3 with
    // AVX2. Without vector instructions for bytes arithmetic takes all the time. In float32 (V 8,000, D 256, AMD Zen 4) they take
    // 0.19 to 0.31 for 1 to 64 rows with AVX-512, 0.29 to 0.56 with AVX2 and, for 1 to 8 rows, 0.22 to 0.24 without either.
    static int rows(const Linear& exact) {
        if (!exact.quantises()) return std::numeric_limits<int>::max();
        const bool large = size_t(exact.outputs) * exact.inputs > (8 << 20);  // for second-level caches
        return large ? SCREENED_ROWS.large : SCREENED_ROWS.small;
    }

    // Of a row of the layer's input, which it quantises if the layer does not.
    Reach reach(Input& input, int row) const {
        const int inputs = exact.inputs;
        Reach found;
        if (exact.quantises()) {
            found.inputs = input.norm(row, inputs);
        } else {
            const float *x = &input.values[size_t(row) * inputs], lost = 0.501f * std::sqrt(float(inputs));
            input.quantise(row, upper, x);
            Floats squares = 0;
            for (int i = 0; i < inputs; i += W) squares = fma(load(x + i), load(x + i), squares);
            const float norm = std::sqrt(sum(squares)) / input.scale[row];
            found.inputs = (norm + lost) * rounded_up, found.rounding = (lost + (rounded_up - 1) * norm) * rounded_up;
            if (!(found.inputs < INFINITY && input.scale[row] >= SMALLEST)) return {};
        }
        const double most = double(input.scale[row]) * (1 << 15) * inputs;  // times a sum, or its bound
        found.bounded = most < FLT_MAX && most * largest_scale + largest_bias < FLT_MAX / 2;
        return found.bounded ? found : Reach{};
    }

    // Upper bounds of the logits in each panel for some rows -> place(row) (panels). `reaches`: of the rows.
    template <class Place>
    void bound(const Input& input, const Reach* reaches, Range rows, Range panels, Place&& place) const {
        multiply_by<Int4>(upper, input, rows, panels, [&](int panel, int first, int count, float* sums) __attribute__((always_inline)) {
            const Trailer& trailer = upper.trailer(panel);
            const float *lower = &this->lower[size_t(panel) * TILE], *length = &this->length[size_t(panel) * TILE];
            for (int row = first; row < first + count; ++row, sums += TILE) {
                Floats most = -INFINITY;
#pragma GCC unroll 8
                for (int c = 0; c < TILE; c += W) {
                    const Floats rest = fma(load(lower + c), reaches[row].inputs, load(length + c) * reaches[row].rounding);
                    // Conversion truncates.
                    const Ints sum = bits_as<int32_t>(load(sums + c)) + input.start[row] + convert<int32_t>(rest) + 1;
                    most = maximum(most, result_of(sum, input.scale[row], load(trailer.scale + c), load(trailer.bias + c)));
                }
                place(row)[panel] = largest(most);
            }
        });
    }

    const Linear& exact;

  private:
    // Of a scale in float32 and bfloat16: rounding the products of still smaller numbers adds more than their size tells.
    static constexpr float SMALLEST = 0x1p-60f;

    static float number(float weight) { return weight; }
    static float number(uint16_t weight) { return from_bfloat16(weight); }

    // Splits a panel's weights. Adds to sums of squares of the l and of all weights, in units of the outputs' scales; the latter are
    // of no use for bytes, whose inputs are exact.
    void split(const uint8_t* from, const float*, uint8_t* to, float* lows, float*) const {
        int32_t squares[4 * TILE] = {};  // of integers, as this is most of what loading a packed model takes
        for (int i = 0; i < exact.inputs; i += 4, from += 4 * TILE, to += 2 * TILE) {
            uint8_t high[4 * TILE];
            for (int each = 0; each < 4 * TILE; ++each) {
                high[each] = (std::min<int>(from[each], 247) + 8) >> 4;
                const int low = from[each] - 16 * high[each];
                squares[each] += low * low;
            }
            store_halves(high, to);
        }
        std::copy(squares, squares + 4 * TILE, lows);
    }
    template <class Weight>
    void split(const Weight* from, const float* scale, uint8_t* to, float* lows, float* all) const {
        for (int i = 0; i < exact.inputs; i += 4, to += 2 * TILE) {
            float four[4 * TILE];
            uint8_t high[4 * TILE];
            for (int input = 0; input < 4; ++input)
                for (int column = 0; column < TILE; ++column) four[4 * column + input] = number(*from++) / scale[column];
            for (int each = 0; each < 4 * TILE; ++each) {
                const int32_t upper = int32_t(std::min(std::max(-128.0f, four[each]), 119.0f) / 16 + 8.5f);
                const float low = four[each] - float(16 * (upper - 8));
                lows[each] += low * low, all[each] += four[each] * four[each], high[each] = uint8_t(upper);
            }
            store_halves(high, to);
        }
    }
    static void store_halves(const uint8_t* high, uint8_t* to) {
        for (int each = 0; each < 2 * TILE; ++each) to[each] = high[each] | high[2 * TILE + each] << 4;
    }

    template <class Weight>
    void take(int panel) {
        const Weight* from = exact.weights<Weight>(panel);
        Trailer& trailer = upper.trailer(panel);
        trailer = exact.trailer(panel);
        if constexpr (!is_scaled<Weight>) {
            float most[TILE] = {};
            for (int i = 0; i < exact.inputs * TILE; ++i) most[i % TILE] = std::max(most[i % TILE], std::fabs(number(from[i])));
            for (int column = 0; column < TILE; ++column) trailer.scale[column] = std::max(most[column] / 127, SMALLEST);
        }
        float lows[4 * TILE] = {}, all[4 * TILE] = {};  // sums of squares
        split(from, trailer.scale, upper.weights<uint8_t>(panel), lows, all);
        for (int column = 0; column < TILE; ++column) {
            const auto length_of = [&](const float* squares) {
                const float* own = squares + 4 * column;
                return std::sqrt(own[0] + own[1] + own[2] + own[3]) * rounded_up;
            };
            const size_t output = size_t(panel) * TILE + column;
            lower[output] = length_of(lows), length[output] = length_of(all);
            if (int64_t(output) >= exact.outputs) trailer.bias[column] = -INFINITY;
            else {
                largest_scale = std::max(largest_scale, length[output] < INFINITY ? double(trailer.scale[column]) : INFINITY);
                largest_bias = std::max(largest_bias, double(std::fabs(trailer.bias[column])));
            }
        }
    }

    Linear upper;
    std::vector<float> lower, length;  // (V in whole panels) of the outputs' l and weights, rounded up
    const float rounded_up;            // a factor for all that rounding adds to an exact sum and to its bound
    double largest_scale = 0, largest_bias = 0;
};

// Whether a pass is screened. Where many logits are nearly as large as the best, most panels are computed after all, each for one
// row. After two such passes the next ones are not screened, each time twice as many.
class Screening {
  public:
    bool pays() { return !pause || !pause--; }
    void note(int64_t computed, int64_t panels, int64_t rows) {
        average += (double(computed) / double(panels * std::max<int64_t>(1, rows / ALIKE)) - average) / 4;
        if (++passes >= period) period = SHORTEST;
        if (average <= MOST) return;
        pause = period, period = std::min(2 * period, LONGEST), average = passes = 0;
    }

    static constexpr int64_t ALIKE = 8;  // rows whose logits take little longer than one row's: reading the weights takes the time

  private:
    static constexpr double MOST = 0.25;  // of the panels; bounds save the time of half of them
    static constexpr int SHORTEST = 16, LONGEST = 1024;  // passes
    double average = 0;  // part of the panels that passes computed
    int pause = 0, period = SHORTEST;
    int passes = 0;  // since the last pause
};

// Upper bounds of a pass's logits, and what these are computed from.
struct Bounds {
    const Plane* plane;
    const Input& input;
    const std::vector<Reach>& reaches;  // of its rows
    const int* rows;                    // of `input`, by result
    int count;                          // the first so many rows have bounds, the others logits
    float* bounds;                      // (results, panels)
};

// The logits of a position, computed panel by panel as far as a choice needs them. Those of banned tokens are minus infinity.
class Lazy {
  public:
    // Of a result; uses up its bounds -> values (V).
    Lazy(const Bounds& from, int64_t result, float* values, const std::vector<int64_t>& banned)
        : exact(from.plane->exact), input(from.input), row(from.rows[result]), bounds(from.bounds + result * exact.panels),
          values(values), banned(banned) {}

    float of(int64_t token) {
        if (bounds[token / TILE] > -INFINITY) compute(int(token / TILE));
        return values[token];
    }
    // Computes what may be the largest logit.
    void find_best() {
        while (next(most)) {}
    }
    // Whether fewer than `few` tokens come before this one, by logits and then by id.
    bool among(int64_t token, int64_t few) {
        const float own = of(token);
        const auto ahead = [&](int panel) {
            int64_t count = 0;
            for (int64_t i = panel * TILE; i < end(panel); ++i) count += values[i] > own || (values[i] == own && i < token);
            return count;
        };
        int64_t count = 0;
        for (int panel = 0; panel < exact.panels; ++panel)
            if (bounds[panel] == -INFINITY) count += ahead(panel);
        while (count < few && next(own)) count += ahead(last);
        return count < few;
    }

    float most = -INFINITY;  // of the logits computed
    int64_t best = 0;        // the first token that has it
    int panels = 0;          // computed

  private:
    int64_t end(int panel) const { return std::min((panel + 1) * TILE, exact.outputs); }

    // Computes the panel with the largest bound, unless its logits are all less than `least`.
    bool next(float least) {
        const int64_t panel = best_of(bounds, exact.panels);
        if (bounds[panel] < least || bounds[panel] == -INFINITY) return false;
        compute(int(panel));
        return true;
    }
    void compute(int panel) {
        last = panel;
        bounds[panel] = -INFINITY, ++panels;
        multiply(exact, input, {row, row + 1}, {panel, panel + 1}, [&](int, int column) { return values + column; }, keep);
        const int64_t first = panel * TILE, end = this->end(panel);
        for (int64_t token : banned)
            if (first <= token && token < end) values[token] = -INFINITY;
        const float top = largest(values + first, end - first);
        const int64_t token = std::find(values + first, values + end, top) - values;
        if (top > most || (top == most && token < best)) most = top, best = token;
    }

    const Linear& exact;
    const Input& input;
    const int row;
    int last = 0;  // panel computed
    float *const bounds, *const values;
    const std::vector<int64_t>& banned;
};

}  // namespace
