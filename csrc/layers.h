// Decoder layers over the rows of one call. See layers.cpp.
#pragma once

#include "attention.h"
#include "convert.h"
#include "quantized_linear.h"

namespace caw {

struct Matrix {
  const char* data;
  Dtype type;
  int64_t outputs, size;
  std::vector<float> bias;
  Packed packed;  // its form is null where the weights are plain
  int64_t tiles() const { return (outputs + kLinearTile - 1) / kLinearTile; }
};

struct Layer {
  Matrix q, k, v, o, gate, up, down;
  std::vector<float> norm1, norm2, q_norm, k_norm;  // the last two are empty but in Qwen3
  Kept k_cache, v_cache;  // what is read
  Kept k_own, v_own;      // where the rows' own keys and values go; `token` is from slot to slot
  const Attention* attention;
};

// What the layers of a call share.
struct Pass {
  int64_t rows, width, heads, kv_heads, dim;
  Dtype type;
  double eps;
  float scale;
  std::vector<float> cos, sin;          // [rows, D]
  std::vector<int64_t> sequence, slot;  // [rows]: whose candidate or token it is; where its key and value go
};

// out [rows, E] = hidden [rows, E] through all layers, in threads where that pays. Layers have the same shapes.
void run_layers(const Pass& pass, const std::vector<Layer>& layers, const void* hidden, void* out);

}  // namespace caw
