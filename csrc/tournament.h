// The winners of SynthID's tournament after each of its layers, of one row on the CPU. Without torch.
//
// What a layer does to a token depends on the token's bit alone, so tokens with the same bits in ten layers go through
// these as one: a row is read once for ten layers, into sums and best tokens of 1024 bins. After each layer bins that its
// bit alone told apart are one. Where few tokens are left, each goes through the layers by itself.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "cpu/kernels.h"

namespace caw {

class Tournament {
 public:
  static constexpr uint64_t kMultiplier = 6364136223846793005u;

  Tournament() {
    for (int64_t b = 0; b < kBins; ++b)
      for (int64_t j = 0; j < kAtOnce; ++j) reversed_[b] |= int32_t((b >> j & 1) << (kAtOnce - 1 - j));
  }

  // What is kept of a row; false where there is no token, or a logit is no number.
  bool begin(const float* warped, const float* scores, int64_t size) {
    probs_.resize(size_t(size));
    maxima_.resize(size_t(size / kSurveyed + 1));
    const Survey seen = kernels().survey(warped, size, kSurveyed, maxima_.data());
    if (!seen.ordered || !std::isfinite(seen.top)) return false;
    kept_ = seen.kept;
    if (kept_ == size) {
      ids_.clear();
      weighted_ = warped != scores && std::memcmp(warped, scores, size_t(size) * sizeof(float)) != 0;
      if (weighted_) {
        weights_.resize(size_t(size));
        for (int64_t i = 0; i < size; ++i) weights_[size_t(i)] = scores[i] - warped[i];
      }
      kernels().exponentials(warped, seen.top, size, probs_.data());
    } else {
      gather(warped, scores, size);
      kernels().exponentials(probs_.data(), seen.top, kept_, probs_.data());
    }
    if (weighted_) {
      const float* w = weights_.data();
      float top = -INFINITY;
      for (int64_t i = 0; i < kept_; ++i) top = w[i] > top ? w[i] : top;
      kernels().exponentials(w, top, kept_, weights_.data());
    }
    return true;
  }

  // table: `size` entries, a power of two; bit l of one is that of layer l. state: the hash of the context.
  template <class T>
  void run(const T* table, int64_t size, uint64_t state, int64_t layers, int64_t* winners) {
    using Bits = std::make_unsigned_t<T>;
    const Places<Bits> places{
        reinterpret_cast<const Bits*>(table), (state * kMultiplier + 1) * kMultiplier, uint64_t(size - 1)};
    if (kept_ <= kFew) few(places, layers, winners);
    else many(places, layers, winners);
  }

 private:
  static constexpr int64_t kAtOnce = 10, kBins = int64_t(1) << kAtOnce;  // layers
  static constexpr int64_t kSurveyed = 4096, kFew = 256;
  static constexpr float kBehind = 1.0f / 1024;  // of the greatest score: who has less is rated only if that matters
  static constexpr int32_t kNobody = std::numeric_limits<int32_t>::max();

  template <class Bits>
  struct Places {
    const Bits* table;
    uint64_t first, mask;  // first: of token 0, the hash times the multiplier

    Bits operator[](int64_t token) const { return table[(first + uint64_t(token) * (kMultiplier * kMultiplier)) & mask]; }
  };

  // What a layer makes of tokens whose bit is 0, and 1. A mass that rounded above 1 would turn probabilities negative.
  struct Factors {
    double of[2];
    explicit Factors(double total) {
      const float mass = float(total);
      of[0] = std::max(1.0f - mass, 0.0f);
      of[1] = std::max(2.0f - mass, 0.0f);
    }
  };

  void gather(const float* warped, const float* scores, int64_t size) {
    ids_.resize(size_t(size));
    weights_.resize(size_t(size));
    int64_t kept = 0;
    weighted_ = false;
    for (int64_t i = 0; i < size; ++i) {
      const float logit = warped[i];
      if (logit == -INFINITY) continue;
      const float noise = scores[i] - logit;
      weighted_ |= noise != 0;
      ids_[size_t(kept)] = int32_t(i);
      probs_[size_t(kept)] = logit;
      weights_[size_t(kept)] = noise;
      ++kept;
    }
  }

  int64_t id_of(int64_t place) const { return ids_.empty() ? place : ids_[size_t(place)]; }

  template <class Bits>
  void few(const Places<Bits>& places, int64_t layers, int64_t* winners) {
    double p[kFew], score[kFew], total = 0;
    Bits bits[kFew];
    for (int64_t i = 0; i < kept_; ++i) total += double(probs_[size_t(i)]);
    const float share = 1.0f / float(total);
    for (int64_t i = 0; i < kept_; ++i) {
      const float prob = probs_[size_t(i)] * share;
      p[i] = double(prob);
      score[i] = double(weighted_ ? prob * weights_[size_t(i)] : prob);
      bits[i] = places[id_of(i)];
    }
    for (int64_t l = 0; l < layers; ++l) {
      double mass = 0, best = 0;
      for (int64_t i = 0; i < kept_; ++i) mass += bits[i] >> l & 1 ? p[i] : 0.0;
      const Factors factors(mass);
      int64_t winner = kNobody;
      for (int64_t i = 0; i < kept_; ++i) {
        const double factor = factors.of[bits[i] >> l & 1];
        p[i] *= factor;
        score[i] *= factor;
        if (score[i] > best) {
          best = score[i];
          winner = i;
        }
      }
      if (winner != kNobody) winners[l] = id_of(winner);
      else if (l > 0) winners[l] = winners[l - 1];
    }
  }

