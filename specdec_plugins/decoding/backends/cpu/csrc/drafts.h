// How the drafts of an iteration come about: see roles.py.
//
// B rows of the batch, K maximum draft length, D width, V vocabulary, C candidates.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "batch.h"
#include "calls.h"
#include "chains.h"
#include "forward.h"
#include "heads.h"
#include "team.h"

namespace {

class Drafting {
  public:
    Drafting(const RunCall& run, Chains& chains)
        : call(run.draft), chains(chains), batch(chains.batch), longest(run.longest), choices(batch) {
        if (call.recipe == GIVEN)
            origins = origins_of(run.sampling);
        else if (chains.rejects) {
            tokens_drawn.resize(batch * longest * call.candidates), probabilities.resize(tokens_drawn.size());
            origins = {tokens_drawn.data(), probabilities.data(), longest, call.candidates};
        }
    }

    // Whether the drafter's caches have room for the next iteration.
    bool fits(int64_t needed) const { return longest == 0 || call.recipe == GIVEN || needed <= call.caches.positions; }

    // Drafts for every row that has a length and room.
    void run(Engine& engine) {
        for (auto& draft : chains.drafts) draft.clear();
        if (!chains.drafting()) return;
        for (int64_t b = 0; b < batch; ++b)
            choices[b] = {.drafted = chains.state[b].draft_length, .empty = chains.state[b].position == 0};
        switch (call.recipe) {
            case GIVEN: return take_given();
            case IN_TURN: return in_turn(engine);
            case MASKED: return masked(engine);
            case FROM_VECTORS: return from_vectors(engine);
        }
    }

    Origins origins{};  // what this iteration's drafts were drawn from

  private:
    void take_given() {
        const int64_t* next = chains.call.given;
        for (int64_t b = 0; b < batch; next += choices[b++].drafted) chains.drafts[b].assign(next, next + choices[b].drafted);
    }

    void masked(Engine& engine) {
        reads.clear(), tokens.clear();
        for (int64_t b = 0; b < batch; ++b) {
            const auto& unread = chains.unread[b];
            const int64_t drafted = choices[b].drafted, fresh = unread.size(), count = drafted ? fresh + drafted - 1 : 0;
            if (drafted) {
                tokens.insert(tokens.end(), unread.begin(), unread.end());
                tokens.insert(tokens.end(), drafted - 1, call.mask);
            }
            reads.push_back(reading(b, count, call.read[b], drafted ? fresh - 1 : 0));
        }
        const bool narrowed = add_causal_rows(engine.scratch.rows, batch, longest, reads.data(), tokens.data());
        choose(engine, pass_of(call.caches, narrowed, call.logits, call.gates), nullptr);
        for (int64_t b = 0; b < batch; ++b)
            if (choices[b].drafted) {
                offer(b);
                call.read[b] = chains.state[b].position + 1;
                chains.unread[b].clear();
            }
    }

    void from_vectors(Engine& engine) {
        const int64_t size = call.stack->width, count = call.heads->outputs / size;
        reads.clear(), tokens.clear();
        for (int64_t b = 0; b < batch; ++b) {
            const int64_t drafted = choices[b].drafted = std::min(choices[b].drafted, call.longest);
            for (int64_t k = 0; k < drafted; ++k) tokens.push_back(b * count + std::min(k, count - 1));
            reads.push_back(reading(b, drafted, 0, 0));
        }
        const Heads heads{call.heads, call.embeddings, float(call.scale), batch, size, call.states, chains.last.data(), call.vectors};
        heads.reserve(engine);
        add_causal_rows(engine.scratch.rows, batch, longest, reads.data(), tokens.data());
        Pass pass = pass_of(call.caches, false, call.logits, call.gates);
        pass.embeddings = call.vectors;
        choose(engine, pass, &heads);
        for (int64_t b = 0; b < batch; ++b) offer(b);
    }

    // What the drafter reads of a row.
    ReadRow reading(int64_t b, int64_t tokens, int64_t position, int64_t first) const {
        const DecodeRow& row = chains.state[b];
        return {tokens, position, first, row.drafter_slot, row.drafter_source_slot, row.source_length};
    }

