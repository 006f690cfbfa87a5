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

#include "pass.h"
#include "select.h"
#include "team.h"

namespace {

// One pass over scratch.rows. Each member of the team calls `run` with its number. Only the constructor allocates.
class Forward {
  public:
    // `alone`: members do not meet, and name the rows that they take.
    Forward(const Stack& stack, const Pass& pass, Team& team, Scratch& scratch, bool alone = false)
        : stack(stack), pass(pass), team(team), rows(scratch.rows), values(scratch.x), queries(scratch.queries), results(scratch.results),
          input(scratch.input), mixed(stack.queries() == stack.width ? scratch.input : scratch.mixed), hidden(scratch.hidden),
          reduced(scratch.reduced), promise(scratch.promise), reaches(scratch.reaches), bounds(scratch.bounds),
          attention(scratch.attention), count(int(rows.size())) {
        bool quantised = stack.projection && stack.projection->quantises();
        int inner = 0;
        for (const Layer& layer : stack.layers) {
            quantised |= layer.qkv->quantises();
            inner = std::max(inner, layer.fc1->outputs);
        }
        if (stack.screen) {
            reduced.resize(count, stack.screen->inputs, stack.screen->quantises());
            grow(promise, size_t(count) * stack.projection->panels);
        }
        if (pass.bounds) grow(reaches, count);
        input.resize(count, stack.width, quantised || pass.bounds);
        mixed.resize(count, stack.queries(), quantised);
        hidden.resize(count, inner, quantised);
        const size_t size = size_t(count) * stack.width, query_size = size_t(count) * stack.queries();
        grow(values, size), grow(queries, query_size);
        if (stack.norms == BOTH) grow(results, size);
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
        apart = alone || splits();
        divided = quantised;
    }

    void run(int member) {
        if (!apart) return through(Part{member, portion(count, member, team.size), {}});
        run(member, {bounds[member], bounds[member + 1]});
    }
    void run(int member, Range mine) {
        const int total = mine.to - mine.from;
        const int parts = divided ? (total + ROWS_AT_A_TIME - 1) / ROWS_AT_A_TIME : 1;
        for (int part = 0, from = mine.from; part < parts; ++part) {
            int to = std::max(from, mine.from + portion(total, part, parts).to);
            while (to < mine.to && rows[to].slot == rows[to - 1].slot) ++to;
            through(Part{member, {from, to}, {}});
            from = to;
        }
    }

  private:
    // Minimum rows per thread for splitting a pass by sentence.
    static constexpr int MIN_ROWS_APART = 8;
    // Rows that a member working alone takes through the pass at a time, with int8 products. Products of wider weights are too
    // slow for caches to matter, and rereading those weights takes longer.
    static constexpr int ROWS_AT_A_TIME = 32;
    // Rows of a sentence whose attention is computed together: a typical verification. Each takes about 130 KB of scratch memory
    // for 4,000 positions and 8 heads.
    static constexpr int MOST_QUERIES = 16;
    // Panels of a screened projection that are computed exactly.
    static constexpr int PROMISING = 16;

    // One member's part of the work. With few rows, each member computes some columns of every product, and some rows of
    // everything else. With enough sentences, each member takes some of them through the whole pass alone: reading all weights
    // costs less than waiting at barriers and moving data between caches.
    struct Part {
        int member;
        Range rows;
        Query together[MOST_QUERIES] = {};  // queries whose attention is being computed
    };

    // Takes a part's rows through the whole pass.
    void through(Part part) {
        each_row(part, [&](int row) { embed(row, part); });
        const int64_t layers = pass.output ? int64_t(stack.layers.size()) : pass.masses.layer + 1;
        for (int index = 0; index < layers; ++index) layer(index, part);
        if (pass.output) finish(part);
    }

    float* x(int row) { return &values[size_t(row) * stack.width]; }

    // Whether the rows can be split evenly between sentences (the rows of a sentence see each other); sets `bounds`.
    bool splits() {
        const int fair = count / team.size;
        if (team.size > 1 && fair < MIN_ROWS_APART) return false;
        bounds.assign(team.size + 1, count);
        for (int member = 0; member < team.size; ++member) {
            int& row = bounds[member] = portion(count, member, team.size).from;
            while (row && rows[row].slot == rows[row - 1].slot) --row;
        }
        for (int member = 0; member < team.size; ++member)
            if (bounds[member + 1] - bounds[member] > fair + fair / 4) return false;
        return true;
    }

