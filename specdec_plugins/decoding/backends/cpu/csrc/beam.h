// One beam search: the steps of search/, on the candidates of a pass; several steps where the survivors were drafted (`replay` in
// search/groups.py). See search.h for the letters.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "batch.h"
#include "calls.h"

namespace {

// A live hypothesis one token longer.
struct Continuation {
    double total;
    int64_t parent, rank, token;
    float score;

    // Of equal ones the higher parent's comes first.
    bool operator<(const Continuation& other) const {
        if (total != other.total) return total > other.total;
        return parent != other.parent ? parent < other.parent : rank < other.rank;
    }
};

// The hypotheses of which a pass has candidates.
struct Ranked {
    std::vector<RankRow> rows;
    std::vector<Repeats> repeats;
    std::vector<std::vector<int64_t>> texts;  // the tokens of those with a ban on repeats

    void clear() { rows.clear(), repeats.clear(), texts.clear(); }
};

// A search: its options, and its state between steps. Without drafts only the constructor allocates.
class BeamSearch {
  public:
    // The next ones of the call's hypotheses, their tokens and drafts, and the scores of finished ones are this search's; moves on.
    BeamSearch(const RunCall& run, const SearchRow& row, const HypothesisRow*& hypothesis, const int64_t*& tokens, int64_t& drafted,
               const double*& ended, const double* divisors, int64_t* slots)
        : row(row), run(run), all(run.search), divisors(divisors), slots(slots) {
        lanes.resize(row.size);
        for (int64_t i = 0; i < row.size; ++i) lanes[i].slot = slots[i];
        for (int64_t i = 0; i < row.living; tokens += hypothesis++->tokens, ++i) {
            lanes[i].tokens.assign(tokens, tokens + hypothesis->tokens);
            lanes[i].draft = {drafted, hypothesis->drafted}, drafted += hypothesis->drafted;
            live.push_back({hypothesis->total, i});
        }
        finished.assign(ended, ended + row.finished);
        ended += row.finished;
        length = begun = lanes[0].tokens.size() - all.context;
        candidates = std::min<int64_t>(2 * row.size, run.verifier->projection->outputs);
        for (Lane& lane : lanes) lane.tokens.reserve(lanes[0].tokens.size() + all.steps);
        for (auto* each : {&chosen, &this->ended}) each->reserve(row.size);
        for (auto* each : {&live, &survivors}) each->reserve(row.size);
        pool.reserve(row.size * candidates), finished.reserve(2 * row.size), taken.reserve(row.size);
        record.reserve(1 + all.steps * (3 + 4 * row.size) + 2 * row.size), scored.reserve(all.steps * 2 * row.size);
    }

    // Takes steps by the candidates (N, width) of the pass: tokens and scores. At least one, and another one as long as the pass has
    // candidates after every survivor.
    //
    // The record: how many steps. Of each: how many hypotheses live, how many ended (-1: the live ones did, as no token was
    // allowed), and whether the search is over; the parents, then the tokens of those that live; the same of those that ended; the
    // tokens' scores. Then, for each survivor, or for the best hypothesis of a search that is over, where the pass read the token
    // before its last one: the row, and the node of its draft or -1.
    void advance(const int64_t* tokens, const float* scores, int64_t width) {
        record.assign(1, 0), scored.clear();
        do {
            step(tokens, scores, width);
            ++record[0];
        } while (!over && follow());
        const auto note = [&](const Hypothesis& read) { record.push_back(lanes[read.lane].row), record.push_back(read.node); };
        if (over) return note(live[0]);
        for (const Continuation& each : chosen) note(live[each.parent]);
        move();
    }
    void write(int64_t*& to, float*& scores) const {
        to = std::copy(record.begin(), record.end(), to), scores = std::copy(scored.begin(), scored.end(), scores);
    }

    // Writes the slots of the live hypotheses, then the free ones.
    void place() {
        int64_t* to = slots;
        taken.assign(row.size, false);
        for (const Hypothesis& each : live) {
            if (!taken[each.lane]) *to++ = lanes[each.lane].slot;
            taken[each.lane] = true;
        }
        for (int64_t i = 0; i < row.size; ++i)
            if (!taken[i]) *to++ = lanes[i].slot;
    }

