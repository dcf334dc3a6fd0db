// The small ops of a step on the CPU: capacity, choice, commit.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops.h"

namespace caw {

Tensor evaluate_capacity(const Tensor& features, const std::vector<Tensor>& weights) {
  require(weights.size() == 8, "weights must be mean, scale, W1, b1, W2, b2, W3, b3, got " +
      std::to_string(weights.size()) + " tensors");
  require(features.dim() == 2, "features must have shape [B, F], got " + shape_of(features));
  require(weights[2].dim() == 2, "W1 must have shape [h, F], got " + shape_of(weights[2]));
  const int64_t batch = features.size(0), size = features.size(1), hidden = weights[2].size(0);
  const char* names[8] = {"mean", "scale", "W1", "b1", "W2", "b2", "W3", "b3"};
  const std::vector<std::vector<int64_t>> shapes = {
      {size}, {size}, {hidden, size}, {hidden}, {hidden, hidden}, {hidden}, {1, hidden}, {1}};
  require_dtype("features", features, ScalarType::Float, "float32");
  std::vector<Tensor> held;
  std::vector<const float*> w;
  for (size_t i = 0; i < 8; ++i) {
    require_dtype(names[i], weights[i], ScalarType::Float, "float32");
    if (shapes[i].size() == 1) {
      require_shape(names[i], weights[i], {shapes[i][0]});
    } else {
      require_shape(names[i], weights[i], {shapes[i][0], shapes[i][1]});
    }
    held.push_back(dense(weights[i]));
    w.push_back(held.back().const_data_ptr<float>());
  }
  const Tensor input = dense(features);
  Tensor capacity = make({batch}, ScalarType::Float);
  const float* rows = input.const_data_ptr<float>();
  float* out = capacity.mutable_data_ptr<float>();
  for_each_part(batch, hidden * (size + hidden) / 16, [&](int64_t begin, int64_t end) {
    std::vector<float> x(static_cast<size_t>(size)), a(static_cast<size_t>(hidden)), b(a);
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < size; ++i) x[size_t(i)] = (rows[row * size + i] - w[0][i]) / w[1][i];
      kernels().affine(w[2], w[3], x.data(), hidden, size, true, a.data());
      kernels().affine(w[4], w[5], a.data(), hidden, hidden, true, b.data());
      float logit = 0;
      kernels().affine(w[6], w[7], b.data(), 1, hidden, false, &logit);
      out[row] = 1.0f / (1.0f + std::exp(-logit));
    }
  });
  return capacity;
}

Tensor select_candidate(const Tensor& candidates, const Tensor& needs, const Tensor& counts, const Tensor& strength,
    int64_t rule, double full) {
  require(candidates.dim() == 2, "candidates must have shape [B, M], got " + shape_of(candidates));
  const int64_t batch = candidates.size(0), width = candidates.size(1);
  require_shape("needs", needs, {batch, width});
  require_shape("counts", counts, {batch});
  require_shape("strength", strength, {batch});
  require(rule >= 0 && rule <= 2, "rule must be 0, 1 or 2, got " + std::to_string(rule));
  require_dtype("candidates", candidates, ScalarType::Long, "int64");
  require_dtype("counts", counts, ScalarType::Long, "int64");
  require_dtype("needs", needs, ScalarType::Float, "float32");
  require_dtype("strength", strength, ScalarType::Float, "float32");
  const Tensor ids = dense(candidates), need_rows = dense(needs), count_row = dense(counts), strengths = dense(strength);
  Tensor choice = make({batch}, ScalarType::Long);
  int64_t* out = choice.mutable_data_ptr<int64_t>();
  const float whole = float(full);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t* id = ids.const_data_ptr<int64_t>() + b * width;
    const float* need = need_rows.const_data_ptr<float>() + b * width;
    const int64_t count = std::min(count_row.const_data_ptr<int64_t>()[b], width);
    const float s = strengths.const_data_ptr<float>()[b];
    int64_t chosen = 0;
    for (int64_t j = 1; j < count; ++j) {
      if (rule == 0) {
        const float boosted = need[j] + s * whole;
        chosen += boosted > need[0] || (boosted == need[0] && id[j] < id[0]);
      } else if (rule == 1) {
        chosen += (2.0f * s) * whole > 2.0f * need[j] - 1.0f;
      } else {
        chosen += s > need[j];
      }
    }
    out[b] = chosen;
  }
  return choice;
}

void commit_kv(
    const Tensor& store, const Tensor& scratch, const Tensor& choice, const Tensor& lengths, const Tensor& active) {
  require(store.dim() == 6, "store must have shape [L, 2, B, HK, S, D], got " + shape_of(store));
  require(scratch.dim() == 6, "scratch must have shape [L, 2, B, C, HK, D], got " + shape_of(scratch));
  const int64_t layers = store.size(0), batch = store.size(2), heads = store.size(3), size = store.size(4);
  const int64_t dim = store.size(5), slots = scratch.size(3);
  require_shape("scratch", scratch, {layers, 2, batch, slots, heads, dim});
  require(store.scalar_type() == scratch.scalar_type(), "store and scratch must have one dtype");
  require(store.stride(5) == 1 && scratch.stride(5) == 1, "store and scratch must be dense in their last dimension");
  require_shape("choice", choice, {batch});
  require_shape("lengths", lengths, {batch});
  require_shape("active", active, {batch});
  require_dtype("choice", choice, ScalarType::Long, "int64");
  require_dtype("lengths", lengths, ScalarType::Long, "int64");
  require_dtype("active", active, ScalarType::Bool, "bool");
  const size_t bytes = store.element_size();
  char* to = static_cast<char*>(store.mutable_data_ptr());
  const char* from = static_cast<const char*>(scratch.const_data_ptr());
  int64_t* length = lengths.mutable_data_ptr<int64_t>();
  const int64_t* slot = choice.const_data_ptr<int64_t>();
  const bool* on = static_cast<const bool*>(active.const_data_ptr());
  const int64_t choice_step = choice.stride(0), length_step = lengths.stride(0), active_step = active.stride(0);
  for (int64_t b = 0; b < batch; ++b) {
    if (!on[b * active_step]) continue;
    const int64_t chosen = slot[b * choice_step], place = length[b * length_step];
    require(chosen >= 0 && chosen < slots, "choice must be in [0, C), got " + std::to_string(chosen));
    require(place >= 0 && place < size, "lengths of active rows must be below S, got " + std::to_string(place));
  }
  for (int64_t b = 0; b < batch; ++b) {
    if (!on[b * active_step]) continue;
    const int64_t chosen = slot[b * choice_step], place = length[b * length_step];
    for (int64_t part = 0; dim > 0 && part < layers * 2; ++part) {
      const int64_t layer = part / 2, which = part % 2;
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t target = layer * store.stride(0) + which * store.stride(1) + b * store.stride(2) +
            h * store.stride(3) + place * store.stride(4);
        const int64_t source = layer * scratch.stride(0) + which * scratch.stride(1) + b * scratch.stride(2) +
            chosen * scratch.stride(3) + h * scratch.stride(4);
        std::memcpy(to + size_t(target) * bytes, from + size_t(source) * bytes, size_t(dim) * bytes);
      }
    }
    length[b * length_step] = place + 1;
  }
}

}  // namespace caw
