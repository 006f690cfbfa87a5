// Work on a batch: the rows of a causal pass, choosing drafted tokens, judging drafts. B rows of the batch, V vocabulary, R width
// of the successor network.
#pragma once

#include <cstdint>
#include <vector>

#include "calls.h"
#include "forward.h"
#include "judge.h"
#include "sample.h"
#include "screen.h"
#include "select.h"
#include "team.h"

namespace {

// Threads and scratch memory for one call at a time.
struct Engine {
    explicit Engine(int threads) : team(threads) {}
    Team team;
    Scratch scratch;
    Judge judge;
    std::vector<float> kept;                     // (threads, forbidden tokens)
    std::vector<Chosen> chosen;                  // (B, width)
    std::vector<int64_t> positions, candidates;  // positions to choose tokens for; the candidates of each
    std::vector<double> totals;                  // of the candidates, where rows sample
    std::vector<const int64_t*> drafts;          // (B) the drafted tokens of each row
    std::vector<float> weights;                  // (threads, V) in whole blocks, where rows sample
    std::vector<Draws> draws;                    // (B)
    std::vector<Repeats> repeats;                // (B)
    std::vector<std::vector<Forbidden>> repeated;  // (threads) tokens that would repeat an n-gram
    std::vector<std::vector<int64_t>> excluded;  // (threads) banned tokens of the position that is judged
    Screening screening;
    std::vector<int64_t> computed;  // (threads) panels of screened passes
    std::vector<int> row_of;        // (B, width) the row of each result
    std::vector<float> bounds;      // (B, width, panels)
    Input joined;                                // of heads: hidden states, and embeddings where they read these
    std::vector<float> mean;                     // (D) of an encoder's output