  template <class Bits>
  void many(const Places<Bits>& places, int64_t layers, int64_t* winners) {
    patterns_.resize(size_t(kept_));
    ahead_.resize(size_t(kept_) + 64);
    const float *p = probs_.data(), *w = weighted_ ? weights_.data() : nullptr;
    top_ = 1;
    if (weighted_) {
      top_ = 0;
      for (int64_t i = 0; i < kept_; ++i) top_ = std::max(top_, double(p[i] * w[i]));
    }
    for (int64_t l = 0; l < layers; l += kAtOnce) {
      const int64_t count = std::min(kAtOnce, layers - l), before = std::max<int64_t>(l - kAtOnce, 0);
      if (l == 0 || sizeof(Bits) > 4) read(places, before);
      std::fill(sums_, sums_ + kBins, 0.0);
      const float least = std::max(float(top_) * kBehind, std::numeric_limits<float>::min());
      const int shift = int(sizeof(Bits) > 4 ? 0 : before), own = shift + int(l - before);
      const BinsTask task{probs_.data(), w, patterns_.data(), l ? grown_ : nullptr, shift, own, uint32_t(kBins - 1),
          uint32_t((1 << count) - 1), kept_, sums_, least};
      const int64_t found = kernels().fill_bins(task, ahead_.data());
      std::fill(bests_, bests_ + kBins, Best{0.0f, kNobody});
      for (int64_t i = 0; i < found; ++i) rate(ahead_[size_t(i)], own, task.mask);
      if (fight(l, count, double(least), winners)) continue;
      for (int64_t i = 0; i < kept_; ++i) rate(int32_t(i), own, task.mask);
      fight(l, count, 0, winners);
    }
  }

  // The bits of every token from layer `from` on.
  template <class Bits>
  void read(const Places<Bits>& places, int64_t from) {
    uint32_t* out = patterns_.data();
    const int64_t kept = kept_;
    const int32_t* ids = ids_.data();
    if (ids_.empty())
      for (int64_t i = 0; i < kept; ++i) out[i] = uint32_t(places[i] >> from);
    else
      for (int64_t i = 0; i < kept; ++i) out[i] = uint32_t(places[ids[i]] >> from);
  }

  // A token among the best of its bin.
  void rate(int32_t token, int shift, uint32_t mask) {
    const float p = probs_[size_t(token)], score = weighted_ ? p * weights_[size_t(token)] : p;
    Best& best = bests_[patterns_[size_t(token)] >> shift & mask];
    if (score > best.score || (score == best.score && token < best.token)) best = Best{score, token};
  }

  // The layers [l, l + count) of all bins: their winners, and what they make of a token of each bin. Tokens that scored
  // less than `least` before were not rated: false where one of these could have won.
  bool fight(int64_t l, int64_t count, double least, int64_t* winners) {
    int64_t size = int64_t(1) << count;
    double share = 1;
    if (l == 0) {  // until now powers that add up to anything
      double total = 0;
      for (int64_t b = 0; b < size; ++b) total += sums_[b];
      share = double(1.0f / float(total));
    }
    // the first layer's bit becomes the highest, so that what a layer makes one lies half of the bins apart
    for (int64_t b = 0; b < size; ++b) {
      const int64_t to = reversed_[b] >> (kAtOnce - count);
      sum_[to] = sums_[b] * share;
      score_[to] = double(bests_[b].score) * share;
      token_[to] = bests_[b].token;
    }
    factor_[0] = share;
    double bound = least * share * (1 + 1e-6), best = 0;
    for (int64_t j = 0; j < count; ++j) {
      size /= 2;
      double mass = 0;
      for (int64_t b = size; b < 2 * size; ++b) mass += sum_[b];
      const Factors factors(mass);
      const double low = factors.of[0], high = factors.of[1];
      for (int64_t b = 0; b < size; ++b) sum_[b] = sum_[b] * low + sum_[b + size] * high;
      for (int64_t b = 0, end = int64_t(1) << j; b < end; ++b) {
        factor_[b + end] = factor_[b] * high;
        factor_[b] *= low;
      }
      best = 0;
      int32_t winner = kNobody;
      for (int64_t b = 0; b < size; ++b) {
        const double one = score_[b] * low, other = score_[b + size] * high;
        const int32_t first = token_[b], second = token_[b + size];
        const bool changes = other > one || (other == one && second < first);
        score_[b] = changes ? other : one;
        token_[b] = changes ? second : first;
        if (score_[b] > best || (score_[b] == best && token_[b] < winner)) {
          best = score_[b];
          winner = token_[b];
        }
      }
      bound *= high;
      if (bound > 0 && !(best > bound)) return false;
      if (best > 0) winners[l + j] = id_of(winner);
      else if (l + j > 0) winners[l + j] = winners[l + j - 1];
    }
    top_ = best;
    for (int64_t b = 0; b < int64_t(1) << count; ++b) grown_[b] = float(factor_[b]);
    return true;
  }

  // The best of the rated tokens of equal bits; token: a place among the kept.
  struct Best {
    float score;
    int32_t token;
  };

  int64_t kept_ = 0;
  bool weighted_ = false;  // whether there is noise
  double top_ = 0;  // the greatest score before the next layers
  std::vector<float> probs_, weights_, maxima_;  // of the kept; probabilities are exp(x - greatest) until the first layer
  std::vector<int32_t> ids_, ahead_;  // ids_ empty: every token is kept
  std::vector<uint32_t> patterns_;
  Best bests_[kBins];
  double sums_[kBins];  // of probabilities
  double sum_[kBins], score_[kBins], factor_[kBins];
  float grown_[kBins];  // what the layers before make of a token
  int32_t token_[kBins], reversed_[kBins] = {};
};

}  // namespace caw
