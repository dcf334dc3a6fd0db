// quantized_linear on the CPU: x [M, K] times packed weights [O, K] transposed. Arithmetic: csrc/cpu/quantized.h.
#include "quantized_linear.h"

#include <algorithm>

#include "convert.h"

namespace caw {

int64_t rows_at_once(int64_t size, bool fast) {
  constexpr int64_t kBytes = 1 << 19, kLeast = 32, kMost = 128;  // half of the cache; halves take as many as exact records
  return std::clamp(kBytes / (size / kUnit * record_bytes(fast)) / 16 * 16, kLeast, kMost);
}

void fill(const float* x, int64_t apart, Activations& to) {
  for_each_part(to.rows, to.size, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) quantized_kernel().digits(x + m * apart, m, to);
  });
}

void multiply_outputs(const Activations& x, const Packed& w, int64_t first, int64_t count, float* sums, float* out,
    int64_t apart) {
  constexpr int64_t kMost = kMostTiles * kTileOutputs;
  for (int64_t o = 0; o < count; o += kMost) {
    const int64_t tiles = (std::min(kMost, count - o) + kTileOutputs - 1) / kTileOutputs;
    TileTask tasks[kMostTiles];
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t tile = (first + o) / kTileOutputs + t;
      tasks[t] = {w.form, w.quants(tile), w.scales(tile)};
    }
    quantized_kernel().multiply(x, tasks, tiles, sums);
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t from = o + t * kTileOutputs, some = std::min(kTileOutputs, count - from);
      for (int64_t m = 0; m < x.rows; ++m)
        std::memcpy(out + m * apart + from, sums + (t * x.rows + m) * kTileOutputs, size_t(some) * sizeof(float));
    }
  }
}

int64_t packed_tile_cost(const Packed& w, int64_t rows) {
  // 10 bytes a nanosecond, or 80 products
  return std::max(w.tile / 10, kTileOutputs * w.size * rows / 80);
}

Tensor quantized_linear(const Tensor& x, const Tensor& weight, int64_t outputs, const std::optional<Tensor>& bias) {
  const Packed w = packed("packed", weight);
  require(outputs == w.outputs, "outputs must be that of the packed weights, " + std::to_string(w.outputs) + ", got " +
      std::to_string(outputs));
  require(x.dim() == 2 && x.size(1) == w.size,
      "x must have shape [M, " + std::to_string(w.size) + "], got " + shape_of(x));
  require_dtype("x", x, ScalarType::Float);
  const Tensor input = dense(x);
  const float *from = static_cast<const float*>(input.const_data_ptr()), *added = nullptr;
  Tensor plain = input;
  if (bias.has_value()) {
    require_tensor("bias", *bias, ScalarType::Float, {w.outputs});
    plain = dense(*bias);
    added = static_cast<const float*>(plain.const_data_ptr());
  }
  Tensor out = make({x.size(0), w.outputs}, ScalarType::Float);
  float* target = static_cast<float*>(out.mutable_data_ptr());
  const bool four_bits = w.form->bits == 4;
  const int64_t most = rows_at_once(w.size, w.fast);
  for (int64_t m = 0; m < x.size(0); m += most) {
    const int64_t rows = std::min(most, x.size(0) - m);
    Activations digits(rows, w.size, w.fast, four_bits);
    fill(from + m * w.size, w.size, digits);
    // single tiles are shared out, so that every thread has some, and those of a thread go together
    for_each_part(w.count(), packed_tile_cost(w, rows), [&](int64_t begin, int64_t end) {
      Aligned<float> sums;
      sums.resize(rows * kMostTiles * kTileOutputs);
      for (int64_t tile = begin; tile < end; tile += kMostTiles) {
        const int64_t first = tile * kTileOutputs, last = std::min(tile + kMostTiles, end) * kTileOutputs;
        const int64_t count = std::min(last, w.outputs) - first;
        float* part = target + m * w.outputs + first;
        multiply_outputs(digits, w, first, count, sums.data(), part, w.outputs);
        if (added)
          for (int64_t r = 0; r < rows; ++r)
            for (int64_t o = 0; o < count; ++o) part[r * w.outputs + o] += added[first + o];
      }
    });
  }
  return out;
}

}  // namespace caw

STABLE_TORCH_LIBRARY_IMPL(caw, CPU, m) {
  m.impl("quantized_linear", TORCH_BOX(&caw::quantized_linear));
}
