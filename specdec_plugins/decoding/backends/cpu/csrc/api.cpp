// The library's C interface: engines, weights, passes, choosing tokens, judging drafts.
//
// Tensors are contiguous unless a stride is given; strides count numbers. Token numbers, positions, slots and lengths are int64,
// tau is float64, everything else float32. The int64 arguments of a call lie in one array, `numbers`, one part after the other: (B) is one
// number per row of the batch, (B + 1) where each row's tokens begin, and the end of them all.
//
// Functions that make something return NULL, and the others a status that is not 0, if there is too little memory.
#include <algorithm>
#include <cstring>
#include <exception>

#include "batch.h"
#include "forward.h"
#include "heads.h"
#include "linear.h"
#include "loop.h"
#include "team.h"

namespace {

// Exceptions must not cross the C interface. They can only be failed allocations, of memory or of threads.
template <class Call>
int status_of(Call&& call) {
    try {
        call();
        return 0;
    } catch (const std::exception&) {
        return 1;
    }
}
template <class Make>
auto made(Make&& make) -> decltype(make()) {
    try {
        return make();
    } catch (const std::exception&) {
        return nullptr;
    }
}

Norm norm_of(const float* const* pair, int width) {
    return pair[0] ? Norm{{pair[0], pair[0] + width}, {pair[1], pair[1] + width}} : Norm{};
}

Origins origins_of(const Sampling* sampling) {
    return sampling ? Origins{sampling->tokens, sampling->probabilities, sampling->width, sampling->candidates} : Origins{};
}

}  // namespace

