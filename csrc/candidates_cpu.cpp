// Watermark ops on the CPU: ladders, token scores, sampling noise. Arithmetic: candidates.h.

#include "candidates.h"
#include "tensors.h"
#include "text_scores.h"

namespace caw {
namespace {

void require_scheme(int64_t scheme, int64_t threshold) {
  require(scheme >= 0 && scheme <= 3, "scheme must be 0, 1, 2 or 3, got " + std::to_string(scheme));
  require(threshold >= 0 && threshold <= (int64_t(1) << 24),
      "threshold must be in [0, 2**24], got " + std::to_string(threshold));
}

int64_t rung_width(int64_t scheme, int64_t size, float full, float max_strength) {
  if (scheme == kRaceTopK) return reachable_ranks(size, full, max_strength);
  return scheme == kRaceScale ? size : 2;
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> enumerate_candidates(const Tensor& values, const Tensor& ids, const Tensor& race,
    const Tensor& scores, const Tensor& context, const Tensor& key, int64_t scheme, int64_t threshold, double full,
    double max_strength) {
  require_scheme(scheme, threshold);
  require(values.dim() == 2 && values.size(1) >= 1, "values must have shape [B, K] with K >= 1, got " + shape_of(values));
  const int64_t batch = values.size(0), size = values.size(1);
  require_tensor("ids", ids, ScalarType::Long, {batch, size});
  require_tensor("race", race, ScalarType::Float, {batch, size});
  require(scores.dim() == 2 && scores.size(0) == batch, "scores must have shape [B, V], got " + shape_of(scores));
  require(context.dim() == 2 && context.size(0) == batch, "context must have shape [B, W], got " + shape_of(context));
  require_dtype("values", values, ScalarType::Float);
  require_dtype("scores", scores, ScalarType::Float);
  require_dtype("context", context, ScalarType::Long);
  require_tensor("key", key, ScalarType::Long, {batch});
  const bool selfhash = scheme == kSelfhashGreen;
  require(!selfhash || context.size(1) >= 1, "selfhash needs a context of at least one token, got " + shape_of(context));
  const Tensor value_rows = dense(values), id_rows = dense(ids), race_rows = dense(race), contexts = dense(context);
  const Tensor keys = dense(key);
  const float whole = float(full), greatest = float(max_strength);
  const int64_t width = rung_width(scheme, size, whole, greatest), window = context.size(1);
  Tensor candidates = make({batch, width}, ScalarType::Long), needs = make({batch, width}, ScalarType::Float);
  Tensor counts = make({batch}, ScalarType::Long);
  const float *v = value_rows.const_data_ptr<float>(), *r = race_rows.const_data_ptr<float>();
  const float* s = scores.const_data_ptr<float>();
  const int64_t *d = id_rows.const_data_ptr<int64_t>(), *c = contexts.const_data_ptr<int64_t>();
  const int64_t* secret = keys.const_data_ptr<int64_t>();
  const int64_t row_step = scores.stride(0), step = scores.stride(1), vocab_size = scores.size(1);
  int64_t *cand = candidates.mutable_data_ptr<int64_t>(), *count = counts.mutable_data_ptr<int64_t>();
  float* need = needs.mutable_data_ptr<float>();
  for_each_part(batch, 2000, [&](int64_t begin, int64_t end) {
    std::vector<double> scratch(static_cast<size_t>(size));
    for (int64_t b = begin; b < end; ++b) {
      const Row row{v + b * size, d + b * size, r + b * size, size, s + b * row_step, step, vocab_size};
      const Rungs out{cand + b * width, need + b * width, count + b, width};
      enumerate_row(
          row, c + b * window, window, 1, uint64_t(secret[b]), scheme, threshold, whole, greatest, scratch.data(), out);
    }
  });
  return {candidates, needs, counts};
}

std::tuple<Tensor, Tensor> score_tokens(
    const Tensor& tokens, int64_t window, const Tensor& key, int64_t scheme, int64_t threshold) {
  require_scheme(scheme, threshold);
  require(tokens.dim() == 1, "tokens must have shape [n], got " + shape_of(tokens));
  require_dtype("tokens", tokens, ScalarType::Long);
  require_tensor("key", key, ScalarType::Long, {tokens.size(0)});
  require(window >= 0 && window <= 64, "window must be in [0, 64], got " + std::to_string(window));
  require(scheme != kSelfhashGreen || window >= 1, "selfhash needs a window of at least 1, got 0");
  const Tensor ids = dense(tokens), keys = dense(key);
  const int64_t n = ids.size(0);
  Tensor values = make({n}, ScalarType::Double);
  Tensor seeds = make({scheme == kSelfhashGreen ? n : 0}, ScalarType::Long);
  const ScoreText text{
      ids.const_data_ptr<int64_t>(), keys.const_data_ptr<int64_t>(), window, scheme, threshold};
  double* value = values.mutable_data_ptr<double>();
  int64_t* seed = scheme == kSelfhashGreen ? seeds.mutable_data_ptr<int64_t>() : nullptr;
  const int64_t pieces = (n + kScorePiece - 1) / kScorePiece;
  for_each_part(pieces, kScorePiece * (window + 4) * 4, [&](int64_t begin, int64_t end) {
    ScoreBuffers own(window);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i * kScorePiece, count = n - first < kScorePiece ? n - first : kScorePiece;
      text.score(first, count, own, value + first, seed ? seed + first : nullptr);
    }
  });
  return {values, seeds};
}

Tensor sampling_noise(const Tensor& context, const Tensor& key, int64_t vocab_size) {
  require(context.dim() == 2, "context must have shape [B, W], got " + shape_of(context));
  require_dtype("context", context, ScalarType::Long);
  require_tensor("key", key, ScalarType::Long, {context.size(0)});
  require_vocabulary(vocab_size);
  const Tensor contexts = dense(context), keys = dense(key);
  const int64_t batch = contexts.size(0), width = contexts.size(1);
  Tensor noise = make({batch, vocab_size}, ScalarType::Float);
  const int64_t *c = contexts.const_data_ptr<int64_t>(), *secret = keys.const_data_ptr<int64_t>();
  float* out = noise.mutable_data_ptr<float>();
  constexpr int64_t kPiece = 4096;  // a multiple of 4: words come four a counter
  const int64_t pieces = (vocab_size + kPiece - 1) / kPiece;
  for_each_part(batch * pieces, kPiece * 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / pieces, first = i % pieces * kPiece;
      const uint64_t own = uint64_t(secret[b]);
      const Words state = absorb_context(own, c + b * width, width);
      const int64_t last = first + kPiece < vocab_size ? first + kPiece : vocab_size;
      kernels().gumbel_row(state.w, uint32_t(own) ^ state.w[3], uint32_t(own >> 32) ^ kTokenDomain, first, last,
          out + b * vocab_size + first);
    }
  });
  return noise;
}

}  // namespace caw

STABLE_TORCH_LIBRARY_IMPL(caw, CPU, m) {
  m.impl("enumerate_candidates", TORCH_BOX(&caw::enumerate_candidates));
  m.impl("score_tokens", TORCH_BOX(&caw::score_tokens));
  m.impl("sampling_noise", TORCH_BOX(&caw::sampling_noise));
}
