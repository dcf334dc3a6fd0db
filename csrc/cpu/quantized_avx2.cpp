// quantized_linear for AVX2.
#include "kernels_common.h"
#include "quantized.h"

#if CAW_X86
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#define CAW_LEVEL 2
namespace caw {
namespace {
#include "simd.inc"

#include "quantized.inc"

// Adds to each lane of 32 bits the four products of bytes, unsigned times signed. Sums of two must fit 16 bits, which
// they do below 7 bits; of 8 the low and the high four go by themselves.
template <bool kEight>
CAW_INLINE __m256i products(__m256i sum, __m256i quants, __m256i digits) {
  if constexpr (!kEight)
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(quants, digits), _mm256_set1_epi16(1)));
  const __m256i mask = _mm256_set1_epi8(15);
  const __m256i low = _mm256_maddubs_epi16(_mm256_and_si256(quants, mask), digits);
  const __m256i high = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(quants, 4), mask), digits);
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(low, _mm256_set1_epi16(1)));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(high, _mm256_set1_epi16(16)));
}

template <int D>
CAW_INLINE vf joined(const __m256i* sum) {
  if constexpr (D == 1) return _mm256_cvtepi32_ps(sum[0]);
  const __m256i low = _mm256_add_epi32(_mm256_slli_epi32(sum[D > 1 ? 1 : 0], 8), sum[0]);
  return fma(_mm256_cvtepi32_ps(sum[D - 1]), set1(65536.0f), _mm256_cvtepi32_ps(low));
}

struct Sums {
  // One row and half of the outputs at a time: there are but sixteen registers.
  template <int64_t kGroup, int D, bool kEight>
  static inline void half(const Activations& x, int64_t m, int64_t unit, int64_t units, int shift, const Chunk& chunk,
      bool minimum, int first, float* sums) {
    constexpr int64_t kGroups = kUnit / kGroup, kRows = kGroup / 4;
    vf total = load(sums + first);
    for (int64_t g = 0; g < units * kGroups; ++g) {
      const int64_t u = g / kGroups, h = g % kGroups, from = h * kRows;
      const Known& known = x.known(m, unit + u);
      const int32_t* starts = kGroups == 1 ? known.start : known.half[h];
      const int8_t* digit = x.digit(0, m, unit + u) + from * 4;
      __m256i sum[D];
      for (int d = 0; d < D; ++d)
        sum[d] = d == 1 ? _mm256_setzero_si256() : _mm256_set1_epi32(starts[d / 2] * (1 << shift));
      for (int64_t k = 0; k < kRows; ++k) {
        const __m256i quants = _mm256_load_si256((const __m256i*)(chunk.quants[u][from + k] + 4 * first));
        for (int d = 0; d < D; ++d) {
          int32_t four;
          std::memcpy(&four, digit + d * kUnit + k * 4, 4);
          sum[d] = products<kEight>(sum[d], quants, _mm256_set1_epi32(four));
        }
      }
      total = fma(load(chunk.scale[g] + first) * set1(known.scale), joined<D>(sum), total);
      const float whole = kGroups == 1 ? known.total : half_total(known, int(h));
      if (minimum) total = fma(load(chunk.minimum[g] + first), set1(whole), total);
    }
    store(sums + first, total);
  }

  template <int64_t kGroup, int R, int D>
  static void rows(const Activations& x, int64_t m, int64_t unit, int64_t units, int shift, const Chunk& chunk,
      const Coming* coming, bool minimum, float* sums) {
    for (int64_t u = 0; coming && u < units; ++u) coming->unit(u);
    for (int r = 0; r < R; ++r)
      for (int first = 0; first < kTileOutputs; first += W) {
        float* to = sums + r * kTileOutputs;
        if (shift == 7)
          half<kGroup, D, true>(x, m + r, unit, units, shift, chunk, minimum, first, to);
        else
          half<kGroup, D, false>(x, m + r, unit, units, shift, chunk, minimum, first, to);
      }
  }
};

#include "quantized_rows.inc"
}  // namespace
extern const QuantizedKernel kQuantizedAvx2 = {"avx2", digits, multiply};
}  // namespace caw
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
