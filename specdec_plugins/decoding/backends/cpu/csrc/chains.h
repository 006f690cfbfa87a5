// The rows of a batch that do not search: what each has committed, how it samples, what it may follow with. Between iterations their
// state stays here; Python gets it at the end of a call.
//
// B rows, K maximum draft length, V vocabulary, C candidates.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "batch.h"
#include "calls.h"

namespace {

enum Recipe { GIVEN, IN_TURN, MASKED, FROM_VECTORS };  // of drafts: see roles.py

class Chains {
  public:
    explicit Chains(const RunCall& call)
        : call(call), batch(call.batch), state(call.rows, call.rows + batch), drafts(batch), verdicts(batch) {
        const int64_t* tokens = call.tokens;
        for (const DecodeRow& row : state) {
            unread.emplace_back(tokens, tokens + row.unread), tokens += row.unread;
            last.push_back(unread.back().back());
            rules.push_back({.drafted = 0, .beta = row.beta, .tau = row.tau, .room = row.room, .minimum = row.minimum,
                             .scored = row.scored});
        }
        if (take(call.sampling, batch, draws)) {
            for (const Draws& row : draws) prefixes.emplace_back(row.prefix, row.prefix_end);
            rejects = std::any_of(draws.begin(), draws.end(), [](const Draws& row) { return row.rejects; });
        }
        if (take(call.repeats, batch, repeats))
            for (const Repeats& row : repeats) committed.emplace_back(row.prefix, row.prefix_end);
    }

    // Whether any row drafts and has room for it.
    bool drafting() const {
        bool room = false;
        for (const JudgeRow& row : rules) room |= row.room > 0;
        return call.longest > 0 && room;
    }

    // Whether a row reads no other logits than the largest.
    bool needs_the_best(int64_t b) const { return !rules[b].scored && !(call.sampling && draws[b].some()); }

    // The number of positions that the next iteration needs in the caches.
    int64_t needed() const {
        int64_t positions = 0;
        for (const DecodeRow& row : state) positions = std::max(positions, row.position + 1 + call.longest);
        return positions;
    }

    // Appends what the verifier reads: each row's last token and its draft. Returns the most results of a row.
    int64_t read(Engine& engine, std::vector<ReadRow>& reads, std::vector<int64_t>& tokens) {
        int64_t width = 0;
        engine.drafts.clear();
        for (int64_t b = 0; b < batch; ++b) {
            const DecodeRow& row = state[b];
            const int64_t drafted = rules[b].drafted = drafts[b].size();
            tokens.push_back(last[b]);
            tokens.insert(tokens.end(), drafts[b].begin(), drafts[b].end());
            reads.push_back({drafted + 1, row.position, 0, row.slot, row.source_slot, row.source_length});
            engine.drafts.push_back(drafts[b].data());
            width = std::max(width, drafted + 1);
        }
        return width;
    }

    // The judging of what was read, by logits (B, width, V).
    JudgeCall judge_call(int64_t width) {
        scores.resize(batch * width), paths.resize(call.parents ? batch * width : 0);
        return {.eos = call.eos, .banned_count = call.banned_count, .banned = call.banned, .rows = rules.data(), .tokens = call.given,
                .parents = call.parents, .sampling = nullptr, .repeats = nullptr, .verdicts = verdicts.data(), .scores = scores.data(),
                .paths = paths.data()};
    }

    // Appends the accepted tokens to each row, and records what the iteration did. Returns whether a row finished.
    bool commit(int64_t step, int64_t width) {
        bool finished = false;
        for (int64_t b = 0; b < batch; ++b) {
            const auto [accepted, own, cut] = verdicts[b];
            if (call.parents) straighten(b, &paths[b * width]);
            const auto& draft = drafts[b];
            const int64_t at = step * batch + b, kept = accepted;
            const bool ended = accepted && draft[accepted - 1] == call.eos;
            call.record[at] = {int64_t(draft.size()), accepted, ended ? -1 : own, cut};
            std::copy(draft.begin(), draft.end(), call.drafts + at * call.longest);
            if (rules[b].scored) std::copy_n(&scores[b * width], accepted + 1, call.scores + at * (call.longest + 1));
            finished |= ended || own == call.eos;
            last[b] = ended ? call.eos : own;
            const auto append = [&](std::vector<int64_t>& to) {
                to.insert(to.end(), draft.begin(), draft.begin() + kept);
                to.push_back(last[b]);
            };
            if (call.draft.recipe == MASKED) append(unread[b]);
            if (call.sampling && draws[b].penalty != 1) append(prefixes[b]);
            if (call.repeats && repeats[b].size) append(committed[b]);
            const int64_t count = accepted + !ended;
            state[b].position += count, rules[b].room -= count, rules[b].minimum = std::max<int64_t>(0, rules[b].minimum - count);
        }
        return finished;
    }

    // How rows sample in this iteration; NULL: none does.
    const Draws* drawing() {
        if (!call.sampling) return nullptr;
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

    const RunCall& call;
    const int64_t batch;
    bool rejects = false;          // whether a row is under the rejection rule
    std::vector<DecodeRow> state;  // positions change
    std::vector<JudgeRow> rules;   // room and minimum change
    std::vector<int64_t> last;
    std::vector<std::vector<int64_t>> unread, drafts;
    std::vector<VerdictRow> verdicts;

  private:
    // Makes a row's tree a chain that begins with the accepted path, in the cache, too.
    void straighten(int64_t b, const int64_t* path) {
        const std::vector<int64_t> tree = drafts[b], nodes(path, path + verdicts[b].accepted);
        auto next = drafts[b].begin();
        for (int64_t node : nodes) *next++ = tree[node];
        for (size_t node = 0; node < tree.size(); ++node)
            if (!std::binary_search(nodes.begin(), nodes.end(), int64_t(node))) *next++ = tree[node];
        copy_path(*call.verifier, call.caches, state[b].slot, state[b].position + 1, nodes, state[b].slot);
        std::copy(nodes.begin(), nodes.end(), call.paths + b * call.longest);
    }

    std::vector<std::vector<int64_t>> prefixes, committed;  // each row's tokens, where a penalty or a ban needs them
    std::vector<Draws> draws;
    std::vector<Repeats> repeats;
    std::vector<float> scores;
    std::vector<int64_t> paths;  // (B, width) of trees
};

}  // namespace
