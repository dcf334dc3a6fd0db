// quantized_linear with AMX: a tile holds the sums of sixteen rows and sixteen outputs. Few rows go without tiles.
#include "kernels_common.h"
#include "quantized.h"

#if CAW_BUILDS_AMX
CAW_BEGIN_TARGET("amx-tile,amx-int8,avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#define CAW_LEVEL 3
namespace caw {
namespace {
#include "simd.inc"

#include "quantized.inc"

constexpr int64_t kTileRows = 16;
constexpr int kQuants = 6, kDigit = 7;  // tiles; sums are in 0 to 2 and, of every other step, in 3 to 5

struct alignas(64) TileShape {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

// depth: bytes of each row, and of each output, that go into a sum.
static void shape_tiles(int64_t rows, int64_t depth) {
  TileShape shape;
  for (int i = 0; i < 2 * kDigits; ++i) shape.bytes[i] = kLine, shape.rows[i] = uint8_t(rows);
  shape.bytes[kQuants] = kLine, shape.rows[kQuants] = uint8_t(depth / 4);
  shape.bytes[kDigit] = uint16_t(depth), shape.rows[kDigit] = uint8_t(rows);
  asm volatile("" : : "r"(&shape) : "memory");  // GCC's intrinsic declares only 8 of the 64 bytes that it reads
  _tile_loadconfig(&shape);
}

// A group's sums: of one digit, of three, or of two halves of twelve bits (kHalves), which quants of 4 bits leave room for.
// A half is a low and a high part, low + 16 high, that lie beside each other and meet the quants and 16 times the quants.
constexpr int kHalves = 2;
using TileSums = int32_t[kDigits][kTileRows][kTileOutputs];

// What the sums of a chunk's groups are made of, `depth` bytes of a row each, kGroups of them a unit of `record` bytes;
// `whole`: the first row's, of the first plane.
struct TileInput {
  const int8_t* whole;
  int64_t plane, stride, depth, record;
};

// Sums of one group of inputs into tiles A, B and C.
#define CAW_GROUP_SUMS(A, B, C)               \
  _tile_loadd(6, quants, kLine);                   \
  _tile_zero(A);                                   \
  _tile_loadd(7, digit, x.stride);                 \
  _tile_dpbssd(A, 7, 6);                           \
  if constexpr (D > 1) {                           \
    _tile_zero(B);                                 \
    _tile_loadd(7, digit + x.plane, x.stride);     \
    _tile_dpbssd(B, 7, 6);                         \
  }                                                \
  if constexpr (D > 2) {                           \
    _tile_zero(C);                                 \
    _tile_loadd(7, digit + 2 * x.plane, x.stride); \
    _tile_dpbssd(C, 7, 6);                         \
  }

#define CAW_STORE_SUMS(A, B, C)                        \
  _tile_stored(A, to[0], kLine);                       \
  if constexpr (D > 1) _tile_stored(B, to[1], kLine);  \
  if constexpr (D > 2) _tile_stored(C, to[2], kLine);

template <int D, int64_t kGroups>
CAW_INLINE void group_sums(int64_t set, const TileInput& x, int64_t group, const uint8_t* quants) {
  const int8_t* digit = x.whole + group / kGroups * x.record + group % kGroups * x.depth;
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

// What they come to, as floats. Of halves the sum is below 2^31, so it is rounded once, as that of three digits is.
template <int D>
CAW_INLINE vf group_total(const __m512i* sum) {
  if constexpr (D == 1) return _mm512_cvtepi32_ps(sum[0]);
  if constexpr (D == kHalves) return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(sum[1], 12), sum[0]));
  const __m512i low = _mm512_add_epi32(_mm512_slli_epi32(sum[D > 1 ? 1 : 0], 8), sum[0]);
  return fma(_mm512_cvtepi32_ps(sum[D - 1]), set1(65536.0f), _mm512_cvtepi32_ps(low));
}

struct TileChunk {
  Chunk plain;
  alignas(64) uint8_t doubled[kChunkUnits][2 * kUnitRows][kLine];  // quants of 4 bits less 8, then 16 times as much
};

static void unpack_doubled(const uint8_t* planes, int64_t units, TileChunk& to) {
  const __m512i low = _mm512_set1_epi8(15), high = _mm512_set1_epi8(char(0xF0));
  const __m512i eight = _mm512_set1_epi8(8), top = _mm512_set1_epi8(char(0x80));
  for (int64_t u = 0; u < units; ++u)
    for (int r = 0; r < kUnitRows / 2; ++r) {
      const __m512i line = _mm512_loadu_si512(planes + u * plane_bytes(4) + r * kLine);
      const auto keep = [&](int row, __m512i x) { _mm512_store_si512(to.doubled[u][row], x); };
      keep(r, _mm512_sub_epi8(_mm512_and_si512(line, low), eight));
      keep(r + 4, _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16(line, 4), low), eight));
      keep(r + 8, _mm512_xor_si512(_mm512_and_si512(_mm512_slli_epi16(line, 4), high), top));
      keep(r + 12, _mm512_xor_si512(_mm512_and_si512(line, high), top));
    }
}

// Rows m to m + rows, over kTiles tiles of outputs by turns: digits that the first one reads come from the first-level
// cache for the second.
template <int64_t kGroup, int D, int64_t kTiles>
static void tile_rows(const Activations& x, int64_t m, int64_t rows, int64_t unit, int64_t units, const TileChunk* chunks,
    const Coming* coming, bool minimum, float* sums) {
  constexpr int64_t kGroups = kUnit / kGroup;
  alignas(64) TileSums parts[2];
  // read once: as far as the compiler knows, what is added to may be the sizes themselves
  const int64_t apart = x.stride, record = x.record, all = x.rows * kTileOutputs, count = units * kGroups * kTiles;
  const int8_t* known = reinterpret_cast<const int8_t*>(&x.known(m, unit));
  const TileInput input = D == kHalves
      ? TileInput{x.half(0, m) + unit * kLine, x.rows * x.half_stride(), x.half_stride(), kLine, kLine}
      : TileInput{x.digit(0, m, unit), kUnit, apart, kGroup, record};
  // step i is group i / kTiles of tile i % kTiles
  const auto make = [&](int64_t i) {
    const int64_t g = i / kTiles;
    const TileChunk& chunk = chunks[i % kTiles];
    const uint8_t* quants =
        D == kHalves ? chunk.doubled[g][0] : chunk.plain.quants[g / kGroups][g % kGroups * kGroup / 4];
    group_sums<D, kGroups>(i % 2, input, g, quants);
  };
  const auto add = [&](int64_t i) {
    const int64_t g = i / kTiles;
    const Chunk& chunk = chunks[i % kTiles].plain;
    const TileSums& part = parts[i % 2];
    const int8_t* of_unit = known + g / kGroups * record;
    float* to = sums + i % kTiles * all;
    const vf factor = load(chunk.scale[g]), least = minimum ? load(chunk.minimum[g]) : factor;
#pragma GCC unroll 4
    for (int64_t r = 0; r < rows; ++r) {
      __m512i sum[D];
      for (int d = 0; d < D; ++d) sum[d] = _mm512_load_si512(part[d][r]);
      vf total = load(to + r * kTileOutputs);
      const Known& of_row = *reinterpret_cast<const Known*>(of_unit + r * apart);
      total = fma(factor * set1(of_row.scale), group_total<D>(sum), total);
      if (minimum)
        total = fma(least, set1(kGroups == 1 ? of_row.total : half_total(of_row, int(g % kGroups))), total);
      store(to + r * kTileOutputs, total);
    }
  };
  // three steps are in hand at once, because a tile's sums take a hundred cycles from the first load to memory
  make(0);
  for (int64_t i = 0; i < count; ++i) {
    if (coming && i / kTiles % kGroups == 0) coming[i % kTiles].unit(i / kTiles / kGroups);
    if (i + 1 < count) make(i + 1);
    store_sums<D>(i % 2, parts[i % 2]);
    if (i > 0) add(i - 1);
  }
  add(count - 1);
}

template <int64_t kGroup, int D, int64_t kTiles>
static void tiled(const Activations& x, const TileTask* w, float* sums) {
  TileChunk chunks[kTiles];
  const int64_t parts = (x.rows + kTileRows - 1) / kTileRows, most = (x.rows + parts - 1) / parts;
  shape_tiles(most, D == kHalves ? kLine : kGroup);
  for (int64_t unit = 0; unit < x.units(); unit += kChunkUnits) {
    const int64_t units = x.units() - unit < kChunkUnits ? x.units() - unit : kChunkUnits;
    for (int64_t t = 0; t < kTiles; ++t) {
      if constexpr (D == kHalves) {
        unpack_doubled(w[t].quants + unit * plane_bytes(4), units, chunks[t]);
        unpack_scales(w[t], unit, units, chunks[t].plain);
      } else {
        unpack<true>(w[t], unit, units, chunks[t].plain);
      }
    }
    const Coming coming[kMostTiles] = {Coming(w[0], unit), Coming(w[kTiles - 1], unit)};
    for (int64_t m = 0; m < x.rows; m += most)
      tile_rows<kGroup, D, kTiles>(x, m, x.rows - m < most ? x.rows - m : most, unit, units, chunks,
          m ? nullptr : coming, w->form->minimum, sums + m * kTileOutputs);
  }
  _tile_release();
}

template <int64_t kTiles>
static void multiply_tiles(const Activations& x, const TileTask* w, float* sums) {
  if (w->form->group == 16)
    return x.digits == 1 ? tiled<16, 1, kTiles>(x, w, sums) : tiled<16, kDigits, kTiles>(x, w, sums);
  if (x.digits == 1) return tiled<32, 1, kTiles>(x, w, sums);
  return w->form->bits == 4 && x.halves.data() ? tiled<32, kHalves, kTiles>(x, w, sums)
                                               : tiled<32, kDigits, kTiles>(x, w, sums);
}

static void multiply(const Activations& x, const TileTask* w, int64_t tiles, float* sums) {
  // the same bits either way: sums over a group are exact
  if (x.rows <= kAlone) return kQuantizedVnni.multiply(x, w, tiles, sums);
  std::memset(sums, 0, size_t(tiles * x.rows * kTileOutputs) * sizeof(float));
  return tiles == 1 ? multiply_tiles<1>(x, w, sums) : multiply_tiles<kMostTiles>(x, w, sums);
}

// The three digits of a row as two halves.
static void halve(int64_t row, const Activations& to) {
  for (int64_t k = 0; k < to.size; k += 16) {
    const auto digit = [&](int i) {
      return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(to.digit(i, row, k / kUnit) + k % kUnit)));
    };
    const __m512i above = _mm512_add_epi32(_mm512_slli_epi32(digit(1), 8), _mm512_slli_epi32(digit(2), 16));
    const __m512i whole = _mm512_add_epi32(digit(0), above);
    const __m512i low = _mm512_srai_epi32(_mm512_slli_epi32(whole, 20), 20);
    const __m512i halves[2] = {low, _mm512_srai_epi32(_mm512_sub_epi32(whole, low), 12)};
    for (int i = 0; i < 2; ++i) {
      int8_t* place = const_cast<int8_t*>(to.half(i, row)) + k / kUnit * kLine + k % kUnit;
      const __m512i least = _mm512_and_si512(halves[i], _mm512_set1_epi32(15));
      _mm_storeu_si128((__m128i*)place, _mm512_cvtepi32_epi8(least));
      _mm_storeu_si128((__m128i*)(place + kUnit), _mm512_cvtepi32_epi8(_mm512_srai_epi32(halves[i], 4)));
    }
  }
}

static void tile_digits(const float* x, int64_t row, const Activations& to) {
  digits(x, row, to);
  if (to.halves.data()) halve(row, to);
}
}  // namespace
extern const QuantizedKernel kQuantizedAmx = {"amx", tile_digits, multiply, true};
}  // namespace caw
CAW_END_TARGET
#endif
