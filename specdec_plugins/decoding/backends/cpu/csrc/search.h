// Beam searches: the steps of search/, on the candidates of a pass.
//
// S rows, one for each live hypothesis, V vocabulary, C candidates of a row.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "batch.h"
#include "calls.h"
#include "forward.h"
#include "rank.h"
#include "team.h"

namespace {

// A live hypothesis one token longer.
struct Continuation {
    double total;
    int64_t parent, rank, token;
    float score;
    int64_t lane = -1;  // once it has one

    // Of equal ones the higher parent's comes first.
    bool operator<(const Continuation& other) const {
        if (total != other.total) return total > other.total;
        return parent != other.parent ? parent < other.parent : rank < other.rank;
    }
};

// A search: its options, and its state between steps. Only the constructor allocates.
class BeamSearch {
  public:
    // The next ones of the call's hypotheses, their tokens and the scores of finished ones are this search's; moves on.
    BeamSearch(const RunCall& run, const SearchRow& row, const HypothesisRow*& hypothesis, const int64_t*& tokens,
               const double*& ended, const double* divisors, int64_t* slots)
        : row(row), run(run), all(run.search), divisors(divisors), slots(slots) {
        lanes.resize(row.size);
        for (int64_t i = 0; i < row.size; ++i) lanes[i].slot = slots[i];
        for (int64_t i = 0; i < row.living; tokens += hypothesis++->tokens, ++i) {
            lanes[i].tokens.assign(tokens, tokens + hypothesis->tokens);
            live.push_back({hypothesis->total, i});
        }
        finished.assign(ended, ended + row.finished);
        ended += row.finished;
        length = begun = lanes[0].tokens.size() - all.context;
        candidates = std::min<int64_t>(2 * row.size, run.verifier->projection->outputs);
        for (Lane& lane : lanes) lane.tokens.reserve(lanes[0].tokens.size() + run.steps);
        for (auto* each : {&chosen, &this->ended}) each->reserve(row.size);
        live.reserve(row.size), pool.reserve(row.size * candidates), finished.reserve(2 * row.size), taken.reserve(row.size);
    }

    // What follows a live hypothesis by its candidates: (rows, width) tokens and scores.
    void step(const int64_t* tokens, const float* scores, int64_t width) {
        ++length;
        gather(tokens, scores, width);
        chosen.clear(), ended.clear();
        if (row.huggingface)
            by_huggingface();
        else
            by_fairseq();
        exhausted = chosen.empty() && ended.empty() && finished.empty();
        over |= exhausted;
        if (!over) move();
    }

    // Of the last step: how many hypotheses live, how many ended (-1: the live ones did, as no token was allowed), and whether
    // the search is over; the parents, then the tokens of those that live; the same of those that ended; the tokens' scores.
    void write(int64_t*& record, float*& scores) const {
        *record++ = chosen.size(), *record++ = exhausted ? -1 : int64_t(ended.size()), *record++ = over;
        for (const auto* some : {&chosen, &ended}) {
            for (const Continuation& each : *some) *record++ = each.parent, *scores++ = each.score;
            for (const Continuation& each : *some) *record++ = each.token;
        }
    }

    // Writes the slots of the live hypotheses, then the free ones.
    void place() {
        int64_t* to = slots;
        taken.assign(row.size, false);
        for (const Hypothesis& each : live) *to++ = lanes[each.lane].slot, taken[each.lane] = true;
        for (int64_t i = 0; i < row.size; ++i)
            if (!taken[i]) *to++ = lanes[i].slot;
    }

    size_t rows() const { return live.size(); }
    int64_t slot(size_t row) const { return lanes[live[row].lane].slot; }
    const std::vector<int64_t>& tokens(size_t row) const { return lanes[live[row].lane].tokens; }
    int64_t room() const { return row.limit - length; }

    const SearchRow& row;
    int64_t candidates;
    int64_t length;  // of the live hypotheses
    bool over = false;

  private:
    enum Stopping { IF_NO_BETTER, AT_ONCE, NEVER };

    struct Hypothesis {
        double total;
        int64_t lane;
    };
    // A slot, and the hypothesis that it holds the entries of: `held` positions, the start token's being the first.
    struct Lane {
        int64_t slot = 0, held = 0;
        std::vector<int64_t> tokens;  // after the context
    };

