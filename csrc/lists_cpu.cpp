// The lists and numbers of torch's CPU generator on the CPU. Arithmetic: random_lists.h; vectors: cpu/lists.inc.

#include <algorithm>

#include "lists.h"
#include "tensors.h"

namespace caw {
Tensor permutation_green(
    const Tensor& seeds, int64_t vocab_size, int64_t count, const std::optional<Tensor>& wanted) {
  require_list(seeds, vocab_size, count);
  if (wanted) require_wanted(*wanted, seeds);
  const Tensor flags = wanted ? dense(*wanted) : seeds;
  const bool* asked = wanted ? static_cast<const bool*>(flags.const_data_ptr()) : nullptr;
  const Tensor numbers = dense(seeds);
  const int64_t n = numbers.size(0), words = (vocab_size + 31) / 32;
  Tensor out = make({n, words}, ScalarType::Int);
  uint32_t* to = static_cast<uint32_t*>(out.mutable_data_ptr());
  const int64_t* seed = numbers.const_data_ptr<int64_t>();
  for_each_part(n, count * 3 + vocab_size / 8 + 1500, [&](int64_t begin, int64_t end) {
    Shuffle shuffle(vocab_size);
    for (int64_t i = begin; i < end; ++i) {
      uint32_t* set = to + i * words;
      std::fill(set, set + words, 0u);
      if (asked && !asked[i]) continue;
      shuffle.draw(uint32_t(seed[i]), count, [&](uint32_t token) { set[token >> 5] |= 1u << (token & 31); });
    }
  });
  return out;
}

Tensor permutation_contains(const Tensor& seeds, const Tensor& tokens, int64_t vocab_size, int64_t count) {
  require_list(seeds, vocab_size, count);
  require_tensor("tokens", tokens, ScalarType::Long, {seeds.size(0)});
  const Tensor numbers = dense(seeds), ids = dense(tokens);
  const int64_t n = numbers.size(0);
  Tensor out = make({n}, ScalarType::Bool);
  bool* to = static_cast<bool*>(out.mutable_data_ptr());
  std::fill(to, to + n, false);
  std::vector<int64_t> begins;
  const std::vector<Query> queries =
      sorted_queries(numbers.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>(), n, vocab_size, begins);
  for_each_part(int64_t(begins.size()) - 1, count + 3000, [&](int64_t begin, int64_t end) {
    answer_groups(queries, begins, begin, end, vocab_size, count, to);
  });
  return out;
}

Tensor generator_words(const Tensor& seeds, const Tensor& indices) {
  require(seeds.dim() == 1, "seeds must have shape [N], got " + shape_of(seeds));
  require_dtype("seeds", seeds, ScalarType::Long);
  require_tensor("indices", indices, ScalarType::Long, {seeds.size(0)});
  const Tensor numbers = dense(seeds), places = dense(indices);
  const int64_t n = numbers.size(0);
  const int64_t* place = places.const_data_ptr<int64_t>();
  int64_t furthest = 0;
  for (int64_t i = 0; i < n; ++i) {
    require(place[i] >= 0 && place[i] < (int64_t(1) << 31), "indices must be in [0, 2**31), got " + std::to_string(place[i]));
    furthest = std::max(furthest, place[i]);
  }
  Tensor out = make({n}, ScalarType::Long);
  int64_t* to = out.mutable_data_ptr<int64_t>();
  std::vector<int64_t> begins;
  const std::vector<Query> queries =
      sorted_queries(numbers.const_data_ptr<int64_t>(), place, n, int64_t(1) << 31, begins);
  for_each_part(int64_t(begins.size()) - 1, furthest / 4 + 2000, [&](int64_t begin, int64_t end) {
    words_of_groups(queries, begins, begin, end, to);
  });
  return out;
}

}  // namespace caw

STABLE_TORCH_LIBRARY_IMPL(caw, CPU, m) {
  m.impl("permutation_green", TORCH_BOX(&caw::permutation_green));
  m.impl("permutation_contains", TORCH_BOX(&caw::permutation_contains));
  m.impl("generator_words", TORCH_BOX(&caw::generator_words));
}
