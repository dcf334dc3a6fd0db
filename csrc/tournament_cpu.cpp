// The winners of SynthID's tournament after each of its layers, on the CPU.
//
// A layer's bit of a token lies at ((hash + key) a + 1) mod size of the table, and the hash is linear in the token's id:
// where the size is a power of two, 32 bits of one number for each token and of one for each layer say where. A row whose
// sampler has cut it short is gathered first.

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops.h"

namespace caw {
namespace {

constexpr uint64_t kMultiplier = 6364136223846793005u;
constexpr int64_t kPad = 16;

struct Scratch {
  std::vector<float> values, weights;
  std::vector<int64_t> ids;
  std::vector<uint32_t> places;
  std::vector<uint16_t> bits;
};

Scratch& scratch() {
  thread_local Scratch mine;
  return mine;
}

struct Bits {
  const uint32_t* table;
  int64_t size;
  bool power_of_two() const { return (size & (size - 1)) == 0; }
};

// The tokens that the sampler keeps: ids, logits in `values`, noise in `weights`. Returns how many; 0 where one is no
// number.
int64_t gather(const float* warped, const float* scores, int64_t size, Scratch& own, bool* weighted) {
  own.ids.resize(size_t(size));
  own.values.resize(size_t(size + kPad));
  own.weights.resize(size_t(size + kPad));
  int64_t kept = 0;
  bool any = false, ordered = true;
  for (int64_t i = 0; i < size; ++i) {
    const float logit = warped[i];
    if (logit == -INFINITY) continue;
    ordered &= std::isfinite(logit);
    const float noise = scores[i] - logit;
    any |= noise != 0;
    own.ids[size_t(kept)] = i;
    own.values[size_t(kept)] = logit;
    own.weights[size_t(kept)] = noise;
    ++kept;
  }
  *weighted = any;
  return ordered ? kept : 0;
}

void exponentiate(std::vector<float>& x, int64_t size) {
  float top = -INFINITY;
  for (int64_t i = 0; i < size; ++i) top = x[size_t(i)] > top ? x[size_t(i)] : top;
  kernels().exponentials(x.data(), top, size, x.data());
  for (int64_t i = size; i < size + kPad; ++i) x[size_t(i)] = 0;
}

void row_of_winners(const float* warped, const float* scores, int64_t size, uint64_t state, const int64_t* keys,
    int64_t layers, const Bits& bits, int64_t* winners) {
  Scratch& own = scratch();
  bool weighted;
  const int64_t kept = gather(warped, scores, size, own, &weighted);
  if (kept == 0) return;
  exponentiate(own.values, kept);
  double total = 0;
  for (int64_t i = 0; i < kept; ++i) total += double(own.values[size_t(i)]);
  const float sum = float(total);
  for (int64_t i = 0; i < kept; ++i) own.values[size_t(i)] /= sum;
  if (weighted) exponentiate(own.weights, kept);
  own.bits.assign(size_t(kept / kPad + 1), 0);
  const bool narrow = bits.power_of_two();
  if (narrow) {
    own.places.assign(size_t(kept + kPad), 0);
    for (int64_t i = 0; i < kept; ++i)
      own.places[size_t(i)] = uint32_t((state + uint64_t(own.ids[size_t(i)])) * kMultiplier * kMultiplier);
  }
  for (int64_t l = 0; l < layers; ++l) {
    if (narrow) {
      const uint32_t shift = uint32_t((1 + uint64_t(keys[l])) * kMultiplier + 1);
      kernels().layer_bits(bits.table, own.places.data(), shift, uint32_t(bits.size - 1), kept, own.bits.data());
    } else {
      std::fill(own.bits.begin(), own.bits.end(), uint16_t(0));
      for (int64_t i = 0; i < kept; ++i) {
        const uint64_t hash = (state + uint64_t(own.ids[size_t(i)])) * kMultiplier + 1;
        const int64_t index = int64_t((hash + uint64_t(keys[l])) * kMultiplier + 1), rest = index % bits.size;
        const int64_t at = rest < 0 ? rest + bits.size : rest;
        own.bits[size_t(i / kPad)] |= uint16_t((bits.table[at >> 5] >> (at & 31) & 1) << (i % kPad));
      }
    }
    const float mass = float(kernels().layer_mass(own.values.data(), own.bits.data(), kept));
    const int64_t winner =
        kernels().layer_winner(own.values.data(), weighted ? own.weights.data() : nullptr, own.bits.data(), mass, kept);
    if (winner >= 0) winners[l] = own.ids[size_t(winner)];
    else if (l > 0) winners[l] = winners[l - 1];
  }
}

}  // namespace

Tensor tournament(const Tensor& warped, const Tensor& scores, const Tensor& first, const Tensor& context,
    const Tensor& keys, const Tensor& table, int64_t size) {
  require(warped.dim() == 2 && warped.size(1) >= 1, [&] { return "warped must have shape [B, V] with V >= 1, got " + shape_of(warped); });
  const int64_t batch = warped.size(0), vocabulary = warped.size(1);
  require_dtype("warped", warped, ScalarType::Float, "float32");
  require_shape("scores", scores, {batch, vocabulary});
  require_dtype("scores", scores, ScalarType::Float, "float32");
  require_shape("first", first, {batch});
  require_dtype("first", first, ScalarType::Long, "int64");
  require(context.dim() == 2 && context.size(0) == batch, [&] { return "context must have shape [B, W], got " + shape_of(context); });
  require_dtype("context", context, ScalarType::Long, "int64");
  require(size >= 1 && size <= int64_t(1) << 31, [&] { return "size must be in [1, 2**31], got " + std::to_string(size); });
  require_shape("table", table, {(size + 31) / 32});
  require_dtype("table", table, ScalarType::Int, "int32");
  const std::vector<int64_t> secrets = integers("keys", keys);
  const int64_t layers = int64_t(secrets.size()), width = context.size(1);
  const Tensor rows = dense(warped), sums = dense(scores), starts = dense(first), contexts = dense(context), words = dense(table);
  Tensor winners = make({batch, layers}, ScalarType::Long);
  const float *w = rows.const_data_ptr<float>(), *s = sums.const_data_ptr<float>();
  const int64_t *f = starts.const_data_ptr<int64_t>(), *c = contexts.const_data_ptr<int64_t>();
  const Bits bits{reinterpret_cast<const uint32_t*>(words.const_data_ptr<int32_t>()), size};
  int64_t* out = winners.mutable_data_ptr<int64_t>();
  for_each_part(batch, layers * vocabulary, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      std::fill(out + b * layers, out + (b + 1) * layers, f[b]);
      uint64_t state = 1;
      for (int64_t j = 0; j < width; ++j) {
        const int64_t token = c[b * width + j];
        state = (state + uint64_t(token < 0 ? 0 : token)) * kMultiplier + 1;
      }
      row_of_winners(w + b * vocabulary, s + b * vocabulary, vocabulary, state, secrets.data(), layers, bits, out + b * layers);
    }
  });
  return winners;
}

}  // namespace caw