    template <class Do>
    void each_row(const Part& part, Do&& todo) {
        for (int row = part.rows.from; row < part.rows.to; ++row) todo(row);
    }
    void sync() {
        if (!apart) team.sync();
    }
    template <class Place, class Write>
    void product(const Linear& linear, const Input& from, const Part& part, Place&& place, Write&& write) {
        if (apart)
            multiply(linear, from, part.rows, {0, linear.panels}, place, write);
        else
            multiply(linear, from, {0, count}, portion(linear.panels, part.member, team.size), place, write);
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
                float* mass = (source || merged) && what.wanted ? pass.masses.of(what.target, index) : nullptr;
                Query& query = part.together[end - first];
                query = {this->query(end), source ? what.source : layer.within(what.visible, what.position),
                         &mixed.values[size_t(end) * stack.queries()], what.position, mass,
                         index > 0 && pass.masses.layer < 0, pass.masses.heads};
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
        if (apart) {
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

    void finish(const Part& part) {
        if (!stack.projection) {
            each_row(part, [&](int row) {
                float* to = pass.output + rows[row].target * stack.width;
                if (stack.last.empty())
                    std::copy(x(row), x(row) + stack.width, to);
                else
                    stack.last(x(row), to);
            });
            return;
        }
        prepare(*stack.projection, &stack.last, part);
        if (pass.features)
            each_row(part, [&](int row) {
                const float* from = &input.values[size_t(row) * stack.width];
                std::copy(from, from + stack.width, pass.features + rows[row].target * stack.width);
            });
        if (pass.bounds)
            bound(part);
        else if (stack.screen)
            screen(part);
        else
            project(*stack.projection, input, pass.output, part);
        if (stack.logits_cap || !stack.ends.empty()) {
            sync();
            each_row(part, [&](int row) {
                const int count = stack.projection->outputs, whole = count / W * W;
                float* logits = pass.output + rows[row].target * count;
                for (int i = 0; stack.logits_cap && i < whole; i += W) store(logits + i, capped(load(logits + i), stack.logits_cap));
                for (int i = whole; stack.logits_cap && i < count; ++i) logits[i] = first(capped(logits[i], stack.logits_cap));
                stack.order_ends(logits);
            });
        }
        if (stack.gate) project(*stack.gate, input, pass.gates, part);
    }

    // Logits of a large output layer for less than its weights cost: approximate ones, of the hidden state in a basis (R, D) and
    // weights for it (V, R), and exact ones in the panels with the largest of those.
    void screen(const Part& part) {
        const Linear &exact = *stack.projection, &basis = *stack.basis, &approximate = *stack.screen;
        product(basis, input, part, [&](int row, int column) { return &reduced.values[size_t(row) * basis.outputs + column]; }, keep);
        sync();
        each_row(part, [&](int row) { quantise(reduced, approximate, row); });
        sync();
        project(approximate, reduced, pass.output, part);
        sync();
        each_row(part, [&](int row) {
            float *logits = pass.output + rows[row].target * exact.outputs, *most = &promise[size_t(row) * exact.panels];
            for (int panel = 0, first = 0; panel < exact.panels; ++panel, first += TILE)
                most[panel] = largest(logits + first, std::min(TILE, exact.outputs - first));
            int64_t best[PROMISING];
            const int kept = std::min(PROMISING, exact.panels);
            best_few(most, exact.panels, kept, best);
            for (int each = 0; each < kept; ++each) {
                const int panel = int(best[each]);
                multiply(exact, input, {row, row + 1}, {panel, panel + 1}, [&](int, int column) { return logits + column; }, keep);
            }
        });
    }

    // Upper bounds of logits for less than their weights cost: see screen.h. Logits of the other rows.
    void bound(const Part& part) {
        const Linear& exact = *stack.projection;
        each_row(part, [&](int row) { reaches[row] = stack.plane->reach(input, row); });
        sync();
        const Range mine = apart ? part.rows : Range{0, count};
        const Range panels = apart ? Range{0, exact.panels} : portion(exact.panels, part.member, team.size);
        const int others = std::clamp(pass.bounded, mine.from, mine.to);
        stack.plane->bound(input, reaches.data(), {mine.from, others}, panels,
                           [&](int row) { return pass.bounds + rows[row].target * exact.panels; });
        multiply(exact, input, {others, mine.to}, panels,
                 [&](int row, int column) { return pass.output + rows[row].target * exact.outputs + column; }, keep);
    }

    void project(const Linear& linear, const Input& from, float* output, const Part& part) {
        const auto place = [&](int row, int column) { return output + rows[row].target * linear.outputs + column; };
        product(linear, from, part, place, keep);
    }

    const Stack& stack;
    const Pass& pass;
    Team& team;
    std::vector<Row>& rows;
    std::vector<float>&values, &queries, &results;
    Input &input, &mixed, &hidden, &reduced;  // `mixed`: what attention makes, apart where rows have another length
    std::vector<float>& promise;
    std::vector<Reach>& reaches;
    std::vector<int>& bounds;
    std::vector<std::vector<float>>& attention;
    int count;   // rows still being computed
    bool apart;    // members work alone and meet only at the end,
    bool divided;  // on few enough rows at a time to stay in their caches
};

}  // namespace
