// The inputs of the evidence ops, checked: for CPU and GPU alike.
#pragma once

#include "evidence.h"
#include "tensors.h"

namespace caw {

// Dense rows of a tensor that an op writes to: batches that shrank keep their memory, so only the front is used.
template <class T>
T* written(const char* name, const Tensor& t) {
  require(t.is_contiguous(), std::string(name) + " must be contiguous, as it is written in place; keep it so");
  return static_cast<T*>(t.mutable_data_ptr());
}

struct Texts {
  Tensor padded, counts, tokens, seen, distinct, keys;
  int64_t batch, count, columns, window, places, room;

  Texts(const Tensor& padded_, const Tensor& counts_, const Tensor& tokens_, const Tensor& seen_, const Tensor& distinct_,
      int64_t window_, const Tensor& key, int64_t scheme, int64_t threshold)
      : padded(dense(padded_)), counts(dense(counts_)), tokens(dense(tokens_)), seen(dense(seen_)),
        distinct(dense(distinct_)), keys(dense(key)), window(window_) {
    require(scheme >= 0 && scheme <= 3, "scheme must be 0, 1, 2 or 3, got " + std::to_string(scheme));
    require(threshold >= 0 && threshold <= (int64_t(1) << 24),
        "threshold must be in [0, 2**24], got " + std::to_string(threshold));
    require(window >= (scheme == kSelfhashGreen) && window <= 64,
        "window must be in [0, 64] (selfhash: from 1), got " + std::to_string(window));
    require(tokens.dim() == 2, "tokens must have shape [B, n], got " + shape_of(tokens));
    batch = tokens.size(0), count = tokens.size(1), columns = evidence_columns(scheme, window);
    require(padded.dim() == 2 && padded.size(0) == batch && padded.size(1) >= window,
        "padded must have shape [B, W + N], got " + shape_of(padded));
    require(seen.dim() == 3, "seen must have shape [B, N, E], got " + shape_of(seen));
    places = padded.size(1), room = seen.size(1);
    require_shape("seen", seen, {batch, room, columns});
    require_shape("counts", counts, {batch});
    require_shape("distinct", distinct, {batch});
    require_shape("key", keys, {batch});
    const std::pair<const char*, const Tensor*> whole[] = {{"padded", &padded}, {"counts", &counts},
        {"tokens", &tokens}, {"seen", &seen}, {"distinct", &distinct}, {"key", &keys}};
    for (const auto& [name, tensor] : whole) require_dtype(name, *tensor, ScalarType::Long);
  }

  static const int64_t* of(const Tensor& t) { return t.const_data_ptr<int64_t>(); }
  // the last `window` tokens; a count beyond the room there is means the room's end
  const int64_t* context(int64_t b) const {
    const int64_t at = of(counts)[b], last = places - window;
    return of(padded) + b * places + (at < 0 ? 0 : at > last ? last : at);
  }
  const int64_t* seen_of(int64_t b) const { return of(seen) + b * room * columns; }
  int64_t distinct_of(int64_t b) const { return of(distinct)[b] < room ? of(distinct)[b] : room; }
  int64_t token(int64_t b, int64_t j) const { return of(tokens)[b * count + j]; }
  uint64_t key_of(int64_t b) const { return uint64_t(of(keys)[b]); }
};

struct Counted {
  Tensor evidence, first, levels, values;
  bool weighted;
  int64_t batch, room, columns;
  int64_t *seen, *distinct, *trials;
  double *score, *standing;

  Counted(const Tensor& seen_, const Tensor& distinct_, const Tensor& trials_, const Tensor& score_,
      const Tensor& standing_, const Tensor& evidence_, const Tensor& first_, const std::optional<Tensor>& level,
      const Tensor& values_)
      : evidence(dense(evidence_)), first(dense(first_)), levels(level ? dense(*level) : dense(distinct_)),
        values(dense(values_)), weighted(level.has_value()) {
    require(evidence.dim() == 2, "evidence must have shape [B, E], got " + shape_of(evidence));
    require(seen_.dim() == 3, "seen must have shape [B, N, E], got " + shape_of(seen_));
    batch = evidence.size(0), columns = evidence.size(1), room = seen_.size(1);
    require_shape("seen", seen_, {batch, room, columns});
    require_shape("trials", trials_, {batch, kLevels});
    require_shape("standing", standing_, {batch, 2});
    const std::pair<const char*, const Tensor*> rows[] = {
        {"distinct", &distinct_}, {"score", &score_}, {"first", &first}, {"level", &levels}, {"values", &values}};
    for (const auto& [name, tensor] : rows) require_shape(name, *tensor, {batch});
    const std::pair<const char*, const Tensor*> whole[] = {
        {"seen", &seen_}, {"distinct", &distinct_}, {"trials", &trials_}, {"evidence", &evidence}, {"level", &levels}};
    for (const auto& [name, tensor] : whole) require_dtype(name, *tensor, ScalarType::Long);
    const std::pair<const char*, const Tensor*> reals[] = {
        {"score", &score_}, {"standing", &standing_}, {"values", &values}};
    for (const auto& [name, tensor] : reals) require_dtype(name, *tensor, ScalarType::Double);
    require_dtype("first", first, ScalarType::Bool);
    seen = written<int64_t>("seen", seen_), distinct = written<int64_t>("distinct", distinct_);
    trials = written<int64_t>("trials", trials_), score = written<double>("score", score_);
    standing = written<double>("standing", standing_);
  }

  bool is_first(int64_t b) const { return static_cast<const bool*>(first.const_data_ptr())[b]; }
  bool has_room(int64_t b) const { return distinct[b] >= 0 && distinct[b] < room; }
  int64_t level_of(int64_t b) const { return weighted ? levels.const_data_ptr<int64_t>()[b] : 1; }
  double value_of(int64_t b) const { return values.const_data_ptr<double>()[b]; }
  const int64_t* evidence_of(int64_t b) const { return evidence.const_data_ptr<int64_t>() + b * columns; }
  TextEvidence text(int64_t b) const {
    return {seen + b * room * columns, distinct + b, trials + b * kLevels, score + b, standing + 2 * b, columns};
  }
};

}  // namespace caw
