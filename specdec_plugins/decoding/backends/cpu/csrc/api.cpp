// The library's C interface: engines, weights, passes, choosing tokens, judging drafts.
//
// Tensors are contiguous unless a stride is given; strides count numbers. Token ids, positions, slots and lengths are int64, tau
// is float64, everything else float32. A call's int64 arguments are concatenated in one array, `numbers`: (B) has one number per
// row of the batch, (B + 1) where each row's tokens begin and the end of the last.
//
// If memory runs out, functions that make something return NULL, and the others a status other than 0.
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cstring>
#include <exception>

#include "batch.h"
#include "exported.h"
#include "forward.h"
#include "heads.h"
#include "linear.h"
#include "loop.h"
#include "rank.h"
#include "search.h"
#include "team.h"
#include "trees.h"

namespace {

// Exceptions must not cross the C interface. Only allocations of memory and threads can fail.
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

// Changes with the interface, so that a library compiled from other sources is noticed.
int specdec_version() { return 30; }

// Whether this CPU has the instructions that this library was compiled for.
int specdec_supported() {
#if defined(__AMX_INT8__)
    if (!__builtin_cpu_supports("amx-tile") || !__builtin_cpu_supports("amx-int8") || !matrix_unit_is_allowed()) return 0;
#endif
#if defined(__AVX512VNNI__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
#elif defined(__AVX2__)
#if defined(__AVXVNNI__)
    unsigned a = 0, b, c, d;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a >> 4 & 1)) return 0;  // not every compiler's runtime knows its name
#endif
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 1;
#endif
}

// The structs and functions that follow, one declaration a line: see exported.h.
const char* specdec_declarations() { return declarations().c_str(); }

}  // extern "C"

EXPORTED(Engine*, engine, int threads) {
    return made([&] { return new Engine(threads); });
}
EXPORTED(void, engine_free, Engine* engine) { delete engine; }

// A linear layer without weights, until `pack` has set those of all outputs.
EXPORTED(Linear*, linear, int outputs, int inputs, int kind) {
    return made([&] { return new Linear(outputs, inputs, Kind(kind)); });
}
// Packs weight (count, I) and bias (count) or NULL of the outputs from `first` on; the caller may free both.
EXPORTED(void, pack, Linear* linear, const float* weight, const float* bias, int first, int count) {
    for (int o = 0; o < count; ++o) linear->pack(weight + size_t(o) * linear->inputs, bias ? bias[o] : 0.0f, first + o);
}
EXPORTED(void, linear_free, Linear* linear) { delete linear; }

// An encoder or decoder without layers yet. Passes read `tokens` (V, D), a `Table` of that kind, and `positions` (positions, D),
// where row `first` is position 0 and row `last` the last. With `zero_start` the token embedding of position 0 is zero. `norms`:
// weight and bias of the norms after the embedding and after the last layer; NULL where there is none. `basis` and `screen`: see
// `Forward::screen`; NULL without.
EXPORTED(Stack*, stack, int width, int heads, int activation, int prenorm, int zero_start, const void* tokens, int kind, float scale,
         const float* positions, int first, int last, const float* const* norms, const Linear* projection, const Linear* gate,
         const Linear* basis, const Linear* screen) {
    return made([&] {
        Embedding embedding{tokens, Table(kind), positions, scale, first, last, bool(zero_start), norm_of(norms, width)};
        return new Stack{width, heads, activation, bool(prenorm), embedding, {}, norm_of(norms + 2, width), projection, gate,
                         basis, screen};
    });
}
EXPORTED(void, stack_free, Stack* stack) { delete stack; }

// Appends a layer. `linears`: qkv, out, cross query, cross out, fc1, fc2, the cross ones NULL in an encoder; `norms`: weights and
// biases of those of self-attention, cross-attention and feed-forward; `entries`: the layer of the caches that it reads and
// writes.
EXPORTED(int, layer, Stack* stack, const Linear* const* linears, const float* const* norms, int64_t entries) {
    return status_of([&] {
        const int width = stack->width;
        stack->layers.push_back({linears[0], linears[1], linears[2], linears[3], linears[4], linears[5], norm_of(norms, width),
                                 norm_of(norms + 2, width), norm_of(norms + 4, width), entries});
    });
}

// Rows that a member of the team encodes at a time: their activations, some 8 KB a row, stay in its second-level cache. On an
// Intel Xeon with 1 MB of it a row takes 44 us, and 55 us if 32 sentences are encoded together.
constexpr int64_t ENCODED_ROWS = 32;