    // Bans tokens for `judge`. Called before the team runs.
    void forbid(int64_t vocabulary, int64_t eos, int64_t count, const int64_t* banned) {
        judge.vocabulary = vocabulary;
        judge.forbidden.assign(banned, banned + count);
        judge.forbidden.push_back(eos);
        grow(kept, team.size * judge.forbidden.size());
        repeated.resize(team.size), excluded.resize(team.size), computed.assign(team.size, 0);
    }
    // The same, with memory for judging so many results; `draws` if rows sample.
    void reserve(const JudgeCall& call, int64_t vocabulary, size_t results, const Draws* draws) {
        forbid(vocabulary, call.eos, call.banned_count, call.banned);
        grow(chosen, results);
        if (draws) grow(weights, team.size * weights_of(vocabulary));
    }
    float* kept_by(int member) { return &kept[member * judge.forbidden.size()]; }
    float* weights_by(int member, const Draws* draws) {
        return draws ? &weights[member * weights_of(judge.vocabulary)] : nullptr;
    }
    // Memory for the bounds of the first `count` rows in a pass over scratch.rows; none without a plane.
    Bounds bounds_of(const Plane* plane, int count, int64_t results) {
        if (!plane) return {nullptr, scratch.input, scratch.reaches, nullptr, 0, nullptr};
        grow(bounds, results * plane->exact.panels);
        row_of.resize(results);
        for (size_t row = 0; row < scratch.rows.size(); ++row)
            if (scratch.rows[row].target < results) row_of[scratch.rows[row].target] = int(row);
        return {plane, scratch.input, scratch.reaches, row_of.data(), count, bounds.data()};
    }
};

Pass pass_of(const Caches& from, bool narrowed, float* logits, float* gates) {
    return {{from.cache, from.cache_layer, from.cache_slot}, {from.memory, from.memory_layer, from.memory_slot}, nullptr, false,
            narrowed, logits, gates, nullptr};
}

// Makes the rows of a causal pass; returns whether some have no result.
bool add_causal_rows(std::vector<Row>& rows, int64_t batch, int64_t width, const ReadRow* reads, const int64_t* tokens) {
    bool narrowed = false;
    rows.clear();
    for (int64_t b = 0; b < batch; ++b) {
        const ReadRow& read = reads[b];
        for (int64_t k = 0; k < read.tokens; ++k) {
            const int64_t position = read.position + k;
            rows.push_back({.token = *tokens++, .slot = read.slot, .position = position, .visible = position + 1, .entry = position,
                            .source_slot = read.source_slot, .source = read.source_length,
                            .target = b * width + k - read.first, .mask = false, .wanted = k >= read.first});
            narrowed |= k < read.first;
        }
    }
    return narrowed;
}

void limit_rows(std::vector<Row>& rows, int64_t batch, const ReadRow* reads, const Visible& visible) {
    Row* row = rows.data();
    for (int64_t b = 0; b < batch; ++b) {
        const int64_t* listed = visible.positions + b * visible.listed;
        Seen source;
        source.listed = listed;
        source.listed_count = std::lower_bound(listed, listed + visible.listed, reads[b].source_length) - listed;
        for (const Row* end = row + reads[b].tokens; row < end; ++row) {
            row->source = source;
            row->visible.from = std::max<int64_t>(0, row->visible.to - visible.window);
            row->visible.sinks = std::min(visible.sinks, row->visible.from);
        }
    }
}

// Copies the entries of a path: `nodes` of a tree that slot `from` has from position `first` on, to slot `to`, in a row.
template <class Nodes>
void copy_path(const Stack& stack, const Caches& caches, int64_t from, int64_t first, const Nodes& nodes, int64_t to) {
    const int64_t entry = stack.entry();
    for (size_t layer = 0; layer < stack.layers.size(); ++layer) {
        float* entries = caches.cache + layer * caches.cache_layer + first * entry;
        float* next = entries + to * caches.cache_slot;
        for (int64_t node : nodes) {  // ascending, so none is overwritten before its turn
            const float* own = entries + from * caches.cache_slot + node * entry;
            if (own != next) std::copy_n(own, entry, next);
            next += entry;
        }
    }
}

// Turns the rows of a causal pass into trees. `paths` keeps the paths until the pass ends.
void branch_rows(std::vector<Row>& rows, std::vector<int64_t>& paths, int64_t batch, const ReadRow* reads, const int64_t* parents) {
    size_t size = 0;  // of all paths, which must not move once rows point into them
    Row* own = rows.data();  // the first of a sentence
    for (int64_t b = 0; b < batch; own += reads[b].tokens, parents += reads[b].tokens, ++b)
        for (int64_t k = 0; k < reads[b].tokens; ++k) {
            own[k].position = parents[k] < 0 ? reads[b].position : own[parents[k]].position + 1;
            own[k].visible = own[k].position + 1;
            size += own[k].visible.to - reads[b].position;
        }
    grow(paths, size);
    int64_t* next = paths.data();
    parents -= rows.size(), own = rows.data();
    for (int64_t b = 0; b < batch; own += reads[b].tokens, parents += reads[b].tokens, ++b)
        for (int64_t k = 0; k < reads[b].tokens; ++k) {
            if (own[k].entry == own[k].position) continue;  // it follows all tokens before it, as in a chain
            Seen& visible = own[k].visible;
            visible.path = next, visible.branch = reads[b].position;
            next += visible.to - visible.branch;
            int64_t* to = next;
            for (int64_t node = k; *--to = own[node].entry, parents[node] >= 0;) node = parents[node];
        }
}

// Where the distributions of drafted tokens are written, or read: see `Sampling`.
struct Origins {
    int64_t* tokens;
    float* probabilities;
    int64_t width, candidates;
};
Origins origins_of(const Sampling* sampling) {
    return sampling ? Origins{sampling->tokens, sampling->probabilities, sampling->width, sampling->candidates} : Origins{};
}

// The choice of a token for each position of drafts: see `ChooseCall`.
struct Choice {
    const ChooseCall& call;
    float* logits;  // (B, width, V)
    int64_t batch, width, vocabulary;
    const float* gates;  // (B, width, R); NULL without a successor network
    int64_t gate_width;  // R
    const Draws* draws;  // (B); NULL: no row samples
    Origins origins;     // written for rows under the rejection rule

    // Called before the team runs.
    void reserve(Engine& engine) const {
        auto& positions = engine.positions;
        positions.clear();
        for (int64_t b = 0; b < batch; ++b)
            for (int64_t k = 0; k < call.rows[b].drafted; ++k) positions.push_back(b * width + k);
        const size_t size = gates || draws ? batch * width * call.candidates : 0;
        grow(engine.candidates, size), grow(engine.totals, size);
    }

    void run(Engine& engine, int member) const {
        Team& team = engine.team;
        Range mine = portion(int(engine.positions.size()), member, team.size);
        for (int number = mine.from; number < mine.to; ++number) take(engine, engine.positions[number]);
        if (!gates) return;
        team.sync();
        mine = portion(int(batch), member, team.size);
        for (int64_t b = mine.from; b < mine.to; ++b)
            for (int64_t position = b * width + 1; position < b * width + call.rows[b].drafted; ++position)
                call.chosen[position] = choose(engine, position);
    }

    // Chooses a position's token, or the candidates for it where that depends on the token before.
    void take(Engine& engine, int64_t position) const {
        const int64_t b = position / width, k = position % width, few = call.candidates;
        float* values = logits + position * vocabulary;
        if (call.pad >= 0) values[call.pad] = -INFINITY;
        if (call.eos >= 0 && k == 0 && call.rows[b].empty) values[call.eos] = -INFINITY;
        const bool last = !gates || k == 0;
        if (samples(b) || !last) best_few(values, vocabulary, few, &engine.candidates[position * few]);
        if (last) call.chosen[position] = samples(b) ? choose(engine, position) : best_of(values, vocabulary);
    }

