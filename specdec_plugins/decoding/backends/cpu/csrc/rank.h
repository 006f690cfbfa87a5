// The best tokens to follow each row, for beam search. B rows, C candidates, V vocabulary.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "batch.h"

namespace {

struct Ranking {
    const RankCall& call;
    float* logits;  // (B, V), `stride` numbers from row to row
    int64_t batch, stride;
    const Repeats* repeats;  // (B); NULL: no row bans repeats

    void run(Engine& engine, int member) const {
        const Judge& judge = engine.judge;
        float* kept = &engine.kept[member * judge.forbidden.size()];
        for (int64_t b = member; b < batch; b += engine.team.size)
            if (call.rows[b].few) rank(judge, b, logits + b * stride, kept, engine.repeated[member]);
    }

  private:
    void rank(const Judge& judge, int64_t b, float* values, float* kept, std::vector<Forbidden>& repeated) const {
        const RankRow& row = call.rows[b];
        const int64_t vocabulary = judge.vocabulary, count = std::min(row.few, vocabulary), unk = call.unk;
        int64_t* to = call.tokens + b * call.width;
        float* score = call.scores + b * call.width;
        std::fill_n(score, call.width, -INFINITY);
        if (row.room <= 0) {
            to[0] = judge.forbidden.back();
            score[0] = values[to[0]] - log_sum_exp(values, vocabulary, largest(values, vocabulary));
            return;
        }
        const bool early = row.minimum > 0;
        const float banned = judge.ban(repeats && repeats[b].size ? repeats + b : nullptr, nullptr, 0, early, values, kept, repeated);
        const float known = values[unk];
        values[unk] -= float(row.penalty);
        best_few(values, vocabulary, count, to);
        for (int64_t i = 0; i < count; ++i) score[i] = values[to[i]];
        float sum = row.renormalise && score[0] > -INFINITY ? log_sum_exp(values, vocabulary, score[0]) : 0;
        values[unk] = known;
        judge.restore(early, values, kept, repeated);
        if (!row.renormalise) {
            const float most = row.penalty < 0 ? largest(values, vocabulary) : std::max({banned, known, score[0]});
            sum = log_sum_exp(values, vocabulary, most);
        }
        for (int64_t i = 0; i < count; ++i) score[i] -= sum;
    }
};

}  // namespace
