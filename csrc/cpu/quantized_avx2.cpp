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

#include "quantized_forms.inc"

constexpr int64_t kMostRows = 4, kMostFast = 8;  // of a pass

typedef uint16_t HalfLine __attribute__((vector_size(32)));

template <int D>
CAW_INLINE vf joined(const __m256i* sum) {
  if constexpr (D == 1) return _mm256_cvtepi32_ps(sum[0]);
  const __m256i low = _mm256_add_epi32(_mm256_slli_epi32(sum[D > 1 ? 1 : 0], 8), sum[0]);
  return fma(_mm256_cvtepi32_ps(sum[D - 1]), set1(65536.0f), _mm256_cvtepi32_ps(low));
}

// Rows of quants whose products add up in 16 bits: each adds two products of bytes, unsigned times signed. Of quants of 8
// bits the low and the high four go by themselves.
constexpr int rows_that_fit(int bits) { return bits <= 4 || bits == 8 ? 8 : bits == 5 ? 4 : 2; }

template <class F, int R, int D>
CAW_INLINE void add_group(const int8_t* const* row, const uint8_t* planes, const Scales<F>& scales, int64_t group,
    int half, int part, vf (&total)[R][kParts]) {
  constexpr int kRows = F::kGroup / 4, kFit = rows_that_fit(F::kBits), kSome = kFit < kRows ? kFit : kRows;
  constexpr int kNibbles = F::kBits == 8 ? 2 : 1;
  const auto line = [&](int i, HalfLine& to) __attribute__((always_inline)) {
    std::memcpy(&to, planes + i * kLine + part * sizeof(HalfLine), sizeof(HalfLine));
  };
  asm volatile("" : : : "memory");  // else digits are read for both parts at once, into registers that there are not
  __m256i sum[R][D];
#pragma GCC unroll 2
  for (int nibble = 0; nibble < kNibbles; ++nibble)
#pragma GCC unroll 8
    for (int first = 0; first < kRows; first += kSome) {
      __m256i some[R][D];
#pragma GCC unroll 8
      for (int k = first; k < first + kSome; ++k) {
        HalfLine quants;
        quant_row<F::kBits>(line, half * kRows + k, quants);
        if constexpr (kNibbles == 2) quants = (quants >> (4 * nibble)) & 0x0F0F;
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 3
          for (int d = 0; d < D; ++d) {
            int32_t four;
            std::memcpy(&four, row[r] + d * kUnit + half * F::kGroup + k * 4, 4);
            const __m256i pairs = _mm256_maddubs_epi16((__m256i)quants, _mm256_set1_epi32(four));
            some[r][d] = k == first ? pairs : _mm256_add_epi16(some[r][d], pairs);
            asm("" : "+x"(some[r][d]));  // else compilers add pairs up in a tree, for which there are too few registers
          }
      }
      const __m256i one = _mm256_set1_epi16(nibble ? 16 : 1);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 3
        for (int d = 0; d < D; ++d) {
          const __m256i fours = _mm256_madd_epi16(some[r][d], one);
          sum[r][d] = nibble || first ? _mm256_add_epi32(sum[r][d], fours) : fours;
        }
    }
  const vf scale = scales.scale(group, part);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Known& known = known_of<D>(row[r]);
    const int32_t* start = F::kGroups == 1 ? known.start : known.half[half];
#pragma GCC unroll 3
    for (int d = 0; d < D; d += 2)
      sum[r][d] = _mm256_add_epi32(sum[r][d], _mm256_set1_epi32(start[d / 2] * (1 << (F::kBits - 1))));
    total[r][part] = fma(scale * set1(known.scale), joined<D>(sum[r]), total[r][part]);
  }
  add_minima<F, R, D>(row, scales, group, half, part, scale, total);
}

#include "quantized_passes.inc"
}  // namespace
extern const QuantizedKernel kQuantizedAvx2 = {"avx2", digits, multiply};
}  // namespace caw
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
