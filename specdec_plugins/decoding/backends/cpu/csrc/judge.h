// Which drafted tokens the verifier accepts and what it puts after them: by the exact or the tolerant rule (Xia et al. 2023,
// section 3.3), or, in rows that sample, by the coupled or the rejection rule (backends/torch/{coupled,rejection}.py).
//
// Position k of a row chooses the token after the first k tokens of its draft. K drafted tokens, V vocabulary.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "sample.h"
#include "screen.h"
#include "select.h"
#include "vectors.h"

namespace {

// log(sum(e^values)); `most` is the largest of them.
inline float log_sum_exp(const float* values, int64_t count, float most) {
    Floats total = 0;
    int64_t i = 0;
    for (; i + W <= count; i += W) total += exponential(load(values + i) - most);
    float last[W];
    std::fill(std::copy(values + i, values + count, last), last + W, -INFINITY);
    total += exponential(load(last) - most);
    return most + logarithm(sum(total));
}

// A row's ban on repeated n-grams, with its committed tokens. The twin of `repeated` in backends/torch/constraints.py.
struct Repeats {
    int64_t size;  // n; 0: no ban
    const int64_t *prefix, *prefix_end;

    // Calls `forbid` with each token that would repeat an n-gram of the prefix and the first k drafted tokens.
    template <class Forbid>
    void each(const int64_t* drafted, int64_t k, Forbid&& forbid) const {
        const int64_t committed = prefix_end - prefix, length = committed + k;
        const auto at = [&](int64_t i) { return i < committed ? prefix[i] : drafted[i - committed]; };
        for (int64_t end = size - 1; end < length; ++end) {
            int64_t same = 1;
            while (same < size && at(end - same) == at(length - same)) ++same;
            if (same == size) forbid(at(end));
        }
    }
};

// Fills `to` per row and returns its data; NULL if no row has the ban.
inline const Repeats* take(const NoRepeats* from, int64_t batch, std::vector<Repeats>& to) {
    if (!from) return nullptr;
    to.clear();
    const int64_t* prefix = from->prefixes;
    for (const RepeatRow* row = from->rows; row < from->rows + batch; prefix += row++->prefix)
        to.push_back({row->size, prefix, prefix + row->prefix});
    return to.data();
}

// A token banned at a position, and its logit.
struct Forbidden {
    int64_t token;
    float logit;
};

// A row's draft, and how it is judged.
struct Draft {
    const int64_t* tokens;
    int64_t offered;       // K
    const JudgeRow& rule;  // its options
    const Draws* draws;  // NULL: the row takes the best token
    Origin origin;       // of the first drafted token; the others' follow. Without tokens each was certain.
    const Repeats* repeats;  // NULL: no ban

    Origin origin_of(int64_t k) const {
        static constexpr float CERTAIN = 1;
        if (!origin.tokens) return {tokens + k, &CERTAIN, 1};
        return {origin.tokens + k * origin.count, origin.probabilities + k * origin.count, origin.count};
    }
};

// The choice at a position, assuming that all before it are accepted.
struct Chosen {
    int64_t token;  // the drafted one if it passes, else the verifier's own
    bool passes;
    bool cut;    // the length limit is why it is eos
    float most;  // the largest of all logits there
};

struct Judge {
    // Tokens that are never allowed, then eos, which is banned only up to the minimum length.
    std::vector<int64_t> forbidden;
    int64_t vocabulary;

    // Judges position k of a draft by its logits (V), which it restores. Scratch memory: `kept` (forbidden tokens), `repeated`,
    // and, if the row samples, `weights` (`weights_of` V).
    Chosen operator()(const Draft& draft, int64_t k, float* values, float* kept, std::vector<Forbidden>& repeated,
                      float* weights) const {
        const int64_t eos = forbidden.back();
        float most = ban(draft.repeats, draft.tokens, k, k < draft.rule.minimum, values, kept, repeated);
        int64_t best = best_of(values, vocabulary);
        most = std::max(most, values[best]);
        const bool limit = k >= draft.rule.room, rejects = draft.draws && draft.draws->rejects && !limit;
        bool passes = false;
        if (draft.draws) best = drawn(draft, k, values, weights, rejects, passes);
        const bool cut = limit && best != eos;
        if (limit) best = eos;
        if (k < draft.offered && !rejects)
            passes = draft.tokens[k] == best || (!draft.draws && !limit && tolerates(draft, values, best, draft.tokens[k]));
        restore(k < draft.rule.minimum, values, kept, repeated);
        return {passes ? draft.tokens[k] : best, passes, cut, most};
    }

