// Products with packed weights (csrc/blocks.h), compiled once per instruction set beside `Kernels`.
//
// Activations are whole numbers: of each unit of 32 inputs the greatest power of two is taken out that leaves 24 bits
// (or, in fast mode, a factor that leaves 8), so that a sum over a unit is exact in 32-bit integers, whatever the order
// and the instructions. Floats begin where a group's sum meets its scale, one fma a group in the order of the inputs. So
// every instruction set gives the same bits, and so does every number of rows.
#pragma once

#include <cstdint>
#include <cstring>

#include "../blocks.h"
#include "linear.h"

namespace caw {

constexpr int kDigits = 3;                 // of base 256, each in [-128, 127]
constexpr float kMostWhole = 8355711.0f;  // 127 * (65536 + 256 + 1), the greatest number of three digits
constexpr int64_t kChunkUnits = 8;         // unpacked at a time: 6 KB; 28 of two tiles with AMX, where the first level has 48
constexpr int64_t kAlone = 4;              // up to so many rows multiply faster without tiles
constexpr int64_t kMostTiles = 2;          // of outputs in one call

// Rows of activations as digits.
struct Activations {
  int64_t rows, size, stride;  // stride: bytes from a row to the next; no multiple of a page, so that rows share no cache set
  int digits;
  Aligned<int8_t> whole;     // [digits][rows][stride], the low digit first
  Aligned<float> scale;      // [rows][units]: x = scale * sum of digits * 256^i
  Aligned<int32_t> negative;  // [2][digits][rows][groups], groups of 16 and of 32: minus the sum of digits
  Aligned<float> total;      // [2][rows][groups]: sum of x
  Aligned<int8_t> halves;    // [2][rows][half_stride()], where weights of 4 bits and a kernel read them, else none
  // four_bits: whether weights of 4 bits may be among those that meet the rows.
  Activations(int64_t rows, int64_t size, bool fast, bool four_bits);
  int64_t units() const { return size / kUnit; }
  int64_t half_stride() const { return 2 * size + kLine; }  // bytes from a row to the next
  const int8_t* half(int i, int64_t row) const { return halves.data() + (i * rows + row) * half_stride(); }
  const int8_t* digit(int i, int64_t row) const { return whole.data() + (i * rows + row) * stride; }
  const int32_t* sums(int64_t group, int i, int64_t row) const {
    return group == 16 ? negative.data() + (i * rows + row) * 2 * units()
                       : negative.data() + digits * rows * 2 * units() + (i * rows + row) * units();
  }
  const float* totals(int64_t group, int64_t row) const {
    return group == 16 ? total.data() + row * 2 * units() : total.data() + rows * 2 * units() + row * units();
  }
};

// Eight units of sixteen outputs, unpacked.
struct Chunk {
  alignas(64) uint8_t quants[kChunkUnits][kUnitRows][kLine];
  alignas(64) float scale[2 * kChunkUnits][kTileOutputs], minimum[2 * kChunkUnits][kTileOutputs];
};

struct TileTask {
  const Form* form;
  const uint8_t *quants, *scales;  // of the tile
};

struct QuantisedKernel {
  const char* name;
  // Fills row `row` of `to` from `to.size` floats.
  void (*digits)(const float* x, int64_t row, const Activations& to);
  // sums[(t * rows + m) * 16 + o] = product of row m with output o of tile t, for all rows and up to kMostTiles tiles of
  // one form.
  void (*multiply)(const Activations& x, const TileTask* w, int64_t tiles, float* sums);
  bool halves = false;  // whether it reads those of more than kAlone rows
};

extern const QuantisedKernel kQuantisedGeneric, kQuantisedAvx2, kQuantisedVnni, kQuantisedAmx;

// The one that goes with kernels(); AMX where the system lets this process use it.
const QuantisedKernel& quantised_kernel();

}  // namespace caw
