// Evidence of texts in the making on the CPU. Arithmetic: evidence.h.

#include "evidence_inputs.h"

namespace caw {

std::tuple<Tensor, Tensor, Tensor> show_evidence(const Tensor& padded, const Tensor& counts, const Tensor& tokens,
    const Tensor& seen, const Tensor& distinct, int64_t window, const Tensor& key, int64_t scheme, int64_t threshold) {
  const Texts texts(padded, counts, tokens, seen, distinct, window, key, scheme, threshold);
  const int64_t batch = texts.batch, count = texts.count, columns = texts.columns;
  Tensor values = make({batch, count}, ScalarType::Double), evidence = make({batch, count, columns}, ScalarType::Long);
  Tensor known = make({batch, count}, ScalarType::Bool);
  double* value = values.mutable_data_ptr<double>();
  int64_t* shown = evidence.mutable_data_ptr<int64_t>();
  bool* known_already = static_cast<bool*>(known.mutable_data_ptr());
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t *context = texts.context(b), *rows = texts.seen_of(b);
    for (int64_t j = 0; j < count; ++j) {
      const int64_t i = b * count + j;
      int64_t* own = shown + i * columns;
      value[i] = show(texts.key_of(b), scheme, threshold, context, window, texts.token(b, j), own);
      known_already[i] = false;
      for (int64_t row = 0; row < texts.distinct_of(b) && !known_already[i]; ++row) {
        known_already[i] = same_evidence(rows + row * columns, own, columns);
      }
    }
  }
  return {values, evidence, known};
}

void count_evidence(const Tensor& seen, const Tensor& distinct, const Tensor& trials, const Tensor& score,
    const Tensor& standing, const Tensor& evidence, const Tensor& first, const std::optional<Tensor>& level,
    const Tensor& values, double mean, double variance, double third) {
  const Counted counted(seen, distinct, trials, score, standing, evidence, first, level, values);
  for (int64_t b = 0; b < counted.batch; ++b) {
    if (!counted.is_first(b)) continue;
    require(counted.has_room(b), "distinct must be below N of seen, got a text that is full");
    counted.text(b).add(counted.evidence_of(b), counted.level_of(b), counted.value_of(b), mean, variance, third);
  }
}

}  // namespace caw

STABLE_TORCH_LIBRARY_IMPL(caw, CPU, m) {
  m.impl("show_evidence", TORCH_BOX(&caw::show_evidence));
  m.impl("count_evidence", TORCH_BOX(&caw::count_evidence));
}
