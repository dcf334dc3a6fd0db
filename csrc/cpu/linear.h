// The vector kernel of small_linear, compiled once per instruction set beside `Kernels`.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels.h"

namespace caw {

// How far ahead of the products the weight is asked for, in bytes, into the second-level cache: the hardware does not read
// ahead across the ends of short rows, and waiting for memory at each of them costs a third to a half of the bandwidth.
constexpr int64_t kAhead = 20480;
constexpr int kSecondLevel = 2;  // __builtin_prefetch's locality

// Eight rows of x at a time, or four where eight would not stay in the first-level cache beside the stream of weights.
constexpr int64_t kFirstLevel = 24 << 10;  // bytes

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

// out[m * kLinearTile + o] = sum_k x[m, k] weight[o, k] for the outputs o < count <= kLinearTile.
// x is float32 [rows, padded] with zeros beyond `size`; weight rows are `size` elements apart.
using LinearKernel = void (*)(const float* x, int64_t rows, int64_t padded, const void* weight, int dtype,
    int64_t size, int64_t count, float* out);

extern const LinearKernel kLinearGeneric, kLinearAvx2, kLinearAvx512, kLinearAvx512Bf16;

// The one that goes with kernels().
LinearKernel linear_kernel();

}  // namespace caw
