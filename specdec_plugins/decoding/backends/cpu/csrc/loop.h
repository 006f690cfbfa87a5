// Steps of speculative decoding, one after the other without Python in between: the twin of `Session.step` (decoding/loop.py) for
// a causal block drafter, heads on hidden states, or no drafter, under the exact and the tolerant rule and those for rows that
// sample. It ends when a row is finished.
//
// B rows of the batch, K the most tokens that are drafted for a row, D width, H heads, V vocabulary.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "batch.h"
#include "forward.h"
#include "heads.h"
#include "team.h"

namespace {

// A model's keys and values: those of target tokens, with room for `positions` a slot, and those of the source.
struct Caches {
    float* cache;
    int64_t cache_layer, cache_slot;
    float* memory;
    int64_t memory_layer, memory_slot, positions;
};

// What the steps are given and where their results go. `Decoding` in binding.py has the same fields in the same order.
struct Decoding {
    const Stack *verifier, *drafter;  // drafter: NULL if there is none
    Caches verifying, drafting;
    float *logits, *drafter_logits, *gates;  // (B, K + 1, V), (B, K, V), (B, K, R): room for the passes' results
    const float *tokens, *outs;              // the successor network's tables, and ..
    int64_t candidates;                      // .. how many tokens it chooses among
    const int64_t* names;                    // the tokens that the drafter's logits are of; NULL: all, in order
    int64_t drafter_pad, drafter_eos;        // as numbers of the drafter's logits; -1: no logit is of it
    int64_t drafter_positions;               // that the drafter has embeddings for
    int64_t pad, eos, mask, suppressed_count;
    const int64_t* suppressed;
    int64_t batch, longest, steps;  // B, K, the most steps to take
    const int64_t* numbers;         // options by row: see `Sentences`
    const double* tau;              // (B)
    const double* last_scores;      // (B) the verifier's log-probabilities (nats) of the last committed tokens
    double verifier_gate;           // nats: a row drafts nothing after a token with a lower score
    double drafter_gate;            // a draft ends before its confidences' product falls below this; 0: open
    const Sampling* sampling;       // NULL if nobody samples; origins and names are the loop's own
    const int64_t* repeats;         // NULL if no row has a rule against repeats: see `take` in judge.h
    int64_t* read;                  // (B) target positions that a block drafter has read; changed
    const Linear* heads;            // NULL if the drafter is none of heads, and so ..
    const float* embeddings;        // .. (V, D) that they read; NULL if they do not, ..
    double scale;                   // .. what these are multiplied by, ..
    int64_t heads_length;           // .. the most tokens that they draft, of which each has a head or shares the last one, ..
    float *states, *features;       // .. (B, D) hidden states, changed, and room for those of a pass (B, K + 1, D), ..
    float* vectors;                 // .. and room for what they make of them (B, H, D)
    int64_t* record;                // (steps, B, K + 4): drafted, accepted, own token (-1: none, after eos), cut, the draft
    float* scores;                  // (steps, B, K + 1): of the accepted tokens and the own one
    double* seconds;                // (2) that drafting and verifying took
    int64_t taken;                  // steps taken
};

// The rows of the batch, and what changes about them from step to step.
class Sentences {
  public:
    // numbers: places (B) of the last committed tokens, drafts' lengths (B), slots, source slots (B) of the verifier and of the
    // drafter, source lengths (B), beta, room, minimum (B), where each row's unread tokens begin (B + 1), and
    // these: the committed ones that the drafter has not read. The last one always is among them.
    explicit Sentences(const Decoding& all) : all(all), batch(all.batch) {
        Numbers parts(all.numbers);
        auto copied = [&](int64_t count) {
            const int64_t* from = parts.take(count);
            return std::vector<int64_t>(from, from + count);
        };
        places = copied(batch);
        planned = parts.take(batch);
        slots = parts.take(batch), source_slots = parts.take(batch);
        drafter_slots = parts.take(batch), drafter_source_slots = parts.take(batch);
        source_lengths = parts.take(batch), beta = parts.take(batch);
        room = copied(batch), minimum = copied(batch);
        const int64_t* starts = parts.take(batch + 1);
        const int64_t* tokens = parts.take(starts[batch]);
        for (int64_t b = 0; b < batch; ++b) {
            unread.emplace_back(tokens + starts[b], tokens + starts[b + 1]);
            last.push_back(unread[b].back());
        }
        if (take(all.sampling, batch, draws)) {
            for (const Draws& row : draws) prefixes.emplace_back(row.prefix, row.prefix_end);
            const bool told = std::any_of(draws.begin(), draws.end(), [](const Draws& row) { return row.rejects; });
            origin_tokens.resize(told ? batch * all.longest * all.candidates : 0);
            probabilities.resize(origin_tokens.size());
        }
        if (take(all.repeats, batch, repeats))
            for (const Repeats& row : repeats) said.emplace_back(row.prefix, row.prefix_end);
        drafts.resize(batch), lengths.resize(batch);
        last_scores.assign(all.last_scores, all.last_scores + batch);
        confidence.resize(all.drafter_gate > 0 ? batch * all.longest : 0);
        for (int64_t b = 0; b < batch; ++b) longest = std::max(longest, planned[b]);
    }

