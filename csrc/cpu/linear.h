// The vector kernel of small_linear, compiled once per instruction set beside `Kernels`.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace caw {

constexpr int64_t kLinearTile = 32;  // outputs per call: their weights stay in the first-level cache between row blocks

// out[m * kLinearTile + o] = sum_k x[m, k] weight[o, k] for the outputs o < count <= kLinearTile.
// x is float32 [rows, padded] with zeros beyond `size`; weight rows are `size` elements apart.
using LinearKernel = void (*)(const float* x, int64_t rows, int64_t padded, const void* weight, int dtype,
    int64_t size, int64_t count, float* out);

extern const LinearKernel kLinearGeneric, kLinearAvx2, kLinearAvx512;

// The one that goes with kernels().
LinearKernel linear_kernel();

}  // namespace caw
