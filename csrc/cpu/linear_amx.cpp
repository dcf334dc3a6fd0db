// small_linear of bfloat16 weights with AMX: products of whole tiles, as many for sixteen rows of x as for one.
//
// The weights are the left operand, read where they lie; x is the right one, packed into pairs beforehand. An output is
// one chain of sums over the size, 32 elements at a time in order, in a tile of float32: nothing in it depends on how
// many rows there are.
#include "kernels_common.h"
#include "linear.h"

#if CAW_BUILDS_AMX

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

CAW_BEGIN_TARGET("amx-tile,amx-bf16,avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#define CAW_LEVEL 3
namespace caw {
namespace {
#include "simd.inc"

constexpr int64_t kDepth = 32, kSide = 16;  // of a tile: bfloat16 in a row, rows
constexpr int64_t kStretch = 512;           // elements of the size for which many rows share weights in the cache

// Tile registers, whose numbers become text of an instruction: sums of the first and second half of the outputs, with the
// first block of x and the second; the halves of the weights; the blocks of x.
#define CAW_SUMS_00 0
#define CAW_SUMS_10 1
#define CAW_SUMS_01 2
#define CAW_SUMS_11 3
#define CAW_WEIGHTS_0 4
#define CAW_WEIGHTS_1 5
#define CAW_X_0 6
#define CAW_X_1 7

struct alignas(64) Palette {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};  // of a row
  uint8_t rows[16] = {};

  void set(int tile, int64_t width) { bytes[tile] = uint16_t(width * 4), rows[tile] = width ? kSide : 0; }

  // Blocks of x of these numbers of rows, the second possibly none.
  Palette(int64_t first, int64_t second) {
    for (const int tile : {CAW_SUMS_00, CAW_SUMS_10, CAW_X_0}) set(tile, first);
    for (const int tile : {CAW_SUMS_01, CAW_SUMS_11, CAW_X_1}) set(tile, second);
    for (const int tile : {CAW_WEIGHTS_0, CAW_WEIGHTS_1}) set(tile, kSide);
  }
};

// Sixteen vectors of sixteen 32-bit numbers: rows become columns.
CAW_INLINE void transpose(__m512i* r) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xDD);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xDD);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xDD);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xDD);
  }
}

CAW_INLINE __mmask16 first_lanes(int64_t count) { return __mmask16((1u << count) - 1); }

// Blocks of up to sixteen rows, one behind another; in a block, pair k / 2 of every row, then the next pair.
static void pack_rows(const float* x, int64_t rows, int64_t padded, uint16_t* to) {
  for (int64_t first = 0; first < rows; first += kSide) {
    const int64_t width = rows - first < kSide ? rows - first : kSide;
    const __mmask16 some = first_lanes(width);
    uint32_t* out = reinterpret_cast<uint32_t*>(to + first * padded);
    for (int64_t k = 0; k < padded; k += kDepth) {
      __m512i r[kSide];
      for (int64_t m = 0; m < kSide; ++m) {
        const float* from = x + (first + (m < width ? m : 0)) * padded + k;
        r[m] = (__m512i)_mm512_cvtne2ps_pbh(load(from + W), load(from));
      }
      if (width == 1) {
        _mm512_storeu_si512(out, r[0]);
        out += kSide;
        continue;
      }
      transpose(r);
      for (int64_t pair = 0; pair < kSide; ++pair, out += width) _mm512_mask_storeu_epi32(out, some, r[pair]);
    }
  }
}

// Where the halves of the outputs are read, `step` elements a row; whether what comes next is prefetched.
struct Halves {
  const uint16_t *first, *second;
  int64_t step;
  bool ahead;
};

