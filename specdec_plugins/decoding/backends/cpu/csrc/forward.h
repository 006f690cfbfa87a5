// A Transformer's forward pass over a few rows, where eager PyTorch spends most of its time launching operations.
//
// A *row* is one position of one sentence. A pass takes any number of rows, of any sentences and at any positions, without
// padding. The other rows in a pass change neither the operations of a row nor their order. A block scored in one pass thus
// gets, bit for bit, the scores of its tokens one at a time: speculation is exact in every data type.
//
// A sentence's keys and values are in a *slot* of the cache (target side) and a slot of the memory (source side); several target
// slots may share a source slot. Shape letters: N rows, D width, V vocabulary, R width of the successor network.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "output.h"

namespace {

// One pass over scratch.rows. Each member of the team calls `run` with its number. Only the constructor allocates.
class Forward : Output {
  public:
    Forward(const Stack& stack, const Pass& pass, Team& team, Scratch& scratch, bool alone = false)
        : Output(stack, pass, team, scratch, alone), queries(scratch.queries), results(scratch.results),
          mixed(stack.queries() == stack.width ? scratch.input : scratch.mixed), hidden(scratch.hidden), attention(scratch.attention) {
        int inner = 0;
        for (const Layer& layer : stack.layers) inner = std::max(inner, layer.fc1->outputs);
        mixed.resize(count, stack.queries(), quantised);
        hidden.resize(count, inner, quantised);
        grow(queries, size_t(count) * stack.queries());
        if (stack.norms == BOTH) grow(results, size_t(count) * stack.width);
        int64_t longest = 0, path = 0;
        for (const Row& row : rows) {
            longest = std::max({longest, row.visible.end() + (stack.merged ? blocks_up_to(row.source.end()) * W : 0), row.source.end()});
            if (row.visible.path) path = std::max(path, row.visible.to - row.visible.branch);
        }
        attention.resize(team.size);
        const size_t entry = std::max(stack.entry(), 2 * stack.width);  // a source copy's is 2 D numbers long
        const size_t room = std::min(count, MOST_QUERIES) * attention_scratch(stack.heads, longest, path, entry);
        for (auto& own : attention)
            if (own.size() < room) own.resize(2 * room);
    }

    void run(int member) {
        if (!independent) return through(Part{member, portion(count, member, team.size), {}});
        run(member, {bounds[member], bounds[member + 1]});
    }
    void run(int member, Range mine) {
        const int total = mine.to - mine.from;
        const int parts = quantised ? (total + ROWS_AT_A_TIME - 1) / ROWS_AT_A_TIME : 1;
        for (int part = 0, from = mine.from; part < parts; ++part) {
            int to = std::max(from, mine.from + portion(total, part, parts).to);
            while (to < mine.to && rows[to].slot == rows[to - 1].slot) ++to;
            through(Part{member, {from, to}, {}});
            from = to;
        }
    }

  private:
    // Rows that a member working alone takes through the pass at a time, with int8 products. Products of wider weights are too
    // slow for caches to matter, and rereading those weights takes longer.
    static constexpr int ROWS_AT_A_TIME = 32;

    // Takes a part's rows through the whole pass.
    void through(Part part) {
        each_row(part, [&](int row) { embed(row, part); });
        const int64_t layers = pass.output ? int64_t(stack.layers.size()) : pass.attention_sums.layer + 1;
        for (int index = 0; index < layers; ++index) layer(index, part);
        if (pass.output) finish(part);
    }

    // Positions beyond the table use its last row. NULL without a table.
    const float* position(int row) const {
        const Embedding& from = stack.embedding;
        if (!from.positions) return nullptr;
        return from.positions + std::min(rows[row].position + from.first, from.last) * stack.width;
    }

    void embed(int row, const Part& part) {
        const Row& what = rows[row];
        const Embedding& embedding = stack.embedding;
        const int width = stack.width;
        const float* place = position(row);
        if (what.mask && pass.copied) {
            Query query{place, what.source, x(row)};
            attend(&query, 1, pass.copied + what.source_slot * pass.memory.slot, 2 * width, {1, width, 1, 1.0f},
                   attention[part.member].data());
            for (int i = 0; i < width; i += W) store(x(row) + i, load(x(row) + i) + load(place + i));
        } else if (embedding.zero_start && what.position == 0) {
            if (place)
                std::copy(place, place + width, x(row));
            else
                std::fill(x(row), x(row) + width, 0.0f);
        } else {
            const float* token = pass.embeddings ? pass.embeddings + what.token * width : embedding.of(what.token, width, x(row));
            for (int i = 0; i < width; i += W)
                store(x(row) + i, fma(load(token + i), embedding.scale, place ? load(place + i) : Floats(0)));
        }
        if (!embedding.norm.empty()) embedding.norm(x(row), x(row));
    }

    const Norm* before(const Residual& around) const { return stack.norms == AFTER ? nullptr : &around.norm; }

    // Adds a product to x, and normalises where norms follow.
    void residual(const Linear& linear, const Input& from, const Residual& around, const Part& part) {
        if (stack.norms == BOTH) {
            product(linear, from, part, [&](int row, int column) { return result(row) + column; }, keep);
            sync();
            each_row(part, [&](int row) {
                around.after(result(row), result(row));
                for (int i = 0; i < stack.width; i += W) store(x(row) + i, load(x(row) + i) + load(result(row) + i));
            });
            return;
        }
        product(linear, from, part, [&](int row, int column) { return x(row) + column; },
                [](float* to, Floats value) { store(to, load(to) + value); });
        sync();
        if (stack.norms == AFTER) each_row(part, [&](int row) { around.norm(x(row), x(row)); });
    }
    float* result(int row) { return &results[size_t(row) * stack.width]; }
    float* query(int row) { return &queries[size_t(row) * stack.queries()]; }

