// quantized_linear for any machine.
#include "kernels_common.h"
#include "quantized.h"

#define CAW_LEVEL 1
namespace caw {
namespace {
#include "simd.inc"

#include "quantized.inc"

struct Sums {
  template <int64_t kGroup, int R, int D>
  static void rows(const Activations& x, int64_t m, int64_t unit, int64_t units, int shift, const Chunk& chunk,
      const Coming* coming, bool minimum, float* sums) {
    constexpr int64_t kGroups = kUnit / kGroup, kRows = kGroup / 4;
    for (int64_t u = 0; coming && u < units; ++u) coming->unit(u);
    for (int r = 0; r < R; ++r)
      for (int64_t g = 0; g < units * kGroups; ++g) {
        const int64_t u = g / kGroups, h = g % kGroups, from = h * kRows;
        const Known& known = x.known(m + r, unit + u);
        const int32_t* starts = kGroups == 1 ? known.start : known.half[h];
        int32_t whole[D][kTileOutputs];
        for (int d = 0; d < D; ++d) {
          const int8_t* digit = x.digit(d, m + r, unit + u) + from * 4;
          const int32_t start = d == 1 ? 0 : starts[d / 2] * (1 << shift);
          for (int o = 0; o < kTileOutputs; ++o) {
            int32_t sum = start;
            for (int64_t k = 0; k < kGroup; ++k) sum += int32_t(chunk.quants[u][from + k / 4][4 * o + k % 4]) * digit[k];
            whole[d][o] = sum;
          }
        }
        const float scale = known.scale, total = kGroups == 1 ? known.total : half_total(known, h);
        for (int o = 0; o < kTileOutputs; ++o) {
          float& sum = sums[r * kTileOutputs + o];
          const float product = D == 1 ? float(whole[0][o])
                                       : std::fma(float(whole[D - 1][o]), 65536.0f,
                                             float(whole[D > 1 ? 1 : 0][o] * 256 + whole[0][o]));
          sum = std::fma(chunk.scale[g][o] * scale, product, sum);
          if (minimum) sum = std::fma(chunk.minimum[g][o], total, sum);
        }
      }
  }
};

#include "quantized_rows.inc"
}  // namespace
extern const QuantizedKernel kQuantizedGeneric = {"generic", digits, multiply};
}  // namespace caw