  private:
    bool samples(int64_t b) const { return draws && draws[b].some(); }

    // A position's token among its candidates. With a successor network the token before it has been chosen.
    int64_t choose(Engine& engine, int64_t position) const {
        const int64_t b = position / width, k = position % width, candidates = call.candidates;
        int64_t* few = &engine.candidates[position * candidates];
        double* totals = &engine.totals[position * candidates];
        for (int64_t i = 0; i < candidates; ++i) {
            const float logit = logits[position * vocabulary + few[i]];
            totals[i] = !gates || k == 0 ? logit
                                         : successor_score(logit, gates + position * gate_width,
                                                           call.tokens + call.chosen[position - 1] * gate_width,
                                                           call.outs + few[i] * gate_width, gate_width);
        }
        if (!samples(b)) return few[std::max_element(totals, totals + candidates) - totals];
        const bool recorded = draws[b].rejects && origins.tokens;
        const int64_t at = (b * origins.width + k) * candidates;
        return draw_few(draws[b], draws[b].noise(k, draws[b].rejects ? DRAFT : SAMPLE), few, totals, candidates,
                        call.token_ids, recorded ? origins.tokens + at : nullptr,
                        recorded ? origins.probabilities + at : nullptr);
    }
};

// The judging of a batch of drafts: see `JudgeCall`.
struct Judging {
    const JudgeCall& call;
    float* logits;  // (B, width, V)
    int64_t batch, width;
    const int64_t* const* drafts;  // (B) the tokens of each row's
    const Draws* draws;            // (B); NULL: no row samples
    Origins origins;               // of the drafted tokens; empty if each was certain
    const Repeats* repeats;        // (B); NULL: no row bans repeats
    const Bounds* bounds = nullptr;  // in place of logits, where rows neither sample nor want scores

    // Called before the team runs.
    void reserve(Engine& engine, int64_t vocabulary) const { engine.reserve(call, vocabulary, batch * width, draws); }

    // Members take the positions of a row in turn: first to choose a token at each, until they refuse one themselves, which
    // bounds the work past the first refusal; then to score the tokens up to that, where the row wants scores.
    void run(Engine& engine, int member) const {
        const Judge& judge = engine.judge;
        const int size = engine.team.size;
        float *kept = engine.kept_by(member), *weights = engine.weights_by(member, draws);
        for (int64_t b = 0; b < batch; ++b) {
            const int64_t offered = call.rows[b].drafted;
            const Draft draft{drafts[b], offered, call.rows[b], draws && draws[b].some() ? draws + b : nullptr, origin(b),
                              repeats && repeats[b].size ? repeats + b : nullptr};
            bool passes = true;
            for (int64_t k = (b + member) % size; passes && k <= offered; k += size) {
                const int64_t at = b * width + k;
                float* values = logits + at * judge.vocabulary;
                engine.chosen[at] = bounded(at) && bounds->reaches[bounds->rows[at]].bounded
                                        ? lazily(engine, member, draft, k, at)
                                        : judge(draft, k, all(values, at), kept, engine.repeated[member], weights);
                passes = engine.chosen[at].passes;
            }
        }
        engine.team.sync();
        for (int64_t b = 0; b < batch; ++b) {
            bool passes = true;
            for (int64_t k = 0; passes; ++k) {
                const int64_t at = b * width + k;
                const Chosen& chosen = engine.chosen[at];
                passes = chosen.passes;
                if (k % size != (b + member) % size) continue;
                if (call.rows[b].scored) call.scores[at] = judge.score(chosen, logits + at * judge.vocabulary);
                if (!passes) call.verdicts[b] = {k, chosen.token, chosen.cut};
            }
        }
    }

  private:
    bool bounded(int64_t at) const { return bounds && bounds->rows[at] < bounds->count; }
    // By bounds: a member computes the panels that its position needs.
    Chosen lazily(Engine& engine, int member, const Draft& draft, int64_t k, int64_t at) const {
        engine.judge.bans(draft, k, engine.excluded[member]);
        Lazy values(*bounds, at, logits + at * engine.judge.vocabulary, engine.excluded[member]);
        const Chosen chosen = engine.judge(draft, k, values);
        engine.computed[member] += values.panels;
        return chosen;
    }
    // The logits (V) of a result; where it has no bounds, they are computed now.
    float* all(float* values, int64_t at) const {
        if (!bounded(at)) return values;
        const int row = bounds->rows[at];
        const Linear& exact = bounds->plane->exact;
        multiply(exact, bounds->input, {row, row + 1}, {0, exact.panels}, [&](int, int column) { return values + column; }, keep);
        return values;
    }
    Origin origin(int64_t b) const {
        if (!origins.tokens) return {};
        const int64_t at = b * origins.width * origins.candidates;
        return {origins.tokens + at, origins.probabilities + at, origins.candidates};
    }
};

}  // namespace