    // The norm of each head, and its rotation to a position, of queries or keys; a position of -1 does not turn.
    void turn(float* vector, int count, const Norm& norm, const Layer& layer, int64_t position) const {
        const int size = stack.size, half = size / 2;
        for (float* head = vector; head < vector + count * size; head += size) {
            if (!norm.empty()) norm(head, head);
            if (!layer.rotation || position < 0) continue;
            const float *cosine = layer.rotation + std::min(position, layer.turned - 1) * size, *sine = cosine + half;
            for (int i = 0; i < half; ++i) {
                const float first = head[i], second = head[half + i];
                head[i] = first * cosine[i] - second * sine[i], head[half + i] = second * cosine[i] + first * sine[i];
            }
        }
    }

    // Attention of the queries over the cache or the memory, as the input of the product `next`.
    void attend_rows(const Linear& next, const Entries& entries, int index, bool source, Part& part) {
        const Layer& layer = stack.layers[index];
        const bool merged = stack.merged && !source;
        const float* data = entries.data + layer.entries * entries.layer;
        const HeadShape shape = stack.shape(source ? nullptr : &layer);
        const auto slot = [&](int row) { return source ? rows[row].source_slot : rows[row].slot; };
        for (int first = part.rows.from, end; first < part.rows.to; first = end) {
            for (end = first; end < part.rows.to && end - first < MOST_QUERIES && slot(end) == slot(first); ++end) {
                const Row& what = rows[end];
                float* attention_sum = (source || merged) && what.wanted ? pass.attention_sums.of(what.target, index) : nullptr;
                Query& query = part.together[end - first];
                query = {this->query(end), source ? what.source : layer.within(what.visible, what.position),
                         &mixed.values[size_t(end) * stack.queries()], what.position, attention_sum,
                         index > 0 && pass.attention_sums.layer < 0, pass.attention_sums.heads};
                if (!merged) continue;
                query.memory = pass.memory.data + layer.entries * pass.memory.layer + what.source_slot * pass.memory.slot;
                query.source = what.source;
            }
            const float* next = end < part.rows.to && !merged ? data + slot(end) * entries.slot : nullptr;
            attend(part.together, end - first, data + slot(first) * entries.slot, stack.entry(), shape,
                   attention[part.member].data(), next);
        }
        each_row(part, [&](int row) { quantise(mixed, next, row); });
        sync();
    }

    void layer(int index, Part& part) {
        const Layer& layer = stack.layers[index];
        const int width = stack.queries();
        if (pass.block && index)
            each_row(part, [&](int row) {
                for (int i = 0; i < stack.width; i += W) store(x(row) + i, load(x(row) + i) + load(position(row) + i));
            });
        prepare(*layer.qkv, before(layer.self), part);
        float* cache = pass.cache.data + layer.entries * pass.cache.layer;
        const auto entry = [&](int row) { return cache + rows[row].slot * pass.cache.slot + rows[row].entry * stack.entry(); };
        const auto place = [&](int row, int column) {
            return column < width ? query(row) + column : entry(row) + (column - width);
        };
        product(*layer.qkv, input, part, place, keep);
        sync();
        if (layer.rotation || !layer.query.empty()) {
            each_row(part, [&](int row) {
                turn(query(row), stack.heads, layer.query, layer, rows[row].position);
                turn(entry(row), stack.key_heads, layer.key, layer, rows[row].position);
            });
            sync();
        }
        if (pass.narrowed && index + 1 == int(stack.layers.size())) drop_unwanted(part);
        attend_rows(*layer.out, pass.cache, index, false, part);
        residual(*layer.out, mixed, layer.self, part);
        if (layer.cross_query) {
            prepare(*layer.cross_query, before(layer.cross), part);
            product(*layer.cross_query, input, part, [&](int row, int column) { return query(row) + column; }, keep);
            sync();
            if (!layer.cross_query_norm.empty())
                each_row(part, [&](int row) { turn(query(row), stack.heads, layer.cross_query_norm, layer, -1); });
            attend_rows(*layer.cross_out, pass.memory, index, true, part);
            residual(*layer.cross_out, mixed, layer.cross, part);
        }
        prepare(*layer.fc1, before(layer.final), part);
        const int inner = layer.fc1->outputs;
        const auto inside = [&](int row, int column) { return &hidden.values[size_t(row) * inner] + column; };
        product(*layer.fc1, input, part, inside, [&](float* to, Floats value) { store(to, stack.activate(value)); });
        if (layer.gate)  // each member multiplies what it has written itself
            product(*layer.gate, input, part, inside, [](float* to, Floats value) { store(to, load(to) * value); });
        sync();
        if (layer.fc2->quantises()) {
            each_row(part, [&](int row) { quantise(hidden, *layer.fc2, row); });
            sync();
        }
        residual(*layer.fc2, hidden, layer.final, part);
    }

    void drop_unwanted(Part& part) {
        if (independent) {
            part.rows.to = compacted(part.rows);
            return;
        }
        if (part.member == 0) count = compacted({0, count});
        team.sync();
        part.rows = portion(count, part.member, team.size);
    }

    // Moves the wanted rows of a range to its beginning; returns their end.
    int compacted(Range range) {
        int end = range.from;
        for (int row = range.from; row < range.to; ++row)
            if (rows[row].wanted) {
                std::copy(x(row), x(row) + stack.width, x(end));
                std::copy(query(row), query(row) + stack.queries(), query(end));
                rows[end++] = rows[row];
            }
        return end;
    }

    std::vector<float>&queries, &results;
    Input &mixed, &hidden;  // `mixed`: what attention makes, apart where rows have another length
    std::vector<std::vector<float>>& attention;
};

}  // namespace
