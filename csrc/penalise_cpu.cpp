// Bias and penalties on the CPU (penalise.h), row by row.

#include "penalise.h"

#include <algorithm>

#include "tensors.h"

namespace caw {

Tensor penalise_logits(const Tensor& logits, const Tensor& tokens, const Tensor& wanted, const Tensor& numbers,
    const Tensor& prompts, const Tensor& bias) {
  require(logits.dim() == 2 && logits.size(1) >= 1, "logits must have shape [B, V] with V >= 1, got " + shape_of(logits));
  require_dtype("logits", logits, ScalarType::Float);
  const int64_t batch = logits.size(0), size = logits.size(1);
  require(size < (int64_t(1) << 31), "V must be below 2**31, got " + std::to_string(size));
  require(tokens.dim() == 2 && tokens.size(0) == batch,
      [&] { return "tokens must have shape [" + std::to_string(batch) + ", T], got " + shape_of(tokens); });
  require_dtype("tokens", tokens, ScalarType::Long);
  require_tensor("wanted", wanted, ScalarType::Bool, {batch});
  require_tensor("numbers", numbers, ScalarType::Float, {batch, 3});
  const bool repeats = prompts.dim() != 2 || prompts.size(1) != 0, biased = bias.dim() != 2 || bias.size(1) != 0;
  require_tensor("prompts", prompts, ScalarType::Bool, {batch, repeats ? size : 0});
  require_tensor("bias", bias, ScalarType::Float, {batch, biased ? size : 0});
  const Tensor rows = dense(logits), texts = dense(tokens), flags = dense(wanted), own = dense(numbers);
  const Tensor seen = dense(prompts), added = dense(bias);
  const int64_t length = tokens.size(1), *text = texts.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < batch * length; ++i)
    require(text[i] < size, [&] {
      return "tokens must be below V = " + std::to_string(size) + ", got " + std::to_string(text[i]);
    });
  Tensor out = make({batch, size}, ScalarType::Float);
  const float *l = rows.const_data_ptr<float>(), *n = own.const_data_ptr<float>(), *b = added.const_data_ptr<float>();
  const bool* flag = static_cast<const bool*>(flags.const_data_ptr());
  const uint8_t* prompt = static_cast<const uint8_t*>(seen.const_data_ptr());
  float* to = out.mutable_data_ptr<float>();
  for_each_part(batch, size, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float *from = l + row * size, *own_bias = biased ? b + row * size : nullptr;
      const uint8_t* own_prompt = repeats ? prompt + row * size : nullptr;
      if (flag[row]) {
        penalise_row(from, own_bias, text + row * length, length, n + 3 * row, own_prompt, size, to + row * size);
      } else {
        std::copy(from, from + size, to + row * size);
      }
    }
  });
  return out;
}

}  // namespace caw

STABLE_TORCH_LIBRARY_IMPL(caw, CPU, m) {
  m.impl("penalise_logits", TORCH_BOX(&caw::penalise_logits));
}