// Encodes sentences -> output (B, longest, D). Positions past a sentence's end are undefined.
// numbers: starts (B + 1), tokens.
EXPORTED(int, encode, Engine* engine, const Stack* stack, int64_t batch, int64_t longest, const int64_t* numbers, float* output) {
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
                                    .entry = s, .source_slot = 0, .source = 0, .target = b * longest + s, .mask = false,
                                    .wanted = true});
            const size_t size = size_t(end - first) * longest * 2 * stack->width;
            if (entries.size() < size) entries.resize(size);
            const Pass pass{{entries.data(), 0, longest * 2 * stack->width}, {}, nullptr, false, false, output, nullptr, nullptr};
            Forward forward(*stack, pass, engine->team, engine->scratch);
            engine->team.run([&](int member) { forward.run(member); });
        }
    });
}

// Computes cross-attention keys and values: products of encoded (.., longest, I), `width` outputs per layer.
// numbers: sentences (B), indices into `encoded`; slots (B) of the memory; lengths (B).
EXPORTED(int, remember, Engine* engine, const Linear* linear, int64_t batch, int64_t longest, const int64_t* numbers,
         const float* encoded, int64_t width, float* memory, int64_t memory_layer, int64_t memory_slot) {
    return status_of([&] {
        const int64_t *sentences = numbers, *slots = sentences + batch, *lengths = slots + batch;
        auto& rows = engine->scratch.rows;
        rows.clear();
        for (int64_t b = 0; b < batch; ++b)
            for (int64_t s = 0; s < lengths[b]; ++s)
                rows.push_back({.token = 0, .slot = slots[b], .position = s, .visible = 0, .entry = s, .source_slot = 0,
                                .source = 0, .target = sentences[b] * longest + s, .mask = false, .wanted = true});
        Input& input = engine->scratch.input;
        const int count = int(rows.size()), inputs = linear->inputs;
        const bool quantised = linear->quantises();
        input.resize(count, inputs, quantised);
        Team& team = engine->team;
        team.run([&](int member) {
            const Range mine = portion(count, member, team.size);
            for (int row = mine.from; row < mine.to; ++row) {
                const float* from = encoded + rows[row].target * inputs;
                if (quantised)
                    input.quantise(row, inputs, from);
                else
                    std::copy(from, from + inputs, &input.values[size_t(row) * inputs]);
            }
            team.sync();
            multiply(
                *linear, input, {0, count}, portion(linear->panels, member, team.size),
                [&](int row, int column) {
                    return memory + column / width * memory_layer + rows[row].slot * memory_slot + rows[row].position * width +
                           column % width;
                },
                [](float* to, Floats value) { store(to, value); });
        });
    });
}

// Reads each row's tokens at positions[b] and after, overwriting cache entries -> output (B, width, V): logits after row b's
// tokens from firsts[b] on. `gates` (B, width, R): NULL without a successor network. `features` (B, width, D): the hidden states
// that logits are computed from; NULL: not wanted. Results past a row's end are not written. `embeddings` (.., D): vectors that
// the tokens index; NULL: tokens are tokens. `visible` NULL: rows attend to all positions. `masses` (B, width, mass_width):
// attention to each source position, written where a result attends, summed over the heads of the bits `mass_heads` of layer
// `mass_layer`, or of all layers for -1; NULL: not wanted. `output` NULL: the pass ends after that layer.
// numbers: starts (B + 1), positions (B), firsts (B), slots (B), source_slots (B), source_lengths (B), tokens.
EXPORTED(int, read, Engine* engine, const Stack* stack, int64_t batch, int64_t width, const int64_t* numbers, float* cache,
         int64_t cache_layer, int64_t cache_slot, float* memory, int64_t memory_layer, int64_t memory_slot,
         const float* embeddings, const Visible* visible, float* output, float* gates, float* features, float* masses,
         int64_t mass_width, int64_t mass_layer, int64_t mass_heads) {
    return status_of([&] {
        Numbers parts(numbers);
        const int64_t *starts = parts.take(batch + 1), *positions = parts.take(batch), *firsts = parts.take(batch);
        const int64_t *slots = parts.take(batch), *source_slots = parts.take(batch), *source_lengths = parts.take(batch);
        const bool narrowed = add_causal_rows(engine->scratch.rows, batch, width, starts, positions, firsts, slots, source_slots,
                                              source_lengths, parts.take(starts[batch]));
        if (visible) limit_rows(engine->scratch.rows, batch, starts, source_lengths, *visible);
        const Pass pass{{cache, cache_layer, cache_slot}, {memory, memory_layer, memory_slot}, nullptr, false, narrowed, output,
                        gates, features, embeddings, {masses, mass_width, mass_layer, uint64_t(mass_heads)}};
        Forward forward(*stack, pass, engine->team, engine->scratch);
        engine->team.run([&](int member) { forward.run(member); });
    });
}

