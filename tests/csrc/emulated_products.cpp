// Products with packed weights by CAW_TESTED, a kernel, and by plain C++, for every block type, both arithmetics, one and
// two tiles and several numbers of rows: the same bits. Prints how many were compared, and the first that differ.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "cpu/quantized.h"

namespace caw {

const QuantizedKernel* under_test;
const QuantizedKernel& quantized_kernel() { return *under_test; }

namespace {

std::mt19937_64 randoms(7);

double normal() { return std::normal_distribution<double>()(randoms); }

uint16_t half(double value) {
  const _Float16 rounded = _Float16(value);
  uint16_t bits;
  std::memcpy(&bits, &rounded, 2);
  return bits;
}

// A tile of random scales, and of quants that are random, all 0 or all greatest (pattern 0, 1, 2).
std::vector<uint8_t> weights(const Form& form, int64_t size, int pattern) {
  const int64_t quants = size / kUnit * plane_bytes(form.bits), blocks = size / form.inputs();
  std::vector<uint8_t> tile(size_t(quants + blocks * scale_bytes(form) + kLine));
  for (uint8_t& byte : tile) byte = uint8_t(randoms());
  if (pattern) std::memset(tile.data(), pattern == 1 ? 0 : 255, size_t(quants));
  for (int64_t b = 0; b < blocks; ++b)
    for (int i = 0; i < kTileOutputs * (form.minimum ? 2 : 1); ++i) {
      const uint16_t scale = half(.02 * normal());
      std::memcpy(tile.data() + quants + b * scale_bytes(form) + 2 * i, &scale, 2);
    }
  return tile;
}

std::vector<float> products(const QuantizedKernel& kernel, const Form& form, const std::vector<float>& x, int64_t rows,
    int64_t size, bool fast, const std::vector<uint8_t>* tile, int64_t count) {
  under_test = &kernel;
  Activations digits(rows, size, fast, form.bits == 4);
  for (int64_t m = 0; m < rows; ++m) kernel.digits(x.data() + m * size, m, digits);
  TileTask tasks[kMostTiles];
  for (int64_t t = 0; t < count; ++t)
    tasks[t] = {&form, tile[t].data(), tile[t].data() + size / kUnit * plane_bytes(form.bits)};
  std::vector<float> sums(size_t(count * rows * kTileOutputs), 7.0f);
  kernel.multiply(digits, tasks, count, sums.data());
  return sums;
}

bool same(float a, float b) { return std::memcmp(&a, &b, 4) == 0 || (a != a && b != b); }

}  // namespace
}  // namespace caw

int main() {
  using namespace caw;
  int64_t compared = 0, others = 0;
  for (const int type : {2, 3, 6, 7, 8, 10, 11, 12, 13, 14})
    for (const int64_t size : {256, 512, 1536})
      for (const int pattern : {0, 1, 2}) {
        const Form& form = *form_of(type);
        const std::vector<uint8_t> tile[] = {weights(form, size, pattern), weights(form, size, pattern)};
        std::vector<float> x(size_t(33 * size));
        for (float& value : x) value = float(pattern == 2 ? 8355711.0 : normal());
        if (!pattern) x[5] = INFINITY, x[size_t(size) + 40] = 2e38f, x[size_t(2 * size)] = 1e-38f;
        for (const int64_t rows : {1, 5, 16, 17, 33})
          for (const bool fast : {false, true})
            for (int64_t count = 1; count <= kMostTiles; ++count) {
              const auto expected = products(kQuantizedGeneric, form, x, rows, size, fast, tile, count);
              const auto found = products(CAW_TESTED, form, x, rows, size, fast, tile, count);
              int64_t differ = 0;
              for (size_t i = 0; i < found.size(); ++i) differ += !same(found[i], expected[i]);
              ++compared, others += differ > 0;
              if (differ && others < 10)
                std::printf("type %d, %d inputs, %d rows, fast %d, %d tiles: %d sums differ\n", type, int(size), int(rows),
                    int(fast), int(count), int(differ));
            }
      }
  std::printf("%d compared, %d differ\n", int(compared), int(others));
  return others > 0;
}
