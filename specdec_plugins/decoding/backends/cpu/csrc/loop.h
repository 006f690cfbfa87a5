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
#include "exported.h"
#include "forward.h"
#include "heads.h"
#include "team.h"

namespace {

// A model's KV caches: of the target, with room for `positions` in each slot, and of the source.
SHARED_STRUCT(Caches,
    float* cache;
    int64_t cache_layer, cache_slot;
    float* memory;
    int64_t memory_layer, memory_slot, positions;
)

// A call's inputs, and where its results go. B rows, K `longest`, R width of the successor network.
SHARED_STRUCT(Decoding,
    const Stack *verifier, *drafter;  // drafter: NULL without one
    Caches verifying, drafting;
    float *logits, *drafter_logits, *gates;  // (B, K + 1, V), (B, K, V), (B, K, R): the passes' results
    const float *tokens, *outs;              // the successor network's tables ..
    int64_t candidates;                      // .. and how many candidates it chooses among
    const int64_t* token_ids;                // the token of each of the drafter's logits; NULL: all tokens, in order
    int64_t drafter_pad, drafter_eos;        // indices into the drafter's logits; -1: it has no such logit
    int64_t drafter_positions;               // positions that the drafter has embeddings for
    int64_t shared;                          // whether a pass over one token is worth sharing between threads
    int64_t eos, mask, banned_count;
    const int64_t* banned;
    int64_t batch, longest, steps;  // B, K, and the maximum number of steps
    const int64_t* numbers;         // per-row options: see `Sentences`
    const double* tau;              // (B)
    const double* least;            // (B) where the product of a draft's probabilities falls below, it ends; see `draft_in_turn`
    const Sampling* sampling;       // NULL: no row samples; the loop has its own origins and token_ids
    const int64_t* repeats;         // NULL: no row bans repeated n-grams; see `take` in judge.h
    int64_t* read;                  // (B) target positions that a block drafter has read; updated. NULL for other drafters
    const Linear* heads;            // NULL unless the drafter is heads; then also the fields up to `vectors`
    const float* embeddings;        // (V, D) that they read; NULL if they do not
    double scale;                   // of the embeddings
    int64_t heads_length;           // their maximum draft length; positions past the last head reuse it
    float *states, *features;       // (B, D) hidden states, updated; (B, K + 1, D) those of a pass
    float* vectors;                 // (B, H, D) the heads' results
    int64_t* record;                // (steps, B, K + 4): drafted, accepted, own token (-1: none, after eos), cut, the draft
    float* scores;                  // (steps, B, K + 1): of the accepted tokens and the own one
    double* seconds;                // (3) spent drafting, verifying, and in the first step
    int64_t taken;                  // number of steps run
)

// The rows of the batch and their state between steps.
class Sentences {
  public:
    // numbers: positions (B) of the last committed tokens, draft lengths (B), slots and source slots (B) of the verifier and of
    // the drafter, source lengths (B), beta, room, minimum (B), starts of the unread tokens (B + 1), and these: the committed
    // tokens that the drafter has not read, at least the last one.
    explicit Sentences(const Decoding& all) : all(all), batch(all.batch) {
        Numbers parts(all.numbers);
        auto copied = [&](int64_t count) {
            const int64_t* from = parts.take(count);
            return std::vector<int64_t>(from, from + count);
        };
        positions = copied(batch);
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
            const bool rejects = std::any_of(draws.begin(), draws.end(), [](const Draws& row) { return row.rejects; });
            origin_tokens.resize(rejects ? batch * all.longest * all.candidates : 0);
            probabilities.resize(origin_tokens.size());
        }
        if (take(all.repeats, batch, repeats))
            for (const Repeats& row : repeats) committed.emplace_back(row.prefix, row.prefix_end);
        drafts.resize(batch), lengths.resize(batch);
        for (int64_t b = 0; b < batch; ++b) longest = std::max(longest, planned[b]);
    }

    // Sets each row's draft length for the next step; returns whether any row drafts and has room for it.
    bool plan() {
        lengths.assign(planned, planned + batch);
        return *std::max_element(lengths.begin(), lengths.end()) > 0 && *std::max_element(room.begin(), room.end()) > 0;
    }

    // Whether the caches have room for the next step.
    bool fits() const {
        const int64_t needed = *std::max_element(positions.begin(), positions.end()) + 1 + longest;
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
        starts.assign(1, 0), tokens.clear();
        size_t width = 0;
        for (int64_t b = 0; b < batch; ++b) {
            tokens.push_back(last[b]);
            tokens.insert(tokens.end(), drafts[b].begin(), drafts[b].end());
            starts.push_back(tokens.size());
            width = std::max(width, drafts[b].size() + 1);
        }
        add_causal_rows(engine.scratch.rows, batch, width, starts.data(), positions.data(), nullptr, slots, source_slots,
                        source_lengths, tokens.data());
        Pass pass = pass_of(all.verifying, false, all.logits, nullptr);
        pass.features = all.features;
        Forward forward(*all.verifier, pass, engine.team, engine.scratch);
        judged.resize(3 * batch), scores.resize(batch * width), this->width = width;
        const Judging judging{all.logits, batch, int64_t(width), 1, starts.data(), all.tau, judged.data(), scores.data(),
                              drawing(), origins(), repeating(), beta, room.data(), minimum.data(), tokens.data()};
        judging.reserve(engine, all.verifier->projection->outputs, all.eos, all.banned_count, all.banned);
        engine.team.run([&](int member) {
            forward.run(member);
            engine.team.sync();
            judging.run(engine, member);
        });
        const int64_t size = all.verifier->width;
        for (int64_t b = 0; all.heads && b < batch; ++b)
            std::copy_n(all.features + (b * width + judged[b]) * size, size, all.states + b * size);
    }