    // The best continuations -> pool.
    void gather(const int64_t* tokens, const float* scores, int64_t width) {
        pool.clear();
        const bool past = row.huggingface && length > row.limit;  // eos is all that remains, and costs nothing
        for (int64_t parent = 0; parent < int64_t(live.size()); ++parent, tokens += width, scores += width) {
            const double total = live[parent].total;
            if (past && all.ends) pool.push_back({total, parent, 0, run.eos, 0});
            for (int64_t rank = 0; !past && rank < candidates && scores[rank] > -INFINITY; ++rank)
                pool.push_back({total + scores[rank], parent, rank, tokens[rank], scores[rank]});
        }
        const size_t most = std::min<size_t>(2 * row.size, pool.size());
        std::partial_sort(pool.begin(), pool.begin() + most, pool.end());
        pool.erase(pool.begin() + most, pool.end());
    }

    // As search/fairseq.py.
    void by_fairseq() {
        for (size_t rank = 0; rank < pool.size() && int64_t(chosen.size()) < row.size; ++rank)
            if (pool[rank].token != run.eos)
                chosen.push_back(pool[rank]);
            else if (int64_t(rank) < row.size && int64_t(finished.size()) < row.size)
                end(pool[rank]);
        over = int64_t(finished.size()) == row.size || chosen.empty();
    }

    // As search/huggingface.py.
    void by_huggingface() {
        const bool stops = !all.ends && length >= row.limit;
        for (size_t rank = 0; rank < pool.size() && int64_t(chosen.size()) < row.size; ++rank)
            if (!stops && pool[rank].token != run.eos)
                chosen.push_back(pool[rank]);
            else if (int64_t(rank) < row.size)
                end(pool[rank]);
        std::sort(finished.begin(), finished.end(), std::greater<>());
        if (int64_t(finished.size()) > row.size) finished.resize(row.size);
        over = chosen.empty() || (int64_t(finished.size()) == row.size && !improves());
    }

    // Whether the best live hypothesis may still become better than the worst finished one.
    bool improves() const {
        if (row.stopping == AT_ONCE) return false;
        return chosen[0].total / (row.stopping == NEVER ? row.longest : divisor()) > finished.back();
    }

    double divisor() const { return divisors[length - begun - 1]; }  // after a step
    void end(const Continuation& each) {
        ended.push_back(each);
        finished.push_back(each.total / divisor());
    }

    // Gives each chosen hypothesis a lane. A parent's first child keeps its lane; the others take what no child has.
    void move() {
        for (const Hypothesis& each : live) lanes[each.lane].held = length;
        taken.assign(row.size, false);
        for (Continuation& each : chosen) {
            const int64_t own = live[each.parent].lane;
            if (!taken[own]) each.lane = own;
            taken[own] = true;
        }
        for (Continuation& each : chosen)
            if (each.lane < 0) each.lane = fork(lanes[live[each.parent].lane]);
        live.clear();
        for (const Continuation& each : chosen) {
            lanes[each.lane].tokens.push_back(each.token);
            live.push_back({each.total, each.lane});
        }
    }

    // Copies a hypothesis to the free lane that already has most of it -> that lane. The hypotheses of a search differ in their
    // last tokens, so there is little to copy.
    int64_t fork(const Lane& from) {
        int64_t best = -1, most = -1;
        for (int64_t i = 0; i < row.size; ++i) {
            if (taken[i]) continue;
            const auto &own = lanes[i].tokens, &tokens = from.tokens;
            const int64_t same = std::mismatch(own.begin(), own.end(), tokens.begin(), tokens.end()).first - own.begin();
            const int64_t shared = std::clamp<int64_t>(same - all.context + 1, 0, lanes[i].held);
            if (shared > most) best = i, most = shared;
        }
        Lane& to = lanes[best];
        taken[best] = true;
        const int64_t entry = run.verifier->entry();
        for (size_t layer = 0; layer < run.verifier->layers.size(); ++layer) {
            float* entries = run.caches.cache + layer * run.caches.cache_layer;
            const float *first = entries + from.slot * run.caches.cache_slot, *last = first + from.held * entry;
            std::copy(first + most * entry, last, entries + to.slot * run.caches.cache_slot + most * entry);
        }
        to.tokens.assign(from.tokens.begin(), from.tokens.end());
        to.held = from.held;
        return best;
    }

