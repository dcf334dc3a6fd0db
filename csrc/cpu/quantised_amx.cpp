// quantised_linear with AMX: a tile holds the sums of sixteen rows and sixteen outputs. Few rows go without tiles.
#include "kernels_common.h"
#include "quantised.h"

#if CAW_X86
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("amx-tile,amx-int8,avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("amx-tile,amx-int8,avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif
#define CAW_LEVEL 3
namespace caw {
namespace {
#include "simd.inc"

#include "quantised.inc"

#include "quantised_vnni.inc"

constexpr int64_t kTileRows = 16;
constexpr int kQuants = 6, kDigit = 7;  // tiles; sums are in 0 to 2 and, of every other group, in 3 to 5

struct alignas(64) TileShape {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

static void shape_tiles(int64_t rows, int64_t group) {
  TileShape shape;
  for (int i = 0; i < 2 * kDigits; ++i) shape.bytes[i] = kLine, shape.rows[i] = uint8_t(rows);
  shape.bytes[kQuants] = kLine, shape.rows[kQuants] = uint8_t(group / 4);
  shape.bytes[kDigit] = uint16_t(group), shape.rows[kDigit] = uint8_t(rows);
  asm volatile("" : : "r"(&shape) : "memory");  // GCC's intrinsic declares only 8 of the 64 bytes that it reads
  _tile_loadconfig(&shape);
}

using TileSums = int32_t[kDigits][kTileRows][kTileOutputs];

// Sums of one group of inputs into tiles A, B and C. `digit`: the first row's place in the plane of the low digits.
#define CAW_GROUP_SUMS(A, B, C)               \
  _tile_loadd(6, quants, kLine);              \
  _tile_zero(A);                              \
  _tile_loadd(7, digit, stride);              \
  _tile_dpbssd(A, 7, 6);                      \
  if constexpr (D > 1) {                      \
    _tile_zero(B);                            \
    _tile_loadd(7, digit + plane, stride);    \
    _tile_dpbssd(B, 7, 6);                    \
    _tile_zero(C);                            \
    _tile_loadd(7, digit + 2 * plane, stride); \
    _tile_dpbssd(C, 7, 6);                    \
  }

#define CAW_STORE_SUMS(A, B, C)       \
  _tile_stored(A, to[0], kLine);      \
  if constexpr (D > 1) {              \
    _tile_stored(B, to[1], kLine);    \
    _tile_stored(C, to[2], kLine);    \
  }

template <int D>
CAW_INLINE void group_sums(int64_t set, const int8_t* digit, int64_t plane, int64_t stride, const uint8_t* quants) {
  if (set == 0) {
    CAW_GROUP_SUMS(0, 1, 2)
  } else {
    CAW_GROUP_SUMS(3, 4, 5)
  }
}

template <int D>
CAW_INLINE void store_sums(int64_t set, TileSums& to) {
  if (set == 0) {
    CAW_STORE_SUMS(0, 1, 2)
  } else {
    CAW_STORE_SUMS(3, 4, 5)
  }
}

template <int64_t kGroup, int D>
static void tile_rows(const Activations& x, int64_t m, int64_t rows, int64_t unit, int64_t units, const Chunk& chunk,
    bool minimum, float* sums) {
  constexpr int64_t kGroups = kUnit / kGroup;
  alignas(64) TileSums parts[2];
  const int64_t plane = x.rows * x.stride, count = units * kGroups;
  const float *scales = x.scale.data() + m * x.units() + unit, *totals = x.totals(kGroup, m) + unit * kGroups;
  const int8_t* digit = x.digit(0, m) + unit * kUnit;
  const auto make = [&](int64_t g) {
    group_sums<D>(g % 2, digit + g * kGroup, plane, x.stride, chunk.quants[g / kGroups][g % kGroups * kGroup / 4]);
  };
  const auto add = [&](int64_t g) {
    const TileSums& part = parts[g % 2];
    const vf factor = load(chunk.scale[g]), least = minimum ? load(chunk.minimum[g]) : factor;
    for (int64_t r = 0; r < rows; ++r) {
      __m512i sum[D];
      for (int d = 0; d < D; ++d) sum[d] = _mm512_load_si512(part[d][r]);
      vf total = load(sums + r * kTileOutputs);
      total = fma(factor * set1(scales[r * x.units() + g / kGroups]), joined<D>(sum), total);
      if (minimum) total = fma(least, set1(totals[r * x.units() * kGroups + g]), total);
      store(sums + r * kTileOutputs, total);
    }
  };
  // three groups are in hand at once, because a tile's sums take a hundred cycles from the first load to memory
  make(0);
  for (int64_t g = 0; g < count; ++g) {
    if (g + 1 < count) make(g + 1);
    store_sums<D>(g % 2, parts[g % 2]);
    if (g > 0) add(g - 1);
  }
  add(count - 1);
}

template <int64_t kGroup, int D>
static void tiled(const Activations& x, const TileTask& w, float* sums) {
  Chunk chunk;
  const int64_t parts = (x.rows + kTileRows - 1) / kTileRows, most = (x.rows + parts - 1) / parts;
  shape_tiles(most, kGroup);
  for (int64_t unit = 0; unit < x.units(); unit += kChunkUnits) {
    const int64_t units = x.units() - unit < kChunkUnits ? x.units() - unit : kChunkUnits;
    unpack<true>(w, unit, units, chunk);
    for (int64_t m = 0; m < x.rows; m += most)
      tile_rows<kGroup, D>(x, m, x.rows - m < most ? x.rows - m : most, unit, units, chunk, w.form->minimum,
          sums + m * kTileOutputs);
  }
  _tile_release();
}

static void multiply(const Activations& x, const TileTask& w, float* sums) {
  // the same bits either way: sums over a group are exact
  if (x.rows <= kAlone) return kQuantisedVnni.multiply(x, w, sums);
  std::memset(sums, 0, size_t(x.rows * kTileOutputs) * sizeof(float));
  if (w.form->group == 16) return x.digits == 1 ? tiled<16, 1>(x, w, sums) : tiled<16, kDigits>(x, w, sums);
  return x.digits == 1 ? tiled<32, 1>(x, w, sums) : tiled<32, kDigits>(x, w, sums);
}
}  // namespace
extern const QuantisedKernel kQuantisedAmx = {"amx", digits, multiply};
}  // namespace caw
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
