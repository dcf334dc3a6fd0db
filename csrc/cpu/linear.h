// The vector kernel of small_linear, compiled once per instruction set beside `Kernels`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "kernels.h"

namespace caw {

// How far ahead of the products the weight is prefetched, in bytes, into the second-level cache: the hardware does not
// prefetch across the ends of short rows, and waiting for memory at each of them costs a third to a half of the bandwidth.
constexpr int64_t kAhead = 20480;

// Eight rows of x at a time, or four where eight would not stay in the first-level cache beside the stream of weights.
constexpr int64_t kFirstLevel = 24 << 10;  // bytes

// Where x takes several passes, all of them go over this many rows of the weight before the next ones: few enough to stay
// in the cache.
constexpr int64_t kStrip = 8;

// What a block prefetches while it multiplies: at vector v of its row r, the line at base + r * row + v * step.
struct Ahead {
  const char* base;
  int64_t row, step;  // bytes
};

// The rows of x, `most` in a pass, over `count` weight rows of `bytes` each, read `vector` bytes at a time. A single pass
// prefetches what lies kAhead behind the weight in hand, which takes no address of its own; this is for several passes. Each
// prefetches its share of the next strip, or memory would sit idle in all passes but the first.
//
// pass(m, now, first, some, ahead): rows m to m + now of x, weight rows first to first + some.
template <class Pass>
static inline void in_strips(const void* weight, int64_t count, int64_t bytes, int64_t vector, int64_t rows, int64_t most,
    const Pass& pass) {
  for (int64_t first = 0; first < count; first += kStrip) {
    const int64_t some = std::min(kStrip, count - first);
    const char* next = static_cast<const char*>(weight) + (first + some) * bytes;
    for (int64_t m = 0, now; m < rows; m += now) {
      now = std::min(most, rows - m);
      const Ahead share{next + some * bytes * m / rows, bytes * now / rows, (vector * now + rows - 1) / rows};
      pass(m, now, first, some, share);
    }
  }
}

constexpr int64_t kLinearTile = 32;  // outputs per call: their weights stay in the first-level cache between row blocks

// Memory on a cache line's boundary, contents undefined: a vector load across two lines costs as much as two.
template <class T>
class Aligned {
 public:
  void resize(int64_t count) {
    if (count <= size_) return;
    memory_.reset(new char[size_t(count) * sizeof(T) + 63]);
    data_ = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(memory_.get()) + 63) & ~uintptr_t(63));
    size_ = count;
  }
  T* data() const { return data_; }

 private:
  std::unique_ptr<char[]> memory_;
  T* data_ = nullptr;
  int64_t size_ = 0;
};

struct LinearKernel {
  // Makes what `multiply` reads as x beside bfloat16 weights of floats [rows, padded]; null = reads floats. Sixteen rows
  // take the same place in it, and what is made of them does not depend on the others.
  void (*prepare)(const float* x, int64_t rows, int64_t padded, uint16_t* to);

  // out[m * kLinearTile + o] = sum_k x[m, k] weight[o, k] for the outputs o < count <= kLinearTile.
  // x is [rows, padded] with zeros beyond `size`, padded a multiple of 32; weight rows are `size` elements apart.
  void (*multiply)(const void* x, int64_t rows, int64_t padded, const void* weight, int dtype, int64_t size,
      int64_t count, float* out);
};

extern const LinearKernel kLinearGeneric, kLinearAvx2, kLinearAvx512, kLinearAvx512Bf16, kLinearAmx;

bool has_amx();

// The one that goes with kernels().
LinearKernel linear_kernel();

// The one for x of float32, which stays that: weights of 16 bits are widened as they are read, and the sums are, bit for
// bit, those of the same numbers in float32.
LinearKernel float_kernel();

}  // namespace caw
