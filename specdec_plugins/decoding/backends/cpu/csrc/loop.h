// Iterations of speculative decoding without returning to Python: the twin of `Session.step` (decoding/loop.py) for a causal
// block drafter, heads on hidden states, a drafter on the verifier's cache, or none, under every acceptance rule. Stops when a row
// finishes.
//
// B rows of the batch, K maximum draft length, D width, H heads, V vocabulary.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "batch.h"
#include "calls.h"
#include "forward.h"
#include "heads.h"
#include "team.h"

namespace {

// The rows of the batch and their state between steps.
class Sentences {
  public:
    explicit Sentences(const DecodeCall& all) : all(all), batch(all.batch), state(all.rows, all.rows + batch) {
        const int64_t* tokens = all.unread;
        for (const DecodeRow& row : state) {
            unread.emplace_back(tokens, tokens + row.unread), tokens += row.unread;
            last.push_back(unread.back().back());
            rules.push_back({.drafted = 0, .beta = row.beta, .tau = row.tau, .room = row.room, .minimum = row.minimum});
            longest = std::max(longest, row.draft_length);
        }
        if (take(all.sampling, batch, draws)) {
            for (const Draws& row : draws) prefixes.emplace_back(row.prefix, row.prefix_end);
            const bool rejects = std::any_of(draws.begin(), draws.end(), [](const Draws& row) { return row.rejects; });
            origin_tokens.resize(rejects ? batch * all.longest * all.candidates : 0);
            probabilities.resize(origin_tokens.size());
        }
        if (take(all.repeats, batch, repeats))
            for (const Repeats& row : repeats) committed.emplace_back(row.prefix, row.prefix_end);
        drafts.resize(batch), choices.resize(batch);
    }

    // Sets each row's draft length for the next step; returns whether any row drafts and has room for it.
    bool plan() {
        bool some = false, room = false;
        for (int64_t b = 0; b < batch; ++b) {
            choices[b] = {.drafted = state[b].draft_length, .empty = state[b].position == 0};
            some |= choices[b].drafted > 0, room |= rules[b].room > 0;
        }
        return some && room;
    }

    // Whether the caches have room for the next step.
    bool fits() const {
        int64_t needed = 0;
        for (const DecodeRow& row : state) needed = std::max(needed, row.position + 1 + longest);
        return needed <= all.verifying.positions && (longest == 0 || needed <= all.drafting.positions);
    }

    // Drafts for every row.
    void draft(Engine& engine) {
        if (all.heads)
            draft_by_heads(engine);
        else if (all.read)
            draft_block(engine);
        else
            draft_in_turn(engine);
    }

    void draft_nothing() {
        for (auto& draft : drafts) draft.clear();
    }

    // Reads each row's last token and its draft, judges the draft, and keeps the hidden states for heads.
    void verify(Engine& engine) {
        reads.clear(), tokens.clear(), engine.drafts.clear();
        width = 0;
        for (int64_t b = 0; b < batch; ++b) {
            const DecodeRow& row = state[b];
            const int64_t drafted = rules[b].drafted = drafts[b].size();
            tokens.push_back(last[b]);
            tokens.insert(tokens.end(), drafts[b].begin(), drafts[b].end());
            reads.push_back({drafted + 1, row.position, 0, row.slot, row.source_slot, row.source_length});
            engine.drafts.push_back(drafts[b].data());
            width = std::max(width, drafted + 1);
        }
        add_causal_rows(engine.scratch.rows, batch, width, reads.data(), tokens.data());
        Pass pass = pass_of(all.verifying, false, all.logits, nullptr);
        pass.features = all.features;
        Forward forward(*all.verifier, pass, engine.team, engine.scratch);
        verdicts.resize(batch), scores.resize(batch * width);
        const JudgeCall call{.eos = all.eos, .banned_count = all.banned_count, .banned = all.banned, .rows = rules.data(),
                             .tokens = nullptr, .parents = nullptr, .sampling = nullptr, .repeats = nullptr,
                             .verdicts = verdicts.data(), .scores = scores.data(), .paths = nullptr};
        const Judging judging{call, all.logits, batch, width, engine.drafts.data(), drawing(), origins(), repeating()};
        judging.reserve(engine, all.verifier->projection->outputs);
        engine.team.run([&](int member) {
            forward.run(member);
            engine.team.sync();
            judging.run(engine, member);
        });
        const int64_t size = all.verifier->width;
        for (int64_t b = 0; all.heads && b < batch; ++b)
            std::copy_n(all.features + (b * width + verdicts[b].accepted) * size, size, all.states + b * size);
    }

