// The winners of SynthID's tournament after each of its layers, on the CPU.
//
// What a layer does to a token depends on the token's bit alone, so tokens with the same bits in ten layers go through
// these as one: a row is read once for ten layers, into sums and best tokens of 1024 bins, and the layers work on bins.

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops.h"

namespace caw {
namespace {

constexpr uint64_t kMultiplier = 6364136223846793005u;
constexpr int64_t kAtOnce = 10, kBins = int64_t(1) << kAtOnce;  // layers

struct Scratch {
  std::vector<float> probs, weights;
  std::vector<int64_t> ids;
  std::vector<uint64_t> patterns;
};

Scratch& scratch() {
  thread_local Scratch mine;
  return mine;
}

// Tokens of equal bits: their probability, the greatest product of probability and weight, and which token has it first.
struct Bin {
  double sum;
  float best;
  int32_t token;
};

constexpr int32_t kUntouched = -2, kNobody = -1;

// The tokens that the sampler keeps: ids, logits in `probs`, noise in `weights`. Returns how many; 0 where one is no
// number.
int64_t gather(const float* warped, const float* scores, int64_t size, Scratch& own, bool* weighted) {
  own.ids.resize(size_t(size));
  own.probs.resize(size_t(size));
  own.weights.resize(size_t(size));
  int64_t kept = 0;
  bool any = false, ordered = true;
  for (int64_t i = 0; i < size; ++i) {
    const float logit = warped[i];
    if (logit == -INFINITY) continue;
    ordered &= std::isfinite(logit);
    const float noise = scores[i] - logit;
    any |= noise != 0;
    own.ids[size_t(kept)] = i;
    own.probs[size_t(kept)] = logit;
    own.weights[size_t(kept)] = noise;
    ++kept;
  }
  *weighted = any;
  return ordered ? kept : 0;
}

void exponentiate(float* x, int64_t size) {
  float top = -INFINITY;
  for (int64_t i = 0; i < size; ++i) top = x[i] > top ? x[i] : top;
  kernels().exponentials(x, top, size, x);
}

class Tournament {
 public:
  Tournament() {
    for (Bin& bin : bins_) bin.token = kUntouched;
  }

  // Probabilities of the kept tokens of a row; false where there is none to go by.
  bool begin(const float* warped, const float* scores, int64_t size, Scratch& own) {
    kept_ = gather(warped, scores, size, own, &weighted_);
    if (kept_ == 0) return false;
    ids_ = own.ids.data();
    probs_ = own.probs.data();
    weights_ = own.weights.data();
    exponentiate(probs_, kept_);
    double total = 0;
    for (int64_t i = 0; i < kept_; ++i) total += double(probs_[i]);
    const float sum = float(total);
    for (int64_t i = 0; i < kept_; ++i) probs_[i] /= sum;
    if (weighted_) exponentiate(weights_, kept_);
    return true;
  }

  // T: of the table's entries; bit l of one is that of layer l.
  template <class T>
  void run(const T* table, int64_t size, uint64_t state, int64_t layers, Scratch& own, int64_t* winners) {
    own.patterns.resize(size_t(kept_));
    patterns_ = own.patterns.data();
    const uint64_t mask = uint64_t(size - 1);
    for (int64_t i = 0; i < kept_; ++i) {
      const uint64_t hash = (state + uint64_t(ids_[i])) * kMultiplier + 1;
      patterns_[i] = uint64_t(table[hash * kMultiplier & mask]);
    }
    for (int64_t l = 0; l < layers; l += kAtOnce) {
      const int64_t count = std::min(kAtOnce, layers - l);
      if (weighted_) fill<true>(l, count);
      else fill<false>(l, count);
      for (int64_t j = 0; j < count; ++j) {
        const int64_t winner = layer(j);
        if (winner >= 0) winners[l + j] = ids_[winner];
        else if (l + j > 0) winners[l + j] = winners[l + j - 1];
      }
    }
    for (const int64_t b : used_) bins_[b].token = kUntouched;
    used_.clear();
  }

 private:
  // The bins of layers [l, l + count), after what those before made of the probabilities.
  template <bool kWeighted>
  void fill(int64_t l, int64_t count) {
    const int64_t before = l ? l - kAtOnce : 0;
    const uint64_t mask_before = l ? uint64_t(kBins - 1) : 0, mask = (uint64_t(1) << count) - 1;
    if (l == 0) grown_[0] = 1;
    for (const int64_t b : used_) {
      grown_[b] = float(factors_[b]);
      bins_[b].token = kUntouched;
    }
    used_.clear();
    for (int64_t i = 0; i < kept_; ++i) {
      const uint64_t pattern = patterns_[i];
      const float p = probs_[i] * grown_[pattern >> before & mask_before];
      probs_[i] = p;
      const int64_t b = int64_t(pattern >> l & mask);
      Bin& bin = bins_[b];
      if (bin.token == kUntouched) {
        bin = Bin{0, 0, kNobody};
        factors_[b] = 1;
        used_.push_back(b);
      }
      bin.sum += double(p);
      const float score = kWeighted ? p * weights_[i] : p;
      if (score > bin.best) {
        bin.best = score;
        bin.token = int32_t(i);
      }
    }
  }

  // One layer: the factors after it, and the place of its winner among the kept, -1 where nothing is above 0.
  int64_t layer(int64_t j) {
    double total = 0;
    for (const int64_t b : used_)
      if (b >> j & 1) total += bins_[b].sum * factors_[b];
    const float mass = float(total);
    // a mass that rounded above 1 would turn probabilities negative
    const double with = std::max(2.0f - mass, 0.0f), without = std::max(1.0f - mass, 0.0f);
    double best = 0;
    int64_t winner = -1;
    for (const int64_t b : used_) {
      factors_[b] *= b >> j & 1 ? with : without;
      const double score = double(bins_[b].best) * factors_[b];
      if (score > best || (score == best && score > 0 && bins_[b].token < winner)) {
        best = score;
        winner = bins_[b].token;
      }
    }
    return winner;
  }

  int64_t kept_ = 0;
  bool weighted_ = false;
  int64_t* ids_ = nullptr;
  float *probs_ = nullptr, *weights_ = nullptr;
  uint64_t* patterns_ = nullptr;
  Bin bins_[kBins];
  double factors_[kBins];
  float grown_[kBins];  // the factors of the layers before
  std::vector<int64_t> used_;
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
