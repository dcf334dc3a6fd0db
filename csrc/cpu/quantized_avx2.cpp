// quantized_linear for AVX2, and, included by quantized_avxvnni.cpp, for AVX2 with products of bytes.
#include "kernels_common.h"
#include "quantized.h"

#ifndef CAW_DOTS  // whether four products of bytes are added to 32 bits in one instruction
#define CAW_DOTS 0
#define CAW_SET "avx2,fma,f16c"
#endif

#if CAW_X86
CAW_BEGIN_TARGET(CAW_SET)
#define CAW_LEVEL 2
namespace caw {
namespace {
#include "simd.inc"

#include "quantized.inc"

#include "quantized_forms.inc"

constexpr int kMostRows = 4, kMostUnpacked = 2, kMostFast = 8;  // of a pass
constexpr int kMostSums = 12;  // that the registers hold beside quants and digits

typedef uint16_t HalfLine __attribute__((vector_size(32)));

// What turns a sum over quants from 0 on into that over quants around 0 (Known::start).
template <int kBits>
CAW_INLINE __m256i centred(int32_t start) { return _mm256_slli_epi32(_mm256_set1_epi32(start), kBits - 1); }

// Digits' sums as floats. The middle one's is multiplied by 256, and the highest one's where all fit 32 bits: a sum of
// quants of 4 bits is below 2^31 and so is rounded once either way.
template <int kBits>
constexpr bool kAllFit = kBits <= 4;
template <int kBits, int D>
CAW_INLINE vf joined(const __m256i* sum, const int32_t* start) {
  const __m256i low = D > 1 ? _mm256_add_epi32(sum[0], sum[D > 1 ? 1 : 0]) : sum[0], high = sum[D - 1];
  if constexpr (D > 1 && kAllFit<kBits>)
    return _mm256_cvtepi32_ps(_mm256_add_epi32(
        _mm256_add_epi32(low, centred<kBits>(start[0] + start[1] * 65536)), _mm256_slli_epi32(high, 8)));
  const vf least = _mm256_cvtepi32_ps(_mm256_add_epi32(low, centred<kBits>(start[0])));
  if constexpr (D == 1) return least;
  return fma(_mm256_cvtepi32_ps(_mm256_add_epi32(high, centred<kBits>(start[1]))), set1(65536.0f), least);
}

// Rows of quants whose products add up: in 16 bits, to which each row adds two products of bytes, unsigned times signed,
// or in 32. widened: the sums in 32 bits, 256 times them where `joined` wants that.
#if CAW_DOTS
constexpr int rows_that_fit(int) { return 8; }
CAW_INLINE __m256i add_row(__m256i sums, __m256i quants, __m256i digits, bool first) {
  return _mm256_dpbusd_avx_epi32(first ? _mm256_setzero_si256() : sums, quants, digits);
}
CAW_INLINE __m256i widened(__m256i sums, bool times) { return times ? _mm256_slli_epi32(sums, 8) : sums; }
#else
constexpr int rows_that_fit(int bits) { return bits <= 4 ? 8 : bits == 5 ? 4 : 2; }
CAW_INLINE __m256i add_row(__m256i sums, __m256i quants, __m256i digits, bool first) {
  const __m256i pairs = _mm256_maddubs_epi16(quants, digits);
  return first ? pairs : _mm256_add_epi16(sums, pairs);
}
CAW_INLINE __m256i widened(__m256i sums, bool times) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(times ? 256 : 1)); }
#endif

// Of the outputs `part` and what follows up to P parts: rows that leave registers for both read their digits once.
template <class F, int R, int D, int P>
CAW_INLINE void add_group(const int8_t* const* row, const uint8_t* planes, const Scales<F>& scales, int64_t group,
    int half, int part, vf (&total)[R][kParts]) {
  constexpr int kRows = F::kGroup / 4, kFit = rows_that_fit(F::kBits), kSome = kFit < kRows ? kFit : kRows;
  asm volatile("" : : : "memory");  // else digits are read for both parts at once, into registers that there are not
  __m256i sum[R][D][P];
#pragma GCC unroll 8
  for (int first = 0; first < kRows; first += kSome) {
    __m256i some[R][D][P];
#pragma GCC unroll 8
    for (int k = first; k < first + kSome; ++k) {
      HalfLine quants[P];
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) {
        const auto line = [&](int i, HalfLine& to) __attribute__((always_inline)) {
          std::memcpy(&to, planes + i * kLine + (part + p) * sizeof(HalfLine), sizeof(HalfLine));
        };
        quant_row<F::kStored>(line, half * kRows + k, quants[p]);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 3
        for (int d = 0; d < D; ++d) {
          int32_t four;
          std::memcpy(&four, row[r] + d * kUnit + half * F::kGroup + k * 4, 4);
#pragma GCC unroll 2
          for (int p = 0; p < P; ++p) {
            __m256i& to = some[r][d][p];
            to = add_row(to, (__m256i)quants[p], _mm256_set1_epi32(four), k == first);
            asm("" : "+x"(to));  // else compilers add pairs up in a tree, for which there are too few registers
          }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 3
      for (int d = 0; d < D; ++d)
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) {
          const __m256i fours = widened(some[r][d][p], d == 1 || (d && kAllFit<F::kBits>));
          sum[r][d][p] = first ? _mm256_add_epi32(sum[r][d][p], fours) : fours;
        }
  }
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) {
    const vf scale = scales.scale(group, part + p);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Known& known = known_of<D>(row[r]);
      __m256i own[D];
#pragma GCC unroll 3
      for (int d = 0; d < D; ++d) own[d] = sum[r][d][p];
      const vf product = joined<F::kBits, D>(own, F::kGroups == 1 ? known.start : known.half[half]);
      total[r][part + p] = fma(scale * set1(known.scale), product, total[r][part + p]);
    }
    add_minima<F, R, D>(row, scales, group, half, part + p, scale, total);
  }
}

