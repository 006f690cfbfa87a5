// Iterations of a batch without returning to Python: draft, verify, commit, and the steps of beam searches, in one pass each. Ends
// when a row or a quarter of the searches have finished.
//
// B rows that do not search, S rows of searches, K maximum draft length, V vocabulary.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "batch.h"
#include "calls.h"
#include "chains.h"
#include "drafts.h"
#include "forward.h"
#include "rank.h"
#include "search.h"
#include "team.h"
#include "trees.h"

namespace {

class Machine {
  public:
    explicit Machine(RunCall& call) : call(call), chains(call), drafting(call, chains), searches(call) {}

    // Runs iterations until rows finish, the caches are full, or `steps` are done; at least one.
    void run(Engine& engine) {
        call.drafting_seconds = call.verifying_seconds = 0, call.screened_passes = call.computed_panels = 0;
        bool finished = false;
        for (call.taken = 0; call.taken < call.steps && !finished && (call.taken == 0 || fits()); ++call.taken) {
            const auto began = Clock::now();
            drafting.run(engine);
            const auto drafted = Clock::now();
            verify(engine);
            finished = chains.commit(call.taken, width);
            finished |= searches.commit();
            call.drafting_seconds += seconds(began, drafted);
            call.verifying_seconds += seconds(drafted, Clock::now());
            if (call.taken == 0) call.first_seconds = call.drafting_seconds + call.verifying_seconds;
        }
        searches.place();
    }

  private:
    static double seconds(Clock::time_point from, Clock::time_point to) { return std::chrono::duration<double>(to - from).count(); }

    // Whether the caches have room for the next iteration.
    bool fits() const {
        const int64_t needed = chains.needed();
        return std::max(needed, searches.needed()) <= call.caches.positions && drafting.fits(needed);
    }

    // How many rows' logits the next pass computes only as far as choices need them; puts these first. Other rows read all weights,
    // beside which the bounds of a few rows save nothing, and those of int8 weights little.
    int64_t screened(Engine& engine, const Plane* plane) const {
        auto& rows = engine.scratch.rows;
        if (!plane || call.parents) return 0;
        const auto others = std::stable_partition(rows.begin(), rows.end(), [&](const Row& row) {
            const int64_t b = row.target / width;
            return b < chains.batch && chains.needs_the_best(b);
        });
        const int64_t count = others - rows.begin();
        const bool all = others == rows.end(), pays = all || (!plane->exact.quantises() && count >= Screening::ALIKE);
        return count && count <= call.screened && pays && engine.screening.pays() ? count : 0;
    }

    // One pass: judges drafts and takes the searches' steps. Keeps the hidden states that the next draft starts from.
    void verify(Engine& engine) {
        reads.clear(), tokens.clear();
        width = chains.read(engine, reads, tokens);
        width = std::max(width, searches.read(reads, tokens));
        const int64_t batch = chains.batch, vocabulary = call.verifier->projection->outputs;
        add_causal_rows(engine.scratch.rows, reads.size(), width, reads.data(), tokens.data());
        if (call.parents) branch(engine);
        Pass pass = pass_of(call.caches, false, call.logits, nullptr);
        pass.features = call.features;
        pass.attention_sums = {call.attention, call.attention_size, call.layer, uint64_t(call.heads)};
        const Plane* plane = call.verifier->plane;
        const int64_t screened = this->screened(engine, plane);
        const Bounds bounds = engine.bounds_of(screened ? plane : nullptr, int(screened), batch * width);
        pass.bounds = bounds.bounds, pass.bounded = bounds.count;
        Forward forward(*call.verifier, pass, engine.team, engine.scratch);
        const JudgeCall judge = chains.judge_call(width);
        const Judging judging{judge, call.logits, batch, width, engine.drafts.data(), chains.drawing(), drafting.origins,
                              chains.repeating(), screened ? &bounds : nullptr};
        TreeJudging trees{judge, call.logits, batch, width, chains.drawing(), chains.repeating()};
        call.parents ? trees.reserve(engine, vocabulary) : judging.reserve(engine, vocabulary);
        const RankCall rank = searches.rank_call();
        const Ranking ranking{rank, call.logits + batch * width * vocabulary, searches.ranks(), width, searches.repeating()};
        engine.team.run([&](int member) {
            forward.run(member);
            engine.team.sync();
            if (batch) call.parents ? trees.run(engine, member) : judging.run(engine, member);
            if (!ranking.count) return;
            ranking.run(engine, member);
            engine.team.sync();
            searches.advance(member, engine.team.size);
        });
        if (screened) {
            const auto computed = std::accumulate(engine.computed.begin(), engine.computed.end(), int64_t(0));
            engine.screening.note(computed, plane->exact.panels, screened);
            ++call.screened_passes, call.computed_panels += computed;
        }
        if (call.draft.recipe != FROM_VECTORS) return;
        const int64_t size = call.verifier->width;
        for (int64_t b = 0; b < batch; ++b)
            std::copy_n(call.features + (b * width + chains.verdicts[b].accepted) * size, size, call.draft.states + b * size);
    }

    // Turns the rows that read given drafts into trees.
    void branch(Engine& engine) {
        parents.clear();
        const int64_t* next = call.parents;
        for (const ReadRow& read : reads) {
            parents.push_back(-1);
            for (int64_t node = 1; node < read.tokens; ++node) parents.push_back(*next++ + 1);
        }
        branch_rows(engine.scratch.rows, engine.scratch.paths, reads.size(), reads.data(), parents.data());
    }

    RunCall& call;
    Chains chains;
    Drafting drafting;
    Searches searches;
    int64_t width = 0;  // results of a row
    std::vector<ReadRow> reads;
    std::vector<int64_t> tokens, parents;
};

}  // namespace