    // Appends the accepted tokens to each row, and records what happened in this step. Returns whether a row finished.
    bool commit(int64_t step) {
        bool finished = false;
        for (int64_t b = 0; b < batch; ++b) {
            const auto [accepted, own, cut] = verdicts[b];
            const auto& draft = drafts[b];
            const int64_t at = step * batch + b, kept = accepted;
            const bool ended = accepted && draft[accepted - 1] == all.eos;
            all.record[at] = {int64_t(draft.size()), accepted, ended ? -1 : own, cut};
            std::copy(draft.begin(), draft.end(), all.drafts + at * all.longest);
            std::copy_n(&scores[b * width], accepted + 1, all.scores + at * (all.longest + 1));
            finished |= ended || own == all.eos;
            last[b] = ended ? all.eos : own;
            const auto append = [&](std::vector<int64_t>& to) {
                to.insert(to.end(), draft.begin(), draft.begin() + kept);
                to.push_back(last[b]);
            };
            if (all.read) append(unread[b]);
            if (all.sampling && draws[b].penalty != 1) append(prefixes[b]);
            if (all.repeats && repeats[b].size) append(committed[b]);
            const int64_t count = accepted + !ended;
            state[b].position += count, rules[b].room -= count, rules[b].minimum = std::max<int64_t>(0, rules[b].minimum - count);
        }
        return finished;
    }

  private:
    // As `CausalBlockDrafter` does.
    void draft_block(Engine& engine) {
        reads.clear(), tokens.clear();
        for (int64_t b = 0; b < batch; ++b) {
            const int64_t drafted = choices[b].drafted, fresh = unread[b].size(), count = drafted ? fresh + drafted - 1 : 0;
            if (drafted) {
                tokens.insert(tokens.end(), unread[b].begin(), unread[b].end());
                tokens.insert(tokens.end(), drafted - 1, all.mask);
            }
            reads.push_back(reading(b, count, all.read[b], drafted ? fresh - 1 : 0));
        }
        const bool narrowed = add_causal_rows(engine.scratch.rows, batch, longest, reads.data(), tokens.data());
        choose(engine, pass_of(all.drafting, narrowed, all.drafter_logits, all.gates), nullptr);
        draft_nothing();
        for (int64_t b = 0; b < batch; ++b)
            if (choices[b].drafted) {
                offer(b);
                all.read[b] = state[b].position + 1;
                unread[b].clear();
            }
    }

    // As `HeadsDrafter` does.
    void draft_by_heads(Engine& engine) {
        const int64_t size = all.verifier->width, count = all.heads->outputs / size;
        reads.clear(), tokens.clear();
        for (int64_t b = 0; b < batch; ++b) {
            const int64_t drafted = choices[b].drafted = std::min(choices[b].drafted, all.heads_length);
            for (int64_t k = 0; k < drafted; ++k) tokens.push_back(b * count + std::min(k, count - 1));
            reads.push_back(reading(b, drafted, 0, 0));
        }
        draft_nothing();
        const Heads heads{all.heads, all.embeddings, float(all.scale), batch, size, all.states, last.data(), all.vectors};
        heads.reserve(engine);
        add_causal_rows(engine.scratch.rows, batch, longest, reads.data(), tokens.data());
        Pass pass = pass_of(all.drafting, false, all.drafter_logits, all.gates);
        pass.embeddings = all.vectors;
        choose(engine, pass, &heads);
        for (int64_t b = 0; b < batch; ++b) offer(b);
    }

    // What the drafter reads of a row.
    ReadRow reading(int64_t b, int64_t tokens, int64_t position, int64_t first) const {
        const DecodeRow& row = state[b];
        return {tokens, position, first, row.drafter_slot, row.drafter_source_slot, row.source_length};
    }

