// The best tokens to follow each row, for beam search. B rows, C candidates, V vocabulary.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "batch.h"

namespace {

struct Ranking {
    float* logits;  // (B, V), `stride` numbers from row to row
    int64_t batch, stride, width, unk;  // width: C
    const int64_t *few, *room, *minimum, *renormalise;  // (B); few: candidates of a row, 0: it is not ranked
    const double* penalty;   // (B) subtracted from the logit of `unk`
    const Repeats* repeats;  // (B); NULL: no row bans repeats
    int64_t* tokens;         // (B, C), best first
    float* scores;           // (B, C) log-probabilities (nats); minus infinity after the last allowed token

    void run(Engine& engine, int member) const {
        const Judge& judge = engine.judge;
        float* kept = &engine.kept[member * judge.forbidden.size()];
        for (int64_t b = member; b < batch; b += engine.team.size)
            if (few[b]) rank(judge, b, logits + b * stride, kept, engine.repeated[member]);
    }

  private:
    void rank(const Judge& judge, int64_t b, float* values, float* kept, std::vector<Forbidden>& repeated) const {
        const int64_t vocabulary = judge.vocabulary, count = std::min(few[b], vocabulary);
        int64_t* to = tokens + b * width;
        float* score = scores + b * width;
        std::fill_n(score, width, -INFINITY);
        if (room[b] <= 0) {
            to[0] = judge.forbidden.back();
            score[0] = values[to[0]] - log_sum_exp(values, vocabulary, largest(values, vocabulary));
            return;
        }
        const bool early = minimum[b] > 0;
        const float banned = judge.ban(repeats && repeats[b].size ? repeats + b : nullptr, nullptr, 0, early, values, kept, repeated);
        const float known = values[unk];
        values[unk] -= float(penalty[b]);
        best_few(values, vocabulary, count, to);
        for (int64_t i = 0; i < count; ++i) score[i] = values[to[i]];
        float sum = renormalise[b] && score[0] > -INFINITY ? log_sum_exp(values, vocabulary, score[0]) : 0;
        values[unk] = known;
        judge.restore(early, values, kept, repeated);
        if (!renormalise[b]) {
            const float most = penalty[b] < 0 ? largest(values, vocabulary) : std::max({banned, known, score[0]});
            sum = log_sum_exp(values, vocabulary, most);
        }
        for (int64_t i = 0; i < count; ++i) score[i] -= sum;
    }
};

}  // namespace
