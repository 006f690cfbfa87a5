// Trees of drafted tokens: growing them from a drafter's logits, the twin of `branched` (decoding/trees.py) for rows that do not
// sample, and judging them, the twin of `longest_paths` (acceptance/tree.py).
//
// B rows, K drafted positions, C candidates at each, V vocabulary, R width of the successor network.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <queue>
#include <vector>

#include "batch.h"
#include "select.h"

namespace {

// Growing trees: see `BranchCall`.
struct Branching {
    const BranchCall& call;
    float* logits;  // (B, K, V)
    int64_t batch, width, vocabulary;  // width: K
    const float* gates;                // (B, K, R); NULL without a successor network
    int64_t gate_width;
    std::vector<const int64_t*> members{};  // the rows of each group

    // Called before the team runs.
    void reserve(Engine& engine) {
        const int64_t* next = call.members;
        for (int64_t i = 0; i < call.group_count; next += call.groups[i++].size) members.push_back(next);
        const size_t size = batch * width * call.candidates;
        if (engine.candidates.size() < size) engine.candidates.resize(size);
    }

    void run(Engine& engine, int member) const {
        const int64_t positions = batch * width;
        for (int64_t at = member; at < positions; at += engine.team.size) {
            const int64_t b = at / width, k = at % width;
            if (k >= call.rows[b].drafted) continue;
            float* values = logits + at * vocabulary;
            if (call.pad >= 0) values[call.pad] = -INFINITY;
            if (call.eos >= 0 && k == 0 && call.rows[b].empty) values[call.eos] = -INFINITY;
            best_few(values, vocabulary, call.candidates, &engine.candidates[at * call.candidates]);
        }
        engine.team.sync();
        for (int64_t i = member; i < call.group_count; i += engine.team.size) {
            const TreeGroup& group = call.groups[i];
            for (int64_t row = 0; row < group.size; ++row) call.counts[members[i][row]] = 0;
            if (group.width)
                ahead(group, members[i], &engine.candidates[0]);
            else
                likeliest(group, members[i][0], &engine.candidates[0]);
        }
    }

  private:
    // What may follow a node or the root: candidates of position `depth`, likeliest first, with log-probabilities among them.
    struct Children {
        int64_t row, depth, parent;
        double above;
        std::vector<int64_t> order;
        std::vector<double> scores;
    };
    // A child that is the next one of its siblings.
    struct Open {
        double total;
        int64_t parent, rank;
        size_t children;
        bool operator<(const Open& other) const {  // whether it comes later
            if (total != other.total) return total < other.total;
            return parent != other.parent ? parent > other.parent : rank > other.rank;
        }
    };

    // `number` is the last token's among its position's candidates.
    Children children(const int64_t* few, int64_t row, int64_t depth, int64_t number, int64_t parent, double above) const {
        Children found{row, depth, parent, above, {}, {}};
        const int64_t candidates = call.candidates, *own = few + (row * width + depth) * candidates, *before = own - candidates;
        if (depth >= call.rows[row].drafted || (depth && before[number] == call.eos)) return found;
        const int64_t position = row * width + depth;
        double most = -INFINITY, sum = 0;
        for (int64_t i = 0; i < candidates; ++i) {
            const float logit = logits[position * vocabulary + own[i]];
            const double score = gates && depth ? successor_score(logit, gates + position * gate_width,
                                                                  call.tokens + before[number] * gate_width,
                                                                  call.outs + own[i] * gate_width, gate_width)
                                                : logit;
            found.order.push_back(i), found.scores.push_back(score);
            most = std::max(most, score);
        }
        for (double score : found.scores) sum += exponential(float(score - most));
        for (double& score : found.scores) score -= most + logarithm(float(sum));
        std::stable_sort(found.order.begin(), found.order.end(),
                         [&](int64_t one, int64_t other) { return found.scores[one] > found.scores[other]; });
        return found;
    }

