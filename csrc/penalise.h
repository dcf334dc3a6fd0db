// Bias and penalties of one row of logits on the CPU, at the tokens that have any: its copy, its bias if it has one, a scan
// of the prompt's flags and the tokens generated so far, never an arithmetic pass over the vocabulary. Without torch.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace caw {

constexpr int64_t kFlags = 8;  // flags looked at together: most of them are false

inline float repeated(float x, float penalty) { return x < 0 ? x * penalty : x / penalty; }

inline void penalise_prompt(float* x, const uint8_t* prompt, float penalty, int64_t size) {
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
inline void penalise_text(
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

// A row that has any. from: its logits. bias: null for none. numbers: penalties of repetition, presence and frequency.
inline void penalise_row(const float* from, const float* bias, const int64_t* tokens, int64_t length,
    const float* numbers, const uint8_t* prompt, int64_t size, float* x) {
  if (bias) {
    for (int64_t id = 0; id < size; ++id) x[id] = from[id] + bias[id];
  } else {
    std::memcpy(x, from, size_t(size) * sizeof(float));
  }
  if (prompt && numbers[0] != 1.0f) penalise_prompt(x, prompt, numbers[0], size);
  penalise_text(x, tokens, length, numbers, prompt, size);
}

}  // namespace caw
