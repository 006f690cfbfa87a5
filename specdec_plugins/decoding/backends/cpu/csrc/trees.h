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

// Rows whose trees grow together. `width` 0: one row, with the likeliest `nodes`; otherwise those of a search, with its `width`
// likeliest hypotheses at each depth.
struct Grove {
    int64_t nodes, width, size;
    const int64_t* rows;
};

struct Branching {
    float* logits;  // (B, K, V)
    int64_t batch, width, vocabulary, pad, eos;  // width: K; pad and eos as indices of logits, -1: no such logit
    const int64_t *lengths, *empty;              // (B)
    const float* gates;                          // (B, K, R); NULL without a successor network
    int64_t gate_width;
    const float *tokens, *outs;  // (V, R)
    int64_t candidates;          // C
    const int64_t* token_ids;    // of the logits; NULL: all tokens, in order
    const double* totals;        // (B) of the hypotheses before
    int64_t most;                // nodes of a row
    int64_t *counts, *to, *parents;  // (B), (B, most) twice
    std::vector<Grove> groves;

    // Called before the team runs.
    void reserve(Engine& engine) const {
        const size_t size = batch * width * candidates;
        if (engine.candidates.size() < size) engine.candidates.resize(size);
    }

    void run(Engine& engine, int member) const {
        const int64_t positions = batch * width;
        for (int64_t at = member; at < positions; at += engine.team.size) {
            const int64_t b = at / width, k = at % width;
            if (k >= lengths[b]) continue;
            float* values = logits + at * vocabulary;
            if (pad >= 0) values[pad] = -INFINITY;
            if (eos >= 0 && k == 0 && empty[b]) values[eos] = -INFINITY;
            best_few(values, vocabulary, candidates, &engine.candidates[at * candidates]);
        }
        engine.team.sync();
        for (size_t i = member; i < groves.size(); i += engine.team.size) {
            for (int64_t row = 0; row < groves[i].size; ++row) counts[groves[i].rows[row]] = 0;
            if (groves[i].width)
                ahead(groves[i], &engine.candidates[0]);
            else
                likeliest(groves[i], &engine.candidates[0]);
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
        const int64_t *own = few + (row * width + depth) * candidates, *before = own - candidates;
        if (depth >= lengths[row] || (depth && before[number] == eos)) return found;
        const int64_t position = row * width + depth;
        double most = -INFINITY, sum = 0;
        for (int64_t i = 0; i < candidates; ++i) {
            const float logit = logits[position * vocabulary + own[i]];
            const double score = gates && depth ? successor_score(logit, gates + position * gate_width,
                                                                  tokens + before[number] * gate_width,
                                                                  outs + own[i] * gate_width, gate_width)
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
        const int64_t node = counts[row]++;
        to[row * most + node] = token_ids ? token_ids[index] : index;
        parents[row * most + node] = parent;
        return node;
    }

    void likeliest(const Grove& grove, const int64_t* few) const {
        std::priority_queue<Open> opened;
        std::vector<Children> known;
        const int64_t row = grove.rows[0];
        const auto open = [&](size_t which, int64_t rank) {
            const Children& siblings = known[which];
            if (rank >= int64_t(siblings.order.size())) return;
            const double total = siblings.above + siblings.scores[siblings.order[rank]];
            if (total > -INFINITY) opened.push({total, siblings.parent, rank, which});
        };
        known.push_back(children(few, row, 0, 0, -1, 0));
        open(0, 0);
        while (!opened.empty() && counts[row] < grove.nodes) {
            const Open best = opened.top();
            opened.pop();
            const int64_t depth = known[best.children].depth, number = known[best.children].order[best.rank];
            const int64_t node = add(row, best.parent, few[(row * width + depth) * candidates + number]);
            open(best.children, best.rank + 1);
            known.push_back(children(few, row, depth + 1, number, node, best.total));
            open(known.size() - 1, 0);
        }
    }

    void ahead(const Grove& grove, const int64_t* few) const {
        struct Live {
            double total;
            int64_t row, node, number;
        };
        std::vector<Live> live, found;
        for (int64_t i = 0; i < grove.size; ++i) live.push_back({totals[grove.rows[i]], grove.rows[i], -1, 0});
        for (int64_t depth = 0; depth < width && !live.empty(); ++depth) {
            found.clear();
            for (const Live& each : live) {
                const Children after = children(few, each.row, depth, each.number, each.node, each.total);
                for (int64_t rank = 0; rank < std::min<int64_t>(grove.width, after.order.size()); ++rank) {
                    const int64_t number = after.order[rank];
                    const bool ends = few[(each.row * width + depth) * candidates + number] == eos;
                    if (!ends && after.scores[number] > -INFINITY)
                        found.push_back({each.total + after.scores[number], each.row, each.node, number});
                }
            }
            std::stable_sort(found.begin(), found.end(), [](const Live& one, const Live& other) { return one.total > other.total; });
            if (int64_t(found.size()) > grove.width) found.resize(grove.width);
            for (Live& each : found)
                each.node = add(each.row, each.node, few[(each.row * width + depth) * candidates + each.number]);
            live = found;
        }
    }
};

// The judging of trees by the rules that judge a token by its prefix alone: the longest path of tokens that pass, and among
// equally long ones that with the highest score. Row b's nodes are numbers starts[b] to starts[b + 1] of `tokens` and `parents`.
struct TreeJudging {
    float* logits;  // (B, width, V), in each row after its root and after each node
    int64_t batch, width;
    const int64_t *starts, *beta, *room, *minimum, *tokens, *parents;
    const double* tau;
    const Draws* draws;      // (B); NULL: no row samples
    const Repeats* repeats;  // (B); NULL: no row bans repeats
    int64_t *judged, *to;    // (3, B) as of `Judging`; (B, width) the accepted nodes
    float* scores;           // (B, width)
    std::vector<std::vector<int64_t>> paths{};  // the tokens of each node's

    // Called before the team runs.
    void reserve(Engine& engine, int64_t vocabulary, int64_t eos, int64_t count, const int64_t* banned) {
        engine.forbid(vocabulary, eos, count, banned);
        if (engine.chosen.size() < size_t(starts[batch])) engine.chosen.resize(starts[batch]);
        const size_t weights = draws ? engine.team.size * weights_of(vocabulary) : 0;
        if (engine.weights.size() < weights) engine.weights.resize(weights);
        paths.resize(starts[batch]);
        for (int64_t b = 0; b < batch; ++b)
            for (int64_t node = starts[b]; node < starts[b + 1]; ++node) {
                paths[node].clear();
                if (parents[node] >= 0) paths[node] = paths[starts[b] + parents[node]];
                paths[node].push_back(tokens[node]);
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
                        if (parents[node] == parent) engine.chosen[node] = judge(engine, member, b, node, parent);
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
        const Draft draft{path, k + drafts, beta[b], tau[b], room[b], minimum[b],
                          draws && draws[b].some() ? draws + b : nullptr, {}, repeats && repeats[b].size ? repeats + b : nullptr};
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
            const int64_t parent = parents[first + node], length = paths[first + node].size();
            if (!chosen.passes || (parent >= 0 && std::isnan(totals[parent]))) continue;
            own[node] = engine.judge.score(chosen, at(engine, b, parent));
            totals[node] = (parent >= 0 ? totals[parent] : 0) + own[node];
            if (length > longest || (length == longest && totals[node] > most))
                best = node, longest = length, most = totals[node];
        }
        const Chosen last = judge(engine, member, b, starts[b + 1], best);
        judged[b] = longest, judged[batch + b] = last.token, judged[2 * batch + b] = last.cut;
        scores[b * width + longest] = engine.judge.score(last, at(engine, b, best));
        for (int64_t node = best, depth = longest; depth--; node = parents[first + node])
            to[b * width + depth] = node, scores[b * width + depth] = own[node];
    }
};

}  // namespace
