// The library's C interface: engines, weights, passes, choosing tokens, judging drafts.
//
// Tensors are contiguous unless a stride is given; strides count numbers. Calls and rows are the structs of calls.h.
//
// If memory runs out, functions that make something return NULL, and the others a status other than 0.
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cstring>
#include <exception>

#include "batch.h"
#include "calls.h"
#include "exported.h"
#include "forward.h"
#include "heads.h"
#include "linear.h"
#include "rank.h"
#include "run.h"
#include "screen.h"
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

}  // namespace

extern "C" {

// A hash of the sources, so that a library compiled from others is noticed.
const char* specdec_sources() { return SPECDEC_SOURCES; }

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

// A linear layer of `packed` panels, which the caller keeps; NULL: without weights, until `pack` has set those of all outputs.
EXPORTED(Linear*, linear, int outputs, int inputs, int kind, char* packed) {
    return made([&] { return new Linear(outputs, inputs, Kind(kind), packed); });
}
// Where a linear layer's panels are, and of how many bytes -> bytes.
EXPORTED(char*, panels, Linear* linear, int64_t* bytes) {
    *bytes = int64_t(linear->bytes());
    return linear->weights<char>(0);
}
// Packs weight (count, I), bias (count) or NULL and the scales of groups (count, I / GROUP) or NULL of the outputs from `first` on;
// the caller may free them.
EXPORTED(void, pack, Linear* linear, const float* weight, const float* bias, const float* scales, int first, int count) {
    const size_t inputs = linear->inputs;
    for (int o = 0; o < count; ++o)
        linear->pack(weight + o * inputs, bias ? bias[o] : 0.0f, first + o, scales ? scales + o * inputs / GROUP : nullptr);
}
EXPORTED(void, linear_free, Linear* linear) { delete linear; }

// What a packed output layer in int8, float32 or bfloat16, of up to 65,536 inputs, is screened with; it reads the layer as long as it
// lives.
EXPORTED(Plane*, plane, const Linear* linear) {
    return made([&] { return new Plane(*linear); });
}
EXPORTED(void, plane_free, Plane* plane) { delete plane; }
// Rows of a pass up to which a plane of a layer saves time -> rows; 0: never.
EXPORTED(void, plane_rows, const Linear* linear, int64_t* rows) { *rows = Plane::rows(*linear); }

EXPORTED(Stack*, stack, const StackCall* call) {
    return made([&] { return new Stack(*call); });
}
EXPORTED(void, stack_free, Stack* stack) { delete stack; }

// Appends a layer. The library copies norms and biases of scores, passes read everything else.
EXPORTED(int, layer, Stack* stack, const LayerCall* call) {
    return status_of([&] { stack->layers.emplace_back(*call, stack->width, stack->size, stack->heads); });
}

// Rows that a member of the team encodes at a time: their activations, some 8 KB a row, stay in its second-level cache. On an
// Intel Xeon with 1 MB of it a row takes 44 us, and 55 us if 32 sentences are encoded together.
constexpr int64_t ENCODED_ROWS = 32;

// Encodes sentences of these lengths -> output (B, longest, D). Positions past a sentence's end are undefined.
EXPORTED(int, encode, Engine* engine, const Stack* stack, int64_t batch, int64_t longest, const int64_t* lengths,
         const int64_t* tokens, float* output) {
    return status_of([&] {
        const int64_t most = ENCODED_ROWS * engine->team.size;
        auto& rows = engine->scratch.rows;
        auto& entries = engine->scratch.entries;
        for (int64_t first = 0, end; first < batch; first = end) {
            rows.clear();
            for (end = first; end < batch && (end == first || int64_t(rows.size()) + lengths[end] <= most); ++end)
                for (int64_t s = 0; s < lengths[end]; ++s)
                    rows.push_back({.token = *tokens++, .slot = end - first, .position = s, .visible = lengths[end], .entry = s,
                                    .source_slot = 0, .source = 0, .target = end * longest + s, .mask = false, .wanted = true});
            const size_t size = size_t(end - first) * longest * stack->entry();
            grow(entries, size);
            const Pass pass{{entries.data(), 0, longest * stack->entry()}, {}, nullptr, false, false, output, nullptr, nullptr};
            Forward forward(*stack, pass, engine->team, engine->scratch);
            engine->team.run([&](int member) { forward.run(member); });
        }
    });
}

// Computes cross-attention keys and values: products of encoded (.., longest, I), `width` outputs per layer -> memory. Keys are
// normed as the layers of `stack` do it; NULL: not.
EXPORTED(int, remember, Engine* engine, const Stack* stack, const Linear* linear, int64_t batch, int64_t longest, const RememberRow* sentences,
         const float* encoded, int64_t width, float* memory, int64_t memory_layer, int64_t memory_slot) {
    return status_of([&] {
        auto& rows = engine->scratch.rows;
        rows.clear();
        for (const RememberRow* each = sentences; each < sentences + batch; ++each)
            for (int64_t s = 0; s < each->length; ++s)
                rows.push_back({.token = 0, .slot = each->slot, .position = s, .visible = 0, .entry = s, .source_slot = 0,
                                .source = 0, .target = each->sentence * longest + s, .mask = false, .wanted = true});
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
                    input.quantise(row, *linear, from);
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
            if (!stack || stack->layers.empty() || stack->layers[0].cross_key.empty()) return;
            team.sync();
            for (int row = mine.from; row < mine.to; ++row)
                for (size_t layer = 0; layer < stack->layers.size(); ++layer) {
                    float* keys = memory + layer * memory_layer + rows[row].slot * memory_slot + rows[row].position * width;
                    for (float* head = keys; head < keys + width / 2; head += stack->size)
                        stack->layers[layer].cross_key(head, head);
                }
        });
    });
}