    // Appends what the verifier reads: the last token of every live hypothesis and its draft; and the ranking of the candidates after
    // each, from the pass's row `first` on.
    void read(int64_t first, std::vector<ReadRow>& reads, std::vector<int64_t>& read, Ranked& ranked) {
        for (size_t number = 0; number < live.size(); ++number) {
            Lane& lane = lanes[live[number].lane];
            lane.row = number, lane.rank = ranked.rows.size(), lane.held = length + 1;
            read.push_back(length ? lane.tokens.back() : all.start);
            reads.push_back({.tokens = 1 + lane.draft.size, .position = length, .first = 0, .slot = lane.slot,
                             .source_slot = row.source_slot, .source_length = row.source_length});
            for (int64_t node = -1; node < lane.draft.size; ++node) {
                const auto path = path_to(lane, node);
                const int64_t longer = length + path.size();
                if (node >= 0) read.push_back(token(lane, node));
                ranked.rows.push_back({.row = first + int64_t(number), .result = node + 1, .few = candidates,
                                       .room = row.limit - longer, .minimum = std::max<int64_t>(0, row.minimum - longer),
                                       .renormalise = row.renormalise, .penalty = row.unk_penalty});
                std::vector<int64_t> text;
                if (row.repeats) text = lane.tokens;
                for (int64_t each : path)
                    if (row.repeats) text.push_back(token(lane, each));
                ranked.repeats.push_back({row.repeats, text.data(), text.data() + text.size()});
                ranked.texts.push_back(std::move(text));
            }
        }
    }

    const SearchRow& row;
    int64_t candidates;
    int64_t length;  // of the live hypotheses
    bool over = false;

  private:
    enum Stopping { IF_NO_BETTER, AT_ONCE, NEVER };

    // Where the pass reads its last token: the row of a lane, or a node of the draft behind it.
    struct Hypothesis {
        double total;
        int64_t lane, node = -1;
    };
    // Numbers of given tokens, for one iteration.
    struct Given {
        int64_t first = 0, size = 0;
    };
    // A slot, and the hypothesis that it holds the entries of: `held` positions, the start token's being the first.
    struct Lane {
        int64_t slot = 0, held = 0;
        std::vector<int64_t> tokens;  // after the context
        Given draft;
        int64_t row = 0, rank = 0;  // in a pass: among the search's, and the number of its ranking
    };

    int64_t token(const Lane& lane, int64_t node) const { return run.given[lane.draft.first + node]; }
    int64_t parent(const Lane& lane, int64_t node) const { return run.parents ? run.parents[lane.draft.first + node] : node - 1; }
    // The nodes from the root's child to this one.
    std::vector<int64_t> path_to(const Lane& lane, int64_t node) const {
        std::vector<int64_t> path;
        for (; node >= 0; node = parent(lane, node)) path.push_back(node);
        std::reverse(path.begin(), path.end());
        return path;
    }

    // What follows the live hypotheses, by their candidates.
    void step(const int64_t* tokens, const float* scores, int64_t width) {
        ++length;
        gather(tokens, scores, width);
        chosen.clear(), ended.clear();
        choose();
        const bool exhausted = chosen.empty() && ended.empty() && finished.empty();
        over |= exhausted;
        record.push_back(chosen.size()), record.push_back(exhausted ? -1 : int64_t(ended.size())), record.push_back(over);
        for (const auto* some : {&chosen, &ended}) {
            for (const Continuation& each : *some) record.push_back(each.parent), scored.push_back(each.score);
            for (const Continuation& each : *some) record.push_back(each.token);
        }
    }

    // Makes the chosen hypotheses the live ones, if all of them were drafted.
    bool follow() {
        survivors.clear();
        for (const Continuation& each : chosen) {
            const Hypothesis& before = live[each.parent];
            const Lane& lane = lanes[before.lane];
            int64_t node = before.node + 1;
            while (node < lane.draft.size && !(parent(lane, node) == before.node && token(lane, node) == each.token)) ++node;
            if (node == lane.draft.size) return false;
            survivors.push_back({each.total, before.lane, node});
        }
        live.swap(survivors);
        return true;
    }

