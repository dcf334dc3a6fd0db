// The small ops of a step on the CPU: capacity, choice, commit.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tensors.h"

namespace caw {
namespace {

constexpr float kProbabilityFloor = 1e-10f, kCapacityFloor = 1e-4f, kCapacityCeiling = float(1 - 1e-4);

// The evaluator's weights, checked.
struct Network {
  std::vector<Tensor> held;
  std::vector<const float*> w;
  int64_t size, hidden;

  Network(const std::vector<Tensor>& weights, int64_t inputs) : size(inputs) {
    require(weights.size() == 8, "weights must be mean, scale, W1, b1, W2, b2, W3, b3, got " +
        std::to_string(weights.size()) + " tensors");
    require(weights[2].dim() == 2, "W1 must have shape [h, F], got " + shape_of(weights[2]));
    hidden = weights[2].size(0);
    const char* names[8] = {"mean", "scale", "W1", "b1", "W2", "b2", "W3", "b3"};
    const std::vector<std::vector<int64_t>> shapes = {
        {size}, {size}, {hidden, size}, {hidden}, {hidden, hidden}, {hidden}, {1, hidden}, {1}};
    for (size_t i = 0; i < 8; ++i) {
      require_dtype(names[i], weights[i], ScalarType::Float);
      if (shapes[i].size() == 1) {
        require_shape(names[i], weights[i], {shapes[i][0]});
      } else {
        require_shape(names[i], weights[i], {shapes[i][0], shapes[i][1]});
      }
      held.push_back(dense(weights[i]));
      w.push_back(held.back().const_data_ptr<float>());
    }
  }

  int64_t cost() const { return hidden * (size + hidden) / 16; }  // nanoseconds a row

  // Capacity of one row of features; `x` [size], `a` and `b` [hidden] are scratch.
  float capacity(const float* features, float* x, float* a, float* b) const {
    for (int64_t i = 0; i < size; ++i) x[i] = (features[i] - w[0][i]) / w[1][i];
    kernels().affine(w[2], w[3], x, hidden, size, true, a);
    kernels().affine(w[4], w[5], a, hidden, hidden, true, b);
    float logit = 0;
    kernels().affine(w[6], w[7], b, 1, hidden, false, &logit);
    return 1.0f / (1.0f + std::exp(-logit));
  }
};

// A strength ladder, checked.
struct Ladders {
  Tensor ids, needs, counts;
  int64_t batch, width, rule;
  float full;

  Ladders(const Tensor& candidates, const Tensor& need_rows, const Tensor& count_row, int64_t rule_, double full_)
      : ids(candidates), needs(need_rows), counts(count_row), rule(rule_), full(float(full_)) {
    require(candidates.dim() == 2, "candidates must have shape [B, M], got " + shape_of(candidates));
    batch = candidates.size(0);
    width = candidates.size(1);
    require_tensor("needs", needs, ScalarType::Float, {batch, width});
    require_tensor("counts", counts, ScalarType::Long, {batch});
    require(rule >= 0 && rule <= 2, "rule must be 0, 1 or 2, got " + std::to_string(rule));
    require_dtype("candidates", ids, ScalarType::Long);
    ids = dense(ids);
    needs = dense(needs);
    counts = dense(counts);
  }