extern "C" {

// Changes with the functions' parameters, so that a library compiled from other sources is noticed.
int specdec_version() { return 15; }

// Whether this CPU has the instructions that this library was compiled for.
int specdec_supported() {
#if defined(__AMX_INT8__)
    if (!__builtin_cpu_supports("amx-tile") || !__builtin_cpu_supports("amx-int8") || !matrix_unit_is_allowed()) return 0;
#endif
#if defined(__AVX512VNNI__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
#elif defined(__AVX2__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 1;
#endif
}

Engine* specdec_engine(int threads) {
    return made([&] { return new Engine(threads); });
}
void specdec_engine_free(Engine* engine) { delete engine; }

// Packs weight (O, I) and bias (O), which may be NULL; neither is needed afterwards.
Linear* specdec_linear(const float* weight, const float* bias, int outputs, int inputs, int kind) {
    return made([&] { return new Linear(weight, bias, outputs, inputs, Kind(kind)); });
}
void specdec_linear_free(Linear* linear) { delete linear; }

// An encoder or decoder without layers yet. `tokens` (V, D) and `places` (positions, D) are read by every pass; row `first` of
// `places` is that of position 0, and row `last` the last one. With `zero_start` the token embedding of position 0 is zero.
// `norms`: weight and bias of the norm after the embedding, and of the one after the last layer; NULL where there is none.
Stack* specdec_stack(int width, int heads, int activation, int prenorm, int zero_start, const float* tokens, float scale,
                     const float* places, int first, int last, const float* const* norms, const Linear* projection,
                     const Linear* gate) {
    return made([&] {
        Embedding embedding{tokens, places, scale, first, last, bool(zero_start), norm_of(norms, width)};
        return new Stack{width, heads, activation, bool(prenorm), embedding, {}, norm_of(norms + 2, width), projection, gate};
    });
}
void specdec_stack_free(Stack* stack) { delete stack; }

// Appends a layer. `linears`: qkv, out, cross query, cross out, fc1, fc2, the cross ones NULL in an encoder; `norms`: weights and
// biases of those of self-attention, cross-attention and feed-forward.
int specdec_layer(Stack* stack, const Linear* const* linears, const float* const* norms) {
    return status_of([&] {
        const int width = stack->width;
        stack->layers.push_back({linears[0], linears[1], linears[2], linears[3], linears[4], linears[5], norm_of(norms, width),
                                 norm_of(norms + 2, width), norm_of(norms + 4, width)});
    });
}

// Rows a member of the team that are encoded at a time: their activations, some 8 KB a row, stay in its second-level cache. On
// an Intel Xeon with 1 MB of it a row takes 44 us so, and 55 us where 32 sentences are encoded together.
constexpr int64_t ENCODED_ROWS = 32;

// Encodes sentences -> output (B, longest, D). Positions past a sentence's end are undefined.
// numbers: starts (B + 1), tokens.
int specdec_encode(Engine* engine, const Stack* stack, int64_t batch, int64_t longest, const int64_t* numbers, float* output) {
    return status_of([&] {
        const int64_t *starts = numbers, *tokens = starts + batch + 1, most = ENCODED_ROWS * engine->team.size;
        auto& rows = engine->scratch.rows;
        auto& entries = engine->scratch.entries;
        for (int64_t first = 0, end; first < batch; first = end) {
            for (end = first + 1; end < batch && starts[end + 1] - starts[first] <= most;) ++end;
            rows.clear();
            for (int64_t b = first; b < end; ++b)
                for (int64_t s = 0, length = starts[b + 1] - starts[b]; s < length; ++s)
                    rows.push_back({.token = tokens[starts[b] + s], .slot = b - first, .position = s, .visible = length,
                                    .place = s, .source_slot = 0, .source = 0, .target = b * longest + s, .mask = false,
                                    .wanted = true});
            const size_t size = size_t(end - first) * longest * 2 * stack->width;
            if (entries.size() < size) entries.resize(size);
            const Pass pass{{entries.data(), 0, longest * 2 * stack->width}, {}, nullptr, false, false, output, nullptr, nullptr};
            Forward forward(*stack, pass, engine->team, engine->scratch);
            engine->team.run([&](int member) { forward.run(member); });
        }
    });
}

// Makes the keys and values of cross-attention: products of encoded (.., longest, I), `width` outputs for each layer.
// numbers: sentences (B), their numbers in `encoded`; slots (B) of the memory; lengths (B).
int specdec_remember(Engine* engine, const Linear* linear, int64_t batch, int64_t longest, const int64_t* numbers,
                     const float* encoded, int64_t width, float* memory, int64_t memory_layer, int64_t memory_slot) {
    return status_of([&] {
        const int64_t *sentences = numbers, *slots = sentences + batch, *lengths = slots + batch;
        auto& rows = engine->scratch.rows;
        rows.clear();
        for (int64_t b = 0; b < batch; ++b)
            for (int64_t s = 0; s < lengths[b]; ++s)
                rows.push_back({.token = 0, .slot = slots[b], .position = s, .visible = 0, .place = s, .source_slot = 0,
                                .source = 0, .target = sentences[b] * longest + s, .mask = false, .wanted = true});
        Input& input = engine->scratch.input;
        const int count = int(rows.size()), inputs = linear->inputs;
        const bool quantised = QUANTISED_INPUT && linear->kind == INT8;
        input.resize(count, inputs, quantised);
        Team& team = engine->team;
        team.run([&](int member) {
            const Range mine = share(count, member, team.size);
            for (int row = mine.from; row < mine.to; ++row) {
                const float* from = encoded + rows[row].target * inputs;
                if (quantised)
                    input.quantise(row, inputs, from);
                else
                    std::copy(from, from + inputs, &input.values[size_t(row) * inputs]);
            }
            team.sync();
            multiply(
                *linear, input, {0, count}, share(linear->panels, member, team.size),
                [&](int row, int column) {
                    return memory + column / width * memory_layer + rows[row].slot * memory_slot + rows[row].position * width +
                           column % width;
                },
                [](float* to, Floats value) { store(to, value); });
        });
    });
}

// Reads each row's tokens, which take the positions from places[b] on, and overwrites what the cache holds there -> output
// (B, width, V): logits after row b's tokens from number firsts[b] on. Positions past a row's results are left as they are, here
// and in `gates` (B, width, R), which is NULL if the stack has no gate, and `features` (B, width, D): what the logits are
// computed from, after the last norm; NULL if not wanted. `embeddings` (.., D), NULL if tokens are tokens: vectors whose numbers
// the tokens are. Rows attend to what `selection` says; NULL: to all. `masses` (B, width, mass_width), NULL if not wanted: a
// result's attention to each source position, summed over heads and layers; left as they are at positions that it does not see.
// numbers: starts (B + 1), places (B), firsts (B), slots (B), source_slots (B), source_lengths (B), tokens.
int specdec_read(Engine* engine, const Stack* stack, int64_t batch, int64_t width, const int64_t* numbers, float* cache,
                 int64_t cache_layer, int64_t cache_slot, float* memory, int64_t memory_layer, int64_t memory_slot,
                 const float* embeddings, const Selection* selection, float* output, float* gates, float* features, float* masses,
                 int64_t mass_width) {
    return status_of([&] {
        Numbers parts(numbers);
        const int64_t *starts = parts.take(batch + 1), *places = parts.take(batch), *firsts = parts.take(batch);
        const int64_t *slots = parts.take(batch), *source_slots = parts.take(batch), *source_lengths = parts.take(batch);
        const bool narrowed = add_causal_rows(engine->scratch.rows, batch, width, starts, places, firsts, slots, source_slots,
                                              source_lengths, parts.take(starts[batch]));
        if (selection) select_entries(engine->scratch.rows, batch, starts, source_lengths, *selection);
        const Pass pass{{cache, cache_layer, cache_slot}, {memory, memory_layer, memory_slot}, nullptr, false, narrowed, output,
                        gates, features, embeddings, masses, mass_width};
        Forward forward(*stack, pass, engine->team, engine->scratch);
        engine->team.run([&](int member) { forward.run(member); });
    });
}

// As `specdec_read`, of rows that branch: token k of a row follows its token number parents[k], one before k, or what the cache
// holds (-1). It takes the position after that one, and its keys and values go to place places[b] + k. Its results are, bit for
// bit, those of a chain along its path.
// numbers: starts (B + 1), places (B), firsts (B), slots (B), source_slots (B), source_lengths (B), tokens, parents.
int specdec_read_tree(Engine* engine, const Stack* stack, int64_t batch, int64_t width, const int64_t* numbers, float* cache,
                      int64_t cache_layer, int64_t cache_slot, float* memory, int64_t memory_layer, int64_t memory_slot,
                      float* output, float* gates, float* features, float* masses, int64_t mass_width) {
    return status_of([&] {
        Numbers parts(numbers);
        const int64_t *starts = parts.take(batch + 1), *places = parts.take(batch), *firsts = parts.take(batch);
        const int64_t *slots = parts.take(batch), *source_slots = parts.take(batch), *source_lengths = parts.take(batch);
        Scratch& scratch = engine->scratch;
        const bool narrowed = add_causal_rows(scratch.rows, batch, width, starts, places, firsts, slots, source_slots,
                                              source_lengths, parts.take(starts[batch]));
        branch_rows(scratch.rows, scratch.paths, batch, starts, places, parts.take(starts[batch]));
        const Pass pass{{cache, cache_layer, cache_slot}, {memory, memory_layer, memory_slot}, nullptr, false, narrowed, output,
                        gates, features, nullptr, masses, mass_width};
        Forward forward(*stack, pass, engine->team, scratch);
        engine->team.run([&](int member) { forward.run(member); });
    });
}

// Reads each row's last committed token and its draft -> output (B, width, V), and judges the draft by them: `judged` (3, B) and
// `scores` as in `specdec_judge`. Every row has at least one token.
// numbers: starts (B + 1), places (B), slots (B), source_slots (B), source_lengths (B), beta (B), room (B), minimum (B),
// tokens: row b's last committed one and its draft.
int specdec_verify(Engine* engine, const Stack* stack, int64_t batch, int64_t width, const int64_t* numbers, float* cache,
                   int64_t cache_layer, int64_t cache_slot, float* memory, int64_t memory_layer, int64_t memory_slot,
                   float* output, int64_t pad, int64_t eos, int64_t suppressed_count, const int64_t* suppressed,
                   const double* tau, int64_t* judged, float* scores, const Sampling* sampling,
                   const int64_t* repeats) {
    return status_of([&] {
        Numbers parts(numbers);
        Judging judging{output, batch, width, 1, parts.take(batch + 1), tau, judged, scores,
                        take(sampling, batch, engine->draws), origins_of(sampling),
                        take(repeats, batch, engine->repeats)};
        const int64_t *places = parts.take(batch), *slots = parts.take(batch), *source_slots = parts.take(batch);
        const int64_t* source_lengths = parts.take(batch);
        judging.take(parts);
        judging.reserve(*engine, stack->projection->outputs, pad, eos, suppressed_count, suppressed);
        add_causal_rows(engine->scratch.rows, batch, width, judging.starts, places, nullptr, slots, source_slots, source_lengths,
                        judging.tokens);
        const Pass pass{{cache, cache_layer, cache_slot}, {memory, memory_layer, memory_slot}, nullptr, false, false, output,
                        nullptr, nullptr};
        Forward forward(*stack, pass, engine->team, engine->scratch);
        engine->team.run([&](int member) {
            forward.run(member);
            engine->team.sync();
            judging.run(*engine, member);
        });
    });
}

// Judges drafts by logits (B, width, V), which it restores. Position k of a row chooses the token after k tokens of its draft:
// never pad or a token of `suppressed`; not eos while k < minimum[b]; only eos at k >= room[b]. A drafted token passes if it is among the beta[b] best and within
// tau[b] nats of the best. `judged` (3, B): how many tokens pass; the row's own next token; whether the limit made that eos.
// `scores` (B, width): log-probabilities (nats) by the logits as they are, of each token that passes and of the row's own.
// Of rows that sample (`sampling`, NULL if none does) the token is drawn that the best one is otherwise, and under the rejection
// rule a drafted token passes by chance; the limit comes first here, too.
// Of rows with a rule against repeats (`repeats`, NULL if none has one: see `take` in judge.h) no token but eos is chosen that would
// complete an n-gram a second time, at position k of the prefix and the first k drafted tokens.
// numbers: starts (B + 1), beta (B), room (B), minimum (B), the drafts.
int specdec_judge(Engine* engine, float* logits, int64_t batch, int64_t width, int64_t vocabulary, const int64_t* numbers,
                  int64_t pad, int64_t eos, int64_t suppressed_count, const int64_t* suppressed, const double* tau,
                  int64_t* judged, float* scores, const Sampling* sampling, const int64_t* repeats) {
    return status_of([&] {
        Numbers parts(numbers);
        Judging judging{logits, batch, width, 0, parts.take(batch + 1), tau, judged, scores,
                        take(sampling, batch, engine->draws), origins_of(sampling),
                        take(repeats, batch, engine->repeats)};
        judging.take(parts);
        judging.reserve(*engine, vocabulary, pad, eos, suppressed_count, suppressed);
        engine->team.run([&](int member) { judging.run(*engine, member); });
    });
}

// Chooses a token for each of row b's first drafted[b] positions by logits (B, width, V) -> to (B, width): never pad, and not eos
// at the first position where empty[b]; sets those logits to minus infinity. Pad and eos are numbers of logits, and -1 where a drafter
// has no logit of them. Without `gates` (B, width, R) the best token; with
// them, among the `candidates` best, the best after the token chosen before it, by the successor network's tables (V, R):
// `tokens` for the token before, `outs` for the candidate. Positions beyond drafted[b] are left as they are.
// Rows that sample (`sampling`, NULL if none does) draw their tokens, each among the position's `candidates` best; those under
// the rejection rule write down what they drew from. `confidence` (B, width), NULL if not wanted: the probability of the likeliest
// candidate among the candidates.
// numbers: drafted (B), empty (B).
int specdec_choose(Engine* engine, float* logits, int64_t batch, int64_t width, int64_t vocabulary, int64_t pad, int64_t eos,
                   const int64_t* numbers, const float* gates, int64_t gate_width, const float* tokens, const float* outs,
                   int64_t candidates, int64_t* to, const Sampling* sampling, float* confidence) {
    return status_of([&] {
        const Choice choice{logits, batch, width, vocabulary, pad, eos, numbers, numbers + batch, gates, gate_width, tokens, outs,
                            candidates, to, take(sampling, batch, engine->draws), sampling ? sampling->names : nullptr,
                            origins_of(sampling), confidence};
        choice.reserve(*engine);
        engine->team.run([&](int member) { choice.run(*engine, member); });
    });
}

// A causal drafter's step: `specdec_read` -> output (B, width, V) and gates (B, width, R), then `specdec_choose` -> to (B, width).
// numbers: starts (B + 1), places (B), firsts (B), slots (B), source_slots (B), source_lengths (B), drafted (B), empty (B), tokens.
int specdec_propose(Engine* engine, const Stack* stack, int64_t batch, int64_t width, const int64_t* numbers, float* cache,
                    int64_t cache_layer, int64_t cache_slot, float* memory, int64_t memory_layer, int64_t memory_slot,
                    const float* embeddings, const Selection* selection, float* output, float* gates, int64_t pad, int64_t eos,
                    const float* tokens, const float* outs, int64_t candidates, int64_t* to, const Sampling* sampling, float* confidence) {
    return status_of([&] {
        Numbers parts(numbers);
        const int64_t *starts = parts.take(batch + 1), *places = parts.take(batch), *firsts = parts.take(batch);
        const int64_t *slots = parts.take(batch), *source_slots = parts.take(batch), *source_lengths = parts.take(batch);
        const int64_t *drafted = parts.take(batch), *empty = parts.take(batch);
        const bool narrowed = add_causal_rows(engine->scratch.rows, batch, width, starts, places, firsts, slots, source_slots,
                                              source_lengths, parts.take(starts[batch]));
        if (selection) select_entries(engine->scratch.rows, batch, starts, source_lengths, *selection);
        const Pass pass{{cache, cache_layer, cache_slot}, {memory, memory_layer, memory_slot}, nullptr, false, narrowed, output,
                        gates, nullptr, embeddings};
        Forward forward(*stack, pass, engine->team, engine->scratch);
        const Choice choice{output, batch, width, stack->projection->outputs, pad, eos, drafted, empty,
                            stack->gate ? gates : nullptr, stack->gate ? stack->gate->outputs : 0, tokens, outs, candidates, to,
                            take(sampling, batch, engine->draws), sampling ? sampling->names : nullptr, origins_of(sampling),
                            confidence};
        choice.reserve(*engine);
        engine->team.run([&](int member) {
            forward.run(member);
            engine->team.sync();
            choice.run(*engine, member);
        });
    });
}

// Makes vectors for drafting out of hidden states (B, D) -> to (B, K, D): see `Heads`. `tokens` (B) are not read without embeddings.
int specdec_heads(Engine* engine, const Linear* linear, int64_t batch, int64_t width, const float* states,
                  const float* embeddings, float scale, const int64_t* tokens, float* to) {
    return status_of([&] {
        const Heads heads{linear, embeddings, scale, batch, width, states, tokens, to};
        heads.reserve(*engine);
        engine->team.run([&](int member) { heads.run(*engine, member); });
    });
}

// A hidden state of a sentence's beginning, from its encoder's output: see `begin`.
int specdec_begin(Engine* engine, const float* query, const float* weight, const float* bias, int64_t width, const float* encoded,
                  int64_t length, int64_t size, float* to) {
    return status_of([&] { begin(query, weight, bias, width, encoded, length, size, engine->mean, to); });
}

// The block drafter's pass: row b's prefix (without the start token) and drafted[b] masks, all of which see each other -> output
// (B, width, V) at the masks. A row without masks is left out. `cache` (.., T, 2 D) is scratch memory with room for each slot's
// prefix and masks; `copied` are the source copy's entries by source slot, NULL if the drafter has none.
// numbers: starts (B + 1), drafted (B), slots (B), source_slots (B), source_lengths (B), tokens.
int specdec_draft(Engine* engine, const Stack* stack, int64_t batch, int64_t width, const int64_t* numbers, int64_t mask,
                  float* cache, int64_t cache_slot, float* memory, int64_t memory_layer, int64_t memory_slot,
                  const float* copied, float* output) {
    return status_of([&] {
        Numbers parts(numbers);
        const int64_t *starts = parts.take(batch + 1), *drafted = parts.take(batch), *slots = parts.take(batch);
        const int64_t *source_slots = parts.take(batch), *source_lengths = parts.take(batch), *tokens = parts.take(starts[batch]);
        auto& rows = engine->scratch.rows;
        rows.clear();
        for (int64_t b = 0; b < batch; ++b) {
            const int64_t length = starts[b + 1] - starts[b], visible = length + drafted[b];
            for (int64_t t = 0; drafted[b] && t < visible; ++t) {
                const bool masked = t >= length;
                rows.push_back({.token = masked ? mask : tokens[starts[b] + t], .slot = slots[b], .position = t,
                                .visible = visible, .place = t, .source_slot = source_slots[b], .source = source_lengths[b],
                                .target = b * width + t - length, .mask = masked, .wanted = masked});
            }
        }
        const Pass pass{{cache, 0, cache_slot}, {memory, memory_layer, memory_slot}, copied, true, true, output, nullptr, nullptr};
        Forward forward(*stack, pass, engine->team, engine->scratch);
        engine->team.run([&](int member) { forward.run(member); });
    });
}

// Random bits of `count` tokens from number `first` on, a multiple of 4 -> to, and exponential variates made of them -> variates,
// both in whole blocks of 64; for tests.
int specdec_noise(int64_t seed, int64_t purpose, int64_t position, int64_t first, int64_t count, uint32_t* to, float* variates) {
    const Noise noise{uint64_t(seed), uint32_t(position), uint32_t(purpose)};
    for (int64_t i = 0; i < count; i += BLOCK) {
        Words bits[PARTS];
        block_bits(noise, first + i, bits);
        for (int lane = 0; lane < BLOCK; ++lane) {
            to[i + lane] = bits[lane / W][lane % W];
            variates[i + lane] = exponential_of(bits[lane / W])[lane % W];
            if (to[i + lane] != token_bits(noise, first + i + lane)) return 1;
        }
    }
    return 0;
}

// Weights of a position's logits (V) after the row's prefix and k drafted tokens -> to (V in whole blocks of 64); for tests.
int specdec_warp(const Sampling* sampling, const float* logits, int64_t vocabulary, const int64_t* drafted, int64_t k,
                 float* to) {
    return status_of([&] {
        std::vector<Draws> draws;
        warp(*take(sampling, 1, draws), logits, vocabulary, drafted, k, to);
    });
}

// Decodes until a row is finished: see `Decoding` and `decode` in loop.h.
int specdec_decode(Engine* engine, Decoding* decoding) {
    return status_of([&] { decode(*engine, *decoding); });
}

// Attention of N queries (N, D) over the entries that each sees (`Seen` in attention.h) -> to (N, D), together, as passes compute
// it; for tests. Entries have keys (D,), then values (D,), and are `stride` numbers apart.
// numbers, for each query: from, to, sinks, how many positions are listed, where a path branches, its size (0: none); the listed
// positions; the places of the path.
int specdec_attend(int64_t count, int64_t width, int64_t heads, float scale, const float* from, const float* entries,
                   int64_t stride, const int64_t* numbers, float* to) {
    return status_of([&] {
        Numbers parts(numbers);
        std::vector<Query> queries;
        size_t room = 0;
        for (int64_t q = 0; q < count; ++q) {
            const int64_t* head = parts.take(6);
            Seen seen(head[1]);
            seen.from = head[0], seen.sinks = head[2], seen.listed_count = head[3], seen.branch = head[4];
            seen.listed = parts.take(seen.listed_count);
            seen.path = head[5] ? parts.take(head[5]) : nullptr;
            queries.push_back({from + q * width, seen, to + q * width});
            room += attention_scratch(int(heads), seen.end(), head[5], stride);
        }
        std::vector<float> scratch(room);
        attend(queries.data(), int(count), entries, stride, int(width), int(heads), scale, scratch.data());
    });
}
}