    // The best continuations -> pool.
    void gather(const int64_t* tokens, const float* scores, int64_t width) {
        pool.clear();
        const bool past = row.huggingface && length > row.limit;  // eos is all that remains, and costs nothing
        for (int64_t parent = 0; parent < int64_t(live.size()); ++parent) {
            const auto [total, lane, node] = live[parent];
            const int64_t first = (lanes[lane].rank + node + 1) * width;
            if (past && all.ends) pool.push_back({total, parent, 0, run.eos, 0});
            for (int64_t rank = 0, at = first; !past && rank < candidates && scores[at] > -INFINITY; ++rank, ++at)
                pool.push_back({total + scores[at], parent, rank, tokens[at], scores[at]});
        }
        const size_t most = std::min<size_t>(2 * row.size, pool.size());
        std::partial_sort(pool.begin(), pool.begin() + most, pool.end());
        pool.erase(pool.begin() + most, pool.end());
    }

    // As search/fairseq.py and search/huggingface.py.
    void choose() {
        const bool stops = row.huggingface && !all.ends && length >= row.limit;
        const size_t size = row.size;
        for (size_t rank = 0; rank < pool.size() && chosen.size() < size; ++rank)
            if (!stops && pool[rank].token != run.eos)
                chosen.push_back(pool[rank]);
            else if (rank < size && (row.huggingface || finished.size() < size))
                end(pool[rank]);
        if (row.huggingface) {
            std::sort(finished.begin(), finished.end(), std::greater<>());
            if (finished.size() > size) finished.resize(size);
        }
        over = chosen.empty() || (finished.size() == size && !(row.huggingface && improves()));
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

    // Gives each survivor a lane with its entries. The first one of a lane keeps it; the others take what no survivor has.
    void move() {
        taken.assign(row.size, false), survivors.clear();
        for (const Continuation& each : chosen) {
            const int64_t own = live[each.parent].lane;
            survivors.push_back({each.total, taken[own] ? -1 : own});
            taken[own] = true;
        }
        // Forks first, as a lane that takes its path moves entries.
        for (size_t i = 0; i < chosen.size(); ++i)
            if (survivors[i].lane < 0) survivors[i].lane = fork(live[chosen[i].parent]);
        for (size_t i = 0; i < chosen.size(); ++i) {
            const Hypothesis& read = live[chosen[i].parent];
            const Lane& from = lanes[read.lane];
            Lane& lane = lanes[survivors[i].lane];
            const auto path = path_to(from, read.node);
            if (&lane == &from) copy_path(*run.verifier, run.caches, from.slot, from.held, path, from.slot);
            for (int64_t node : path) lane.tokens.push_back(token(from, node));
            lane.tokens.push_back(chosen[i].token);
        }
        for (Lane& lane : lanes) lane.draft = {};
        live.swap(survivors);
    }

    // Copies a hypothesis to the free lane that already has most of it -> that lane. The hypotheses of a search differ in their
    // last tokens, so there is little to copy.
    int64_t fork(const Hypothesis& read) {
        const Lane& from = lanes[read.lane];
        int64_t best = -1, most = -1;
        for (int64_t i = 0; i < row.size; ++i) {
            if (taken[i]) continue;
            const auto &own = lanes[i].tokens, &tokens = from.tokens;
            const int64_t same = std::mismatch(own.begin(), own.end(), tokens.begin(), tokens.end()).first - own.begin();
            const int64_t shared = std::clamp<int64_t>(same - all.context + 1, 0, std::min(lanes[i].held, from.held));
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
        copy_path(*run.verifier, run.caches, from.slot, from.held, path_to(from, read.node), to.slot);
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
    std::vector<Hypothesis> live, survivors;  // best first
    std::vector<Continuation> chosen, ended;  // by the last step
    std::vector<Continuation> pool;
    std::vector<double> finished;  // normalised scores; Hugging Face's best first
    std::vector<char> taken;       // by lane
    std::vector<int64_t> record;   // of the last iteration
    std::vector<float> scored;
};

}  // namespace
