// small_linear on the CPU: x [M, K] times weight [O, K] transposed.
//
// With the few rows of a decoding step a layer spends its time reading the weights, so they are read once for all rows;
// general matrix products pack them first, which takes up to twice as long at two rows. And they sum in another order at
// other numbers of rows; here a row has the same bits beside any others.
#include <algorithm>

#include "convert.h"
#include "cpu/linear.h"

namespace caw {
Tensor small_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  require(x.dim() == 2, "x must have shape [M, K], got " + shape_of(x));
  require(weight.dim() == 2 && weight.size(1) == x.size(1) && weight.is_contiguous(),
      "weight must be contiguous [O, " + std::to_string(x.size(1)) + "], got " + shape_of(weight));
  const Dtype type = dtype_of("x", x);
  require(type != kFloat16, "x must be float32 or bfloat16; use torch.nn.functional.linear for float16");
  const Dtype kept = dtype_of("weight", weight);
  require(fits_beside(type, kept), "weight must have x's dtype, or any beside float32; convert it before the call");
  const int64_t rows = x.size(0), size = x.size(1), outputs = weight.size(0);
  const Tensor input = dense(x);
  std::vector<float> added;
  Rows wide(rows, size);
  for (int64_t m = 0; m < rows; ++m) widen_row(input.const_data_ptr(), m * size, size, type, wide.row(m));
  if (bias.has_value()) {
    require_shape("bias", *bias, {outputs});
    require(bias->scalar_type() == x.scalar_type(), "bias must have x's dtype; convert it before the call");
    added = widen(*bias, type);
  }
  Tensor out = make({rows, outputs}, x.scalar_type());
  void* target = out.mutable_data_ptr();
  const char* weights = static_cast<const char*>(weight.const_data_ptr());
  const int64_t tiles = (outputs + kLinearTile - 1) / kLinearTile;
  LinearInput prepared(wide, type);
  const int64_t block = prepared.block();
  for_each_part((rows + block - 1) / block, block * wide.stride / 10, [&](int64_t begin, int64_t end) {
    prepared.prepare(begin * block, std::min(end * block, rows) - begin * block);
  });
  // 10 bytes or 40 products in a nanosecond
  const int64_t cost = kLinearTile * size * std::max(element_size(kept) * 4, rows) / 40;
  for_each_part(tiles, cost, [&](int64_t begin, int64_t end) {
    std::vector<float> part;
    prepared.for_each_block([&](int64_t above, int64_t some) {
      part.resize(size_t(some * kLinearTile));
      for (int64_t tile = begin; tile < end; ++tile) {
        const int64_t first = tile * kLinearTile, count = std::min(kLinearTile, outputs - first);
        prepared.multiply(above, some, offset_bytes(weights, first * size, kept), kept, size, count, part.data());
        for (int64_t m = 0; m < some; ++m) {
          float* row = part.data() + m * kLinearTile;
          if (!added.empty())
            for (int64_t o = 0; o < count; ++o) row[o] += added[size_t(first + o)];
          narrow_row(row, count, type, target, (above + m) * outputs + first);
        }
      }
    });
  });
  return out;
}

}  // namespace caw

STABLE_TORCH_LIBRARY_IMPL(caw, CPU, m) {
  m.impl("small_linear", TORCH_BOX(&caw::small_linear));
}
