// Bias and penalties of rows of logits on the CPU, at the tokens that have any: a row costs its copy, its bias if it has
// one, a scan of the prompt's flags and the tokens generated so far, never an arithmetic pass over the vocabulary.

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops.h"

namespace caw {
namespace {

constexpr int64_t kFlags = 8;  // flags looked at together: most of them are false

float repeated(float x, float penalty) { return x < 0 ? x * penalty : x / penalty; }

void penalise_prompt(float* x, const uint8_t* prompt, float penalty, int64_t size) {
  int64_t id = 0;
  for (; id + kFlags <= size; id += kFlags) {
    uint64_t some;
    std::memcpy(&some, prompt + id, kFlags);
    if (some == 0) continue;
    for (int64_t i = id; i < id + kFlags; ++i)
      if (prompt[i]) x[i] = repeated(x[i], penalty);
  }
  for (; id < size; ++id)
    if (prompt[id]) x[id] = repeated(x[id], penalty);
}

// prompt: null where no row has a repetition penalty. A token's count is taken back where it is used, so the next row
// begins with zeros.
void penalise_text(
    float* x, const int64_t* tokens, int64_t length, const float* numbers, const uint8_t* prompt, int64_t size) {
  thread_local std::vector<int32_t> counts;
  if (int64_t(counts.size()) < size) counts.resize(size_t(size), 0);
  for (int64_t i = 0; i < length; ++i)
    if (tokens[i] >= 0) ++counts[size_t(tokens[i])];
  for (int64_t i = 0; i < length; ++i) {
    if (tokens[i] < 0) continue;
    int32_t& count = counts[size_t(tokens[i])];
    if (count == 0) continue;  // done at its first place
    float& logit = x[tokens[i]];
    if (prompt && !prompt[tokens[i]]) logit = repeated(logit, numbers[0]);
    logit = logit - numbers[2] * float(count) - numbers[1];
    count = 0;
  }
}

}  // namespace

Tensor penalise_logits(const Tensor& logits, const Tensor& tokens, const Tensor& wanted, const Tensor& numbers,
    const Tensor& prompts, const Tensor& bias) {
  require(logits.dim() == 2 && logits.size(1) >= 1, "logits must have shape [B, V] with V >= 1, got " + shape_of(logits));
  require_dtype("logits", logits, ScalarType::Float, "float32");
  const int64_t batch = logits.size(0), size = logits.size(1);
  require(size < (int64_t(1) << 31), "V must be below 2**31, got " + std::to_string(size));
  require(tokens.dim() == 2 && tokens.size(0) == batch,
      [&] { return "tokens must have shape [" + std::to_string(batch) + ", T], got " + shape_of(tokens); });
  require_dtype("tokens", tokens, ScalarType::Long, "int64");
  require_shape("wanted", wanted, {batch});
  require_dtype("wanted", wanted, ScalarType::Bool, "bool");
  require_shape("numbers", numbers, {batch, 3});
  require_dtype("numbers", numbers, ScalarType::Float, "float32");
  require_dtype("prompts", prompts, ScalarType::Bool, "bool");
  require_dtype("bias", bias, ScalarType::Float, "float32");
  const bool repeats = prompts.dim() != 2 || prompts.size(1) != 0, biased = bias.dim() != 2 || bias.size(1) != 0;
  require_shape("prompts", prompts, {batch, repeats ? size : 0});
  require_shape("bias", bias, {batch, biased ? size : 0});
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
      float* x = to + row * size;
      const float* from = l + row * size;
      if (flag[row] && biased) {
        for (int64_t id = 0; id < size; ++id) x[id] = from[id] + b[row * size + id];
      } else {
        std::copy(from, from + size, x);
      }
      if (!flag[row]) continue;
      const uint8_t* own_prompt = repeats ? prompt + row * size : nullptr;
      if (repeats && n[3 * row] != 1.0f) penalise_prompt(x, own_prompt, n[3 * row], size);
      penalise_text(x, text + row * length, length, n + 3 * row, own_prompt, size);
    }
  });
  return out;
}

}  // namespace caw
