// Memory of rows of activations as digits (quantized.h).
#include <algorithm>

#include "quantized.h"

namespace caw {

namespace {
constexpr int64_t kPage = 4096, kRowsBeyond = 16;  // tiles are read whole, so the last rows may reach over the end
}  // namespace

Activations::Activations(int64_t rows, int64_t size, bool fast, bool four_bits)
    : rows(rows), size(size), digits(fast ? 1 : kDigits) {
  record = record_bytes(fast);
  stride = units() * record % kPage == 0 ? units() * record + kLine : units() * record;
  whole.resize((rows + kRowsBeyond) * stride);
  std::fill_n(whole.data() + rows * stride, kRowsBeyond * stride, int8_t(0));
  if (!four_bits || fast || rows <= kAlone || !quantized_kernel().halves) return;
  const int64_t all = (2 * rows + kRowsBeyond) * half_stride();
  halves.resize(all);
  std::fill_n(halves.data() + all - kRowsBeyond * half_stride(), kRowsBeyond * half_stride(), int8_t(0));
}

}  // namespace caw