// As `specdec_read`, for trees: token k of a row follows its token parents[k] < k, or what the cache holds (-1), at the next
// position; its keys and values go to index positions[b] + k. Its results are, bit for bit, those of a chain along its path.
// numbers: starts (B + 1), positions (B), firsts (B), slots (B), source_slots (B), source_lengths (B), tokens, parents.
EXPORTED(int, read_tree, Engine* engine, const Stack* stack, int64_t batch, int64_t width, const int64_t* numbers, float* cache,
         int64_t cache_layer, int64_t cache_slot, float* memory, int64_t memory_layer, int64_t memory_slot, float* output,
         float* gates, float* features, float* masses, int64_t mass_width, int64_t mass_layer, int64_t mass_heads) {
    return status_of([&] {
        Numbers parts(numbers);
        const int64_t *starts = parts.take(batch + 1), *positions = parts.take(batch), *firsts = parts.take(batch);
        const int64_t *slots = parts.take(batch), *source_slots = parts.take(batch), *source_lengths = parts.take(batch);
        Scratch& scratch = engine->scratch;
        const bool narrowed = add_causal_rows(scratch.rows, batch, width, starts, positions, firsts, slots, source_slots,
                                              source_lengths, parts.take(starts[batch]));
        branch_rows(scratch.rows, scratch.paths, batch, starts, positions, parts.take(starts[batch]));
        const Pass pass{{cache, cache_layer, cache_slot}, {memory, memory_layer, memory_slot}, nullptr, false, narrowed, output,
                        gates, features, nullptr, {masses, mass_width, mass_layer, uint64_t(mass_heads)}};
        Forward forward(*stack, pass, engine->team, scratch);
        engine->team.run([&](int member) { forward.run(member); });
    });
}