    // Appends the accepted tokens to each row and to the record. Returns whether a row finished.
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
            if (all.read) {
                unread[b].insert(unread[b].end(), draft.begin(), draft.begin() + accepted);
                unread[b].push_back(last[b]);
            }
            const int64_t count = accepted + !ended;
            if (all.sampling && draws[b].penalty != 1) {
                prefixes[b].insert(prefixes[b].end(), draft.begin(), draft.begin() + accepted);
                prefixes[b].push_back(last[b]);
            }
            if (all.repeats && repeats[b].size) {
                committed[b].insert(committed[b].end(), draft.begin(), draft.begin() + accepted);
                committed[b].push_back(last[b]);
            }
            positions[b] += count, room[b] -= count, minimum[b] = std::max<int64_t>(0, minimum[b] - count);
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
            empty.push_back(positions[b] == 0);
        }
        const bool narrowed =
            add_causal_rows(engine.scratch.rows, batch, longest, starts.data(), all.read, firsts.data(), drafter_slots,
                            drafter_source_slots, source_lengths, tokens.data());
        choose(engine, pass_of(all.drafting, narrowed, all.drafter_logits, all.gates), nullptr);
        draft_nothing();
        for (int64_t b = 0; b < batch; ++b)
            if (lengths[b]) {
                offer(b);
                all.read[b] = positions[b] + 1;
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
            empty.push_back(positions[b] == 0);
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

    // As `GlideDrafter` does: each member drafts for some sentences alone, or, if some would have none, they share passes that are
    // long enough. A draft ends with the token that makes it less probable than `least`.
    void draft_in_turn(Engine& engine) {
        auto& rows = engine.scratch.rows;
        rows.clear(), empty.clear();
        for (int64_t b = 0; b < batch; ++b) {
            lengths[b] = std::max<int64_t>(0, most(b));
            empty.push_back(positions[b] == 0);
            if (lengths[b])
                rows.push_back({.token = last[b], .slot = slots[b], .position = positions[b], .visible = positions[b] + lengths[b],
                                .entry = positions[b], .source_slot = source_slots[b], .source = source_lengths[b],
                                .target = b * longest, .mask = false, .wanted = true});
        }
        const Pass pass = pass_of(all.drafting, false, all.drafter_logits, nullptr);
        const Choice choice = choosing(engine);
        const int64_t outputs = all.drafter->projection->outputs;
        sure.assign(batch, 1);
        const auto see_itself = [](Row& row) { row.visible = row.position + 1; };
        const auto ended = [&](Row& row) {
            const int64_t b = row.target / longest, drafted = row.target % longest + 1;
            choice.take(engine, row.target);
            row.token = token(row.target);
            if (all.least[b] > 0) {
                const float *values = all.drafter_logits + row.target * outputs, most = largest(values, outputs);
                sure[b] *= exponential(most - log_sum_exp(values, outputs, most));
            }
            row.entry = ++row.position, ++row.target;
            if (sure[b] < all.least[b]) lengths[b] = drafted;
            return row.token == all.eos || drafted == lengths[b];
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
        const Choice choice = choosing(engine);
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

    Choice choosing(Engine& engine) {
        const Stack& stack = *all.drafter;
        chosen.resize(batch * longest);
        const Choice choice{all.drafter_logits, batch, longest, stack.projection->outputs, all.drafter_pad, all.drafter_eos,
                            lengths.data(), empty.data(), stack.gate ? all.gates : nullptr, stack.gate ? stack.gate->outputs : 0,
                            all.tokens, all.outs, all.candidates, chosen.data(), drawing(), all.token_ids, origins()};
        choice.reserve(engine);
        return choice;
    }

    static Pass pass_of(const Caches& from, bool narrowed, float* logits, float* gates) {
        return {{from.cache, from.cache_layer, from.cache_slot}, {from.memory, from.memory_layer, from.memory_slot}, nullptr, false,
                narrowed, logits, gates, nullptr};
    }

    // How rows sample in this step.
    const Draws* drawing() {
        if (!all.sampling) return nullptr;
        for (int64_t b = 0; b < batch; ++b) {
            draws[b].position = positions[b];
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
    int64_t most(int64_t b) const { return std::min({lengths[b], room[b], all.drafter_positions - positions[b]}); }
    // The token chosen at a position of the drafts.
    int64_t token(int64_t at) const { return all.token_ids ? all.token_ids[chosen[at]] : chosen[at]; }

    const Decoding& all;
    const int64_t batch;
    int64_t longest = 0, width = 0;
    const int64_t *planned, *slots, *source_slots, *drafter_slots, *drafter_source_slots, *source_lengths, *beta;
    std::vector<int64_t> positions, last, room, minimum;
    std::vector<std::vector<int64_t>> unread, drafts, prefixes;
    std::vector<Draws> draws;
    std::vector<std::vector<int64_t>> committed;  // (B) each row's tokens, where a row bans repeats
    std::vector<Repeats> repeats;
    std::vector<int64_t> origin_tokens;  // (B, K, candidates) what this step's drafts were drawn from
    std::vector<float> probabilities;    // the same
    std::vector<int64_t> lengths;  // maximum, of this step's drafts
    std::vector<double> sure;      // (B) probability of this step's drafts
    std::vector<int64_t> starts, tokens, firsts, empty, chosen, judged;  // of this step
    std::vector<float> scores;
};

// Runs steps until a row finishes, the caches are full, or `steps` are done; at least one.
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
        if (all.taken == 0) all.seconds[2] = all.seconds[0] + all.seconds[1];
    }
}

}  // namespace
