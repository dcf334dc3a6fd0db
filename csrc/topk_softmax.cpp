// topk_softmax on the CPU.
//
// 1. the greatest element of each of about 4 K blocks, and the sum of exponentials of the block while it is in the
//    cache; the K-th greatest of the maxima is a threshold that at least K elements reach and, on ordinary rows, few
//    more;
// 2. the elements of the blocks that reach the threshold;
// 3. an integer sort of the few that are left, by value and then by smaller id.
// Rows with NaN or +inf, or without a finite element, take a plain path with the same order.

#include "topk_softmax.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "tensors.h"

namespace caw {
namespace {

constexpr int64_t kBlockStep = 32;  // two AVX-512 vectors

struct Buffers {
  std::vector<float> maxima, wide;
  std::vector<uint64_t> keys;
};

Buffers& buffers() {
  thread_local Buffers mine;
  return mine;
}

float element(const void* row, Dtype dtype, int64_t i) {
  if (dtype == kFloat32) return static_cast<const float*>(row)[i];
  const uint16_t half = static_cast<const uint16_t*>(row)[i];
  return dtype == kBFloat16 ? float(c10::BFloat16(half, c10::BFloat16::from_bits())) : float(c10::Half(half, c10::Half::from_bits()));
}

}  // namespace

int64_t topk_block_size(int64_t vocab_size, int64_t k) {
  const int64_t wanted = vocab_size / (4 * k);
  return std::max(kBlockStep, (wanted + kBlockStep - 1) / kBlockStep * kBlockStep);
}

float topk_threshold(const std::vector<float>& maxima, std::vector<float>& copy, int64_t k) {
  if (int64_t(maxima.size()) < k) return -INFINITY;
  copy = maxima;
  std::nth_element(copy.begin(), copy.begin() + (k - 1), copy.end(), std::greater<float>());
  return copy[size_t(k - 1)];
}

namespace {

// Keep the k greatest keys, in order.
void sort_greatest(std::vector<uint64_t>& keys, int64_t k) {
  if (int64_t(keys.size()) > k) {
    std::nth_element(keys.begin(), keys.begin() + k, keys.end(), std::greater<uint64_t>());
    keys.resize(size_t(k));
  }
  std::sort(keys.begin(), keys.end(), std::greater<uint64_t>());
}

// The plain path: every element's key; sum in float64.
double plain_row(const void* row, Dtype dtype, int64_t vocab_size, int64_t k, std::vector<uint64_t>& keys) {
  keys.resize(size_t(vocab_size));
  float top = -INFINITY;
  bool unordered = false;
  for (int64_t i = 0; i < vocab_size; ++i) {
    const float x = element(row, dtype, i);
    keys[size_t(i)] = order_key(x, i);
    unordered |= x != x;
    top = x > top ? x : top;
  }
  sort_greatest(keys, k);
  if (unordered) return NAN;
  if (std::isinf(top)) return top;
  double sum = 0;
  for (int64_t i = 0; i < vocab_size; ++i) sum += std::exp(double(element(row, dtype, i)) - double(top));
  return double(top) + std::log(sum);
}

// Too few finite elements: the -inf ones of smallest id follow them.
void pad_with_masked(const void* row, Dtype dtype, int64_t vocab_size, int64_t k, std::vector<uint64_t>& keys) {
  for (int64_t i = 0; i < vocab_size && int64_t(keys.size()) < k; ++i) {
    const float x = element(row, dtype, i);
    if (x == -INFINITY) keys.push_back(order_key(x, i));
  }
}

double fast_row(const void* row, Dtype dtype, int64_t vocab_size, int64_t k, Buffers& own) {
  const Kernels& simd = kernels();
  const int64_t block = topk_block_size(vocab_size, k);
  own.maxima.resize(size_t((vocab_size + block - 1) / block));
  double sum = 0;
  const float top = simd.maxima_and_sum(row, dtype, vocab_size, block, own.maxima.data(), &sum);
  if (!std::isfinite(top) || sum != sum) return NAN;
  const float threshold = topk_threshold(own.maxima, own.wide, k);
  own.keys.resize(size_t(vocab_size));
  const int64_t count =
      simd.filter(row, dtype, vocab_size, block, own.maxima.data(), threshold, own.keys.data());
  own.keys.resize(size_t(count));
  sort_greatest(own.keys, k);
  if (count < k) pad_with_masked(row, dtype, vocab_size, k, own.keys);
  return double(top) + std::log(sum);
}

}  // namespace

void topk_softmax_row(const void* row, Dtype dtype, int64_t vocab_size, int64_t k, float* values, int64_t* ids,
    float* probs, float* logsumexp) {
  Buffers& own = buffers();
  const int64_t kept = std::min(k, vocab_size);
  double total = kept > 0 ? fast_row(row, dtype, vocab_size, kept, own) : -INFINITY;
  if (kept > 0 && total != total) total = plain_row(row, dtype, vocab_size, kept, own.keys);
  *logsumexp = float(total);
  for (int64_t j = 0; j < k; ++j) {
    ids[j] = j < kept ? key_id(own.keys[size_t(j)]) : -1;
    values[j] = j < kept ? element(row, dtype, ids[j]) : -INFINITY;
  }
  if (std::isfinite(*logsumexp)) {
    kernels().exp_shifted(values, *logsumexp, k, probs);
    return;
  }
  for (int64_t j = 0; j < k; ++j) probs[j] = values[j] == -INFINITY ? 0.0f : std::exp(values[j] - *logsumexp);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> topk_softmax(
    const Tensor& logits, int64_t k, const std::optional<Tensor>& rows) {
  require(logits.dim() == 2, "logits must have shape [R, V], got " + shape_of(logits));
  require(k >= 1, "k must be at least 1, got " + std::to_string(k));
  const Dtype dtype = dtype_of("logits", logits);
  const int64_t height = logits.size(0), vocab_size = logits.size(1);
  require(vocab_size >= 1 && vocab_size < (int64_t(1) << 31), "logits must have 1 to 2**31 - 1 columns, got " + shape_of(logits));
  const int64_t row_stride = logits.stride(0), stride = logits.stride(1);
  std::optional<Tensor> chosen;
  if (rows) {
    require(rows->dim() == 1, "rows must have shape [R'], got " + shape_of(*rows));
    require_dtype("rows", *rows, ScalarType::Long);
    chosen = dense(*rows);
  }
  const int64_t count = rows ? rows->size(0) : height;
  const int64_t* index = chosen ? chosen->const_data_ptr<int64_t>() : nullptr;
  for (int64_t i = 0; index && i < count; ++i)
    require(index[i] >= 0 && index[i] < height, "rows must be below " + std::to_string(height) + ", got " + std::to_string(index[i]));
  Tensor values = make({count, k}, ScalarType::Float), ids = make({count, k}, ScalarType::Long);
  Tensor probs = make({count, k}, ScalarType::Float), logsumexp = make({count}, ScalarType::Float);
  const void* base = logits.const_data_ptr();
  float *v = values.mutable_data_ptr<float>(), *p = probs.mutable_data_ptr<float>();
  float* l = logsumexp.mutable_data_ptr<float>();
  int64_t* d = ids.mutable_data_ptr<int64_t>();
  for_each_part(count, vocab_size / 2, [&](int64_t begin, int64_t end) {
    std::vector<float> copy(stride == 1 || vocab_size == 1 ? 0 : size_t(vocab_size));
    for (int64_t i = begin; i < end; ++i) {
      const char* row = offset_bytes(base, (index ? index[i] : i) * row_stride, dtype);
      Dtype type = dtype;
      if (!copy.empty()) {
        for (int64_t j = 0; j < vocab_size; ++j) copy[size_t(j)] = element(offset_bytes(row, j * stride, dtype), dtype, 0);
        row = reinterpret_cast<const char*>(copy.data());
        type = kFloat32;
      }
      topk_softmax_row(row, type, vocab_size, k, v + i * k, d + i * k, p + i * k, l + i);
    }
  });
  return {values, ids, probs, logsumexp};
}

}  // namespace caw

STABLE_TORCH_LIBRARY_IMPL(caw, CPU, m) {
  m.impl("topk_softmax", TORCH_BOX(&caw::topk_softmax));
}