// Reads each row's last committed token and its draft -> output (B, width, V), and judges the draft as `specdec_judge` does.
// Every row has at least one token.
// numbers: starts (B + 1), positions (B), slots (B), source_slots (B), source_lengths (B), beta (B), room (B), minimum (B),
// tokens: row b's last committed one and its draft.
EXPORTED(int, verify, Engine* engine, const Stack* stack, int64_t batch, int64_t width, const int64_t* numbers, float* cache,
         int64_t cache_layer, int64_t cache_slot, float* memory, int64_t memory_layer, int64_t memory_slot, float* output,
         int64_t eos, int64_t banned_count, const int64_t* banned, const double* tau, int64_t* judged, float* scores,
         const Sampling* sampling, const int64_t* repeats) {
    return status_of([&] {
        Numbers parts(numbers);
        Judging judging{output, batch, width, 1, parts.take(batch + 1), tau, judged, scores,
                        take(sampling, batch, engine->draws), origins_of(sampling),
                        take(repeats, batch, engine->repeats)};
        const int64_t *positions = parts.take(batch), *slots = parts.take(batch), *source_slots = parts.take(batch);
        const int64_t* source_lengths = parts.take(batch);
        judging.take(parts);
        judging.reserve(*engine, stack->projection->outputs, eos, banned_count, banned);
        add_causal_rows(engine->scratch.rows, batch, width, judging.starts, positions, nullptr, slots, source_slots, source_lengths,
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
// never a token of `banned`; not eos while k < minimum[b]; only eos at k >= room[b]. A drafted token passes if it is
// among the beta[b] best and within tau[b] nats of the best. Rows that sample (`sampling`; NULL: none does) draw a token in place
// of the best, and under the rejection rule drafted tokens pass by chance; the limit overrides both. Rows that ban repeated
// n-grams (`repeats`; NULL: none does; see `take` in judge.h) choose no token that would repeat one, except eos.
// `judged` (3, B): tokens that pass; the row's own next token; whether the limit made that eos. `scores` (B, width):
// log-probabilities (nats) under the unconstrained model of each token that passes and of the row's own.
// numbers: starts (B + 1), beta (B), room (B), minimum (B), the drafts.
EXPORTED(int, judge, Engine* engine, float* logits, int64_t batch, int64_t width, int64_t vocabulary, const int64_t* numbers,
         int64_t eos, int64_t banned_count, const int64_t* banned, const double* tau, int64_t* judged, float* scores,
         const Sampling* sampling, const int64_t* repeats) {
    return status_of([&] {
        Numbers parts(numbers);
        Judging judging{logits, batch, width, 0, parts.take(batch + 1), tau, judged, scores,
                        take(sampling, batch, engine->draws), origins_of(sampling),
                        take(repeats, batch, engine->repeats)};
        judging.take(parts);
        judging.reserve(*engine, vocabulary, eos, banned_count, banned);
        engine->team.run([&](int member) { judging.run(*engine, member); });
    });
}

// Scores given tokens by logits (B, width, V), one at each position: log-probabilities (nats) as `judge` computes them -> scores
// (B, width).
// numbers: starts (B + 1), tokens.
EXPORTED(int, score, Engine* engine, float* logits, int64_t batch, int64_t width, int64_t vocabulary, const int64_t* numbers,
         float* scores) {
    return status_of([&] {
        Numbers parts(numbers);
        const int64_t *starts = parts.take(batch + 1), *tokens = parts.take(starts[batch]);
        engine->judge.vocabulary = vocabulary;
        engine->team.run([&](int member) {
            for (int64_t b = member; b < batch; b += engine->team.size)
                for (int64_t k = 0; k < starts[b + 1] - starts[b]; ++k) {
                    const float* values = logits + (b * width + k) * vocabulary;
                    const Chosen given{tokens[starts[b] + k], true, false, largest(values, vocabulary)};
                    scores[b * width + k] = engine->judge.score(given, values);
                }
        });
    });
}

// Judges trees: see `TreeJudging`; otherwise as `judge`.
// numbers: starts (B + 1), beta (B), room (B), minimum (B), tokens, parents.
EXPORTED(int, judge_trees, Engine* engine, float* logits, int64_t batch, int64_t width, int64_t vocabulary,
         const int64_t* numbers, int64_t eos, int64_t banned_count, const int64_t* banned, const double* tau, int64_t* judged,
         float* scores, const Sampling* sampling, const int64_t* repeats, int64_t* paths) {
    return status_of([&] {
        Numbers parts(numbers);
        const int64_t *starts = parts.take(batch + 1), *beta = parts.take(batch), *room = parts.take(batch);
        const int64_t *minimum = parts.take(batch), *tokens = parts.take(starts[batch]);
        TreeJudging judging{logits, batch, width, starts, beta, room, minimum, tokens, parts.take(starts[batch]), tau,
                            take(sampling, batch, engine->draws), take(repeats, batch, engine->repeats), judged, paths, scores};
        judging.reserve(*engine, vocabulary, eos, banned_count, banned);
        engine->team.run([&](int member) { judging.run(*engine, member); });
    });
}

// Chooses a token at each of row b's first drafted[b] positions by logits (B, width, V) -> to (B, width): never pad, and not eos
// at the first position where empty[b]; sets those logits to minus infinity. Pad and eos are indices of logits, -1 if a drafter
// has no such logit. Without `gates` (B, width, R) it takes the best token; with them the best of the `candidates` best after the
// token chosen before it, by the successor network's tables (V, R): `tokens` for the token before, `outs` for the candidate. Rows
// that sample (`sampling`; NULL: none does) draw among the `candidates` best; those under the rejection rule write the
// distribution.
// numbers: drafted (B), empty (B).
EXPORTED(int, choose, Engine* engine, float* logits, int64_t batch, int64_t width, int64_t vocabulary, int64_t pad, int64_t eos,
         const int64_t* numbers, const float* gates, int64_t gate_width, const float* tokens, const float* outs,
         int64_t candidates, int64_t* to, const Sampling* sampling) {
    return status_of([&] {
        const Choice choice{logits, batch, width, vocabulary, pad, eos, numbers, numbers + batch, gates, gate_width, tokens, outs,
                            candidates, to, take(sampling, batch, engine->draws), sampling ? sampling->token_ids : nullptr,
                            origins_of(sampling)};
        choice.reserve(*engine);
        engine->team.run([&](int member) { choice.run(*engine, member); });
    });
}

// A causal drafter's step: `specdec_read` -> output (B, width, V) and gates (B, width, R), then `specdec_choose` -> to (B,
// width).
// numbers: starts (B + 1), positions (B), firsts (B), slots (B), source_slots (B), source_lengths (B), drafted (B), empty (B),
// tokens.
EXPORTED(int, propose, Engine* engine, const Stack* stack, int64_t batch, int64_t width, const int64_t* numbers, float* cache,
         int64_t cache_layer, int64_t cache_slot, float* memory, int64_t memory_layer, int64_t memory_slot,
         const float* embeddings, const Visible* visible, float* output, float* gates, int64_t pad, int64_t eos,
         const float* tokens, const float* outs, int64_t candidates, int64_t* to, const Sampling* sampling) {
    return status_of([&] {
        Numbers parts(numbers);
        const int64_t *starts = parts.take(batch + 1), *positions = parts.take(batch), *firsts = parts.take(batch);
        const int64_t *slots = parts.take(batch), *source_slots = parts.take(batch), *source_lengths = parts.take(batch);
        const int64_t *drafted = parts.take(batch), *empty = parts.take(batch);
        const bool narrowed = add_causal_rows(engine->scratch.rows, batch, width, starts, positions, firsts, slots, source_slots,
                                              source_lengths, parts.take(starts[batch]));
        if (visible) limit_rows(engine->scratch.rows, batch, starts, source_lengths, *visible);
        const Pass pass{{cache, cache_layer, cache_slot}, {memory, memory_layer, memory_slot}, nullptr, false, narrowed, output,
                        gates, nullptr, embeddings};
        Forward forward(*stack, pass, engine->team, engine->scratch);
        const Choice choice{output, batch, width, stack->projection->outputs, pad, eos, drafted, empty,
                            stack->gate ? gates : nullptr, stack->gate ? stack->gate->outputs : 0, tokens, outs, candidates, to,
                            take(sampling, batch, engine->draws), sampling ? sampling->token_ids : nullptr, origins_of(sampling)};
        choice.reserve(*engine);
        engine->team.run([&](int member) {
            forward.run(member);
            engine->team.sync();
            choice.run(*engine, member);
        });
    });
}

// Grows trees by logits (B, width, V), in which it bans tokens as `choose` does: see `Branching`. `to`: each row's number of
// nodes (B), their tokens (B, most) and their parents (B, most).
// numbers: lengths (B), empty (B), number of groves, and of each: nodes, width, size, its rows.
EXPORTED(int, branch, Engine* engine, float* logits, int64_t batch, int64_t width, int64_t vocabulary, int64_t pad, int64_t eos,
         const int64_t* numbers, const float* gates, int64_t gate_width, const float* tokens, const float* outs,
         int64_t candidates, const int64_t* token_ids, const double* totals, int64_t most, int64_t* to) {
    return status_of([&] {
        Numbers parts(numbers);
        const int64_t *lengths = parts.take(batch), *empty = parts.take(batch);
        Branching branching{logits, batch, width, vocabulary, pad, eos, lengths, empty, gates, gate_width, tokens, outs,
                            candidates, token_ids, totals, most, to, to + batch, to + batch * (most + 1), {}};
        for (int64_t left = *parts.take(1); left; --left) {
            const int64_t* head = parts.take(3);
            branching.groves.push_back({head[0], head[1], head[2], parts.take(head[2])});
        }
        branching.reserve(*engine);
        engine->team.run([&](int member) { branching.run(*engine, member); });
    });
}

// The best tokens to follow each row by its logits (V), `stride` numbers apart, which it restores: see `Ranking`.
// numbers: few (B), room (B), minimum (B), renormalise (B).
EXPORTED(int, rank, Engine* engine, float* logits, int64_t batch, int64_t stride, int64_t vocabulary, const int64_t* numbers,
         int64_t unk, const double* penalty, int64_t eos, int64_t banned_count, const int64_t* banned, const int64_t* repeats,
         int64_t width, int64_t* tokens, float* scores) {
    return status_of([&] {
        Numbers parts(numbers);
        const int64_t *few = parts.take(batch), *room = parts.take(batch), *minimum = parts.take(batch);
        const Ranking ranking{logits, batch, stride, width, unk, few, room, minimum, parts.take(batch), penalty,
                              take(repeats, batch, engine->repeats), tokens, scores};
        engine->forbid(vocabulary, eos, banned_count, banned);
        engine->team.run([&](int member) { ranking.run(*engine, member); });
    });
}

// Vectors for drafting from hidden states (B, D) -> to (B, K, D): see `Heads`. `tokens` (B) are read only with embeddings.
EXPORTED(int, heads, Engine* engine, const Linear* linear, int64_t batch, int64_t width, const float* states,
         const float* embeddings, float scale, const int64_t* tokens, float* to) {
    return status_of([&] {
        const Heads heads{linear, embeddings, scale, batch, width, states, tokens, to};
        heads.reserve(*engine);
        engine->team.run([&](int member) { heads.run(*engine, member); });
    });
}

// A hidden state for a sentence's beginning: see `begin`.
EXPORTED(int, begin, Engine* engine, const float* query, const float* weight, const float* bias, int64_t width,
         const float* encoded, int64_t length, int64_t size, float* to) {
    return status_of([&] { begin(query, weight, bias, width, encoded, length, size, engine->mean, to); });
}

// The block drafter's pass: row b's prefix (without the start token) and drafted[b] masks, all attending to each other -> output
// (B, width, V) at the masks. Skips rows without masks. `cache` (.., T, 2 D) is scratch memory with room for each slot's prefix
// and masks; `copied` has the source copy's entries by source slot; NULL: the drafter has none.
// numbers: starts (B + 1), drafted (B), slots (B), source_slots (B), source_lengths (B), tokens.
EXPORTED(int, draft, Engine* engine, const Stack* stack, int64_t batch, int64_t width, const int64_t* numbers, int64_t mask,
         float* cache, int64_t cache_slot, float* memory, int64_t memory_layer, int64_t memory_slot, const float* copied,
         float* output) {
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
                                .visible = visible, .entry = t, .source_slot = source_slots[b], .source = source_lengths[b],
                                .target = b * width + t - length, .mask = masked, .wanted = masked});
            }
        }
        const Pass pass{{cache, 0, cache_slot}, {memory, memory_layer, memory_slot}, copied, true, true, output, nullptr, nullptr};
        Forward forward(*stack, pass, engine->team, engine->scratch);
        engine->team.run([&](int member) { forward.run(member); });
    });
}