EXPORTED(int, read, Engine* engine, const ReadCall* call) {
    return status_of([&] {
        auto& rows = engine->scratch.rows;
        Pass pass = pass_of(call->caches, add_causal_rows(rows, call->batch, call->width, call->rows, call->tokens), call->logits,
                            call->gates);
        if (call->parents) branch_rows(rows, engine->scratch.paths, call->batch, call->rows, call->parents);
        if (call->visible) limit_rows(rows, call->batch, call->rows, *call->visible);
        pass.features = call->features, pass.embeddings = call->embeddings;
        pass.masses = {call->attention, call->attention_size, call->layer, uint64_t(call->heads)};
        Forward forward(*call->stack, pass, engine->team, engine->scratch);
        engine->team.run([&](int member) { forward.run(member); });
    });
}

// Judges drafts by logits (B, width, V).
EXPORTED(int, judge, Engine* engine, float* logits, int64_t batch, int64_t width, int64_t vocabulary, const JudgeCall* call) {
    return status_of([&] {
        if (call->parents) {
            TreeJudging judging{*call, logits, batch, width, take(call->sampling, batch, engine->draws),
                                take(call->repeats, batch, engine->repeats)};
            judging.reserve(*engine, vocabulary);
            engine->team.run([&](int member) { judging.run(*engine, member); });
        } else {
            engine->drafts.clear();
            const int64_t* tokens = call->tokens;
            for (int64_t b = 0; b < batch; tokens += call->rows[b++].drafted) engine->drafts.push_back(tokens);
            const Judging judging{*call, logits, batch, width, engine->drafts.data(), take(call->sampling, batch, engine->draws),
                                  origins_of(call->sampling), take(call->repeats, batch, engine->repeats)};
            judging.reserve(*engine, vocabulary);
            engine->team.run([&](int member) { judging.run(*engine, member); });
        }
    });
}

// Scores given tokens, so many in each row, by logits (B, width, V), one at each position -> scores (B, width): log-probabilities
// (nats) as `judge` computes them.
EXPORTED(int, score, Engine* engine, float* logits, int64_t batch, int64_t width, int64_t vocabulary, const int64_t* lengths,
         const int64_t* tokens, float* scores) {
    return status_of([&] {
        engine->judge.vocabulary = vocabulary;
        engine->drafts.clear();
        for (int64_t b = 0; b < batch; tokens += lengths[b++]) engine->drafts.push_back(tokens);
        engine->team.run([&](int member) {
            for (int64_t b = member; b < batch; b += engine->team.size)
                for (int64_t k = 0; k < lengths[b]; ++k) {
                    const float* values = logits + (b * width + k) * vocabulary;
                    const Chosen given{engine->drafts[b][k], true, false, largest(values, vocabulary)};
                    scores[b * width + k] = engine->judge.score(given, values);
                }
        });
    });
}

