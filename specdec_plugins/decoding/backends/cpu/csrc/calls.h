// What Python and the kernels pass each other: calls, and the rows of a batch, as structs with named fields. The library holds these
// declarations as text, of which binding.py makes its types (exported.h). Fields of rows are 8 bytes wide, so arrays of them have
// no gaps. Where rows have lists of tokens, a field counts them, and the lists follow each other in one array.
//
// B rows of the batch, W results of each, K maximum draft length, C candidates, D width, V vocabulary, R width of the successor
// network. A NULL pointer means that nothing of the kind is given or wanted.
#pragma once

#include <cstdint>

#include "exported.h"

namespace {

struct Linear;
class Plane;
struct Stack;

// ---- models

// Layer norm, or `rms` norm; without `weight` there is none.
SHARED_STRUCT(NormCall,
    const float *weight, *bias;  // of as many numbers as a vector has
    double eps;
    int64_t rms;
)
// An encoder or decoder without layers yet: see `SideSpec`. Positions from `last` on use row `last` of `positions`; where there is
// no table, tokens are not placed.
SHARED_STRUCT(StackCall,
    int64_t width, heads, key_heads, head_width, activation, norms, merged;  // D, H, G, K; see `Attention` for `merged`
    double scale, cap;             // of attention scores; 0: 1 / sqrt(K), and no cap
    const void* tokens;            // (V, D), of a `Table` kind
    int64_t kind;
    double embedding_scale;
    const float* positions;        // (positions, D); row `first` is position 0
    int64_t first, last, zero_start;
    NormCall embedding_norm, last_norm;
    const Linear *projection, *gate;  // NULL: none
    const Linear *basis, *screen;     // see `Forward::screen`
    const Plane* plane;               // of the projection
    double logits_cap;                // 0: none
    const int64_t* ends;              // tokens that end an output, eos first; NULL: eos alone
    int64_t ends_count;
)
// Cross-attention is missing in an encoder, and where it is merged. A layer reads and writes layer `entries` of the caches.
SHARED_STRUCT(LayerCall,
    const Linear *qkv, *out, *cross_query, *cross_out, *fc1, *fc2;
    const Linear* gate;  // of a gated feed-forward layer
    NormCall norm, after_norm, cross_norm, cross_after_norm, final_norm, final_after_norm;
    NormCall query_norm, key_norm, cross_query_norm, cross_key_norm;  // of each head
    const float* relative;  // (H, 2 reach + 1) the bias of scores by a key's distance ahead, from -reach
    const float* rotation;  // (turned, K) cosines, then sines; NULL: no rotary positions
    int64_t reach, turned, before, after, entries;  // a token attends to `before` positions up to its own; 0: to all
)

// ---- passes

// A model's KV caches: of the target, with room for `positions` in each slot, and of the source. Strides count numbers.
SHARED_STRUCT(Caches,
    float* cache;
    int64_t cache_layer, cache_slot;
    float* memory;
    int64_t memory_layer, memory_slot, positions;
)

// A row of a pass. Results are those of its tokens from number `first` on.
SHARED_STRUCT(ReadRow,
    int64_t tokens, position, first;  // how many it reads, where the first one is
    int64_t slot, source_slot, source_length;
)

// The positions that the rows of a causal pass attend to, if not all.
SHARED_STRUCT(Visible,
    int64_t sinks, window;     // of the target: the first positions, and the last ones up to a row's own
    int64_t listed;            // N
    const int64_t* positions;  // (B, N) of each source, ascending; those past its end are ignored
)

// A pass over tokens at the rows' positions and after, which overwrites cache entries. Results past a row's end are not written.
SHARED_STRUCT(ReadCall,
    const Stack* stack;
    Caches caches;
    int64_t batch, width;  // B, W
    const ReadRow* rows;   // (B)
    const int64_t* tokens;
    const int64_t* parents;    // of trees: token k follows its row's token parents[k] < k, or what the cache holds (-1), at the next
                               // position; its entry has the index of a chain's
    const float* embeddings;   // (.., D) vectors that the tokens index
    const Visible* visible;
    float *logits, *gates, *features;  // (B, W, V); (B, W, R); (B, W, D), what logits are computed from. Without logits the pass
                                       // ends after the layer of `attention`
    float* attention;  // (B, W, attention_size) to each source position, where a result attends, summed over the heads of the bits
    int64_t attention_size, layer, heads;  // `heads` of that layer, or of all layers (-1)
)

// A row of cross-attention to compute: a sentence's number, its slot and length.
SHARED_STRUCT(RememberRow,
    int64_t sentence, slot, length;
)

// A row of a block drafter's pass: its prefix without the start token, and how many masks follow.
SHARED_STRUCT(BlockRow,
    int64_t tokens, drafted, slot, source_slot, source_length;
)

// ---- how tokens are chosen

// How a row samples: see sampling.py. Temperature 0: it takes the best token.
SHARED_STRUCT(SamplingRow,
    double temperature, top_p, penalty;
    int64_t seed, top_k, rejects;  // 1: the rejection rule
    int64_t position, prefix;      // of the first token to draw; the prefix's tokens
)
SHARED_STRUCT(Sampling,
    const SamplingRow* rows;  // (B)
    const int64_t* prefixes;
    // What drafted tokens were drawn from: `probabilities` (B, width, C) of `tokens` (B, width, C). NULL: not wanted, or each was
    // certain.
    int64_t* tokens;
    float* probabilities;
    int64_t width, candidates;
)

// A row's ban on repeated n-grams: n, or 0 for none, and its tokens so far.
SHARED_STRUCT(RepeatRow,
    int64_t size, prefix;
)
SHARED_STRUCT(NoRepeats,
    const RepeatRow* rows;  // (B)
    const int64_t* prefixes;
)

// A row that drafts: a token at each of its first positions, but not eos at the very first where the output is `empty`.
SHARED_STRUCT(ChooseRow,
    int64_t drafted, empty;
)
// The choice of drafted tokens: the best, or, with gates, the best of C after the token before, by the tables of the successor
// network. Rows that sample draw among C. Pad and eos are indices of logits; -1: there is no such logit.
SHARED_STRUCT(ChooseCall,
    int64_t pad, eos;
    const ChooseRow* rows;        // (B)
    const float *tokens, *outs;   // (V, R) for the token before, and for the candidate
    int64_t candidates;
    const int64_t* token_ids;  // the token of each logit; NULL: its index
    int64_t* chosen;           // (B, W) indices of logits
    const Sampling* sampling;
)

// How a row's draft is judged: tokens pass among the `beta` best and within `tau` nats of the best. After `room` tokens only eos
// may follow, before `minimum` it may not. `scored`: whether its scores are wanted.
SHARED_STRUCT(JudgeRow,
    int64_t drafted, beta;
    double tau;
    int64_t room, minimum, scored;
)
// Tokens that pass, the row's own next one, and whether the limit made that eos.
SHARED_STRUCT(VerdictRow,
    int64_t accepted, own, cut;
)
// The judging of drafts by logits, which are restored. Position k of a row chooses the token after k tokens of its draft: never a
// banned one, nor, except eos, one that would repeat an n-gram. Rows that sample draw a token in place of the best; under the
// rejection rule drafted tokens pass by chance. The limit overrides all.
SHARED_STRUCT(JudgeCall,
    int64_t eos, banned_count;
    const int64_t* banned;
    const JudgeRow* rows;    // (B)
    const int64_t* tokens;   // of the drafts
    const int64_t* parents;  // of trees: the node that each token follows, -1: the prefix
    const Sampling* sampling;
    const NoRepeats* repeats;
    VerdictRow* verdicts;  // (B)
    float* scores;         // (B, W) log-probabilities (nats) under the unconstrained model: in `scored` rows, of tokens that pass,
                           // and of the own one
    int64_t* paths;        // (B, W) of trees: the nodes that pass
)

// Of the logits of a pass's `row`, `result` number of it: its best `few` tokens are ranked. `renormalise`: among the allowed ones.
// `penalty`: of unk, in nats.
SHARED_STRUCT(RankRow,
    int64_t row, result, few, room, minimum, renormalise;
    double penalty;
)
SHARED_STRUCT(RankCall,
    int64_t unk, eos, banned_count;
    const int64_t* banned;
    const RankRow* rows;  // (N)
    const NoRepeats* repeats;
    int64_t width;    // C
    int64_t* tokens;  // (N, C) best first
    float* scores;    // (N, C) log-probabilities; minus infinity after the last allowed token
)

// ---- iterations

// A row that decodes without a search. `position` is that of its last committed token; `unread`: the committed tokens that the
// drafter has not read, at least that one. A draft ends where the product of its probabilities falls below `least`.
SHARED_STRUCT(DecodeRow,
    int64_t position, draft_length;
    int64_t slot, source_slot, drafter_slot, drafter_source_slot, source_length;
    int64_t beta, room, minimum, unread, scored;
    double tau, least;
)
// What an iteration did to a row: tokens drafted and accepted, its own token (-1: none, after eos), whether the limit made that eos.
SHARED_STRUCT(StepRow,
    int64_t drafted, accepted, own, cut;
)
// How drafts come about: see roles.py. `recipe` is a `Recipe` of drafts.h; GIVEN needs no more.
SHARED_STRUCT(DraftCall,
    int64_t recipe;
    const Stack* stack;
    Caches caches;
    float *logits, *gates;      // (B, K, V), (B, K, R): the passes' results
    const float *tokens, *outs; // the successor network's tables ..
    int64_t candidates;         // .. and how many candidates it chooses among
    const int64_t* token_ids;   // the token of each logit; NULL: all tokens, in order
    int64_t pad, eos, mask;     // `pad` and `eos` as in `ChooseCall`
    int64_t positions;          // that the drafter has embeddings for
    int64_t shared;             // IN_TURN: whether a pass over one token is worth sharing between threads
    int64_t* read;              // MASKED: (B) positions that it has read; updated
    const Linear* heads;        // FROM_VECTORS: the heads, and the embeddings (V, D) that they read
    const float* embeddings;
    double scale;               // of the embeddings
    int64_t longest;            // FROM_VECTORS: the longest draft; positions past the last head reuse it
    float *states, *vectors;    // FROM_VECTORS: (B, D) hidden states, updated; (B, heads, D) the heads' results
)

// A search: how many hypotheses live and have finished, and its options (search/beam.py).
SHARED_STRUCT(SearchRow,
    int64_t size, huggingface, stopping, renormalise, limit, minimum, repeats;
    int64_t source_slot, source_length, living, finished;
    double unk_penalty, longest;  // `longest`: what divides the total of a hypothesis of the longest length
)
// A live hypothesis: its tokens, with those of the context before them, how many are drafted behind it, and its log-probability.
SHARED_STRUCT(HypothesisRow,
    int64_t tokens, drafted;
    double total;
)
// Steps of searches. S is the sum of their sizes.
SHARED_STRUCT(SearchCall,
    int64_t start, unk;
    int64_t ends;             // whether a hypothesis at the limit ends with eos
    int64_t context;          // tokens before each output that count where n-grams must not repeat
    int64_t searches;         // their number
    const SearchRow* rows;    // (searches)
    const HypothesisRow* hypotheses;  // that live, by search
    const int64_t* tokens;
    const double* finished;  // normalised scores of finished hypotheses, by search
    int64_t steps;           // that a search takes at most
    const double* divisors;  // (searches, steps) what divides the total of a hypothesis that a step makes: a power of its length
    int64_t* slots;          // (S) of each search, those of its live hypotheses first; updated
    int64_t* record;         // by iteration and search that is not over: see `BeamSearch::advance`
    float* scores;           // the same
)

// Iterations of a batch: B rows without a search, drafted for with up to K tokens, and searches, in one pass each.
SHARED_STRUCT(RunCall,
    const Stack* verifier;
    Caches caches;
    float *logits, *features;  // (B + S, K + 1, V), (B + S, K + 1, D) of the last pass; features NULL: not wanted
    int64_t screened;          // passes over up to so many rows compute only those logits that choices need
    float* attention;          // (B + S, K + 1, attention_size): as in `ReadCall`
    int64_t attention_size, layer, heads;
    int64_t eos, banned_count;
    const int64_t* banned;
    int64_t batch, longest, steps;  // B, K, and the maximum number of iterations
    const DecodeRow* rows;          // (B)
    const int64_t* tokens;          // the rows' unread ones
    const int64_t *given, *parents; // given drafts, for one iteration: of the rows, then of live hypotheses. Parents as in `JudgeCall`
    const Sampling* sampling;       // what given drafts were drawn from, too
    const NoRepeats* repeats;
    DraftCall draft;
    SearchCall search;
    StepRow* record;  // (steps, B)
    int64_t* drafts;  // (steps, B, K) accepted tokens first
    int64_t* paths;   // (B, K) of trees: the accepted nodes
    float* scores;    // (steps, B, K + 1) of the accepted tokens and the own one, in `scored` rows
    double drafting_seconds, verifying_seconds, first_seconds;  // spent: in all iterations, and in the first one
    int64_t taken;                                              // iterations
    int64_t screened_passes, computed_panels;  // those that were screened, and what they computed exactly
)

// For tests: what a query sees: see `Seen` in seen.h. Its listed positions come first, then its path.
SHARED_STRUCT(SeenRow,
    int64_t from, to, sinks, listed, branch, path;
)

}  // namespace
