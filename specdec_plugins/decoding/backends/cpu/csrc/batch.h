// Work on a batch: the rows of a causal pass, choosing drafted tokens, judging drafts. B rows of the batch, V vocabulary, R width
// of the successor network.
#pragma once

#include <cstdint>
#include <vector>

#include "exported.h"
#include "forward.h"
#include "judge.h"
#include "sample.h"
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
    std::vector<float> weights;                  // (threads, V) in whole blocks, where rows sample
    std::vector<Draws> draws;                    // (B)
    std::vector<Repeats> repeats;                // (B)
    std::vector<std::vector<Forbidden>> repeated;  // (threads) tokens that would repeat an n-gram
    Input joined;                                // of heads: hidden states, and embeddings where they read these
    std::vector<float> mean;                     // (D) of an encoder's output

    // Bans tokens for `judge`. Called before the team runs.
    void forbid(int64_t vocabulary, int64_t eos, int64_t count, const int64_t* banned) {
        judge.vocabulary = vocabulary;
        judge.forbidden.assign(banned, banned + count);
        judge.forbidden.push_back(eos);
        if (kept.size() < team.size * judge.forbidden.size()) kept.resize(team.size * judge.forbidden.size());
        repeated.resize(team.size);
    }
};

// Takes the parts of `numbers` one after the other.
class Numbers {
  public:
    explicit Numbers(const int64_t* next) : next(next) {}
    const int64_t* take(int64_t count) {
        next += count;
        return next - count;
    }

  private:
    const int64_t* next;
};

// Makes the rows of a causal pass; returns whether some have no result. `firsts` NULL: all have one.
bool add_causal_rows(std::vector<Row>& rows, int64_t batch, int64_t width, const int64_t* starts, const int64_t* positions,
                     const int64_t* firsts, const int64_t* slots, const int64_t* source_slots, const int64_t* source_lengths,
                     const int64_t* tokens) {
    bool narrowed = false;
    rows.clear();
    for (int64_t b = 0; b < batch; ++b) {
        const int64_t first = firsts ? firsts[b] : 0;
        for (int64_t k = 0; k < starts[b + 1] - starts[b]; ++k) {
            const int64_t position = positions[b] + k;
            rows.push_back({.token = tokens[starts[b] + k], .slot = slots[b], .position = position, .visible = position + 1,
                            .entry = position, .source_slot = source_slots[b], .source = source_lengths[b],
                            .target = b * width + k - first, .mask = false, .wanted = k >= first});
            narrowed |= k < first;
        }
    }
    return narrowed;
}

// The positions that the rows of a causal pass attend to, if not all.
SHARED_STRUCT(Visible,
    int64_t sinks, window;     // of the target: the first positions, and the last ones up to a row's own
    int64_t listed;            // N
    const int64_t* positions;  // (B, N) of each source, ascending; those past its end are ignored
)

void limit_rows(std::vector<Row>& rows, int64_t batch, const int64_t* starts, const int64_t* source_lengths,
                const Visible& visible) {
    for (int64_t b = 0; b < batch; ++b) {
        const int64_t* listed = visible.positions + b * visible.listed;
        Seen source;
        source.listed = listed;
        source.listed_count = std::lower_bound(listed, listed + visible.listed, source_lengths[b]) - listed;
        for (int64_t at = starts[b]; at < starts[b + 1]; ++at) {
            Row& row = rows[at];
            row.source = source;
            row.visible.from = std::max<int64_t>(0, row.visible.to - visible.window);
            row.visible.sinks = std::min(visible.sinks, row.visible.from);
        }
    }
}

// Turns the rows of a causal pass into trees: a sentence's token k follows its token parents[k] < k, or what the cache holds
// (-1). `paths` keeps the paths until the pass ends.
void branch_rows(std::vector<Row>& rows, std::vector<int64_t>& paths, int64_t batch, const int64_t* starts,
                 const int64_t* positions, const int64_t* parents) {
    size_t size = 0;  // of all paths, which must not move once rows point into them
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t at = starts[b]; at < starts[b + 1]; ++at) {
            Row& row = rows[at];
            row.position = parents[at] < 0 ? positions[b] : rows[starts[b] + parents[at]].position + 1;
            row.visible = row.position + 1;
            size += row.visible.to - positions[b];
        }
    if (paths.size() < size) paths.resize(size);
    int64_t* next = paths.data();
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t at = starts[b]; at < starts[b + 1]; ++at) {
            Row& row = rows[at];
            if (row.entry == row.position) continue;  // it follows all tokens before it, as in a chain
            Seen& visible = row.visible;
            visible.path = next, visible.branch = positions[b];
            next += visible.to - visible.branch;
            int64_t* to = next;
            for (int64_t node = at; *--to = rows[node].entry, parents[node] >= 0;) node = starts[b] + parents[node];
        }
}

// Where the distributions of drafted tokens are written, or read: see `Sampling`.
struct Origins {
    int64_t* tokens;
    float* probabilities;
    int64_t width, candidates;
};

// The choice of a token for each position of drafts.
struct Choice {
    float* logits;  // (B, width, V)
    int64_t batch, width, vocabulary, pad, eos;  // pad and eos as indices of logits; -1: no such logit
    const int64_t *drafted, *empty;  // (B)
    const float* gates;              // (B, width, R); NULL without a successor network
    int64_t gate_width;              // R
    const float *tokens, *outs;      // (V, R)
    int64_t candidates;
    int64_t* to;           // (B, width)
    const Draws* draws;    // (B); NULL: no row samples
    const int64_t* token_ids;  // of the logits: see `Sampling`
    Origins origins;       // written for rows under the rejection rule

