// How tokens are drawn: the twin of sampling.py, which says what the options do. First a position's logits become *weights*,
// which need not sum to one, then an exponential race draws a token by them. A result depends on the logits, the options, the
// seed, the position and the prefix alone.
//
// V vocabulary, C candidates of a drafter.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "calls.h"
#include "noise.h"
#include "select.h"
#include "vectors.h"

namespace {

// How a row's next tokens are drawn. Without a penalty the prefix may be empty.
struct Draws {
    double temperature, top_p, penalty;
    uint64_t seed;
    int64_t top_k;
    bool rejects;
    int64_t position;  // of the first token to draw
    const int64_t *prefix, *prefix_end;

    bool some() const { return temperature > 0; }
    Noise noise(int64_t k, Purpose purpose) const { return {seed, uint32_t(position + k), purpose}; }
};

// Fills `to` per row and returns its data; NULL if no row samples.
inline const Draws* take(const Sampling* from, int64_t batch, std::vector<Draws>& to) {
    if (!from) return nullptr;
    to.clear();
    const int64_t* prefix = from->prefixes;
    for (const SamplingRow* row = from->rows; row < from->rows + batch; prefix += row++->prefix)
        to.push_back({row->temperature, row->top_p, row->penalty, uint64_t(row->seed), row->top_k, row->rejects != 0, row->position,
                      prefix, prefix + row->prefix});
    return to.data();
}

// Size of a vocabulary's weights: whole blocks.
inline int64_t weights_of(int64_t vocabulary) { return (vocabulary + BLOCK - 1) / BLOCK * BLOCK; }

// The largest number from `least` to `most` for which `enough` holds, by bisection; it is monotone and holds for `least`. Floats
// are ordered by their bits as integers, so some 30 attempts suffice.
template <class Enough>
inline float highest(float least, float most, Enough&& enough) {
    const auto ordered = [](int32_t bits) { return bits < 0 ? bits ^ 0x7fffffff : bits; };
    int64_t low = ordered(std::bit_cast<int32_t>(least)), high = int64_t(ordered(std::bit_cast<int32_t>(most))) + 1;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        (enough(std::bit_cast<float>(ordered(int32_t(middle)))) ? low : high) = middle;
    }
    return std::bit_cast<float>(ordered(int32_t(low)));
}

// How many of `count` values (whole blocks) are at least `least`.
inline int64_t count_from(float least, const float* values, int64_t count) {
    Ints total[PARTS] = {};
    for (int64_t i = 0; i < count; i += BLOCK)
        for (int part = 0; part < PARTS; ++part) total[part] += load(values + i + part * W) >= least;
    int32_t lanes[BLOCK];
    for (int part = 0; part < PARTS; ++part) store(lanes + part * W, total[part]);
    return -std::accumulate(lanes, lanes + BLOCK, int64_t(0));
}

// The sum of the weights (whole blocks) that are at least `least`.
inline float mass_from(float least, const float* weights, int64_t count) {
    Floats total[PARTS] = {};
    for (int64_t i = 0; i < count; i += BLOCK)
        for (int part = 0; part < PARTS; ++part) {
            const Floats weight = load(weights + i + part * W);
            total[part] += select(weight >= least, weight, 0.0f);
        }
    return sum((total[0] + total[1]) + (total[2] + total[3]));
}

// Keeps the likeliest tokens, lower ids first among equals, until they hold `top_p` of the mass; returns the sum of their
// weights. That keeps all above some weight, and the first of those at exactly that weight.
inline float keep_nucleus(float* weights, int64_t count, double top_p) {
    const float goal = float(top_p) * mass_from(0, weights, count);
    const float least = highest(0, 1, [&](float weight) { return mass_from(weight, weights, count) >= goal; });
    const float before = mass_from(std::nextafter(least, 2.0f), weights, count);
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i += W) {
        Floats weight = load(weights + i);
        store(weights + i, select(weight < least, 0.0f, weight));
        if (any(weight == least))
            for (int64_t token = i; token < i + W; ++token) {
                if (weights[token] != least) continue;
                if (kept && before + kept * least >= goal)
                    weights[token] = 0;
                else
                    ++kept;
            }
    }
    return mass_from(0, weights, count);
}