  int64_t choose(int64_t b, float strength) const {
    const int64_t* id = ids.const_data_ptr<int64_t>() + b * width;
    const float* need = needs.const_data_ptr<float>() + b * width;
    const int64_t count = std::min(counts.const_data_ptr<int64_t>()[b], width);
    int64_t chosen = 0;
    for (int64_t j = 1; j < count; ++j) {
      if (rule == 0) {
        const float boosted = need[j] + strength * full;
        chosen += boosted > need[0] || (boosted == need[0] && id[j] < id[0]);
      } else if (rule == 1) {
        chosen += (2.0f * strength) * full > 2.0f * need[j] - 1.0f;
      } else {
        chosen += strength > need[j];
      }
    }
    return chosen;
  }
};

// Features of one position from its k probabilities. transform: 0 raw, 1 log, 2 gap.
void write_features(const float* probs, int64_t k, int64_t transform, float* out) {
  for (int64_t j = 0; j < k; ++j) {
    const float p = probs[j] < kProbabilityFloor ? kProbabilityFloor : probs[j];
    out[j] = transform == 0 ? probs[j] : std::log(p);
  }
  for (int64_t j = 1; transform == 2 && j < k; ++j) out[j] = out[0] - out[j];
}

// A NaN passes through; it then chooses nothing.
float strength_of(float capacity, float theta, float beta) {
  if (theta == 0) return 0.0f;
  const float c = capacity < kCapacityFloor ? kCapacityFloor : capacity > kCapacityCeiling ? kCapacityCeiling : capacity;
  const float share = (theta - c) / theta;
  return beta * (share < 0 ? 0.0f : share);
}

}  // namespace

Tensor evaluate_capacity(const Tensor& features, const std::vector<Tensor>& weights) {
  require(features.dim() == 2, "features must have shape [B, F], got " + shape_of(features));
  require_dtype("features", features, ScalarType::Float);
  const int64_t batch = features.size(0), size = features.size(1);
  const Network network(weights, size);
  const Tensor input = dense(features);
  Tensor capacity = make({batch}, ScalarType::Float);
  const float* rows = input.const_data_ptr<float>();
  float* out = capacity.mutable_data_ptr<float>();
  for_each_part(batch, network.cost(), [&](int64_t begin, int64_t end) {
    std::vector<float> x(static_cast<size_t>(size)), a(static_cast<size_t>(network.hidden)), b(a);
    for (int64_t row = begin; row < end; ++row)
      out[row] = network.capacity(rows + row * size, x.data(), a.data(), b.data());
  });
  return capacity;
}

Tensor select_candidate(const Tensor& candidates, const Tensor& needs, const Tensor& counts, const Tensor& strength,
    int64_t rule, double full) {
  const Ladders ladders(candidates, needs, counts, rule, full);
  require_tensor("strength", strength, ScalarType::Float, {ladders.batch});
  const Tensor strengths = dense(strength);
  Tensor choice = make({ladders.batch}, ScalarType::Long);
  for (int64_t b = 0; b < ladders.batch; ++b)
    choice.mutable_data_ptr<int64_t>()[b] = ladders.choose(b, strengths.const_data_ptr<float>()[b]);
  return choice;
}

std::tuple<Tensor, Tensor, Tensor> evaluator_step(const std::vector<Tensor>& probs, const std::vector<Tensor>& weights,
    const Tensor& candidates, const Tensor& needs, const Tensor& counts, const Tensor& pending,
    const Tensor& pending_strength, const Tensor& pending_capacity, const Tensor& factor, int64_t k, int64_t transform,
    double theta, double beta, int64_t rule, double full, const std::optional<Tensor>& extra) {
  const Ladders ladders(candidates, needs, counts, rule, full);
  const int64_t batch = ladders.batch, positions = int64_t(probs.size());
  require(positions >= 1, "probs must hold one tensor a window position, got none");
  require(transform >= 0 && transform <= 2, "transform must be 0, 1 or 2, got " + std::to_string(transform));
  std::vector<Tensor> records;
  for (const Tensor& part : probs) {
    require(part.dim() == 2 && part.size(0) == batch && k >= 1 && part.size(1) >= k,
        "probs must have shape [" + std::to_string(batch) + ", >= k] with k >= 1, got " + shape_of(part) + " for k " +
            std::to_string(k));
    require_dtype("probs", part, ScalarType::Float);
    records.push_back(dense(part));
  }
  std::optional<Tensor> more;
  if (extra.has_value()) {
    require(extra->dim() == 2 && extra->size(0) == batch,
        "extra must have shape [" + std::to_string(batch) + ", X], got " + shape_of(*extra));
    require_dtype("extra", *extra, ScalarType::Float);
    more = dense(*extra);
  }
  const int64_t known = positions * k, added = more ? more->size(1) : 0, size = known + added;
  const Network network(weights, size);
  require_tensor("pending", pending, ScalarType::Long, {batch});
  require_tensor("pending_strength", pending_strength, ScalarType::Float, {batch});
  require_tensor("pending_capacity", pending_capacity, ScalarType::Float, {batch});
  require_tensor("factor", factor, ScalarType::Float, {batch});
  const Tensor waits = dense(pending), strengths = dense(pending_strength), capacities = dense(pending_capacity);
  const Tensor factors = dense(factor);
  Tensor capacity = make({batch}, ScalarType::Float), strength = make({batch}, ScalarType::Float);
  Tensor choice = make({batch}, ScalarType::Long);
  const int64_t* waiting = waits.const_data_ptr<int64_t>();
  float *c = capacity.mutable_data_ptr<float>(), *s = strength.mutable_data_ptr<float>();
  int64_t* chosen = choice.mutable_data_ptr<int64_t>();
  for_each_part(batch, network.cost() + 8 * size, [&](int64_t begin, int64_t end) {
    std::vector<float> features(static_cast<size_t>(size)), x(features), a(static_cast<size_t>(network.hidden)), h(a);
    for (int64_t b = begin; b < end; ++b) {
      if (waiting[b] >= 0) {
        c[b] = capacities.const_data_ptr<float>()[b];
        s[b] = strengths.const_data_ptr<float>()[b];
      } else {
        for (int64_t i = 0; i < positions; ++i) {
          const Tensor& part = records[size_t(i)];
          write_features(part.const_data_ptr<float>() + b * part.size(1), k, transform, features.data() + i * k);
        }
        if (added > 0) std::copy_n(more->const_data_ptr<float>() + b * added, added, features.begin() + known);
        c[b] = network.capacity(features.data(), x.data(), a.data(), h.data());
        s[b] = strength_of(c[b], float(theta), float(beta)) * factors.const_data_ptr<float>()[b];
      }
      chosen[b] = ladders.choose(b, s[b]);
    }
  });
  return {capacity, strength, choice};
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
  require_tensor("choice", choice, ScalarType::Long, {batch});
  require_tensor("lengths", lengths, ScalarType::Long, {batch});
  require_tensor("active", active, ScalarType::Bool, {batch});
  const size_t bytes = store.element_size();
  char* to = static_cast<char*>(store.mutable_data_ptr());
  const char* from = static_cast<const char*>(scratch.const_data_ptr());
  int64_t* length = lengths.mutable_data_ptr<int64_t>();
  const int64_t* slot = choice.const_data_ptr<int64_t>();
  const bool* on = static_cast<const bool*>(active.const_data_ptr());
  const int64_t choice_step = choice.stride(0), length_step = lengths.stride(0), active_step = active.stride(0);
  int64_t into[5], out_of[5];  // strides, asked for once: there are hundreds of copies
  for (int64_t i = 0; i < 5; ++i) into[i] = store.stride(i), out_of[i] = scratch.stride(i);
  for (int64_t b = 0; b < batch; ++b) {
    if (!on[b * active_step]) continue;
    const int64_t chosen = slot[b * choice_step], place = length[b * length_step];
    require(chosen >= 0 && chosen < slots, "choice must be in [0, C), got " + std::to_string(chosen));
    require(place >= 0 && place < size, "lengths of active rows must be below S, got " + std::to_string(place));
  }
  for (int64_t b = 0; b < batch; ++b) {
    if (!on[b * active_step]) continue;
    const int64_t chosen = slot[b * choice_step], place = length[b * length_step];
    const int64_t target = b * into[2] + place * into[4], source = b * out_of[2] + chosen * out_of[3];
    for (int64_t part = 0; dim > 0 && part < layers * 2; ++part)
      for (int64_t h = 0; h < heads; ++h)
        std::memcpy(to + size_t(target + part / 2 * into[0] + part % 2 * into[1] + h * into[3]) * bytes,
            from + size_t(source + part / 2 * out_of[0] + part % 2 * out_of[1] + h * out_of[4]) * bytes, size_t(dim) * bytes);
    length[b * length_step] = place + 1;
  }
}

}  // namespace caw

STABLE_TORCH_LIBRARY_IMPL(caw, CPU, m) {
  m.impl("commit_kv", TORCH_BOX(&caw::commit_kv));
  m.impl("evaluate_capacity", TORCH_BOX(&caw::evaluate_capacity));
  m.impl("select_candidate", TORCH_BOX(&caw::select_candidate));
  m.impl("evaluator_step", TORCH_BOX(&caw::evaluator_step));
}
