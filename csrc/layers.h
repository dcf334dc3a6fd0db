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
  std::vector<float> norm1, norm2, q_norm, k_norm;  // the last two are empty where heads are not normalised
  std::vector<float> after_attention, after_mlp;    // norms of what they give; empty where there are none
  size_t rotation = 0;                              // of Pass::cos and sin
  Kept k_cache, v_cache;  // what is read
  Kept k_own, v_own;      // where the rows' own keys and values go; `token` is from slot to slot
  const Attention* attention;
};

// What the layers of a family do, where families differ: FAMILIES of triton_kernels/decoder_layer_ref.py.
struct Family {
  float norm_offset = 0;  // added to the weights of all norms
  bool gelu = false;      // the gate's activation: GELU by tanh in place of SiLU
  bool after_norms = false;
};

// What the layers of a call share.
struct Pass {
  int64_t rows, width, heads, kv_heads, dim, turned;  // turned: dimensions of a head that are rotated, its first ones
  Dtype type;
  double eps;
  float scale, softcap;  // softcap: of scores, 0 = none
  float multiplier;      // of what attention and the MLP give, before it is added
  Family family;
  std::vector<std::vector<float>> cos, sin;  // of each kind of layer [rows, turned]
  std::vector<int64_t> sequence, slot;  // [rows]: whose candidate or token it is; where its key and value go
};

// out [rows, E] = hidden [rows, E] through all layers, in threads where that pays. Layers have the same shapes.
void run_layers(const Pass& pass, const std::vector<Layer>& layers, const void* hidden, void* out);

}  // namespace caw