// Turns a position's logits (V), minus infinity for banned tokens, into weights (whole blocks); returns their sum. The position's
// prefix is the row's plus the first k tokens of its draft. Not inlined, so that all callers run the same code.
__attribute__((noinline)) float warp(const Draws& draws, const float* logits, int64_t vocabulary, const int64_t* drafted,
                                     int64_t k, float* weights) {
    const int64_t count = weights_of(vocabulary);
    std::fill(std::copy_n(logits, vocabulary, weights), weights + count, -INFINITY);
    if (draws.penalty != 1) {
        const auto penalise = [&](int64_t token) {  // from the original logit: a repeated token is penalised once
            const double logit = logits[token];
            weights[token] = float(logit > 0 ? logit / draws.penalty : logit * draws.penalty);
        };
        std::for_each(draws.prefix, draws.prefix_end, penalise);
        std::for_each(drafted, drafted + k, penalise);
    }
    const float most = largest(weights, count);
    float least = -INFINITY;
    if (draws.top_k > 0 && draws.top_k < vocabulary)
        least = highest(least, most, [&](float value) { return count_from(value, weights, count) >= draws.top_k; });
    const float slope = 1 / float(std::clamp(draws.temperature, 1e-30, 1e30));  // clamped, so that nothing becomes NaN
    Floats total = 0;
    for (int64_t i = 0; i < count; i += W) {
        const Floats value = load(weights + i), weight = select(value < least, 0.0f, exponential((value - most) * slope));
        store(weights + i, weight);
        total += weight;
    }
    std::fill(weights + vocabulary, weights + count, 0.0f);  // with non-finite logits padding could get some weight
    return draws.top_p < 1 ? keep_nucleus(weights, count, draws.top_p) : sum(total);
}

// Samples a token (< V) by an exponential race: the smallest of exponential times divided by weights (whole blocks); the first
// among equals. Not inlined, so that all callers run the same code.
__attribute__((noinline)) int64_t race(const float* weights, int64_t vocabulary, const Noise& noise) {
    const int64_t count = weights_of(vocabulary);
    constexpr float SLACK = 1.0001f;  // far more than rounding
    float best = INFINITY;
    int64_t winner = -1;
    for (int64_t token = 0; token < count; token += BLOCK) {
        Ints some = 0;
        for (int part = 0; part < PARTS; ++part) some |= load(weights + token + part * W) > 0.0f;
        if (!any(some)) continue;
        Words bits[PARTS];
        block_bits(noise, token, bits);
        for (int part = 0; part < PARTS; ++part) {
            const Floats weight = load(weights + token + part * W);
            // A time is at least its uniform variate, so most need no logarithm.
            if (!any((weight > 0.0f) & (uniform(bits[part]) <= weight * (best * SLACK)))) continue;
            float times[W];
            store(times, select(weight > 0.0f, exponential_of(bits[part]) / weight, INFINITY));
            const float* least = std::min_element(times, times + W);
            if (*least < best) best = *least, winner = token + part * W + (least - times);
        }
    }
    return winner < 0 ? best_of(weights, vocabulary) : winner;
}

// The distribution that a drafted token was drawn from.
struct Origin {
    const int64_t* tokens;
    const float* probabilities;
    int64_t count;
};

// Whether a drafted token passes under the rejection rule, by weights with that sum.
inline bool accepts(const Noise& noise, const float* weights, float total, int64_t token, const Origin& origin) {
    double drafter = 0;
    for (int64_t i = 0; i < origin.count; ++i)
        if (origin.tokens[i] == token) drafter += origin.probabilities[i];
    return uniform(token_bits(noise, 0)) * drafter < double(weights[token]) / total;
}

// Subtracts the drafter's probabilities from weights with that sum. Returns whether any weight is left.
inline bool subtract(float* weights, int64_t count, float total, const Origin& origin) {
    for (int64_t i = 0; i < origin.count; ++i) {
        float& weight = weights[origin.tokens[i]];
        weight = float(std::max(weight - double(total) * origin.probabilities[i], 0.0));
    }
    return largest(weights, count) > 0;
}

// Draws one of a drafter's C candidates by their `totals`, which become weights. Sorts both, largest first and equals in order.
// `token_ids` are as in `Sampling`. Writes the distribution unless `tokens` is NULL.
inline int64_t draw_few(const Draws& draws, const Noise& noise, int64_t* candidates, double* totals, int64_t count,
                        const int64_t* token_ids, int64_t* tokens, float* probabilities) {
    const auto after = [&](int64_t i, int64_t j) {
        return totals[i] < totals[j] || (totals[i] == totals[j] && candidates[i] > candidates[j]);
    };
    for (int64_t end = 1; end < count; ++end)
        for (int64_t i = end; i && after(i - 1, i); --i)
            std::swap(totals[i - 1], totals[i]), std::swap(candidates[i - 1], candidates[i]);
    const double most = totals[0];
    const double least = draws.top_k > 0 && draws.top_k < count ? totals[draws.top_k - 1] : -INFINITY;
    double sum = 0, kept = 0;
    for (int64_t i = 0; i < count; ++i)
        sum += totals[i] = totals[i] < least ? 0 : exponential(float((totals[i] - most) / draws.temperature));
    for (int64_t i = 0; i < count; ++i) {
        if (i && kept >= draws.top_p * sum) totals[i] = 0;
        kept += totals[i];
    }
    double best = INFINITY;
    int64_t winner = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t token = token_ids ? token_ids[candidates[i]] : candidates[i];
        const double time = totals[i] > 0 ? exponential_of(token_bits(noise, token)) / totals[i] : INFINITY;
        if (time < best) best = time, winner = i;
        if (tokens) tokens[i] = token, probabilities[i] = float(totals[i] / kept);
    }
    return candidates[winner];
}

}  // namespace