    // As `GlideDrafter` does: each member drafts for some sentences alone, or, if some would have none, they share passes that are
    // long enough. A draft ends with the token that makes it less probable than `least`.
    void draft_in_turn(Engine& engine) {
        auto& rows = engine.scratch.rows;
        rows.clear();
        for (int64_t b = 0; b < batch; ++b) {
            const DecodeRow& row = state[b];
            const int64_t drafted = choices[b].drafted = std::max<int64_t>(0, most(b));
            if (drafted)
                rows.push_back({.token = last[b], .slot = row.slot, .position = row.position, .visible = row.position + drafted,
                                .entry = row.position, .source_slot = row.source_slot, .source = row.source_length,
                                .target = b * longest, .mask = false, .wanted = true});
        }
        const Pass pass = pass_of(all.drafting, false, all.drafter_logits, nullptr);
        const ChooseCall call = choosing();
        const Choice choice = choice_of(call, engine);
        const int64_t outputs = all.drafter->projection->outputs;
        sure.assign(batch, 1);
        const auto see_itself = [](Row& row) { row.visible = row.position + 1; };
        const auto ended = [&](Row& row) {
            const int64_t b = row.target / longest, drafted = row.target % longest + 1;
            choice.take(engine, row.target);
            row.token = token(row.target);
            if (state[b].least > 0) {
                const float *values = all.drafter_logits + row.target * outputs, most = largest(values, outputs);
                sure[b] *= exponential(most - log_sum_exp(values, outputs, most));
            }
            row.entry = ++row.position, ++row.target;
            if (sure[b] < state[b].least) choices[b].drafted = drafted;
            return row.token == all.eos || drafted == choices[b].drafted;
        };
        if (all.shared && int(rows.size()) < engine.team.size) {
            while (!rows.empty()) {
                std::for_each(rows.begin(), rows.end(), see_itself);
                Forward forward(*all.drafter, pass, engine.team, engine.scratch);
                engine.team.run([&](int member) { forward.run(member); });
                rows.erase(std::remove_if(rows.begin(), rows.end(), ended), rows.end());
            }
        } else {
            Forward forward(*all.drafter, pass, engine.team, engine.scratch, true);
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
        draft_nothing();
        for (int64_t b = 0; b < batch; ++b) offer(b);
    }

    // The drafter's pass, on the vectors of `heads` if there are any, and its choices.
    void choose(Engine& engine, const Pass& pass, const Heads* heads) {
        Forward forward(*all.drafter, pass, engine.team, engine.scratch);
        const ChooseCall call = choosing();
        const Choice choice = choice_of(call, engine);
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

    ChooseCall choosing() {
        chosen.resize(batch * longest);
        return {.pad = all.drafter_pad, .eos = all.drafter_eos, .rows = choices.data(), .tokens = all.tokens, .outs = all.outs,
                .candidates = all.candidates, .token_ids = all.token_ids, .chosen = chosen.data(), .sampling = nullptr};
    }
    Choice choice_of(const ChooseCall& call, Engine& engine) {
        const Stack& stack = *all.drafter;
        const Choice choice{call, all.drafter_logits, batch, longest, stack.projection->outputs, stack.gate ? all.gates : nullptr,
                            stack.gate ? stack.gate->outputs : 0, drawing(), origins()};
        choice.reserve(engine);
        return choice;
    }

    // How rows sample in this step.
    const Draws* drawing() {
        if (!all.sampling) return nullptr;
        for (int64_t b = 0; b < batch; ++b) {
            draws[b].position = state[b].position;
            draws[b].prefix = prefixes[b].data(), draws[b].prefix_end = draws[b].prefix + prefixes[b].size();
        }
        return draws.data();
    }
    const Repeats* repeating() {
        for (size_t b = 0; b < committed.size(); ++b)
            repeats[b].prefix = committed[b].data(), repeats[b].prefix_end = repeats[b].prefix + committed[b].size();
        return committed.empty() ? nullptr : repeats.data();
    }
    Origins origins() {
        if (origin_tokens.empty()) return {};
        return {origin_tokens.data(), probabilities.data(), all.longest, all.candidates};
    }

    // Makes a row's draft of its chosen tokens, up to eos, the length limit, or the drafter's positions.
    void offer(int64_t b) {
        auto& draft = drafts[b];
        const int64_t count = most(b);
        for (int64_t k = 0; k < count; ++k) {
            draft.push_back(token(b * longest + k));
            if (draft.back() == all.eos) break;
        }
    }
    int64_t most(int64_t b) const {
        return std::min({choices[b].drafted, rules[b].room, all.drafter_positions - state[b].position});
    }
    // The token chosen at a position of the drafts.
    int64_t token(int64_t at) const { return all.token_ids ? all.token_ids[chosen[at]] : chosen[at]; }

    const DecodeCall& all;
    const int64_t batch;
    int64_t longest = 0, width = 0;
    std::vector<DecodeRow> state;    // positions change
    std::vector<JudgeRow> rules;     // room and minimum change
    std::vector<ChooseRow> choices;  // of this step: maximum lengths of drafts
    std::vector<int64_t> last;
    std::vector<std::vector<int64_t>> unread, drafts, prefixes;
    std::vector<Draws> draws;
    std::vector<std::vector<int64_t>> committed;  // (B) each row's tokens, where a row bans repeats
    std::vector<Repeats> repeats;
    std::vector<int64_t> origin_tokens;  // (B, K, candidates) what this step's drafts were drawn from
    std::vector<float> probabilities;    // the same
    std::vector<double> sure;            // (B) probability of this step's drafts
    std::vector<ReadRow> reads;          // of this step, as the following
    std::vector<int64_t> tokens, chosen;
    std::vector<VerdictRow> verdicts;
    std::vector<float> scores;
};

// Runs steps until a row finishes, the caches are full, or `steps` are done; at least one.
void decode(Engine& engine, DecodeCall& all) {
    auto seconds = [](Clock::time_point from, Clock::time_point to) { return std::chrono::duration<double>(to - from).count(); };
    Sentences sentences(all);
    all.drafting_seconds = all.verifying_seconds = 0;
    bool finished = false;
    for (all.taken = 0; all.taken < all.steps && !finished && (all.taken == 0 || sentences.fits()); ++all.taken) {
        const auto began = Clock::now();
        if (sentences.plan())
            sentences.draft(engine);
        else
            sentences.draft_nothing();
        const auto drafted = Clock::now();
        sentences.verify(engine);
        finished = sentences.commit(all.taken);
        all.drafting_seconds += seconds(began, drafted);
        all.verifying_seconds += seconds(drafted, Clock::now());
        if (all.taken == 0) all.first_seconds = all.drafting_seconds + all.verifying_seconds;
    }
}

}  // namespace
