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

// What a row's unit is beside its digits. start: minus the sums of digits, which quants from 0 on are to begin with; of
// three digits the first number is that of the low two, low + 256 * middle, and the second that of the highest.
struct Known {
  float scale;       // x = scale * sum of digits * 256^i
  float total;       // sum of x
  int32_t start[2];  // of the unit
  int32_t half[2][2];  // of its inputs 0 to 15 and 16 to 31
};
// so that records are whole cache lines, and a unit of one row never shares one with another
static_assert((kUnit + sizeof(Known)) % kLine == 0 && (kDigits * kUnit + sizeof(Known)) % kLine == 0);

// Bytes of a row's unit.
constexpr int64_t record_bytes(bool fast) { return (fast ? 1 : kDigits) * kUnit + int64_t(sizeof(Known)); }

// Rows of activations as digits. A unit's digits, [32] bytes of each, the low one first, and Known lie together, so that
// a kernel needs one address a row.
struct Activations {
  // bytes from unit to unit and from row to row; a stride is no multiple of a page, or all rows would share a cache set
  int64_t rows, size, record, stride;
  int digits;
  Aligned<int8_t> whole;
  Aligned<int8_t> halves;  // [2][rows][half_stride()], where weights of 4 bits and a kernel read them, else none
  // four_bits: whether weights of 4 bits may be among those that meet the rows.
  Activations(int64_t rows, int64_t size, bool fast, bool four_bits);
  int64_t units() const { return size / kUnit; }
  int64_t half_stride() const { return 2 * size + kLine; }  // bytes from a row to the next
  const int8_t* half(int i, int64_t row) const { return halves.data() + (i * rows + row) * half_stride(); }
  const int8_t* digit(int i, int64_t row, int64_t unit) const {
    return whole.data() + row * stride + unit * record + i * kUnit;
  }
  const Known& known(int64_t row, int64_t unit) const {
    return *reinterpret_cast<const Known*>(digit(digits, row, unit));
  }
};

// The sum of x over half a unit: bit for bit scale times the whole number that start makes.
inline float half_total(const Known& known, int half) {
  return known.scale * float(-(known.half[half][0] + known.half[half][1] * 65536));
}

// Eight units of sixteen outputs, unpacked.
struct Chunk {
  alignas(64) uint8_t quants[kChunkUnits][kUnitRows][kLine];
  alignas(64) float scale[2 * kChunkUnits][kTileOutputs], minimum[2 * kChunkUnits][kTileOutputs];
};

struct TileTask {
  const Form* form;
  const uint8_t *quants, *scales;  // of the tile
};

struct QuantizedKernel {
  const char* name;
  // Fills row `row` of `to` from `to.size` floats.
  void (*digits)(const float* x, int64_t row, const Activations& to);
  // sums[(t * rows + m) * 16 + o] = product of row m with output o of tile t, for all rows and up to kMostTiles tiles of
  // one form.
  void (*multiply)(const Activations& x, const TileTask* w, int64_t tiles, float* sums);
  bool halves = false;  // whether it reads those of more than kAlone rows
};

extern const QuantizedKernel kQuantizedGeneric, kQuantizedAvx2, kQuantizedAvxVnni, kQuantizedVnni, kQuantizedAmx;

// The one that goes with kernels(); AMX where the system lets this process use it.
const QuantizedKernel& quantized_kernel();

}  // namespace caw
