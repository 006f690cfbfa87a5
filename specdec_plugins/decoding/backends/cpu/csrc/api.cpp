// The library's C interface: engines, weights, passes, choosing tokens, judging drafts.
//
// Tensors are contiguous unless a stride is given; strides count numbers. Calls and rows are the structs of calls.h.
//
// If memory runs out, functions that make something return NULL, and the others a status other than 0.
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>

#include "batch.h"
#include "calls.h"
#include "checks.h"
#include "encoder.h"
#include "exported.h"
#include "forward.h"
#include "heads.h"
#include "linear.h"
#include "rank.h"
#include "run.h"
#include "screen.h"
#include "team.h"
#include "trees.h"

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

// Encodes sentences of these lengths -> output (B, longest, D). Positions past a sentence's end are undefined.
EXPORTED(int, encode, Engine* engine, const Stack* stack, int64_t batch, int64_t longest, const int64_t* lengths,
         const int64_t* tokens, float* output) {
    return status_of([&] { encode(*engine, *stack, batch, longest, lengths, tokens, output); });
}

// Computes cross-attention keys and values: products of encoded (.., longest, I), `width` outputs per layer -> memory. Keys are
// normed as the layers of `stack` do it; NULL: not.
EXPORTED(int, remember, Engine* engine, const Stack* stack, const Linear* linear, int64_t batch, int64_t longest, const RememberRow* sentences,
         const float* encoded, int64_t width, float* memory, int64_t memory_layer, int64_t memory_slot) {
    return status_of([&] {
        remember(*engine, stack, *linear, {sentences, sentences + batch}, longest, encoded, width, {memory, memory_layer, memory_slot});
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
        pass.attention_sums = {call->attention, call->attention_size, call->layer, uint64_t(call->heads)};
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

// Iterations of a batch: see `Machine` in run.h.
EXPORTED(int, run, Engine* engine, RunCall* call) {
    return status_of([&] { Machine(*call).run(*engine); });
}