// For tests: random bits of `count` tokens from `first`, a multiple of 4, on -> to, and exponential variates made of them ->
// variates, both in whole blocks of 64. Status 1: the scalar and the vector generator differ.
EXPORTED(int, noise, int64_t seed, int64_t purpose, int64_t position, int64_t first, int64_t count, uint32_t* to,
         float* variates) {
    const Noise noise{uint64_t(seed), uint32_t(position), uint32_t(purpose)};
    for (int64_t i = 0; i < count; i += BLOCK) {
        Words bits[PARTS];
        block_bits(noise, first + i, bits);
        for (int part = 0; part < PARTS; ++part) {
            store(to + i + part * W, bits[part]);
            store(variates + i + part * W, exponential_of(bits[part]));
        }
        for (int lane = 0; lane < BLOCK; ++lane)
            if (to[i + lane] != token_bits(noise, first + i + lane)) return 1;
    }
    return 0;
}

// For tests: weights of a position's logits (V) after the row's prefix and k drafted tokens -> to (V in whole blocks of 64).
EXPORTED(int, warp, const Sampling* sampling, const float* logits, int64_t vocabulary, const int64_t* drafted, int64_t k,
         float* to) {
    return status_of([&] {
        std::vector<Draws> draws;
        warp(*take(sampling, 1, draws), logits, vocabulary, drafted, k, to);
    });
}

// Decodes until a row finishes: see `Decoding` and `decode` in loop.h.
EXPORTED(int, decode, Engine* engine, Decoding* decoding) {
    return status_of([&] { decode(*engine, *decoding); });
}

// Beam searches until some are over: see `Searching` and `Searches` in search.h.
EXPORTED(int, search, Engine* engine, Searching* searching) {
    return status_of([&] { Searches(*searching).run(*engine); });
}

// For tests: attention of N queries (N, D) over the entries that each sees (`Seen` in attention.h) -> to (N, D), together, as in
// a pass. Entries are keys (D,), then values (D,), `stride` numbers apart.
// numbers, for each query: from, to, sinks, number of listed positions, where its path branches, the path's size (0: none); the
// listed positions; the path.
EXPORTED(int, attend, int64_t count, int64_t width, int64_t heads, float scale, const float* from, const float* entries,
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
