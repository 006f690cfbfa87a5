// The judging of trees of drafted tokens: the twin of backends/torch/trees.py. B rows, V vocabulary.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "batch.h"
#include "select.h"

namespace {

// Rules that judge a token by its prefix alone take the longest path of tokens that pass, and among equally long ones that with the
// highest score. The rejection rule walks from the root, trying a node's children in turn. See `JudgeCall`.
struct TreeJudging {
    const JudgeCall& call;
    float* logits;  // (B, width, V), in each row after its root and after each node
    int64_t batch, width;
    const Draws* draws;      // (B); NULL: no row samples
    const Repeats* repeats;  // (B); NULL: no row bans repeats
    std::vector<int64_t> starts{};              // (B + 1) the numbers of each row's nodes among all
    std::vector<std::vector<int64_t>> paths{};  // the tokens of each node's

    // Called before the team runs.
    void reserve(Engine& engine, int64_t vocabulary) {
        starts.assign(1, 0);
        for (int64_t b = 0; b < batch; ++b) starts.push_back(starts[b] + call.rows[b].drafted);
        engine.reserve(call, vocabulary, starts[batch], draws);
        paths.resize(starts[batch]);
        for (int64_t b = 0; b < batch; ++b)
            for (int64_t node = starts[b]; node < starts[b + 1]; ++node) {
                if (call.parents[node] >= 0) paths[node] = paths[starts[b] + call.parents[node]];
                paths[node].push_back(call.tokens[node]);
            }
    }

    // Members take positions in turn, each with the tokens that follow it, as judging changes its logits for a while; then rows.
    void run(Engine& engine, int member) const {
        const int size = engine.team.size;
        int64_t turn = 0;
        for (int64_t b = 0; b < batch; ++b)
            for (int64_t parent = -1; !walks(b) && parent < starts[b + 1] - starts[b]; ++parent)
                if (turn++ % size == member)
                    for (int64_t node = starts[b]; node < starts[b + 1]; ++node)
                        if (call.parents[node] == parent) engine.chosen[node] = judge(engine, member, b, node, parent);
        engine.team.sync();
        for (int64_t b = member; b < batch; b += size) walks(b) ? walk(engine, member, b) : choose(engine, member, b);
    }

  private:
    bool walks(int64_t b) const { return draws && draws[b].some() && draws[b].rejects; }
    float* at(const Engine& engine, int64_t b, int64_t node) const {
        return logits + (b * width + node + 1) * engine.judge.vocabulary;
    }

    // What is chosen after `parent`, where the row drafts `node` (from all rows' first on); past the end: nothing.
    Chosen judge(Engine& engine, int member, int64_t b, int64_t node, int64_t parent) const {
        const bool drafts = node < starts[b + 1];
        const int64_t place = drafts ? node : starts[b] + parent;
        const int64_t* path = drafts || parent >= 0 ? paths[place].data() : nullptr;
        const int64_t k = path ? paths[place].size() - drafts : 0;
        return engine.judge(draft_of(b, path, k + drafts), k, at(engine, b, parent), engine.kept_by(member), engine.repeated[member],
                            engine.weights_by(member, draws));
    }
    Draft draft_of(int64_t b, const int64_t* path, int64_t offered) const {
        return {path, offered, call.rows[b], draws && draws[b].some() ? draws + b : nullptr, {},
                repeats && repeats[b].size ? repeats + b : nullptr};
    }

    // By the rejection rule.
    void walk(Engine& engine, int member, int64_t b) const {
        std::vector<int64_t> nodes, tokens;  // children
        for (int64_t end = -1, depth = 0;; ++depth) {
            nodes.clear(), tokens.clear();
            for (int64_t node = 0; node < starts[b + 1] - starts[b]; ++node)
                if (call.parents[starts[b] + node] == end) nodes.push_back(node), tokens.push_back(call.tokens[starts[b] + node]);
            const int64_t* path = end < 0 ? nullptr : paths[starts[b] + end].data();
            float* values = at(engine, b, end);
            size_t tried;
            const Chosen chosen = engine.judge(draft_of(b, path, depth), depth, tokens, tried, values, engine.kept_by(member),
                                               engine.repeated[member], engine.weights_by(member, draws));
            if (call.rows[b].scored) call.scores[b * width + depth] = engine.judge.score(chosen, values);
            if (!chosen.passes) {
                call.verdicts[b] = {depth, chosen.token, chosen.cut};
                return;
            }
            call.paths[b * width + depth] = end = nodes[tried];
        }
    }

    // Without tolerance equally long paths have the same tokens, so that no score is needed to choose one.
    void choose(Engine& engine, int member, int64_t b) const {
        const bool scored = call.rows[b].scored, ranked = scored || call.rows[b].beta > 1;
        const int64_t first = starts[b], count = starts[b + 1] - first;
        std::vector<double> totals(count, NAN);  // of paths that pass
        int64_t best = -1, longest = 0;
        double most = 0;
        std::vector<float> own(count);
        for (int64_t node = 0; node < count; ++node) {
            const Chosen& chosen = engine.chosen[first + node];
            const int64_t parent = call.parents[first + node], length = paths[first + node].size();
            if (!chosen.passes || (parent >= 0 && std::isnan(totals[parent]))) continue;
            if (ranked) own[node] = engine.judge.score(chosen, at(engine, b, parent));
            totals[node] = (parent >= 0 ? totals[parent] : 0) + own[node];
            if (length > longest || (length == longest && totals[node] > most))
                best = node, longest = length, most = totals[node];
        }
        const Chosen last = judge(engine, member, b, starts[b + 1], best);
        call.verdicts[b] = {longest, last.token, last.cut};
        if (scored) call.scores[b * width + longest] = engine.judge.score(last, at(engine, b, best));
        for (int64_t node = best, depth = longest; depth--; node = call.parents[first + node]) {
            call.paths[b * width + depth] = node;
            if (scored) call.scores[b * width + depth] = own[node];
        }
    }
};

}  // namespace
