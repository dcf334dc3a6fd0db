// The keyed race over whole rows of logits on the CPU. Arithmetic: candidates.h, cpu/race.inc.

#include <cmath>

#include "candidates.h"
#include "tensors.h"

namespace caw {

Tensor race_winner(const Tensor& logits, const Tensor& context, const Tensor& key, double temperature) {
  require(logits.dim() == 2 && logits.size(1) >= 1, "logits must have shape [B, V] with V >= 1, got " + shape_of(logits));
  require_dtype("logits", logits, ScalarType::Float);
  const int64_t batch = logits.size(0), size = logits.size(1);
  require(size < (int64_t(1) << 31), "V must be below 2**31, got " + std::to_string(size));
  require(context.dim() == 2 && context.size(0) == batch, "context must have shape [B, W], got " + shape_of(context));
  require_dtype("context", context, ScalarType::Long);
  require_tensor("key", key, ScalarType::Long, {batch});
  require(temperature > 0 && std::isfinite(temperature),
      "temperature must be a finite number above 0, got " + std::to_string(temperature));
  const Tensor rows = dense(logits), contexts = dense(context), keys = dense(key);
  const int64_t width = contexts.size(1);
  Tensor winners = make({batch}, ScalarType::Long);
  const float* l = rows.const_data_ptr<float>();
  const int64_t *c = contexts.const_data_ptr<int64_t>(), *secret = keys.const_data_ptr<int64_t>();
  int64_t* out = winners.mutable_data_ptr<int64_t>();
  for_each_part(batch, 4 * size, [&](int64_t begin, int64_t end) {
    std::vector<uint32_t> quads(size_t(kRacePiece + kScorePad));
    for (int64_t b = begin; b < end; ++b) {
      const uint64_t own = uint64_t(secret[b]);
      const Words state = absorb_context(own, c + b * width, width);
      out[b] = kernels().race_winner(l + b * size, size, temperature, state.w, uint32_t(own) ^ state.w[3],
          uint32_t(own >> 32) ^ kTokenDomain, quads.data());
    }
  });
  return winners;
}

}  // namespace caw

STABLE_TORCH_LIBRARY_IMPL(caw, CPU, m) {
  m.impl("race_winner", TORCH_BOX(&caw::race_winner));
}
