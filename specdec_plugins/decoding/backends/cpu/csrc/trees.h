// The judging of trees of drafted tokens: the twin of `longest_paths` (backends/torch/trees.py). B rows, V vocabulary.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "batch.h"
#include "select.h"

namespace {

// The judging of trees by the rules that judge a token by its prefix alone: the longest path of tokens that pass, and among
// equally long ones that with the highest score. See `JudgeCall`.
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
        engine.forbid(vocabulary, call.eos, call.banned_count, call.banned);
        starts.assign(1, 0);
        for (int64_t b = 0; b < batch; ++b) starts.push_back(starts[b] + call.rows[b].drafted);
        if (engine.chosen.size() < size_t(starts[batch])) engine.chosen.resize(starts[batch]);
        const size_t weights = draws ? engine.team.size * weights_of(vocabulary) : 0;
        if (engine.weights.size() < weights) engine.weights.resize(weights);
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
            for (int64_t parent = -1; parent < starts[b + 1] - starts[b]; ++parent)
                if (turn++ % size == member)
                    for (int64_t node = starts[b]; node < starts[b + 1]; ++node)
                        if (call.parents[node] == parent) engine.chosen[node] = judge(engine, member, b, node, parent);
        engine.team.sync();
        for (int64_t b = member; b < batch; b += size) choose(engine, member, b);
    }

  private:
    float* at(const Engine& engine, int64_t b, int64_t node) const {
        return logits + (b * width + node + 1) * engine.judge.vocabulary;
    }

    // What is chosen after `parent`, where the row drafts `node` (from all rows' first on); past the end: nothing.
    Chosen judge(Engine& engine, int member, int64_t b, int64_t node, int64_t parent) const {
        const bool drafts = node < starts[b + 1];
        const int64_t place = drafts ? node : starts[b] + parent;
        const int64_t* path = drafts || parent >= 0 ? paths[place].data() : nullptr;
        const int64_t k = path ? paths[place].size() - drafts : 0;
        const Draft draft{path, k + drafts, call.rows[b], draws && draws[b].some() ? draws + b : nullptr, {},
                          repeats && repeats[b].size ? repeats + b : nullptr};
        float* weights = draws ? &engine.weights[member * weights_of(engine.judge.vocabulary)] : nullptr;
        float* kept = &engine.kept[member * engine.judge.forbidden.size()];
        return engine.judge(draft, k, at(engine, b, parent), kept, engine.repeated[member], weights);
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
