// SynthID's tournament on the CPU (tournament.h), row by row.

#include <algorithm>
#include <memory>

#include "tensors.h"
#include "tournament.h"

namespace caw {
namespace {

// On the heap: the address of what a thread has in person would be worked out at every use.
Tournament& tournament_here() {
  thread_local const std::unique_ptr<Tournament> mine = std::make_unique<Tournament>();
  return *mine;
}

}  // namespace

Tensor tournament(const Tensor& warped, const Tensor& scores, const Tensor& first, const Tensor& context,
    const Tensor& table, int64_t layers) {
  require(warped.dim() == 2 && warped.size(1) >= 1,
      [&] { return "warped must have shape [B, V] with V >= 1, got " + shape_of(warped); });
  const int64_t batch = warped.size(0), vocabulary = warped.size(1), size = table.dim() == 1 ? table.size(0) : 0;
  require(vocabulary < int64_t(1) << 31, [&] { return "V must be below 2**31, got " + std::to_string(vocabulary); });
  require_dtype("warped", warped, ScalarType::Float);
  require_tensor("scores", scores, ScalarType::Float, {batch, vocabulary});
  require_tensor("first", first, ScalarType::Long, {batch});
  require(context.dim() == 2 && context.size(0) == batch,
      [&] { return "context must have shape [B, W], got " + shape_of(context); });
  require_dtype("context", context, ScalarType::Long);
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
      if (!row.begin(w + b * vocabulary, s + b * vocabulary, vocabulary)) continue;
      uint64_t state = 1;
      for (int64_t j = 0; j < width; ++j) {
        const int64_t token = c[b * width + j];
        state = (state + uint64_t(token < 0 ? 0 : token)) * Tournament::kMultiplier + 1;
      }
      if (wide) row.run(patterns.const_data_ptr<int64_t>(), size, state, layers, out + b * layers);
      else row.run(patterns.const_data_ptr<int32_t>(), size, state, layers, out + b * layers);
    }
  });
  return winners;
}

}  // namespace caw

STABLE_TORCH_LIBRARY_IMPL(caw, CPU, m) {
  m.impl("tournament", TORCH_BOX(&caw::tournament));
}
