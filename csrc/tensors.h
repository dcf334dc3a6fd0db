// What every op needs of a tensor through torch's stable ABI: checks in one sentence, allocation, threads. Each file of ops
// hands its own to torch; their schemas are defined in caw/ops.py, which also works without this library.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "cpu/kernels.h"
#include "schemas.h"

namespace caw {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Raises RuntimeError with `message` (expected, found, remedy) in Python.
inline void require(bool condition, const std::string& message) {
  if (!condition) throw std::runtime_error(message);
}

// The same where the message is put together: that costs more than the check, so it waits until it is needed.
template <class F>
  requires std::is_invocable_r_v<std::string, F>
inline void require(bool condition, const F& message) {
  if (!condition) throw std::runtime_error(message());
}

inline std::string shape_of(const Tensor& t) {
  std::string text = "[";
  for (int64_t i = 0; i < t.dim(); ++i) text += (i ? ", " : "") + std::to_string(t.size(i));
  return text + "]";
}

inline void require_shape(const char* name, const Tensor& t, std::initializer_list<int64_t> shape) {
  bool same = t.dim() == int64_t(shape.size());
  int64_t i = 0;
  for (const int64_t size : shape) same = same && t.size(i++) == size;
  require(same, [&] {
    std::string wanted = "[";
    for (const int64_t size : shape) wanted += (wanted.size() > 1 ? ", " : "") + std::to_string(size);
    return std::string(name) + " must have shape " + wanted + "], got " + shape_of(t);
  });
}

inline void require_dtype(const char* name, const Tensor& t, ScalarType type) {
  require(t.scalar_type() == type, [&] {
    const char* wanted = type == ScalarType::Long ? "int64" : type == ScalarType::Bool ? "bool"
        : type == ScalarType::Byte ? "uint8" : type == ScalarType::Double ? "float64" : "float32";
    return std::string(name) + " must be " + wanted + "; convert it before the call";
  });
}

inline void require_tensor(const char* name, const Tensor& t, ScalarType type, std::initializer_list<int64_t> shape) {
  require_shape(name, t, shape);
  require_dtype(name, t, type);
}

inline void require_vocabulary(int64_t size) {
  require(size >= 1 && size < (int64_t(1) << 31),
      [&] { return "vocab_size must be in [1, 2**31), got " + std::to_string(size); });
}

// Lists of `count` tokens, drawn by the seeds.
inline void require_list(const Tensor& seeds, int64_t vocab_size, int64_t count) {
  require(seeds.dim() == 1, [&] { return "seeds must have shape [N], got " + shape_of(seeds); });
  require_dtype("seeds", seeds, ScalarType::Long);
  require_vocabulary(vocab_size);
  require(count >= 0 && count <= vocab_size,
      [&] { return "count must be in [0, vocab_size], got " + std::to_string(count); });
}

// Which rows of a list a caller asks for.
inline void require_wanted(const Tensor& wanted, const Tensor& rows) {
  const bool together = wanted.is_cuda() == rows.is_cuda() &&
      (!rows.is_cuda() || wanted.get_device_index() == rows.get_device_index());
  require(together, "wanted must be on the device of the rows; move it there before the call");
  require_tensor("wanted", wanted, ScalarType::Bool, {rows.size(0)});
}

// The numbers of an int64 [N] tensor.
inline std::vector<int64_t> integers(const char* name, const Tensor& t) {
  require(t.dim() == 1, [&] { return std::string(name) + " must have one dimension, got " + shape_of(t); });
  require_dtype(name, t, ScalarType::Long);
  std::vector<int64_t> numbers(static_cast<size_t>(t.size(0)));
  const int64_t* from = t.const_data_ptr<int64_t>();
  const int64_t step = t.stride(0);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = from[int64_t(i) * step];
  return numbers;
}

inline bool is_float_type(ScalarType type) {
  return type == ScalarType::Float || type == ScalarType::BFloat16 || type == ScalarType::Half;
}

inline Dtype dtype_of(const char* name, const Tensor& t) {
  const ScalarType type = t.scalar_type();
  require(is_float_type(type),
      [&] { return std::string(name) + " must be float32, bfloat16 or float16; convert it before the call"; });
  return type == ScalarType::Float ? kFloat32 : type == ScalarType::BFloat16 ? kBFloat16 : kFloat16;
}

inline int64_t element_size(Dtype type) { return type == kFloat32 ? 4 : 2; }

inline const char* offset_bytes(const void* base, int64_t elements, Dtype type) {
  return static_cast<const char*>(base) + elements * element_size(type);
}

// A new contiguous tensor, contents undefined; on the CPU, or on the device of `beside`.
inline Tensor make(std::initializer_list<int64_t> shape, ScalarType type, const Tensor* beside = nullptr) {
  std::vector<int64_t> sizes(shape), strides(sizes.size());
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0; step *= sizes[i] > 1 ? sizes[i] : 1) strides[i] = step;
  const int32_t code = type == ScalarType::Float ? aoti_torch_dtype_float32()
      : type == ScalarType::BFloat16             ? aoti_torch_dtype_bfloat16()
      : type == ScalarType::Half                 ? aoti_torch_dtype_float16()
      : type == ScalarType::Double               ? aoti_torch_dtype_float64()
      : type == ScalarType::Int                  ? aoti_torch_dtype_int32()
      : type == ScalarType::Bool                 ? aoti_torch_dtype_bool()
      : type == ScalarType::Byte                 ? aoti_torch_dtype_uint8()
                                                 : aoti_torch_dtype_int64();
  const bool cuda = beside && beside->is_cuda();
  const int32_t device = cuda ? aoti_torch_device_type_cuda() : aoti_torch_device_type_cpu();
  AtenTensorHandle handle = nullptr;
  const auto error = aoti_torch_empty_strided(int64_t(sizes.size()), sizes.data(), strides.data(), code, device,
      cuda ? beside->get_device_index() : 0, &handle);
  require(error == AOTI_TORCH_SUCCESS, "memory for a tensor could not be allocated; lower the batch");
  return Tensor(handle);
}

// The tensor itself if its elements are dense in order, else a copy.
inline Tensor dense(const Tensor& t) { return t.is_contiguous() ? t : torch::stable::contiguous(t); }

constexpr int64_t kWorthAThread = 40000;  // nanoseconds of work below which waking a thread costs more than it saves

// f(begin, end) over [0, count) items of `cost` nanoseconds each, in threads where that pays.
template <class F>
void for_each_part(int64_t count, int64_t cost, const F& f) {
  if (count <= 0) return;
  const int64_t grain = kWorthAThread / (cost > 0 ? cost : 1) + 1;
  if (count <= grain) {
    f(int64_t(0), count);
  } else {
    torch::stable::parallel_for(0, count, grain, f);
  }
}

}  // namespace caw
