// small_linear of bfloat16 weights with AVX512-BF16: 32 products an instruction, twice those of a float product.
//
// x is rounded to bfloat16, which it was before it was widened, or would be in a general product; sums are float32.
#include "kernels_common.h"
#include "linear.h"

#if CAW_BUILDS_AVX512
CAW_BEGIN_TARGET("avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#define CAW_LEVEL 3
namespace caw {
namespace {
#include "simd.inc"

#include "linear_many.inc"

constexpr int64_t kPairLanes = 32;

CAW_INLINE __m512bh pairs(const uint16_t* p) { return (__m512bh)_mm512_loadu_si512(p); }

// For linear_many.inc.
struct Dots {
  using Input = uint16_t;
  using X = __m512bh;
  using Weight = __m512bh;
  static constexpr int64_t kStep = kPairLanes;
  CAW_INLINE __m512bh input(const uint16_t* x) { return pairs(x); }
  CAW_INLINE const char* address(const void* weight, int64_t index) {
    return static_cast<const char*>(weight) + index * int64_t(sizeof(uint16_t));
  }
  CAW_INLINE __m512bh weight(const void* weight, int64_t index) {
    return (__m512bh)_mm512_loadu_si512(address(weight, index));
  }
  CAW_INLINE __m512bh tail(const void* weight, int64_t index, int64_t left) {
    alignas(64) uint16_t last[kPairLanes] = {};
    std::memcpy(last, address(weight, index), size_t(left) * sizeof(uint16_t));
    return pairs(last);
  }
  CAW_INLINE vf add(__m512bh w, __m512bh x, vf sum) { return _mm512_dpbf16_ps(sum, w, x); }
};

template <bool kAlone, int M, int R>
static inline void dot_block(
    const uint16_t* x, int64_t stride, const uint16_t* weight, int64_t size, int64_t first, Ahead ahead, float* out) {
  constexpr int kSums = (R * M + W - 1) / W * W;  // always summed W at a time, or rows would depend on their number
  vf total[kSums];
  for (int i = 0; i < kSums; ++i) total[i] = set1(0.0f);
  const int64_t whole = size / kPairLanes * kPairLanes;
  const char* prefetched = ahead.base + first * ahead.row;
  for (int64_t k = 0; k < whole; k += kPairLanes, prefetched += ahead.step) {
    __m512bh input[M];
    for (int m = 0; m < M; ++m) {
      input[m] = pairs(x + m * stride + k);
      asm("" : "+v"(input[m]));  // kept in its register, not loaded again for every row of the weight
    }
    for (int r = 0; r < R; ++r) {
      const uint16_t* own = weight + (first + r) * size + k;
      __builtin_prefetch(
          kAlone ? reinterpret_cast<const char*>(own) + kAhead : prefetched + r * ahead.row, 0, kSecondLevel);
      const __m512bh w = pairs(own);
      for (int m = 0; m < M; ++m) total[r * M + m] = _mm512_dpbf16_ps(total[r * M + m], w, input[m]);
    }
  }
  if (whole < size) {
    alignas(64) uint16_t tail[kPairLanes] = {};
    for (int r = 0; r < R; ++r) {
      std::memcpy(tail, weight + (first + r) * size + whole, size_t(size - whole) * 2);
      const __m512bh w = pairs(tail);
      for (int m = 0; m < M; ++m)
        total[r * M + m] = _mm512_dpbf16_ps(total[r * M + m], w, pairs(x + m * stride + whole));
    }
  }
  float lanes[kSums];
  for (int i = 0; i < kSums; i += W) store(lanes + i, sums(total + i));
  for (int r = 0; r < R; ++r)
    for (int m = 0; m < M; ++m) out[m * kLinearTile + first + r] = lanes[r * M + m];
}

template <bool kAlone, int M>
static void dot_rows(
    const uint16_t* x, int64_t stride, const uint16_t* weight, int64_t size, int64_t count, Ahead ahead, float* out) {
  constexpr int R = M == 1 ? 8 : 16 / M >= 4 ? 4 : 16 / M >= 2 ? 2 : 1;
  int64_t first = 0;
  for (; first + R <= count; first += R) dot_block<kAlone, M, R>(x, stride, weight, size, first, ahead, out);
  for (; first < count; ++first) dot_block<kAlone, M, 1>(x, stride, weight, size, first, ahead, out);
}

template <bool kAlone>
static void dot_pass(const uint16_t* x, int64_t rows, int64_t stride, const uint16_t* weight, int64_t size, int64_t count,
    Ahead ahead, float* out) {
  switch (rows) {
    case 0: return;
    case 1: return dot_rows<kAlone, 1>(x, stride, weight, size, count, ahead, out);
    case 2: return dot_rows<kAlone, 2>(x, stride, weight, size, count, ahead, out);
    case 3: return dot_rows<kAlone, 3>(x, stride, weight, size, count, ahead, out);
    case 4: return dot_rows<kAlone, 4>(x, stride, weight, size, count, ahead, out);
    case 5: return dot_rows<kAlone, 5>(x, stride, weight, size, count, ahead, out);
    case 6: return dot_rows<kAlone, 6>(x, stride, weight, size, count, ahead, out);
    case 7: return dot_rows<kAlone, 7>(x, stride, weight, size, count, ahead, out);
    default: return dot_rows<kAlone, 8>(x, stride, weight, size, count, ahead, out);
  }
}

static void round_rows(const float* x, int64_t rows, int64_t padded, uint16_t* to) {
  for (int64_t k = 0; k < rows * padded; k += W) _mm256_storeu_si256((__m256i*)(to + k), (__m256i)_mm512_cvtneps_pbh(load(x + k)));
}

static void linear(const void* x, int64_t rows, int64_t padded, const void* weight, int dtype, int64_t size,
    int64_t count, float* out) {
  if (dtype != kBFloat16) return kLinearAvx512.multiply(x, rows, padded, weight, dtype, size, count, out);
  constexpr int64_t kItem = sizeof(uint16_t);
  const uint16_t *input = static_cast<const uint16_t*>(x), *weights = static_cast<const uint16_t*>(weight);
  const int64_t most = padded * 8 * kItem > kFirstLevel ? 4 : 8;
  if (rows <= most) return dot_pass<true>(input, rows, padded, weights, size, count, {nullptr, 0, 0}, out);
  int64_t done = 0;
  if (rows >= many_rows(count * size * kItem)) done = linear_many<Dots>(input, rows, padded, weights, size, count, out);
  in_strips(weights + done * size, count - done, size * kItem, kPairLanes * kItem, rows, most,
      [&](int64_t m, int64_t now, int64_t first, int64_t some, Ahead ahead) {
        dot_pass<false>(input + m * padded, now, padded, weights + (done + first) * size, size, some, ahead,
            out + m * kLinearTile + done + first);
      });
}
}  // namespace
extern const LinearKernel kLinearAvx512Bf16 = {round_rows, linear};
}  // namespace caw
CAW_END_TARGET
#endif
