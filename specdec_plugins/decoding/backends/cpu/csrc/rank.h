// The best tokens to follow hypotheses, for beam search. N hypotheses, W results of a row, C candidates, V vocabulary.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "batch.h"

namespace {

struct Ranking {
    const RankCall& call;
    float* logits;  // (.., W, V)
    int64_t count, width;    // N, W
    const Repeats* repeats;  // (N); NULL: none bans repeats

    void run(Engine& engine, int member) const {
        const Judge& judge = engine.judge;
        float* kept = engine.kept_by(member);
        for (int64_t i = member; i < count; i += engine.team.size) {
            const int64_t place = call.rows[i].row * width + call.rows[i].result;
            rank(judge, i, logits + place * judge.vocabulary, kept, engine.repeated[member]);
        }
    }

  private:
    void rank(const Judge& judge, int64_t number, float* values, float* kept, std::vector<Forbidden>& repeated) const {
        const RankRow& row = call.rows[number];
        const int64_t vocabulary = judge.vocabulary, few = std::min(row.few, vocabulary), unk = call.unk;
        int64_t* to = call.tokens + number * call.width;
        float* score = call.scores + number * call.width;
        std::fill_n(score, call.width, -INFINITY);
        if (row.room <= 0) {
            to[0] = judge.forbidden.back();
            score[0] = values[to[0]] - log_sum_exp(values, vocabulary, largest(values, vocabulary));
            return;
        }
        const bool early = row.minimum > 0;
        const Repeats* ban = repeats && repeats[number].size ? repeats + number : nullptr;
        const float banned = judge.ban(ban, nullptr, 0, early, values, kept, repeated);
        const float known = values[unk];
        values[unk] -= float(row.penalty);
        best_few(values, vocabulary, few, to);
        for (int64_t i = 0; i < few; ++i) score[i] = values[to[i]];
        float sum = row.renormalise && score[0] > -INFINITY ? log_sum_exp(values, vocabulary, score[0]) : 0;
        values[unk] = known;
        judge.restore(early, values, kept, repeated);
        if (!row.renormalise) {
            const float most = row.penalty < 0 ? largest(values, vocabulary) : std::max({banned, known, score[0]});
            sum = log_sum_exp(values, vocabulary, most);
        }
        for (int64_t i = 0; i < few; ++i) score[i] -= sum;
    }
};

}  // namespace
