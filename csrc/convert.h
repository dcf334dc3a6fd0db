// Numbers of a tensor as floats and back: float32, bfloat16 and float16, to nearest, ties to even.
#pragma once

#include <algorithm>
#include <cstring>

#include "cpu/linear.h"
#include "tensors.h"

namespace caw {

inline float read(const void* base, int64_t i, Dtype type) {
  if (type == kFloat32) return static_cast<const float*>(base)[i];
  const uint16_t half = static_cast<const uint16_t*>(base)[i];
  return type == kBFloat16 ? float(c10::BFloat16(half, c10::BFloat16::from_bits()))
                           : float(c10::Half(half, c10::Half::from_bits()));
}

inline void write(void* base, int64_t i, float x, Dtype type) {
  if (type == kFloat32) static_cast<float*>(base)[i] = x;
  if (type == kBFloat16) static_cast<uint16_t*>(base)[i] = c10::BFloat16(x).x;
  if (type == kFloat16) static_cast<uint16_t*>(base)[i] = c10::Half(x).x;
}

// `count` elements from place `first` on as floats.
inline void widen_row(const void* base, int64_t first, int64_t count, Dtype type, float* to) {
  if (count <= 0) return;  // an empty tensor has no address
  if (type == kFloat32) {
    std::memcpy(to, static_cast<const float*>(base) + first, size_t(count) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) to[i] = read(base, first + i, type);
}

// `count` floats, rounded to the type, to place `first` and on.
inline void narrow_row(const float* from, int64_t count, Dtype type, void* base, int64_t first) {
  if (count <= 0) return;  // an empty tensor has no address
  if (type == kFloat32) {
    std::memcpy(static_cast<float*>(base) + first, from, size_t(count) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) write(base, first + i, from[i], type);
}

// Whether products take weights of this type beside rows of that one.
inline bool fits_beside(Dtype rows, Dtype weights) { return rows == kFloat32 || rows == weights; }

// Rows of floats, zeros between `size` and `stride`: padded to the widest vector, of 32 bfloat16, as LinearKernel reads them.
struct Rows {
  int64_t count, size, stride;
  Aligned<float> data;
  Rows(int64_t count, int64_t size) : count(count), size(size), stride((size + 31) / 32 * 32) {
    data.resize(count * stride);
    for (int64_t i = 0; i < count; ++i) std::fill(row(i) + size, row(i) + stride, 0.0f);
  }
  float* row(int64_t i) { return data.data() + i * stride; }
  const float* row(int64_t i) const { return data.data() + i * stride; }
};

// Rows of this type as products read them, once they are prepared; keeps the rows' address. Weights beside float32 may be of
// any type, those beside bfloat16 are of that.
class LinearInput {
 public:
  LinearInput(const Rows& x, Dtype type)
      : rows_(x.count), stride_(x.stride), kernel_(type == kFloat32 ? float_kernel() : linear_kernel()),
        rows_data_(x.data.data()) {
    if (!kernel_.prepare || type != kBFloat16) return;
    item_ = sizeof(uint16_t), block_ = kRowBlock;
    prepared_.resize(rows_ * stride_);
  }
  int64_t block() const { return block_; }  // rows that are prepared together
  // Rows first to first + count, whole blocks unless they are the last.
  void prepare(int64_t first, int64_t count) {
    if (item_ == sizeof(float)) return;
    const int64_t at = first * stride_;
    kernel_.prepare(rows_data_ + at, count, stride_, prepared_.data() + at);
  }
  // Calls f(first, count) for rows that stay in the cache while weights stream past, one such block after another.
  template <class F>
  void for_each_block(const F& f) const {
    const int64_t bytes = std::max<int64_t>(stride_ * item_, 1);  // rows may be empty
    const int64_t fit = kKeptBytes / bytes / kRowBlock * kRowBlock, most = std::max(fit, kRowBlock);
    for (int64_t first = 0; first < rows_; first += most) f(first, std::min(most, rows_ - first));
  }
  // part[m * kLinearTile + o] of rows first to first + rows, the outputs o < count of weight rows from `weight` on.
  void multiply(int64_t first, int64_t rows, const void* weight, Dtype type, int64_t size, int64_t count, float* part) const {
    const void* data = item_ == sizeof(float) ? static_cast<const void*>(rows_data_) : prepared_.data();
    const char* from = static_cast<const char*>(data) + first * stride_ * item_;
    kernel_.multiply(from, rows, stride_, weight, type, size, count, part);
  }

 private:
  static constexpr int64_t kRowBlock = 48;        // a multiple of what any kernel takes at once
  static constexpr int64_t kKeptBytes = 1 << 20;  // half of a second-level cache
  int64_t rows_, stride_, item_ = sizeof(float), block_ = 1;
  LinearKernel kernel_;
  const float* rows_data_;
  Aligned<uint16_t> prepared_;
};

// A vector as floats.
inline std::vector<float> widen(const Tensor& t, Dtype type) {
  std::vector<float> wide(static_cast<size_t>(t.size(0)));
  const void* base = t.const_data_ptr();
  const int64_t step = t.stride(0);
  for (size_t i = 0; i < wide.size(); ++i) wide[i] = read(base, int64_t(i) * step, type);
  return wide;
}

}  // namespace caw
