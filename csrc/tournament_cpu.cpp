// The winners of SynthID's tournament after each of its layers, on the CPU.
//
// What a layer does to a token depends on the token's bit alone, so tokens with the same bits in ten layers go through
// these as one: a row is read once for ten layers, into sums and best tokens of 1024 bins, and the layers work on bins.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops.h"

namespace caw {
namespace {

constexpr uint64_t kMultiplier = 6364136223846793005u;
constexpr int64_t kAtOnce = 10, kBins = int64_t(1) << kAtOnce;  // layers
constexpr int64_t kSurveyed = 4096;
constexpr int32_t kNobody = -1;

struct Scratch {
  std::vector<float> probs, weights, maxima;
  std::vector<int32_t> ids;
  std::vector<uint64_t> patterns;
};

Scratch& scratch() {
  thread_local Scratch mine;
  return mine;
}

// exp(x - greatest), in place.
void exponentiate(float* x, int64_t size) {
  float top = -INFINITY;
  for (int64_t i = 0; i < size; ++i) top = x[i] > top ? x[i] : top;
  kernels().exponentials(x, top, size, x);
}

double sum_of(const float* x, int64_t size) {
  double lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= size; i += 8)
    for (int64_t j = 0; j < 8; ++j) lanes[j] += double(x[i + j]);
  for (; i < size; ++i) lanes[0] += double(x[i]);
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

class Tournament {
 public:
  // What is kept of a row; false where there is no token, or a logit is no number.
  bool begin(const float* warped, const float* scores, int64_t size, Scratch& own) {
    own.probs.resize(size_t(size));
    own.weights.resize(size_t(size));
    own.maxima.resize(size_t(size / kSurveyed + 1));
    const Survey seen = kernels().survey(warped, size, kSurveyed, own.maxima.data());
    if (!seen.ordered || !std::isfinite(seen.top)) return false;
    probs_ = own.probs.data();
    weights_ = own.weights.data();
    kept_ = seen.kept;
    if (kept_ == size) {
      ids_ = nullptr;
      weighted_ = std::memcmp(warped, scores, size_t(size) * sizeof(float)) != 0;
      if (weighted_)
        for (int64_t i = 0; i < size; ++i) weights_[i] = scores[i] - warped[i];
      kernels().exponentials(warped, seen.top, size, probs_);
    } else {
      own.ids.resize(size_t(size));
      ids_ = own.ids.data();
      weighted_ = gather(warped, scores, size, own.ids.data());
      kernels().exponentials(probs_, seen.top, kept_, probs_);
    }
    if (weighted_) exponentiate(weights_, kept_);
    share_ = 1.0f / float(sum_of(probs_, kept_));
    return true;
  }

  // T: of the table's entries; bit l of one is that of layer l.
  template <class T>
  void run(const T* table, int64_t size, uint64_t state, int64_t layers, Scratch& own, int64_t* winners) {
    own.patterns.resize(size_t(kept_));
    patterns_ = own.patterns.data();
    const uint64_t mask = uint64_t(size - 1), step = kMultiplier * kMultiplier;
    uint64_t place = (state * kMultiplier + 1) * kMultiplier;  // of token 0: the hash times a
    if (ids_ == nullptr) {
      for (int64_t i = 0; i < kept_; ++i, place += step) patterns_[i] = uint64_t(table[place & mask]);
    } else {
      for (int64_t i = 0; i < kept_; ++i) patterns_[i] = uint64_t(table[(place + uint64_t(ids_[i]) * step) & mask]);
    }
    every_ = kept_ >= kBins / 2;
    grown_[0] = share_;
    for (int64_t l = 0; l < layers; l += kAtOnce) {
      const int64_t count = std::min(kAtOnce, layers - l);
      if (l > 0) grow();
      if (weighted_) fill<true>(l, count);
      else fill<false>(l, count);
      for (int64_t j = 0; j < count; ++j) {
        const int64_t winner = layer(j);
        if (winner >= 0) winners[l + j] = ids_ == nullptr ? winner : ids_[winner];
        else if (l + j > 0) winners[l + j] = winners[l + j - 1];
      }
    }
  }

 private:
  // Logits of the kept tokens in place of probabilities, noise in place of weights; whether there is any.
  bool gather(const float* warped, const float* scores, int64_t size, int32_t* ids) {
    int64_t kept = 0;
    bool any = false;
    for (int64_t i = 0; i < size; ++i) {
      const float logit = warped[i];
      if (logit == -INFINITY) continue;
      const float noise = scores[i] - logit;
      any |= noise != 0;
      ids[kept] = int32_t(i);
      probs_[kept] = logit;
      weights_[kept] = noise;
      ++kept;
    }
    return any;
  }

  // What the layers until now make of a token of each bin.
  void grow() {
    each([&](int64_t b) { grown_[b] = float(factors_[b]); });
  }

  // The bins of layers [l, l + count), after what those before made of the probabilities.
  template <bool kWeighted>
  void fill(int64_t l, int64_t count) {
    const int64_t before = l ? l - kAtOnce : 0;
    const uint64_t mask_before = l ? uint64_t(kBins - 1) : 0, mask = (uint64_t(1) << count) - 1;
    bins_ = int64_t(1) << count;
    used_.clear();
    ++filled_;
    if (every_)
      for (int64_t b = 0; b < bins_; ++b) empty(b);
    for (int64_t i = 0; i < kept_; ++i) {
      const uint64_t pattern = patterns_[i];
      const float p = probs_[i] * grown_[pattern >> before & mask_before];
      probs_[i] = p;
      const int64_t b = int64_t(pattern >> l & mask);
      if (touched_[b] != filled_) {
        empty(b);
        used_.push_back(b);
      }
      sums_[b] += double(p);
      const double score = double(kWeighted ? p * weights_[i] : p);
      if (score > best_[b]) {
        best_[b] = score;
        token_[b] = int32_t(i);
      }
    }
  }