    const RunCall& run;
    const SearchCall& all;
    const double* divisors;
    int64_t begun;  // `length` before the first step
    int64_t* slots;
    std::vector<Lane> lanes;
    std::vector<Hypothesis> live;             // best first
    std::vector<Continuation> chosen, ended;  // by the last step
    std::vector<Continuation> pool;
    std::vector<double> finished;  // normalised scores; Hugging Face's best first
    std::vector<char> taken;       // by lane
    bool exhausted = false;
};

// The searches of a batch.
class Searches {
  public:
    explicit Searches(const RunCall& run) : run(run), call(run.search) {
        const HypothesisRow* hypothesis = call.hypotheses;
        const int64_t* tokens = call.tokens;
        const double* finished = call.finished;
        int64_t* slots = call.slots;
        searches.reserve(call.searches);
        for (const SearchRow* row = call.rows; row < call.rows + call.searches; slots += row++->size) {
            searches.emplace_back(run, *row, hypothesis, tokens, finished, call.divisors + searches.size() * run.steps, slots);
            candidates = std::max(candidates, searches.back().candidates);
            bans |= row->repeats > 0;
        }
        for (BeamSearch& each : searches) open.push_back(&each);
        enough = searches.size() - std::max<size_t>(1, searches.size() / 4);
    }

    // The number of positions that the next step needs in the caches.
    int64_t needed() const {
        int64_t positions = 0;
        for (const BeamSearch& each : searches) positions = std::max(positions, each.length + 1);
        return positions;
    }

    // Appends what the verifier reads: the last token of every live hypothesis.
    void read(std::vector<ReadRow>& reads, std::vector<int64_t>& last) {
        firsts.clear(), ranked.clear(), repeats.clear();
        for (const BeamSearch* search : open) {
            const BeamSearch& each = *search;
            const SearchRow& options = each.row;
            firsts.push_back(ranked.size());
            for (size_t row = 0; row < each.rows(); ++row) {
                const auto& tokens = each.tokens(row);
                last.push_back(each.length ? tokens.back() : call.start);
                reads.push_back({.tokens = 1, .position = each.length, .first = 0, .slot = each.slot(row),
                                 .source_slot = options.source_slot, .source_length = options.source_length});
                ranked.push_back({.few = each.candidates, .room = each.room(),
                                  .minimum = std::max<int64_t>(0, options.minimum - each.length),
                                  .renormalise = options.renormalise, .penalty = options.unk_penalty});
                repeats.push_back({options.repeats, tokens.data(), tokens.data() + tokens.size()});
            }
        }
        tokens.resize(ranked.size() * candidates), scores.resize(tokens.size());
    }

    // The ranking of the candidates after each.
    RankCall rank_call() {
        return {.unk = call.unk, .eos = run.eos, .banned_count = run.banned_count, .banned = run.banned, .rows = ranked.data(),
                .repeats = nullptr, .width = candidates, .tokens = tokens.data(), .scores = scores.data()};
    }
    const Repeats* repeating() const { return bans ? repeats.data() : nullptr; }

    // Takes every search's step. Members take searches in turn.
    void step(int member, int size) {
        for (size_t i = member; i < open.size(); i += size)
            open[i]->step(&tokens[firsts[i] * candidates], &scores[firsts[i] * candidates], candidates);
    }

    // Records the step. Returns whether a quarter of the searches are over: admission takes as many.
    bool commit() {
        for (const BeamSearch* each : open) each->write(record, scored);
        std::erase_if(open, [](const BeamSearch* each) { return each->over; });
        return !searches.empty() && open.size() <= enough;
    }

    // Writes each search's slots.
    void place() {
        for (BeamSearch& each : searches) each.place();
    }

  private:
    const RunCall& run;
    const SearchCall& call;
    std::vector<BeamSearch> searches;
    std::vector<BeamSearch*> open;  // that are not over
    size_t enough;                  // of them end a call
    int64_t candidates = 0;         // C
    bool bans = false;              // whether a search bans repeated n-grams
    int64_t* record = call.record;  // what comes next
    float* scored = call.scores;
    std::vector<int64_t> firsts;  // each open search's first row
    std::vector<RankRow> ranked;  // (S) of live hypotheses, as the following
    std::vector<Repeats> repeats;
    std::vector<int64_t> tokens;  // (S, C) candidates ..
    std::vector<float> scores;    // .. and their log-probabilities
};

}  // namespace