    // How many tokens each row drafts in the next step; returns whether it drafts: there is something to draft, and room for it.
    bool plan() {
        for (int64_t b = 0; b < batch; ++b) lengths[b] = last_scores[b] < all.verifier_gate ? 0 : planned[b];
        return *std::max_element(lengths.begin(), lengths.end()) > 0 && *std::max_element(room.begin(), room.end()) > 0;
    }

    // Whether the caches have room for the next step.
    bool fits() const {
        const int64_t needed = *std::max_element(places.begin(), places.end()) + 1 + longest;
        return needed <= all.verifying.positions && (longest == 0 || needed <= all.drafting.positions);
    }

    // Drafts for every row.
    void draft(Engine& engine) {
        if (all.heads)
            draft_by_heads(engine);
        else
            draft_block(engine);
    }

    void draft_nothing() {
        for (auto& draft : drafts) draft.clear();
    }

    // Reads each row's last token and its draft, and judges the draft. Heads are told the hidden states.
    void verify(Engine& engine) {
        starts.assign(1, 0), tokens.clear();
        size_t width = 0;
        for (int64_t b = 0; b < batch; ++b) {
            tokens.push_back(last[b]);
            tokens.insert(tokens.end(), drafts[b].begin(), drafts[b].end());
            starts.push_back(tokens.size());
            width = std::max(width, drafts[b].size() + 1);
        }
        add_causal_rows(engine.scratch.rows, batch, width, starts.data(), places.data(), nullptr, slots, source_slots,
                        source_lengths, tokens.data());
        Pass pass = pass_of(all.verifying, false, all.logits, nullptr);
        pass.features = all.features;
        Forward forward(*all.verifier, pass, engine.team, engine.scratch);
        judged.resize(3 * batch), scores.resize(batch * width), this->width = width;
        const Judging judging{all.logits, batch, int64_t(width), 1, starts.data(), all.tau, judged.data(), scores.data(),
                              drawing(), origins(), repeating(), beta, room.data(), minimum.data(), tokens.data()};
        judging.reserve(engine, all.verifier->projection->outputs, all.pad, all.eos, all.suppressed_count, all.suppressed);
        engine.team.run([&](int member) {
            forward.run(member);
            engine.team.sync();
            judging.run(engine, member);
        });
        const int64_t size = all.verifier->width;
        for (int64_t b = 0; all.heads && b < batch; ++b)
            std::copy_n(all.features + (b * width + judged[b]) * size, size, all.states + b * size);
    }