    // Called before the team runs.
    void reserve(Engine& engine) const {
        auto& positions = engine.positions;
        positions.clear();
        for (int64_t b = 0; b < batch; ++b)
            for (int64_t k = 0; k < drafted[b]; ++k) positions.push_back(b * width + k);
        const size_t size = gates || draws ? batch * width * candidates : 0;
        if (engine.candidates.size() < size) engine.candidates.resize(size);
        if (engine.totals.size() < size) engine.totals.resize(size);
    }

    void run(Engine& engine, int member) const {
        Team& team = engine.team;
        Range mine = portion(int(engine.positions.size()), member, team.size);
        for (int number = mine.from; number < mine.to; ++number) take(engine, engine.positions[number]);
        if (!gates) return;
        team.sync();
        mine = portion(int(batch), member, team.size);
        for (int64_t b = mine.from; b < mine.to; ++b)
            for (int64_t position = b * width + 1; position < b * width + drafted[b]; ++position)
                to[position] = choose(engine, position);
    }

    // Chooses a position's token, or the candidates for it where that depends on the token before.
    void take(Engine& engine, int64_t position) const {
        const int64_t k = position % width;
        float* values = logits + position * vocabulary;
        if (pad >= 0) values[pad] = -INFINITY;
        if (eos >= 0 && k == 0 && empty[position / width]) values[eos] = -INFINITY;
        const bool few = samples(position / width), last = !gates || k == 0;
        if (few || !last) best_few(values, vocabulary, candidates, &engine.candidates[position * candidates]);
        if (last) to[position] = few ? choose(engine, position) : best_of(values, vocabulary);
    }

  private:
    bool samples(int64_t b) const { return draws && draws[b].some(); }

    // A position's token among its candidates. With a successor network the token before it has been chosen.
    int64_t choose(Engine& engine, int64_t position) const {
        const int64_t b = position / width, k = position % width;
        int64_t* few = &engine.candidates[position * candidates];
        double* totals = &engine.totals[position * candidates];
        for (int64_t i = 0; i < candidates; ++i) {
            const float logit = logits[position * vocabulary + few[i]];
            totals[i] = !gates || k == 0 ? logit
                                         : successor_score(logit, gates + position * gate_width,
                                                           tokens + to[position - 1] * gate_width, outs + few[i] * gate_width,
                                                           gate_width);
        }
        if (!samples(b)) return few[std::max_element(totals, totals + candidates) - totals];
        const bool recorded = draws[b].rejects && origins.tokens;
        const int64_t at = (b * origins.width + k) * candidates;
        return draw_few(draws[b], draws[b].noise(k, draws[b].rejects ? DRAFT : SAMPLE), few, totals, candidates, token_ids,
                        recorded ? origins.tokens + at : nullptr, recorded ? origins.probabilities + at : nullptr);
    }
};

// The judging of a batch of drafts. Row b's draft is its tokens from number starts[b] + skip up to starts[b + 1].
struct Judging {
    float* logits;  // (B, width, V)
    int64_t batch, width, skip;
    const int64_t* starts;  // (B + 1)
    const double* tau;      // (B)
    int64_t* judged;        // (3, B)
    float* scores;          // (B, width)
    const Draws* draws;     // (B); NULL: no row samples
    Origins origins;        // of the drafted tokens; empty if each was certain
    const Repeats* repeats;  // (B); NULL: no row bans repeats
    const int64_t *beta{}, *room{}, *minimum{}, *tokens{};

    // Takes the per-row options from `numbers`, and the tokens that follow them.
    void take(Numbers& numbers) {
        beta = numbers.take(batch), room = numbers.take(batch), minimum = numbers.take(batch);
        tokens = numbers.take(starts[batch]);
    }

    // Called before the team runs.
    void reserve(Engine& engine, int64_t vocabulary, int64_t eos, int64_t count, const int64_t* banned) const {
        engine.forbid(vocabulary, eos, count, banned);
        if (engine.chosen.size() < size_t(batch * width)) engine.chosen.resize(batch * width);
        const size_t weights = draws ? engine.team.size * weights_of(vocabulary) : 0;
        if (engine.weights.size() < weights) engine.weights.resize(weights);
    }

    // Members take the positions of a row in turn: first to choose a token at each, until they refuse one themselves, which
    // bounds the work past the first refusal; then to score the tokens up to that.
    void run(Engine& engine, int member) const {
        const Judge& judge = engine.judge;
        const int size = engine.team.size;
        float* kept = &engine.kept[member * judge.forbidden.size()];
        float* weights = draws ? &engine.weights[member * weights_of(judge.vocabulary)] : nullptr;
        for (int64_t b = 0; b < batch; ++b) {
            const Draft draft{tokens + starts[b] + skip, offered(b), beta[b], tau[b], room[b], minimum[b],
                              draws && draws[b].some() ? draws + b : nullptr, origin(b),
                              repeats && repeats[b].size ? repeats + b : nullptr};
            bool passes = true;
            for (int64_t k = (b + member) % size; passes && k <= offered(b); k += size) {
                const int64_t at = b * width + k;
                engine.chosen[at] = judge(draft, k, logits + at * judge.vocabulary, kept, engine.repeated[member], weights);
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
                scores[at] = judge.score(chosen, logits + at * judge.vocabulary);
                if (!passes) judged[b] = k, judged[batch + b] = chosen.token, judged[2 * batch + b] = chosen.cut;
            }
        }
    }

  private:
    int64_t offered(int64_t b) const { return starts[b + 1] - starts[b] - skip; }
    Origin origin(int64_t b) const {
        if (!origins.tokens) return {};
        const int64_t at = b * origins.width * origins.candidates;
        return {origins.tokens + at, origins.probabilities + at, origins.candidates};
    }
};

}  // namespace
