// small_linear on the CPU: x [M, K] times weight [O, K] transposed, for the few rows of a decoding step.
//
// Reading the weights is all the time such a layer takes, so they are read once for all rows; general matrix products
// pack them first, which costs up to twice that at two rows.
#include <algorithm>
#include <cstring>

#include "cpu/linear.h"
#include "ops.h"

namespace caw {
namespace {

constexpr int64_t kLane = 16;  // rows of x are padded with zeros to the widest vector

float to_float(const char* data, Dtype type, int64_t i) {
  if (type == kFloat32) return reinterpret_cast<const float*>(data)[i];
  const uint16_t half = reinterpret_cast<const uint16_t*>(data)[i];
  const uint32_t bits = uint32_t(half) << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

uint16_t to_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return 0x7FC0;
  return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);  // to nearest, ties to even
}

}  // namespace

Tensor small_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  require(x.dim() == 2, "x must have shape [M, K], got " + shape_of(x));
  require(weight.dim() == 2 && weight.size(1) == x.size(1) && weight.is_contiguous(),
      "weight must be contiguous [O, " + std::to_string(x.size(1)) + "], got " + shape_of(weight));
  const Dtype type = dtype_of("x", x);
  require(type != kFloat16, "x must be float32 or bfloat16; use torch.nn.functional.linear for float16");
  require(x.scalar_type() == weight.scalar_type(), "weight must have x's dtype; convert it before the call");
  const int64_t rows = x.size(0), size = x.size(1), outputs = weight.size(0);
  const int64_t padded = (size + kLane - 1) / kLane * kLane;
  const Tensor input = dense(x);
  std::vector<float> added;
  thread_local Aligned<float> wide;
  wide.resize(rows * padded);
  std::fill_n(wide.data(), rows * padded, 0.0f);
  const char* source = static_cast<const char*>(input.const_data_ptr());
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t k = 0; k < size; ++k) wide.data()[m * padded + k] = to_float(source, type, m * size + k);
  if (bias.has_value()) {
    require_shape("bias", *bias, {outputs});
    require(bias->scalar_type() == x.scalar_type(), "bias must have x's dtype; convert it before the call");
    const Tensor row = dense(*bias);
    added.resize(size_t(outputs));
    for (int64_t o = 0; o < outputs; ++o)
      added[size_t(o)] = to_float(static_cast<const char*>(row.const_data_ptr()), type, o);
  }
  Tensor out = make({rows, outputs}, x.scalar_type());
  char* target = static_cast<char*>(out.mutable_data_ptr());
  const char* weights = static_cast<const char*>(weight.const_data_ptr());
  const int64_t tiles = (outputs + kLinearTile - 1) / kLinearTile;
  const LinearKernel kernel = linear_kernel();
  const float* in = wide.data();  // of this thread, for all threads
  // about 10 bytes a nanosecond a core
  for_each_part(tiles, kLinearTile * size * element_size(type) / 10, [&](int64_t begin, int64_t end) {
    std::vector<float> part(size_t(rows * kLinearTile));
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t first = tile * kLinearTile, count = std::min(kLinearTile, outputs - first);
      kernel(in, rows, padded, offset_bytes(weights, first * size, type), type, size, count, part.data());
      for (int64_t m = 0; m < rows; ++m)
        for (int64_t o = 0; o < count; ++o) {
          float value = part[size_t(m * kLinearTile + o)];
          if (!added.empty()) value += added[size_t(first + o)];
          const int64_t place = m * outputs + first + o;
          if (type == kFloat32) reinterpret_cast<float*>(target)[place] = value;
          else reinterpret_cast<uint16_t*>(target)[place] = to_bfloat16(value);
        }
    }
  });
  return out;
}

}  // namespace caw