// Adds 32 elements of the size; x of the blocks: a tile each, `width` pairs a row.
template <bool kTwo>
CAW_INLINE void add_products(
    Halves w, int64_t k, const uint16_t* x0, int64_t width0, const uint16_t* x1, int64_t width1) {
  _tile_loadd(CAW_X_0, x0 + k * width0, width0 * 4);
  if constexpr (kTwo) _tile_loadd(CAW_X_1, x1 + k * width1, width1 * 4);
  _tile_loadd(CAW_WEIGHTS_0, w.first + k, w.step * 2);
  _tile_dpbf16ps(CAW_SUMS_00, CAW_WEIGHTS_0, CAW_X_0);
  if constexpr (kTwo) _tile_dpbf16ps(CAW_SUMS_01, CAW_WEIGHTS_0, CAW_X_1);
  _tile_loadd(CAW_WEIGHTS_1, w.second + k, w.step * 2);
  _tile_dpbf16ps(CAW_SUMS_10, CAW_WEIGHTS_1, CAW_X_0);
  if constexpr (kTwo) _tile_dpbf16ps(CAW_SUMS_11, CAW_WEIGHTS_1, CAW_X_1);
}

// What step k prefetches: of each row what comes kDistance further, or beyond its end of the row 32 below.
constexpr int64_t kDistance = 256;  // elements
CAW_INLINE void prefetch_behind(const Halves& w, int64_t k) {
  const int64_t at = k + kDistance < w.step ? k + kDistance : k + kDistance + (kLinearTile - 1) * w.step;
  for (int64_t r = 0; r < kSide; ++r) {
    __builtin_prefetch(w.first + r * w.step + at, 0, kSecondLevel);
    __builtin_prefetch(w.second + r * w.step + at, 0, kSecondLevel);
  }
}

// out[m * kLinearTile + o] from sums [o, m]: tile `kTile` into output half `half` of a block of `width` rows.
#define CAW_WRITE_SUMS(kTile, half, width, out)                                              \
  do {                                                                                       \
    alignas(64) float sums_of[kSide * kSide];                                                \
    _tile_stored(kTile, sums_of, (width) * 4);                                               \
    __m512i lanes[kSide];                                                                    \
    for (int64_t o = 0; o < kSide; ++o)                                                      \
      lanes[o] = _mm512_maskz_loadu_epi32(first_lanes(width), sums_of + o * (width));        \
    transpose(lanes);                                                                        \
    for (int64_t m = 0; m < (width); ++m)                                                    \
      _mm512_storeu_si512((out) + m * kLinearTile + (half) * kSide, lanes[m]);               \
  } while (false)

// One or two blocks of x over elements [begin, end) of kLinearTile rows of the weight. Sums begin with those of `kept`
// unless `begin` is 0, and are kept there again unless `out` is given. `tail`: elements beyond the last whole tile, by row.
template <bool kTwo>
static void multiply_blocks(Halves w, int64_t begin, int64_t end, const uint16_t* tail, const uint16_t* x0, int64_t width0,
    const uint16_t* x1, int64_t width1, float* kept, float* out) {
  constexpr int64_t kTileSums = kSide * kSide;
  if (begin) {
    _tile_loadd(CAW_SUMS_00, kept, width0 * 4);
    _tile_loadd(CAW_SUMS_10, kept + kTileSums, width0 * 4);
    if constexpr (kTwo) {
      _tile_loadd(CAW_SUMS_01, kept + 2 * kTileSums, width1 * 4);
      _tile_loadd(CAW_SUMS_11, kept + 3 * kTileSums, width1 * 4);
    }
  } else {
    _tile_zero(CAW_SUMS_00);
    _tile_zero(CAW_SUMS_10);
    if constexpr (kTwo) {
      _tile_zero(CAW_SUMS_01);
      _tile_zero(CAW_SUMS_11);
    }
  }
  for (int64_t k = begin; k < end; k += kDepth) {
    if (w.ahead) prefetch_behind(w, k);
    add_products<kTwo>(w, k, x0, width0, x1, width1);
  }
  if (!out) {
    _tile_stored(CAW_SUMS_00, kept, width0 * 4);
    _tile_stored(CAW_SUMS_10, kept + kTileSums, width0 * 4);
    if constexpr (kTwo) {
      _tile_stored(CAW_SUMS_01, kept + 2 * kTileSums, width1 * 4);
      _tile_stored(CAW_SUMS_11, kept + 3 * kTileSums, width1 * 4);
    }
    return;
  }
  if (tail) {
    const Halves last{tail, tail + kSide * kDepth, kDepth, false};
    add_products<kTwo>(last, 0, x0 + end * width0, width0, x1 + end * width1, width1);
  }
  CAW_WRITE_SUMS(CAW_SUMS_00, 0, width0, out);
  CAW_WRITE_SUMS(CAW_SUMS_10, 1, width0, out);
  if constexpr (kTwo) {
    CAW_WRITE_SUMS(CAW_SUMS_01, 0, width1, out + kSide * kLinearTile);
    CAW_WRITE_SUMS(CAW_SUMS_11, 1, width1, out + kSide * kLinearTile);
  }
}

