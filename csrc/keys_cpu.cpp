// One text under many keys on the CPU: the evidence is picked once, and each key only sums its scores.

#include "candidates.h"
#include "ops.h"

namespace caw {
namespace {

constexpr int64_t kKeyPiece = 512;  // tokens whose words stay in the first-level cache; sums are made piece by piece

// 32-bit ids of the evidence, a row for each place of the context and one for the tokens.
std::vector<uint32_t> rows_of(const Tensor& contexts, const Tensor& tokens, int64_t step) {
  const int64_t count = tokens.size(0), window = contexts.size(1);
  std::vector<uint32_t> ids(size_t((window + 1) * step));
  const Tensor before = dense(contexts), own = dense(tokens);
  const int64_t *context = before.const_data_ptr<int64_t>(), *token = own.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t k = 0; k < window; ++k) ids[size_t(k * step + i)] = uint32_t(context[i * window + k]);
    ids[size_t(window * step + i)] = uint32_t(token[i]);
  }
  return ids;
}

}  // namespace

Tensor score_keys(
    const Tensor& contexts, const Tensor& tokens, const Tensor& keys, int64_t scheme, int64_t threshold) {
  require(tokens.dim() == 1, "tokens must have shape [n], got " + shape_of(tokens));
  const int64_t count = tokens.size(0);
  require(contexts.dim() == 2 && contexts.size(0) == count, "contexts must have shape [n, W], got " + shape_of(contexts));
  require(keys.dim() == 1, "keys must have shape [m], got " + shape_of(keys));
  require_dtype("contexts", contexts, ScalarType::Long, "int64");
  require_dtype("tokens", tokens, ScalarType::Long, "int64");
  require_dtype("keys", keys, ScalarType::Long, "int64");
  const bool race = scheme == kRaceTopK || scheme == kRaceScale;
  require(race || scheme == kContextGreen,
      "scheme must be 0, 2 or 3, got " + std::to_string(scheme) + "; selfhash has other evidence under each key");
  require(threshold >= 0 && threshold <= (int64_t(1) << 24),
      "threshold must be in [0, 2**24], got " + std::to_string(threshold));
  const int64_t window = contexts.size(1), step = count + kScorePad;
  require(window <= 64, "contexts must have at most 64 columns, got " + std::to_string(window));
  const std::vector<uint32_t> ids = rows_of(contexts, tokens, step);
  const Tensor secrets = dense(keys);
  const int64_t total = secrets.size(0);
  Tensor sums = make({total}, ScalarType::Double);
  const int64_t* key = secrets.const_data_ptr<int64_t>();
  double* sum = sums.mutable_data_ptr<double>();
  const Kernels& simd = kernels();
  for_each_part(total, (count + 1) * (window / 4 + 2) * 4, [&](int64_t begin, int64_t end) {
    std::vector<uint32_t> words(size_t(kKeyPiece + kScorePad));
    for (int64_t j = begin; j < end; ++j) {
      double own = 0;
      for (int64_t first = 0; first < count; first += kKeyPiece) {
        const int64_t some = count - first < kKeyPiece ? count - first : kKeyPiece;
        simd.context_words(uint64_t(key[j]), ids.data() + first, step, window, some, words.data());
        own += race ? simd.sum_races(words.data(), some)
                    : double(simd.count_green(words.data(), some, uint32_t(threshold)));
      }
      sum[j] = own;
    }
  });
  return sums;
}

}  // namespace caw