    // Appends what was accepted to each row, and writes it down. Returns whether a row is finished.
    bool commit(int64_t* record, float* record_scores) {
        bool finished = false;
        for (int64_t b = 0; b < batch; ++b, record += all.longest + 4, record_scores += all.longest + 1) {
            const int64_t accepted = judged[b], own = judged[batch + b];
            const auto& draft = drafts[b];
            const bool ended = accepted && draft[accepted - 1] == all.eos;
            const int64_t head[] = {int64_t(draft.size()), accepted, ended ? -1 : own, judged[2 * batch + b]};
            std::copy(draft.begin(), draft.end(), std::copy(head, head + 4, record));
            std::copy_n(&scores[b * width], accepted + 1, record_scores);
            finished |= ended || own == all.eos;
            last[b] = ended ? all.eos : own;
            last_scores[b] = record_scores[accepted];
            if (all.drafter && !all.heads) {
                unread[b].insert(unread[b].end(), draft.begin(), draft.begin() + accepted);
                unread[b].push_back(last[b]);
            }
            const int64_t count = accepted + !ended;
            if (all.sampling && draws[b].penalty != 1) {
                prefixes[b].insert(prefixes[b].end(), draft.begin(), draft.begin() + accepted);
                prefixes[b].push_back(last[b]);
            }
            if (all.repeats && repeats[b].size) {
                said[b].insert(said[b].end(), draft.begin(), draft.begin() + accepted);
                said[b].push_back(last[b]);
            }
            places[b] += count, room[b] -= count, minimum[b] = std::max<int64_t>(0, minimum[b] - count);
        }
        return finished;
    }

  private:
    // As `CausalBlockDrafter` does.
    void draft_block(Engine& engine) {
        starts.assign(1, 0), tokens.clear(), firsts.clear(), empty.clear();
        for (int64_t b = 0; b < batch; ++b) {
            if (lengths[b]) {
                tokens.insert(tokens.end(), unread[b].begin(), unread[b].end());
                tokens.insert(tokens.end(), lengths[b] - 1, all.mask);
            }
            firsts.push_back(lengths[b] ? int64_t(unread[b].size()) - 1 : 0);
            starts.push_back(tokens.size());
            empty.push_back(places[b] == 0);
        }
        const bool narrowed =
            add_causal_rows(engine.scratch.rows, batch, longest, starts.data(), all.read, firsts.data(), drafter_slots,
                            drafter_source_slots, source_lengths, tokens.data());
        choose(engine, pass_of(all.drafting, narrowed, all.drafter_logits, all.gates), nullptr);
        draft_nothing();
        for (int64_t b = 0; b < batch; ++b)
            if (lengths[b]) {
                offer(b);
                all.read[b] = places[b] + 1;
                unread[b].clear();
            }
    }

    // As `HeadsDrafter` does.
    void draft_by_heads(Engine& engine) {
        const int64_t size = all.verifier->width, count = all.heads->outputs / size;
        starts.assign(1, 0), tokens.clear(), empty.clear(), firsts.assign(batch, 0);
        for (int64_t b = 0; b < batch; ++b) {
            lengths[b] = std::min(lengths[b], all.heads_length);
            for (int64_t k = 0; k < lengths[b]; ++k) tokens.push_back(b * count + std::min(k, count - 1));
            starts.push_back(tokens.size());
            empty.push_back(places[b] == 0);
        }
        draft_nothing();
        const Heads heads{all.heads, all.embeddings, float(all.scale), batch, size, all.states, last.data(), all.vectors};
        heads.reserve(engine);
        add_causal_rows(engine.scratch.rows, batch, longest, starts.data(), firsts.data(), nullptr, drafter_slots,
                        drafter_source_slots, source_lengths, tokens.data());
        Pass pass = pass_of(all.drafting, false, all.drafter_logits, all.gates);
        pass.embeddings = all.vectors;
        choose(engine, pass, &heads);
        for (int64_t b = 0; b < batch; ++b) offer(b);
    }