  void empty(int64_t b) {
    touched_[b] = filled_;
    sums_[b] = best_[b] = 0;
    factors_[b] = 1;
    token_[b] = kNobody;
  }

  template <class F>
  void each(const F& f) {
    if (every_)
      for (int64_t b = 0; b < bins_; ++b) f(b);
    else
      for (const int64_t b : used_) f(b);
  }

  // One layer of all bins, and the place of its winner among the kept, -1 where nothing is above 0.
  int64_t layer(int64_t j) {
    double total = 0;
    each([&](int64_t b) { total += b >> j & 1 ? sums_[b] : 0.0; });
    const float mass = float(total);
    // a mass that rounded above 1 would turn probabilities negative
    const double factor[2] = {std::max(1.0f - mass, 0.0f), std::max(2.0f - mass, 0.0f)};
    double best = 0;
    each([&](int64_t b) {
      const double grown = factor[b >> j & 1];
      sums_[b] *= grown;
      factors_[b] *= grown;
      best_[b] *= grown;
      best = best_[b] > best ? best_[b] : best;
    });
    if (best == 0) return kNobody;
    int32_t winner = std::numeric_limits<int32_t>::max();
    each([&](int64_t b) {
      if (best_[b] == best) winner = std::min(winner, token_[b]);
    });
    return winner;
  }

  int64_t kept_ = 0;
  bool weighted_ = false;
  float share_ = 1;  // one over the sum of the powers
  const int32_t* ids_ = nullptr;  // null: every token
  float *probs_ = nullptr, *weights_ = nullptr;
  uint64_t* patterns_ = nullptr;
  bool every_ = false;  // there are so many tokens that all bins are gone through, not only those that have one
  int64_t bins_ = 0;
  std::vector<int64_t> used_;
  // of tokens of equal bits: their probability, what layers made of it, the greatest product of probability and weight,
  // and which token has that first
  double sums_[kBins], factors_[kBins], best_[kBins];
  int32_t token_[kBins];
  float grown_[kBins];  // the factors of the layers before
  uint64_t touched_[kBins] = {}, filled_ = 0;
};

Tournament& tournament_here() {
  thread_local Tournament mine;
  return mine;
}

}  // namespace

Tensor tournament(const Tensor& warped, const Tensor& scores, const Tensor& first, const Tensor& context,
    const Tensor& table, int64_t layers) {
  require(warped.dim() == 2 && warped.size(1) >= 1,
      [&] { return "warped must have shape [B, V] with V >= 1, got " + shape_of(warped); });
  const int64_t batch = warped.size(0), vocabulary = warped.size(1), size = table.dim() == 1 ? table.size(0) : 0;
  require(vocabulary < int64_t(1) << 31, [&] { return "V must be below 2**31, got " + std::to_string(vocabulary); });
  require_dtype("warped", warped, ScalarType::Float, "float32");
  require_shape("scores", scores, {batch, vocabulary});
  require_dtype("scores", scores, ScalarType::Float, "float32");
  require_shape("first", first, {batch});
  require_dtype("first", first, ScalarType::Long, "int64");
  require(context.dim() == 2 && context.size(0) == batch,
      [&] { return "context must have shape [B, W], got " + shape_of(context); });
  require_dtype("context", context, ScalarType::Long, "int64");
  require(size >= 1 && (size & (size - 1)) == 0,
      [&] { return "table must have one dimension of a power of two, got " + shape_of(table); });
  const bool wide = table.scalar_type() == ScalarType::Long;
  require(wide || table.scalar_type() == ScalarType::Int, "table must be int32 or int64; convert it before the call");
  require(layers >= 0 && layers <= (wide ? 64 : 32),
      [&] { return "layers must be in [0, " + std::to_string(wide ? 64 : 32) + "], got " + std::to_string(layers); });
  const Tensor rows = dense(warped), sums = dense(scores), starts = dense(first), contexts = dense(context);
  const Tensor patterns = dense(table);
  Tensor winners = make({batch, layers}, ScalarType::Long);
  const float *w = rows.const_data_ptr<float>(), *s = sums.const_data_ptr<float>();
  const int64_t *f = starts.const_data_ptr<int64_t>(), *c = contexts.const_data_ptr<int64_t>();
  int64_t* out = winners.mutable_data_ptr<int64_t>();
  const int64_t width = contexts.size(1);
  for_each_part(batch, 16 * vocabulary, [&](int64_t begin, int64_t end) {
    Tournament& row = tournament_here();
    for (int64_t b = begin; b < end; ++b) {
      std::fill(out + b * layers, out + (b + 1) * layers, f[b]);
      if (!row.begin(w + b * vocabulary, s + b * vocabulary, vocabulary, scratch())) continue;
      uint64_t state = 1;
      for (int64_t j = 0; j < width; ++j) {
        const int64_t token = c[b * width + j];
        state = (state + uint64_t(token < 0 ? 0 : token)) * kMultiplier + 1;
      }
      if (wide) row.run(patterns.const_data_ptr<int64_t>(), size, state, layers, scratch(), out + b * layers);
      else row.run(patterns.const_data_ptr<int32_t>(), size, state, layers, scratch(), out + b * layers);
    }
  });
  return winners;
}

}  // namespace caw
