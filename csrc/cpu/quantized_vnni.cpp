// quantized_linear with AVX-512 and its products of bytes (VNNI).
#include "kernels_common.h"
#include "quantized.h"

#if CAW_X86
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif
#define CAW_LEVEL 3
namespace caw {
namespace {
#include "simd.inc"

#include "quantized.inc"

#include "quantized_vnni.inc"
}  // namespace
extern const QuantizedKernel kQuantizedVnni = {"vnni", digits, multiply};
}  // namespace caw
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