    // Each member drafts for some rows alone, or, if some would have none, they share passes that are long enough. A draft ends with
    // the token that makes it less probable than `least`.
    void in_turn(Engine& engine) {
        auto& rows = engine.scratch.rows;
        rows.clear();
        for (int64_t b = 0; b < batch; ++b) {
            const DecodeRow& row = chains.state[b];
            const int64_t drafted = choices[b].drafted = std::max<int64_t>(0, most(b));
            if (drafted)
                rows.push_back({.token = chains.last[b], .slot = row.drafter_slot, .position = row.position,
                                .visible = row.position + drafted, .entry = row.position, .source_slot = row.drafter_source_slot,
                                .source = row.source_length, .target = b * longest, .mask = false, .wanted = true});
        }
        const Pass pass = pass_of(call.caches, false, call.logits, nullptr);
        const ChooseCall choosing = choose_call();
        const Choice choice = choice_of(choosing, engine);
        const int64_t outputs = call.stack->projection->outputs;
        sure.assign(batch, 1);
        const auto see_itself = [](Row& row) { row.visible = row.position + 1; };
        const auto ended = [&](Row& row) {
            const int64_t b = row.target / longest, drafted = row.target % longest + 1;
            const double least = chains.state[b].least;
            choice.take(engine, row.target);
            row.token = token(row.target);
            if (least > 0) {
                const float *values = call.logits + row.target * outputs, most = largest(values, outputs);
                sure[b] *= exponential(most - log_sum_exp(values, outputs, most));
            }
            row.entry = ++row.position, ++row.target;
            if (sure[b] < least) choices[b].drafted = drafted;
            return row.token == chains.call.eos || drafted == choices[b].drafted;
        };
        if (call.shared && int(rows.size()) < engine.team.size) {
            while (!rows.empty()) {
                std::for_each(rows.begin(), rows.end(), see_itself);
                Forward forward(*call.stack, pass, engine.team, engine.scratch);
                engine.team.run([&](int member) { forward.run(member); });
                rows.erase(std::remove_if(rows.begin(), rows.end(), ended), rows.end());
            }
        } else {
            Forward forward(*call.stack, pass, engine.team, engine.scratch, true);
            engine.team.run([&](int member) {
                Range mine = portion(int(rows.size()), member, engine.team.size);
                const auto first = rows.begin() + mine.from;
                while (mine.from < mine.to) {
                    std::for_each(first, rows.begin() + mine.to, see_itself);
                    forward.run(member, mine);
                    mine.to = int(std::remove_if(first, rows.begin() + mine.to, ended) - rows.begin());
                }
            });
        }
        for (int64_t b = 0; b < batch; ++b) offer(b);
    }

    // The drafter's pass, on the vectors of `heads` if there are any, and its choices.
    void choose(Engine& engine, const Pass& pass, const Heads* heads) {
        Forward forward(*call.stack, pass, engine.team, engine.scratch);
        const ChooseCall choosing = choose_call();
        const Choice choice = choice_of(choosing, engine);
        engine.team.run([&](int member) {
            if (heads) {
                heads->run(engine, member);
                engine.team.sync();
            }
            forward.run(member);
            engine.team.sync();
            choice.run(engine, member);
        });
    }

    ChooseCall choose_call() {
        chosen.resize(batch * longest);
        return {.pad = call.pad, .eos = call.eos, .rows = choices.data(), .tokens = call.tokens, .outs = call.outs,
                .candidates = call.candidates, .token_ids = call.token_ids, .chosen = chosen.data(), .sampling = nullptr};
    }
    Choice choice_of(const ChooseCall& choosing, Engine& engine) {
        const Stack& stack = *call.stack;
        const Choice choice{choosing, call.logits, batch, longest, stack.projection->outputs, stack.gate ? call.gates : nullptr,
                            stack.gate ? stack.gate->outputs : 0, chains.drawing(), origins};
        choice.reserve(engine);
        return choice;
    }

    // Makes a row's draft of its chosen tokens, up to eos, the length limit, or the drafter's positions.
    void offer(int64_t b) {
        auto& draft = chains.drafts[b];
        const int64_t count = most(b);
        for (int64_t k = 0; k < count; ++k) {
            draft.push_back(token(b * longest + k));
            if (draft.back() == chains.call.eos) break;
        }
    }
    int64_t most(int64_t b) const {
        return std::min({choices[b].drafted, chains.rules[b].room, call.positions - chains.state[b].position});
    }
    // The token chosen at a position of the drafts.
    int64_t token(int64_t at) const { return call.token_ids ? call.token_ids[chosen[at]] : chosen[at]; }

    const DraftCall& call;
    Chains& chains;
    const int64_t batch, longest;
    std::vector<ChooseRow> choices;      // the rows' lengths
    std::vector<int64_t> tokens_drawn;   // (B, K, C) what drafts were drawn from
    std::vector<float> probabilities;    // the same
    std::vector<double> sure;            // (B) probability of this iteration's drafts
    std::vector<ReadRow> reads;
    std::vector<int64_t> tokens, chosen;
};

}  // namespace