    // Appends a node -> its number.
    int64_t add(int64_t row, int64_t parent, int64_t index) const {
        const int64_t node = call.counts[row]++;
        call.nodes[row * call.most + node] = call.token_ids ? call.token_ids[index] : index;
        call.parents[row * call.most + node] = parent;
        return node;
    }

    void likeliest(const TreeGroup& group, int64_t row, const int64_t* few) const {
        std::priority_queue<Open> opened;
        std::vector<Children> known;
        const auto open = [&](size_t which, int64_t rank) {
            const Children& siblings = known[which];
            if (rank >= int64_t(siblings.order.size())) return;
            const double total = siblings.above + siblings.scores[siblings.order[rank]];
            if (total > -INFINITY) opened.push({total, siblings.parent, rank, which});
        };
        known.push_back(children(few, row, 0, 0, -1, 0));
        open(0, 0);
        while (!opened.empty() && call.counts[row] < group.nodes) {
            const Open best = opened.top();
            opened.pop();
            const int64_t depth = known[best.children].depth, number = known[best.children].order[best.rank];
            const int64_t node = add(row, best.parent, few[(row * width + depth) * call.candidates + number]);
            open(best.children, best.rank + 1);
            known.push_back(children(few, row, depth + 1, number, node, best.total));
            open(known.size() - 1, 0);
        }
    }

    void ahead(const TreeGroup& group, const int64_t* rows, const int64_t* few) const {
        struct Live {
            double total;
            int64_t row, node, number;
        };
        std::vector<Live> live, found;
        for (int64_t i = 0; i < group.size; ++i) live.push_back({call.totals[rows[i]], rows[i], -1, 0});
        for (int64_t depth = 0; depth < width && !live.empty(); ++depth) {
            found.clear();
            for (const Live& each : live) {
                const Children after = children(few, each.row, depth, each.number, each.node, each.total);
                for (int64_t rank = 0; rank < std::min<int64_t>(group.width, after.order.size()); ++rank) {
                    const int64_t number = after.order[rank];
                    const bool ends = few[(each.row * width + depth) * call.candidates + number] == call.eos;
                    if (!ends && after.scores[number] > -INFINITY)
                        found.push_back({each.total + after.scores[number], each.row, each.node, number});
                }
            }
            std::stable_sort(found.begin(), found.end(), [](const Live& one, const Live& other) { return one.total > other.total; });
            if (int64_t(found.size()) > group.width) found.resize(group.width);
            for (Live& each : found)
                each.node = add(each.row, each.node, few[(each.row * width + depth) * call.candidates + each.number]);
            live = found;
        }
    }
};

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

    void choose(Engine& engine, int member, int64_t b) const {
        const int64_t first = starts[b], count = starts[b + 1] - first;
        std::vector<double> totals(count, NAN);  // of paths that pass
        int64_t best = -1, longest = 0;
        double most = 0;
        std::vector<float> own(count);
        for (int64_t node = 0; node < count; ++node) {
            const Chosen& chosen = engine.chosen[first + node];
            const int64_t parent = call.parents[first + node], length = paths[first + node].size();
            if (!chosen.passes || (parent >= 0 && std::isnan(totals[parent]))) continue;
            own[node] = engine.judge.score(chosen, at(engine, b, parent));
            totals[node] = (parent >= 0 ? totals[parent] : 0) + own[node];
            if (length > longest || (length == longest && totals[node] > most))
                best = node, longest = length, most = totals[node];
        }
        const Chosen last = judge(engine, member, b, starts[b + 1], best);
        call.verdicts[b] = {longest, last.token, last.cut};
        call.scores[b * width + longest] = engine.judge.score(last, at(engine, b, best));
        for (int64_t node = best, depth = longest; depth--; node = call.parents[first + node])
            call.paths[b * width + depth] = node, call.scores[b * width + depth] = own[node];
    }
};

}  // namespace
