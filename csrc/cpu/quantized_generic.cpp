// quantized_linear for any machine.
#include "kernels_common.h"
#include "quantized.h"

#define CAW_LEVEL 1
namespace caw {
namespace {
#include "simd.inc"

#include "quantized.inc"

// Adds the products of all rows with the units [unit, unit + units), unpacked in `chunk`, D digits each.
template <int64_t kGroup, int D>
static void chunk_rows(const Activations& x, int64_t unit, int64_t units, int shift, const Chunk& chunk, bool minimum,
    float* sums) {
  constexpr int64_t kGroups = kUnit / kGroup, kRows = kGroup / 4;
  for (int64_t m = 0; m < x.rows; ++m)
    for (int64_t g = 0; g < units * kGroups; ++g) {
      const int64_t u = g / kGroups, h = g % kGroups, from = h * kRows;
      const Known& known = x.known(m, unit + u);
      const int32_t* starts = kGroups == 1 ? known.start : known.half[h];
      int32_t whole[D][kTileOutputs];
      for (int d = 0; d < D; ++d) {
        const int8_t* digit = x.digit(d, m, unit + u) + from * 4;
        const int32_t start = d == 1 ? 0 : starts[d / 2] * (1 << shift);
        for (int o = 0; o < kTileOutputs; ++o) {
          int32_t sum = start;
          for (int64_t k = 0; k < kGroup; ++k) sum += int32_t(chunk.quants[u][from + k / 4][4 * o + k % 4]) * digit[k];
          whole[d][o] = sum;
        }
      }
      const float scale = known.scale, total = kGroups == 1 ? known.total : half_total(known, h);
      for (int o = 0; o < kTileOutputs; ++o) {
        float& sum = sums[m * kTileOutputs + o];
        const float product = D == 1 ? float(whole[0][o])
                                     : std::fma(float(whole[D - 1][o]), 65536.0f,
                                           float(whole[D > 1 ? 1 : 0][o] * 256 + whole[0][o]));
        sum = std::fma(chunk.scale[g][o] * scale, product, sum);
        if (minimum) sum = std::fma(chunk.minimum[g][o], total, sum);
      }
    }
}

// A tile: a chunk is unpacked once, then every row goes over it.
static void multiply_tile(const Activations& x, const TileTask& w, float* sums) {
  const Form& f = *w.form;
  Chunk chunk;
  std::memset(sums, 0, size_t(x.rows * kTileOutputs) * sizeof(float));
  const int64_t units = x.units();
  for (int64_t unit = 0; unit < units; unit += kChunkUnits) {
    const int64_t some = units - unit < kChunkUnits ? units - unit : kChunkUnits;
    unpack<false>(w, unit, some, chunk);
    const auto rows = [&](auto all) { all(x, unit, some, f.bits - 1, chunk, f.minimum, sums); };
    if (f.group == 16)
      rows(x.digits == 1 ? chunk_rows<16, 1> : chunk_rows<16, kDigits>);
    else
      rows(x.digits == 1 ? chunk_rows<32, 1> : chunk_rows<32, kDigits>);
  }
}

static void multiply(const Activations& x, const TileTask* w, int64_t tiles, float* sums) {
  for (int64_t t = 0; t < tiles; ++t) multiply_tile(x, w[t], sums + t * x.rows * kTileOutputs);
}
}  // namespace
extern const QuantizedKernel kQuantizedGeneric = {"generic", digits, multiply};
}  // namespace caw