// Two products of quants of 8 bits would not fit 16, so quants are multiplied as numbers of 16 bits. Then two digits
// take the time of one: the low two are a number in [-32896, 32639], kept with 128 added, and the highest is another.
// [numbers][first and third, second and fourth input of a row of four][rows], as shifts take quants apart.
template <int D>
using Pairs = int32_t[D == 1 ? 1 : 2][2][kUnitRows];

CAW_INLINE __m256i even(__m256i bytes) { return _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8); }
CAW_INLINE __m256i odd(__m256i bytes) { return _mm256_srai_epi16(bytes, 8); }

template <int D>
CAW_INLINE void pair_digits(const int8_t* record, Pairs<D>& to) {
  const auto digit = [&](int d) __attribute__((always_inline)) {
    return _mm256_loadu_si256((const __m256i*)(record + d * kUnit));
  };
  const auto keep = [&](int n, __m256i first, __m256i second) __attribute__((always_inline)) {
    std::memcpy(to[n][0], &first, sizeof(first)), std::memcpy(to[n][1], &second, sizeof(second));
  };
  if constexpr (D == 1) return keep(0, even(digit(0)), odd(digit(0)));
  const __m256i low = digit(0), middle = digit(1), high = digit(D - 1), add = _mm256_set1_epi16(128);
  keep(0, _mm256_add_epi16(_mm256_add_epi16(even(low), add), _mm256_slli_epi16(middle, 8)),
      _mm256_add_epi16(_mm256_add_epi16(odd(low), add), _mm256_and_si256(middle, _mm256_set1_epi16(-256))));
  if constexpr (D > 1) keep(1, even(high), odd(high));
}

template <class F, int R, int D>
CAW_INLINE void add_bytes(const int8_t* const* row, const uint8_t* planes, const Scales<F>& scales, int64_t group,
    vf (&total)[R][kParts]) {
  constexpr int N = D == 1 ? 1 : 2;
  alignas(32) Pairs<D> pairs[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) pair_digits<D>(row[r], pairs[r]);
  for (int part = 0; part < kParts; ++part) {
    asm volatile("" : : "r"(pairs) : "memory");  // else all are broadcast at once, into registers that there are not
    __m256i sum[R][N], added = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int k = 0; k < kUnitRows; ++k) {
      const __m256i quants = _mm256_loadu_si256((const __m256i*)(planes + k * kLine + part * sizeof(HalfLine)));
      const __m256i apart[2] = {_mm256_and_si256(quants, _mm256_set1_epi16(255)), _mm256_srli_epi16(quants, 8)};
      if constexpr (D > 1) added = _mm256_add_epi16(added, _mm256_maddubs_epi16(quants, _mm256_set1_epi8(1)));
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
          for (int n = 0; n < N; ++n) {
            const __m256i twos = _mm256_madd_epi16(apart[i], _mm256_set1_epi32(pairs[r][n][i][k]));
            sum[r][n] = k + i ? _mm256_add_epi32(sum[r][n], twos) : twos;
            asm("" : "+x"(sum[r][n]));
          }
    }
    added = _mm256_madd_epi16(added, _mm256_set1_epi16(-128));  // less what the 128 came to
    const vf scale = scales.scale(group, part);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Known& known = known_of<D>(row[r]);
      const __m256i low = _mm256_add_epi32(sum[r][0], centred<F::kBits>(known.start[0]));
      vf product = _mm256_cvtepi32_ps(_mm256_add_epi32(low, added));
      if constexpr (D > 1) {
        const __m256i high = _mm256_add_epi32(sum[r][1], centred<F::kBits>(known.start[1]));
        product = fma(_mm256_cvtepi32_ps(high), set1(65536.0f), product);
      }
      total[r][part] = fma(scale * set1(known.scale), product, total[r][part]);
    }
  }
}

template <class F, int R, int D>
CAW_INLINE void add_groups(const int8_t* const* row, const uint8_t* planes, const Scales<F>& scales, int64_t group,
    int half, vf (&total)[R][kParts]) {
  if constexpr (F::kBits == 8 && !CAW_DOTS)
    add_bytes<F, R, D>(row, planes, scales, group, total);
  else if constexpr (R * D * kParts <= kMostSums)
    add_group<F, R, D, kParts>(row, planes, scales, group, half, 0, total);
  else
    for (int part = 0; part < kParts; ++part) add_group<F, R, D, 1>(row, planes, scales, group, half, part, total);
}

#include "quantized_passes.inc"
}  // namespace
#if CAW_DOTS
extern const QuantizedKernel kQuantizedAvxVnni = {"avxvnni", digits, multiply};
#else
extern const QuantizedKernel kQuantizedAvx2 = {"avx2", digits, multiply};
#endif
}  // namespace caw
CAW_END_TARGET
#endif
