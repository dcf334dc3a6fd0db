// The draws of rows of warped logits on the CPU: the record of the sums of logit and noise. Arithmetic: cpu/draw.inc.

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "candidates.h"
#include "tensors.h"
#include "topk_softmax.h"

namespace caw {
namespace {

struct Buffers {
  std::vector<float> maxima, copy, noise;
  std::vector<uint64_t> keys;
  std::vector<uint32_t> quads;
};

Buffers& buffers() {
  thread_local Buffers mine;
  return mine;
}

float value_of(uint64_t key) {
  uint32_t bits = uint32_t(key >> 32);
  bits = bits & 0x80000000u ? bits & 0x7FFFFFFFu : ~bits;
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}

float prune(DrawTask& task, int64_t* count, float kth, float top) {
  Buffers& own = *static_cast<Buffers*>(task.owner);
  uint64_t* keys = task.keys;
  if (*count > task.k) {
    std::nth_element(keys, keys + (task.k - 1), keys + *count, std::greater<uint64_t>());
    kth = std::max(kth, value_of(keys[task.k - 1]));
  }
  const float least = least_drawn(kth, top, task.reach);
  *count = std::partition(keys, keys + *count, [&](uint64_t key) { return value_of(key) >= least; }) - keys;
  if (*count > task.room / 2) {
    task.room = 2 * *count + 64;
    own.keys.resize(size_t(task.room));
    task.keys = own.keys.data();
  }
  return kth;
}

// One row of outputs.
struct Out {
  float* scores;  // [V]
  float* values;  // [K]
  int64_t* ids;   // [K]
};

// Every sum, where most tokens are left or all are asked for: the noise in vectors, then the record of the sums.
void draw_all(const float* x, int64_t size, const DrawTask& task, const Out& out) {
  kernels().gumbel_row(task.counter, task.key_lo, task.key_hi, 0, size, out.scores);
  for (int64_t i = 0; i < size; ++i) out.scores[i] = x[i] + out.scores[i];
}

void record_of(const float* scores, int64_t size, int64_t k, const Out& out) {
  std::vector<float> probs(static_cast<size_t>(k));
  float total = 0;
  topk_softmax_row(scores, kFloat32, size, k, out.values, out.ids, probs.data(), &total);
}

// The sums that matter, the others -inf; k: entries of the record, of which a row of `size` fills task.k at most.
void draw_some(const float* x, int64_t size, int64_t k, int64_t block, DrawTask& task, Buffers& own, const Out& out) {
  task.room = 4 * task.k + 64;
  own.keys.resize(std::max(own.keys.size(), size_t(task.room)));
  own.quads.resize(size_t(kQuadRoom));
  task.keys = own.keys.data();
  task.quads = own.quads.data();
  task.owner = &own;
  task.prune = prune;
  const int64_t count = kernels().draw_row(task, x, size, block, own.maxima.data());
  std::fill(out.scores, out.scores + size, -INFINITY);
  uint64_t* keys = task.keys;
  for (int64_t i = 0; i < count; ++i) out.scores[key_id(keys[i])] = value_of(keys[i]);
  const int64_t kept = std::min(count, task.k);
  if (count > kept) std::nth_element(keys, keys + kept, keys + count, std::greater<uint64_t>());
  std::sort(keys, keys + kept, std::greater<uint64_t>());
  for (int64_t j = 0; j < kept; ++j) {
    out.ids[j] = key_id(keys[j]);
    out.values[j] = value_of(keys[j]);
  }
  // fewer tokens are left than the record holds: the others of smallest id follow, as in any record
  int64_t j = kept;
  for (int64_t i = 0; j < k && i < size; ++i) {
    if (x[i] > -INFINITY) continue;
    out.ids[j] = i;
    out.values[j++] = -INFINITY;
  }
  for (; j < k; ++j) {
    out.ids[j] = -1;
    out.values[j] = -INFINITY;
  }
}

void draw(const float* x, int64_t size, int64_t k, DrawTask& task, const Out& out) {
  Buffers& own = buffers();
  task.k = std::min(k, size);
  const int64_t block = topk_block_size(size, task.k);
  own.maxima.resize(size_t((size + block - 1) / block));
  const Survey seen = kernels().survey(x, size, block, own.maxima.data());
  const bool dense_row = std::isinf(task.reach) && seen.kept > size / 16;
  if (dense_row || !seen.ordered || !std::isfinite(seen.top)) {
    draw_all(x, size, task, out);
    record_of(out.scores, size, k, out);
    return;
  }
  // at least k tokens reach the k-th greatest maximum of the blocks, and noise takes little from them
  task.kth = topk_threshold(own.maxima, own.copy, task.k) + kLeastDraw;
  draw_some(x, size, k, block, task, own, out);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> draw_scores(const Tensor& warped, const Tensor& drawn, const Tensor& context,
    const Tensor& key, int64_t k, double reach) {
  require(warped.dim() == 2 && warped.size(1) >= 1, "warped must have shape [B, V] with V >= 1, got " + shape_of(warped));
  require_dtype("warped", warped, ScalarType::Float);
  const int64_t batch = warped.size(0), size = warped.size(1);
  require(size < (int64_t(1) << 31), "V must be below 2**31, got " + std::to_string(size));
  require_tensor("drawn", drawn, ScalarType::Bool, {batch});
  require(context.dim() == 2 && context.size(0) == batch, "context must have shape [B, W], got " + shape_of(context));
  require_dtype("context", context, ScalarType::Long);
  require_tensor("key", key, ScalarType::Long, {batch});
  require(k >= 1, "k must be at least 1, got " + std::to_string(k));
  require(reach >= 0, "reach must be at least 0, got " + std::to_string(reach));
  const Tensor rows = dense(warped), flags = dense(drawn), contexts = dense(context), keys = dense(key);
  Tensor scores = make({batch, size}, ScalarType::Float), values = make({batch, k}, ScalarType::Float);
  Tensor ids = make({batch, k}, ScalarType::Long);
  const float* x = rows.const_data_ptr<float>();
  const bool* flag = static_cast<const bool*>(flags.const_data_ptr());
  const int64_t *c = contexts.const_data_ptr<int64_t>(), *secret = keys.const_data_ptr<int64_t>();
  const int64_t width = contexts.size(1);
  float *s = scores.mutable_data_ptr<float>(), *v = values.mutable_data_ptr<float>();
  int64_t* d = ids.mutable_data_ptr<int64_t>();
  for_each_part(batch, 2 * size, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const float* row = x + b * size;
      const Out out{s + b * size, v + b * k, d + b * k};
      if (!flag[b]) {
        std::copy(row, row + size, out.scores);
        record_of(row, size, k, out);
        continue;
      }
      const uint64_t own = uint64_t(secret[b]);
      const Words state = absorb_context(own, c + b * width, width);
      DrawTask task{};
      task.counter = state.w;
      task.key_lo = uint32_t(own) ^ state.w[3];
      task.key_hi = uint32_t(own >> 32) ^ kTokenDomain;
      task.reach = float(reach);
      draw(row, size, k, task, out);
    }
  });
  return {scores, values, ids};
}

}  // namespace caw

STABLE_TORCH_LIBRARY_IMPL(caw, CPU, m) {
  m.impl("draw_scores", TORCH_BOX(&caw::draw_scores));
}