// Chooses a token at each of the rows' first positions by logits (B, width, V), in which it bans tokens. `gates` (B, width, R).
EXPORTED(int, choose, Engine* engine, float* logits, int64_t batch, int64_t width, int64_t vocabulary, const float* gates,
         int64_t gate_width, const ChooseCall* call) {
    return status_of([&] {
        const Choice choice{*call, logits, batch, width, vocabulary, gates, gate_width, take(call->sampling, batch, engine->draws),
                            origins_of(call->sampling)};
        choice.reserve(*engine);
        engine->team.run([&](int member) { choice.run(*engine, member); });
    });
}

// The best tokens to follow `count` of the results of a pass by their logits (.., width, V), which it restores.
EXPORTED(int, rank, Engine* engine, float* logits, int64_t count, int64_t width, int64_t vocabulary, const RankCall* call) {
    return status_of([&] {
        const Ranking ranking{*call, logits, count, width, take(call->repeats, count, engine->repeats)};
        engine->forbid(vocabulary, call->eos, call->banned_count, call->banned);
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

// The block drafter's pass: rows' prefixes and masks, all attending to each other -> output (B, width, V) at the masks. Skips rows
// without masks. `cache` (.., T, 2 D) is scratch memory with room for each slot's prefix and masks; `copied` has the source copy's
// entries by source slot; NULL: the drafter has none.
EXPORTED(int, draft, Engine* engine, const Stack* stack, int64_t batch, int64_t width, const BlockRow* reads, const int64_t* tokens,
         int64_t mask, float* cache, int64_t cache_slot, float* memory, int64_t memory_layer, int64_t memory_slot,
         const float* copied, float* output) {
    return status_of([&] {
        auto& rows = engine->scratch.rows;
        rows.clear();
        for (int64_t b = 0; b < batch; tokens += reads[b++].tokens) {
            const BlockRow& read = reads[b];
            const int64_t visible = read.tokens + read.drafted;
            for (int64_t t = 0; read.drafted && t < visible; ++t) {
                const bool masked = t >= read.tokens;
                rows.push_back({.token = masked ? mask : tokens[t], .slot = read.slot, .position = t, .visible = visible,
                                .entry = t, .source_slot = read.source_slot, .source = read.source_length,
                                .target = b * width + t - read.tokens, .mask = masked, .wanted = masked});
            }
        }
        const Pass pass{{cache, 0, cache_slot}, {memory, memory_layer, memory_slot}, copied, true, true, output, nullptr, nullptr};
        Forward forward(*stack, pass, engine->team, engine->scratch);
        engine->team.run([&](int member) { forward.run(member); });
    });
}

// Random bits of `count` tokens at positions -> to.
EXPORTED(void, bits, int64_t seed, int64_t purpose, int64_t count, const int64_t* positions, const int64_t* tokens, uint32_t* to) {
    for (int64_t i = 0; i < count; ++i) to[i] = token_bits({uint64_t(seed), uint32_t(positions[i]), uint32_t(purpose)}, tokens[i]);
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

// Iterations of a batch: see `Machine` in run.h.
EXPORTED(int, run, Engine* engine, RunCall* call) {
    return status_of([&] { Machine(*call).run(*engine); });
}

// For tests: attention of N queries (N, D) over the entries that each sees -> to (N, D), together, as in a pass. Entries are keys
// (D,), then values (D,), `stride` numbers apart. `positions`: of each query the listed ones, then its path.
EXPORTED(int, attend, int64_t count, int64_t width, int64_t heads, float scale, const float* from, const float* entries,
         int64_t stride, const SeenRow* rows, const int64_t* positions, float* to) {
    return status_of([&] {
        std::vector<Query> queries;
        size_t room = 0;
        for (int64_t q = 0; q < count; ++q) {
            const SeenRow& row = rows[q];
            Seen seen(row.to);
            seen.from = row.from, seen.sinks = row.sinks, seen.listed_count = row.listed, seen.branch = row.branch;
            seen.listed = positions, positions += row.listed;
            seen.path = row.path ? positions : nullptr, positions += row.path;
            queries.push_back({from + q * width, seen, to + q * width});
            room += attention_scratch(int(heads), seen.end(), row.path, stride);
        }
        std::vector<float> scratch(room);
        attend(queries.data(), int(count), entries, stride, {int(heads), int(width / heads), 1, scale}, scratch.data());
    });
}
