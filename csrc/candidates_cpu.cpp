// Watermark ops on the CPU: ladders, token scores, sampling noise, foreign lists. Arithmetic: candidates.h.

#include <cstring>
#include <numeric>

#include "candidates.h"
#include "ops.h"
#include "random_lists.h"

namespace caw {
namespace {

void require_scheme(int64_t scheme, int64_t threshold) {
  require(scheme >= 0 && scheme <= 3, "scheme must be 0, 1, 2 or 3, got " + std::to_string(scheme));
  require(threshold >= 0 && threshold <= (int64_t(1) << 24),
      "threshold must be in [0, 2**24], got " + std::to_string(threshold));
}

void require_vocabulary(int64_t size) {
  require(size >= 1 && size < (int64_t(1) << 31), "vocab_size must be in [1, 2**31), got " + std::to_string(size));
}

int64_t rung_width(int64_t scheme, int64_t size, float full, float max_strength) {
  if (scheme == kRaceTopK) return reachable_ranks(size, full, max_strength);
  return scheme == kRaceScale ? size : 2;
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> enumerate_candidates(const Tensor& values, const Tensor& ids, const Tensor& race,
    const Tensor& scores, const Tensor& context, int64_t key, int64_t scheme, int64_t threshold, double full,
    double max_strength) {
  require_scheme(scheme, threshold);
  require(values.dim() == 2 && values.size(1) >= 1, "values must have shape [B, K] with K >= 1, got " + shape_of(values));
  const int64_t batch = values.size(0), size = values.size(1);
  require_shape("ids", ids, {batch, size});
  require_shape("race", race, {batch, size});
  require(scores.dim() == 2 && scores.size(0) == batch, "scores must have shape [B, V], got " + shape_of(scores));
  require(context.dim() == 2 && context.size(0) == batch, "context must have shape [B, W], got " + shape_of(context));
  require_dtype("values", values, ScalarType::Float, "float32");
  require_dtype("race", race, ScalarType::Float, "float32");
  require_dtype("scores", scores, ScalarType::Float, "float32");
  require_dtype("ids", ids, ScalarType::Long, "int64");
  require_dtype("context", context, ScalarType::Long, "int64");
  const bool selfhash = scheme == kSelfhashGreen;
  require(!selfhash || context.size(1) >= 1, "selfhash needs a context of at least one token, got " + shape_of(context));
  const Tensor value_rows = dense(values), id_rows = dense(ids), race_rows = dense(race), contexts = dense(context);
  const float whole = float(full), greatest = float(max_strength);
  const int64_t width = rung_width(scheme, size, whole, greatest), window = context.size(1);
  Tensor candidates = make({batch, width}, ScalarType::Long), needs = make({batch, width}, ScalarType::Float);
  Tensor counts = make({batch}, ScalarType::Long);
  const float *v = value_rows.const_data_ptr<float>(), *r = race_rows.const_data_ptr<float>();
  const float* s = scores.const_data_ptr<float>();
  const int64_t *d = id_rows.const_data_ptr<int64_t>(), *c = contexts.const_data_ptr<int64_t>();
  const int64_t row_step = scores.stride(0), step = scores.stride(1), vocab_size = scores.size(1);
  int64_t *cand = candidates.mutable_data_ptr<int64_t>(), *count = counts.mutable_data_ptr<int64_t>();
  float* need = needs.mutable_data_ptr<float>();
  for_each_part(batch, 2000, [&](int64_t begin, int64_t end) {
    std::vector<double> scratch(static_cast<size_t>(size));
    for (int64_t b = begin; b < end; ++b) {
      const Row row{v + b * size, d + b * size, r + b * size, size, s + b * row_step, step, vocab_size};
      const Rungs out{cand + b * width, need + b * width, count + b, width};
      enumerate_row(row, c + b * window, window, 1, uint64_t(key), scheme, threshold, whole, greatest, scratch.data(), out);
    }
  });
  return {candidates, needs, counts};
}

std::tuple<Tensor, Tensor> score_tokens(
    const Tensor& tokens, int64_t window, int64_t key, int64_t scheme, int64_t threshold) {
  require_scheme(scheme, threshold);
  require(tokens.dim() == 1, "tokens must have shape [n], got " + shape_of(tokens));
  require_dtype("tokens", tokens, ScalarType::Long, "int64");
  require(window >= 0 && window <= 64, "window must be in [0, 64], got " + std::to_string(window));
  require(scheme != kSelfhashGreen || window >= 1, "selfhash needs a window of at least 1, got 0");
  const Tensor ids = dense(tokens);
  const int64_t n = ids.size(0);
  Tensor values = make({n}, ScalarType::Double);
  Tensor seeds = make({scheme == kSelfhashGreen ? n : 0}, ScalarType::Long);
  const int64_t* id = ids.const_data_ptr<int64_t>();
  double* value = values.mutable_data_ptr<double>();
  int64_t* seed = scheme == kSelfhashGreen ? seeds.mutable_data_ptr<int64_t>() : nullptr;
  for_each_part(n, 50, [&](int64_t begin, int64_t end) {
    int64_t missing[64];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t* context = id + i - window;
      if (i < window) {
        for (int64_t j = 0; j < window; ++j) missing[j] = i - window + j < 0 ? kMissing : id[i - window + j];
        context = missing;
      }
      const Score score = score_token(uint64_t(key), scheme, threshold, context, window, id[i]);
      value[i] = score.value;
      if (seed) seed[i] = score.seed;
    }
  });
  return {values, seeds};
}

Tensor sampling_noise(const Tensor& context, int64_t key, int64_t vocab_size) {
  require(context.dim() == 2, "context must have shape [B, W], got " + shape_of(context));
  require_dtype("context", context, ScalarType::Long, "int64");
  require_vocabulary(vocab_size);
  const Tensor contexts = dense(context);
  const int64_t batch = contexts.size(0), width = contexts.size(1);
  Tensor noise = make({batch, vocab_size}, ScalarType::Float);
  const int64_t* c = contexts.const_data_ptr<int64_t>();
  float* out = noise.mutable_data_ptr<float>();
  constexpr int64_t kPiece = 4096;  // a multiple of 4: words come four a counter
  const int64_t pieces = (vocab_size + kPiece - 1) / kPiece;
  for_each_part(batch * pieces, kPiece * 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / pieces, first = i % pieces * kPiece;
      const Words state = absorb_context(uint64_t(key), c + b * width, width);
      const int64_t last = first + kPiece < vocab_size ? first + kPiece : vocab_size;
      kernels().gumbel_row(state.w, uint32_t(key) ^ state.w[3], uint32_t(uint64_t(key) >> 32) ^ kTokenDomain, first,
          last, out + b * vocab_size + first);
    }
  });
  return noise;
}

