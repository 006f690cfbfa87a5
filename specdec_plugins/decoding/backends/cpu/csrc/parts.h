// A pass's rows, divided among the members of a team, and what every stage of a pass does with them.
//
// Shape letters: N rows, D width, V vocabulary.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention.h"
#include "linear.h"
#include "pass.h"
#include "team.h"

namespace {

class Parts {
  protected:
    // `alone`: members do not meet, and name the rows that they take.
    Parts(const Stack& stack, const Pass& pass, Team& team, Scratch& scratch, bool alone)
        : stack(stack), pass(pass), team(team), rows(scratch.rows), values(scratch.x), input(scratch.input), bounds(scratch.bounds),
          count(int(rows.size())), quantised(stack.projection && stack.projection->quantises()) {
        for (const Layer& layer : stack.layers) quantised |= layer.qkv->quantises();
        input.resize(count, stack.width, quantised || pass.bounds);
        grow(values, size_t(count) * stack.width);
        independent = alone || splits();
    }

    // Rows of a sentence whose attention is computed together: a typical verification. Each takes about 130 KB of scratch memory
    // for 4,000 positions and 8 heads.
    static constexpr int MOST_QUERIES = 16;

    // One member's part of the work. With few rows, each member computes some columns of every product, and some rows of
    // everything else. With enough sentences, each member takes some of them through the whole pass alone: reading all weights
    // costs less than waiting at barriers and moving data between caches.
    struct Part {
        int member;
        Range rows;
        Query together[MOST_QUERIES] = {};  // queries whose attention is being computed
    };

    float* x(int row) { return &values[size_t(row) * stack.width]; }

    template <class Do>
    void each_row(const Part& part, Do&& todo) {
        for (int row = part.rows.from; row < part.rows.to; ++row) todo(row);
    }
    void sync() {
        if (!independent) team.sync();
    }
    template <class Place, class Write>
    void product(const Linear& linear, const Input& from, const Part& part, Place&& place, Write&& write) {
        if (independent)
            multiply(linear, from, part.rows, {0, linear.panels}, place, write);
        else
            multiply(linear, from, {0, count}, portion(linear.panels, part.member, team.size), place, write);
    }

    void quantise(Input& what, const Linear& linear, int row) {
        if (linear.quantises()) what.quantise(row, linear, &what.values[size_t(row) * linear.inputs]);
    }

    // Makes x the input of a product, normalised if there is a norm.
    void prepare(const Linear& linear, const Norm* norm, const Part& part) {
        each_row(part, [&](int row) {
            float* to = &input.values[size_t(row) * stack.width];
            if (norm && !norm->empty()) {
                (*norm)(x(row), to);
                quantise(input, linear, row);
            } else if (linear.quantises() && !pass.features) {
                input.quantise(row, linear, x(row));
            } else {
                std::copy(x(row), x(row) + stack.width, to);
                quantise(input, linear, row);
            }
        });
        sync();
    }

    void project(const Linear& linear, const Input& from, float* output, const Part& part) {
        const auto place = [&](int row, int column) { return output + rows[row].target * linear.outputs + column; };
        product(linear, from, part, place, keep);
    }

    const Stack& stack;
    const Pass& pass;
    Team& team;
    std::vector<Row>& rows;
    std::vector<float>& values;
    Input& input;
    std::vector<int>& bounds;  // the first row of each member's part
    int count;                 // rows still being computed
    bool quantised;            // some products have quantised inputs
    bool independent;          // members work alone and meet only at the end

  private:
    // Minimum rows per thread for splitting a pass by sentence.
    static constexpr int MIN_ROWS_INDEPENDENT = 8;

    // Whether the rows can be split evenly between sentences (the rows of a sentence see each other); sets `bounds`.
    bool splits() {
        const int fair = count / team.size;
        if (team.size > 1 && fair < MIN_ROWS_INDEPENDENT) return false;
        bounds.assign(team.size + 1, count);
        for (int member = 0; member < team.size; ++member) {
            int& row = bounds[member] = portion(count, member, team.size).from;
            while (row && rows[row].slot == rows[row - 1].slot) --row;
        }
        for (int member = 0; member < team.size; ++member)
            if (bounds[member + 1] - bounds[member] > fair + fair / 4) return false;
        return true;
    }
};

}  // namespace