    // The drafter's pass, which reads what `heads` make if there are any, and its choices.
    void choose(Engine& engine, const Pass& pass, const Heads* heads) {
        const Stack& stack = *all.drafter;
        Forward forward(stack, pass, engine.team, engine.scratch);
        chosen.resize(batch * longest);
        const Choice choice{all.drafter_logits, batch, longest, stack.projection->outputs, all.drafter_pad, all.drafter_eos, lengths.data(),
                            empty.data(), stack.gate ? all.gates : nullptr, stack.gate ? stack.gate->outputs : 0, all.tokens,
                            all.outs, all.candidates, chosen.data(), drawing(), all.names, origins(),
                            confidence.empty() ? nullptr : confidence.data()};
        choice.reserve(engine);
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

    static Pass pass_of(const Caches& from, bool narrowed, float* logits, float* gates) {
        return {{from.cache, from.cache_layer, from.cache_slot}, {from.memory, from.memory_layer, from.memory_slot}, nullptr, false,
                narrowed, logits, gates, nullptr};
    }

    // How rows draw in this step.
    const Draws* drawing() {
        if (!all.sampling) return nullptr;
        for (int64_t b = 0; b < batch; ++b) {
            draws[b].position = places[b];
            draws[b].prefix = prefixes[b].data(), draws[b].prefix_end = draws[b].prefix + prefixes[b].size();
        }
        return draws.data();
    }
    const Repeats* repeating() {
        for (size_t b = 0; b < said.size(); ++b)
            repeats[b].prefix = said[b].data(), repeats[b].prefix_end = repeats[b].prefix + said[b].size();
        return said.empty() ? nullptr : repeats.data();
    }
    Origins origins() {
        if (origin_tokens.empty()) return {};
        return {origin_tokens.data(), probabilities.data(), all.longest, all.candidates};
    }

    // A row's chosen tokens become its draft: none after eos, none beyond the limit or the drafter's positions, none from where
    // the gate closes.
    void offer(int64_t b) {
        auto& draft = drafts[b];
        const int64_t most = std::min({lengths[b], room[b], all.drafter_positions - places[b]});
        double sure = 1;
        for (int64_t k = 0; k < most; ++k) {
            if (!confidence.empty() && (sure *= confidence[b * longest + k]) < all.drafter_gate) break;
            const int64_t choice = chosen[b * longest + k];
            draft.push_back(all.names ? all.names[choice] : choice);
            if (draft.back() == all.eos) break;
        }
    }

    const Decoding& all;
    const int64_t batch;
    int64_t longest = 0, width = 0;
    const int64_t *planned, *slots, *source_slots, *drafter_slots, *drafter_source_slots, *source_lengths, *beta;
    std::vector<int64_t> places, last, room, minimum;
    std::vector<std::vector<int64_t>> unread, drafts, prefixes;
    std::vector<Draws> draws;
    std::vector<std::vector<int64_t>> said;  // (B) each row's committed tokens, where rows have a rule against repeats
    std::vector<Repeats> repeats;
    std::vector<int64_t> origin_tokens;  // (B, K, candidates) what the present step's drafts were drawn from
    std::vector<float> probabilities;    // the same
    std::vector<float> confidence;       // (B, K) the drafter's; empty if the gate does not ask for it
    std::vector<double> last_scores;
    std::vector<int64_t> lengths;  // of the present step's drafts, at most
    std::vector<int64_t> starts, tokens, firsts, empty, chosen, judged;  // of the present step
    std::vector<float> scores;
};

// Takes steps until a row is finished, the caches are full, or there were as many as wanted; at least one.
void decode(Engine& engine, Decoding& all) {
    auto seconds = [](Clock::time_point from, Clock::time_point to) { return std::chrono::duration<double>(to - from).count(); };
    Sentences sentences(all);
    all.seconds[0] = all.seconds[1] = 0;
    bool finished = false;
    for (all.taken = 0; all.taken < all.steps && !finished && (all.taken == 0 || sentences.fits()); ++all.taken) {
        const auto began = Clock::now();
        if (sentences.plan())
            sentences.draft(engine);
        else
            sentences.draft_nothing();
        const auto drafted = Clock::now();
        sentences.verify(engine);
        finished = sentences.commit(all.record + all.taken * all.batch * (all.longest + 4),
                                    all.scores + all.taken * all.batch * (all.longest + 1));
        all.seconds[0] += seconds(began, drafted);
        all.seconds[1] += seconds(drafted, Clock::now());
    }
}

}  // namespace
