// The beam searches of a call: what the verifier reads for all of them, and their steps, which members of the team take in turn.
//
// S rows, one for each live hypothesis, N hypotheses of which a pass has candidates: those of the rows and those that are drafted,
// V vocabulary, C candidates of each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "beam.h"
#include "rank.h"

namespace {

// The searches of a batch.
class Searches {
  public:
    explicit Searches(const RunCall& run) : run(run), call(run.search) {
        const HypothesisRow* hypothesis = call.hypotheses;
        const int64_t* tokens = call.tokens;
        const double* finished = call.finished;
        int64_t* slots = call.slots;
        int64_t drafted = 0;  // tokens given before a search's
        for (const DecodeRow* row = run.rows; row < run.rows + run.batch; ++row) drafted += row->draft_length;
        searches.reserve(call.searches);
        for (const SearchRow* row = call.rows; row < call.rows + call.searches; slots += row++->size) {
            const double* divisors = call.divisors + searches.size() * call.steps;
            searches.emplace_back(run, *row, hypothesis, tokens, drafted, finished, divisors, slots);
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

    // Appends what the verifier reads: the last token of every live hypothesis, and its draft. Returns the most results of a row.
    int64_t read(std::vector<ReadRow>& reads, std::vector<int64_t>& tokens_read) {
        const size_t others = reads.size();
        int64_t width = 1;
        ranked.clear();
        for (BeamSearch* each : open) each->read(reads.size() - others, reads, tokens_read, ranked);
        for (size_t row = others; row < reads.size(); ++row) width = std::max(width, reads[row].tokens);
        tokens.resize(ranks() * candidates), scores.resize(tokens.size());
        return width;
    }

    // The ranking of the candidates after each.
    int64_t ranks() const { return ranked.rows.size(); }
    RankCall rank_call() {
        return {.unk = call.unk, .eos = run.eos, .banned_count = run.banned_count, .banned = run.banned, .rows = ranked.rows.data(),
                .repeats = nullptr, .width = candidates, .tokens = tokens.data(), .scores = scores.data()};
    }
    const Repeats* repeating() const { return bans ? ranked.repeats.data() : nullptr; }

    // Takes every search's steps. Members take searches in turn.
    void advance(int member, int size) {
        for (size_t i = member; i < open.size(); i += size) open[i]->advance(tokens.data(), scores.data(), candidates);
    }

    // Records the steps. Returns whether a quarter of the searches are over: admission takes as many.
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
    Ranked ranked;                // (N)
    std::vector<int64_t> tokens;  // (N, C) candidates ..
    std::vector<float> scores;    // .. and their log-probabilities
};

}  // namespace