namespace {

// f(seed index, first `count` entries of its permutation) for every seed, in threads.
template <class F>
void for_each_list(const Tensor& seeds, int64_t vocab_size, int64_t count, const F& f) {
  require(seeds.dim() == 1, "seeds must have shape [N], got " + shape_of(seeds));
  require_dtype("seeds", seeds, ScalarType::Long, "int64");
  require_vocabulary(vocab_size);
  require(count >= 0 && count <= vocab_size, "count must be in [0, vocab_size], got " + std::to_string(count));
  const Tensor numbers = dense(seeds);
  const int64_t* seed = numbers.const_data_ptr<int64_t>();
  for_each_part(numbers.size(0), count * 5 + 3000, [&](int64_t begin, int64_t end) {
    std::vector<uint32_t> order(static_cast<size_t>(vocab_size)), head(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0u);
    for (int64_t i = begin; i < end; ++i) {
      draw_permutation(uint32_t(seed[i]), vocab_size, count, order.data(), head.data());
      f(i, head.data());
    }
  });
}

}  // namespace

Tensor permutation_head(const Tensor& seeds, int64_t vocab_size, int64_t count) {
  Tensor out = make({seeds.dim() == 1 ? seeds.size(0) : 0, count > 0 ? count : 0}, ScalarType::Long);
  int64_t* to = out.mutable_data_ptr<int64_t>();
  for_each_list(seeds, vocab_size, count, [&](int64_t i, const uint32_t* head) {
    for (int64_t j = 0; j < count; ++j) to[i * count + j] = head[j];
  });
  return out;
}

Tensor permutation_green(const Tensor& seeds, int64_t vocab_size, int64_t count) {
  require_vocabulary(vocab_size);
  const int64_t words = (vocab_size + 31) / 32;
  Tensor out = make({seeds.dim() == 1 ? seeds.size(0) : 0, words}, ScalarType::Int);
  uint32_t* to = static_cast<uint32_t*>(out.mutable_data_ptr());
  for_each_list(seeds, vocab_size, count, [&](int64_t i, const uint32_t* head) {
    uint32_t* set = to + i * words;
    std::memset(set, 0, size_t(words) * sizeof(uint32_t));
    for (int64_t j = 0; j < count; ++j) set[head[j] >> 5] |= 1u << (head[j] & 31);
  });
  return out;
}

}  // namespace caw