// Weights of a layer's last outputs and last elements, copied where whole tiles would read beyond the end.
struct Edges {
  alignas(64) uint16_t tail[kLinearTile * kDepth] = {};

  static const uint16_t* whole_rows(const uint16_t* weights, int64_t size, int64_t count, int64_t padded) {
    if (padded == 0) return weights;  // nothing to copy, perhaps no memory either
    thread_local Aligned<uint16_t> copy;
    copy.resize(kLinearTile * padded);
    std::memset(copy.data(), 0, size_t(kLinearTile * padded) * 2);
    for (int64_t o = 0; o < count; ++o)
      std::memcpy(copy.data() + o * padded, weights + o * size, size_t(size) * 2);
    return copy.data();
  }

  void take(const uint16_t* weights, int64_t step, int64_t from, int64_t count) {
    for (int64_t o = 0; o < kLinearTile; ++o) std::memcpy(tail + o * kDepth, weights + o * step + from, size_t(count) * 2);
  }
};

static void linear(const void* x, int64_t rows, int64_t padded, const void* weight, int dtype, int64_t size,
    int64_t count, float* out) {
  if (dtype != kBFloat16) return kLinearAvx512.multiply(x, rows, padded, weight, dtype, size, count, out);
  const uint16_t *input = static_cast<const uint16_t*>(x), *weights = static_cast<const uint16_t*>(weight);
  const bool narrow = count < kLinearTile;
  if (narrow) weights = Edges::whole_rows(weights, size, count, padded);
  const int64_t step = narrow ? padded : size, whole = step / kDepth * kDepth;
  Edges edges;
  if (whole < step) edges.take(weights, step, whole, step - whole);
  const uint16_t* tail = whole < step ? edges.tail : nullptr;
  // so many rows that the weights would come from the second-level cache again and again: a stretch of them at a time
  const int64_t stretch = rows > 2 * kSide ? kStretch : std::max(whole, kDepth);
  thread_local Aligned<float> kept;
  constexpr int64_t kEach = 4 * kSide * kSide;
  kept.resize((rows + 2 * kSide - 1) / (2 * kSide) * kEach);
  int64_t set0 = -1, set1 = -1, begin = 0;
  do {
    const int64_t end = std::min(begin + stretch, whole);
    for (int64_t m = 0; m < rows; m += 2 * kSide) {
      const int64_t width0 = std::min(rows - m, kSide), width1 = std::min(rows - m - width0, kSide);
      if (width0 != set0 || width1 != set1) {
        const Palette palette(width0, width1);
        asm volatile("" : : "r"(&palette) : "memory");  // GCC's intrinsic declares only 8 bytes that it reads
        _tile_loadconfig(&palette);
        set0 = width0, set1 = width1;
      }
      const Halves w{weights, weights + kSide * step, step, m == 0 && !narrow};
      const uint16_t *x0 = input + m * padded, *x1 = x0 + width0 * padded;
      float *sums = kept.data() + m / (2 * kSide) * kEach, *to = end < whole ? nullptr : out + m * kLinearTile;
      if (width1) {
        multiply_blocks<true>(w, begin, end, tail, x0, width0, x1, width1, sums, to);
      } else {
        multiply_blocks<false>(w, begin, end, tail, x0, width0, nullptr, 0, sums, to);
      }
    }
    begin = end;
  } while (begin < whole);
  _tile_release();
}

}  // namespace
extern const LinearKernel kLinearAmx = {pack_rows, linear};
}  // namespace caw
CAW_END_TARGET

namespace caw {
// The processor has tiles of bfloat16, and the system lets this process use them: Linux hands them out on request.
bool has_amx() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1)) return false;
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}
}  // namespace caw
#endif