    // The rejection rule where a tree branches after the first k tokens of a path: tries the next ones of `siblings` in turn, each a
    // point mass. Accepts x with the verifier's probability of x, otherwise removes x and renormalises the rest (Miao et al. 2024).
    // `tried` counts the refused ones. The first try has a chain's random number.
    Chosen operator()(const Draft& draft, int64_t k, const std::vector<int64_t>& siblings, size_t& tried, float* values, float* kept,
                      std::vector<Forbidden>& repeated, float* weights) const {
        const bool early = k < draft.rule.minimum, limit = k >= draft.rule.room;
        const Draws& draws = *draft.draws;
        const float banned = ban(draft.repeats, draft.tokens, k, early, values, kept, repeated);
        const float most = std::max(banned, largest(values, vocabulary));
        const float total = warp(draws, values, vocabulary, draft.tokens, k, weights);
        double left = 1;  // probability of all tokens not yet refused
        const auto passes = [&](int64_t token) {
            const double chance = double(weights[token]) / total;
            if (chance > 0 && uniform(token_bits(draws.noise(k, ACCEPT), tried)) * left < chance) return true;
            weights[token] = 0, left -= chance;
            return false;
        };
        for (tried = 0; tried < siblings.size() && !passes(siblings[tried]);) ++tried;
        Chosen chosen{0, tried < siblings.size(), false, most};
        if (chosen.passes) {
            chosen.token = siblings[tried];
        } else {
            // Nothing is left: only rounding refused the last token.
            if (!(largest(weights, weights_of(vocabulary)) > 0)) warp(draws, values, vocabulary, draft.tokens, k, weights);
            chosen.token = race(weights, vocabulary, draws.noise(k, RECOVER));
            chosen.cut = limit && chosen.token != forbidden.back();
            if (limit) chosen.token = forbidden.back();
        }
        restore(early, values, kept, repeated);
        return chosen;
    }

    // The same for a row that draws no token, by logits as far as they are needed; there is no `most`.
    Chosen operator()(const Draft& draft, int64_t k, Lazy& logits) const {
        const int64_t eos = forbidden.back();
        if (k < draft.offered) logits.of(draft.tokens[k]);  // a good first bound
        logits.find_best();
        const bool limit = k >= draft.rule.room, cut = limit && logits.best != eos;
        const int64_t best = limit ? eos : logits.best;
        const bool passes = k < draft.offered && (draft.tokens[k] == best || (!limit && tolerates(draft, logits, draft.tokens[k])));
        return {passes ? draft.tokens[k] : best, passes, cut, NAN};
    }

    // The tokens banned after the first k of a draft.
    void bans(const Draft& draft, int64_t k, std::vector<int64_t>& to) const {
        to.assign(forbidden.begin(), forbidden.begin() + listed(k < draft.rule.minimum));
        if (draft.repeats)
            draft.repeats->each(draft.tokens, k, [&](int64_t token) {
                if (token != forbidden.back()) to.push_back(token);
            });
    }

    // Bans tokens after the first k of a draft, eos if `early`, in the logits there (V); returns the largest banned logit.
    float ban(const Repeats* repeats, const int64_t* drafted, int64_t k, bool early, float* values, float* kept,
              std::vector<Forbidden>& repeated) const {
        const int64_t eos = forbidden.back();
        float most = -INFINITY;
        for (size_t i = 0; i < listed(early); ++i) {
            kept[i] = values[forbidden[i]];
            most = std::max(most, kept[i]);
            values[forbidden[i]] = -INFINITY;
        }
        repeated.clear();
        if (repeats)
            repeats->each(drafted, k, [&](int64_t token) {
                if (token == eos || values[token] == -INFINITY) return;  // an output may always end; others are banned already
                repeated.push_back({token, values[token]});
                most = std::max(most, values[token]);
                values[token] = -INFINITY;
            });
        return most;
    }

    void restore(bool early, float* values, const float* kept, const std::vector<Forbidden>& repeated) const {
        for (const Forbidden& each : repeated) values[each.token] = each.logit;
        for (size_t i = listed(early); i-- > 0;) values[forbidden[i]] = kept[i];  // backwards, as a token may be listed twice
    }

    // The chosen token's log-probability under the unconstrained model, as in fairseq.
    float score(const Chosen& chosen, const float* values) const {
        return values[chosen.token] - log_sum_exp(values, vocabulary, chosen.most);
    }

  private:
    size_t listed(bool early) const { return forbidden.size() - !early; }

    // The token of a row that samples. Under the rejection rule that is the drafted one if it `passes`.
    int64_t drawn(const Draft& draft, int64_t k, const float* values, float* weights, bool rejects, bool& passes) const {
        const Draws& draws = *draft.draws;
        const int64_t count = weights_of(vocabulary);
        const float total = warp(draws, values, vocabulary, draft.tokens, k, weights);
        if (rejects && k < draft.offered) {
            const Origin origin = draft.origin_of(k);
            passes = accepts(draws.noise(k, ACCEPT), weights, total, draft.tokens[k], origin);
            if (passes) return draft.tokens[k];
            // Equal distributions leave nothing: only rounding refused the token.
            if (!subtract(weights, count, total, origin)) warp(draws, values, vocabulary, draft.tokens, k, weights);
        }
        return race(weights, vocabulary, draws.noise(k, draws.rejects ? RECOVER : SAMPLE));
    }

    // Whether a token other than the best passes. Equal logits rank by token id.
    bool tolerates(const Draft& draft, const float* values, int64_t best, int64_t token) const {
        const float own = values[token];
        if (!near(draft, own, values[best])) return false;
        int64_t rank = 0;
        for (int64_t i = 0; i < vocabulary; ++i) rank += values[i] > own || (values[i] == own && i < token);
        return rank < draft.rule.beta;
    }
    bool tolerates(const Draft& draft, Lazy& logits, int64_t token) const {
        return near(draft, logits.of(token), logits.most) && logits.among(token, draft.rule.beta);
    }
    static bool near(const Draft& draft, float own, float most) {
        return draft.rule.beta > 1 && own != -INFINITY && !(double(most) - double(own) > draft.rule.tau);
    }
};

}  // namespace
