// The CPU ops, one declaration each; schemas, shapes and meaning are in caw/ops.py and the references it names.
#pragma once

#include <tuple>

#include "tensors.h"

namespace caw {

std::tuple<Tensor, Tensor, Tensor, Tensor> topk_softmax(
    const Tensor& logits, int64_t k, const std::optional<Tensor>& rows);

Tensor sibling_attention(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& k_own,
    const Tensor& v_own, const Tensor& lengths, double scale, std::optional<int64_t> window,
    std::optional<double> softcap, const std::optional<Tensor>& sinks);

Tensor sibling_attention_packed(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& k_own,
    const Tensor& v_own, const Tensor& lengths, const Tensor& rows, double scale, std::optional<int64_t> window,
    std::optional<double> softcap, const std::optional<Tensor>& sinks);

Tensor prefix_attention(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& k_own,
    const Tensor& v_own, const Tensor& lengths, const Tensor& rows, double scale, std::optional<int64_t> window,
    std::optional<double> softcap, const std::optional<Tensor>& sinks);

void commit_kv(
    const Tensor& store, const Tensor& scratch, const Tensor& choice, const Tensor& lengths, const Tensor& active);

Tensor evaluate_capacity(const Tensor& features, const std::vector<Tensor>& weights);

Tensor select_candidate(const Tensor& candidates, const Tensor& needs, const Tensor& counts, const Tensor& strength,
    int64_t rule, double full);

std::tuple<Tensor, Tensor, Tensor> evaluator_step(const std::vector<Tensor>& probs, const std::vector<Tensor>& weights,
    const Tensor& candidates, const Tensor& needs, const Tensor& counts, const Tensor& pending,
    const Tensor& pending_strength, const Tensor& pending_capacity, const Tensor& factor, int64_t k, int64_t transform,
    double theta, double beta, int64_t rule, double full, const std::optional<Tensor>& extra);

std::tuple<Tensor, Tensor, Tensor> enumerate_candidates(const Tensor& values, const Tensor& ids, const Tensor& race,
    const Tensor& scores, const Tensor& context, const Tensor& key, int64_t scheme, int64_t threshold, double full,
    double max_strength);

std::tuple<Tensor, Tensor> score_tokens(
    const Tensor& tokens, int64_t window, const Tensor& key, int64_t scheme, int64_t threshold);

std::tuple<Tensor, Tensor, Tensor> show_evidence(const Tensor& padded, const Tensor& counts, const Tensor& tokens,
    const Tensor& seen, const Tensor& distinct, int64_t window, const Tensor& key, int64_t scheme, int64_t threshold);

void count_evidence(const Tensor& seen, const Tensor& distinct, const Tensor& trials, const Tensor& score,
    const Tensor& standing, const Tensor& evidence, const Tensor& first, const std::optional<Tensor>& level,
    const Tensor& values, double mean, double variance, double third);

Tensor sampling_noise(const Tensor& context, const Tensor& key, int64_t vocab_size);

// Logits with bias and penalties, of the rows that have any.
Tensor penalise_logits(const Tensor& logits, const Tensor& tokens, const Tensor& wanted, const Tensor& numbers,
    const Tensor& prompts, const Tensor& bias);

// What the sampler keeps of logits, the rest -inf; and the sums of that and a draw each, with their record.
Tensor warp_logits(const Tensor& logits, const Tensor& wanted, const Tensor& temperatures, const Tensor& top_ks,
    const Tensor& one_minus_top_ps, const Tensor& min_ps);
std::tuple<Tensor, Tensor, Tensor> draw_scores(const Tensor& warped, const Tensor& drawn, const Tensor& context,
    const Tensor& key, int64_t k, double reach);

// SynthID: the winners int64 [B, m] after each layer.
Tensor tournament(const Tensor& warped, const Tensor& scores, const Tensor& first, const Tensor& context,
    const Tensor& table, int64_t layers);

Tensor race_winner(const Tensor& logits, const Tensor& context, const Tensor& key, double temperature);

Tensor permutation_green(
    const Tensor& seeds, int64_t vocab_size, int64_t count, const std::optional<Tensor>& wanted);

// Whether tokens[i] is among the first `count` entries of the permutation of seeds[i].
Tensor permutation_contains(const Tensor& seeds, const Tensor& tokens, int64_t vocab_size, int64_t count);

// Number indices[i] of the generator that seeds[i] starts.
Tensor generator_words(const Tensor& seeds, const Tensor& indices);

Tensor small_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias);

// A file's blocks of weights [O, bytes] in the layout of csrc/blocks.h, and rows of it as floats.
Tensor pack_blocks(const Tensor& blocks, int64_t type, bool fast);
void pack_blocks_into(const Tensor& blocks, int64_t type, bool fast, const Tensor& out);

Tensor unpack_rows(const Tensor& packed, const Tensor& rows, int64_t size);

Tensor quantized_linear(const Tensor& x, const Tensor& packed, int64_t outputs, const std::optional<Tensor>& bias);

Tensor decoder_stack(const Tensor& hidden, const Tensor& cos, const Tensor& sin, const Tensor& store,
    const Tensor& scratch, int64_t slot, const Tensor& lengths, const std::vector<Tensor>& weights,
    const std::vector<std::optional<Tensor>>& biases, double eps, double scale, const std::vector<int64_t>& windows,
    const std::optional<Tensor>& rows, const std::optional<Tensor>& places, const std::string& family,
    std::optional<double> softcap, const std::vector<int64_t>& rotations, double multiplier);

}  // namespace caw
