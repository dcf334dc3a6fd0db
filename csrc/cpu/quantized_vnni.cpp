// quantized_linear with AVX-512 and its products of bytes (VNNI).
#include "kernels_common.h"
#include "quantized.h"

#if CAW_BUILDS_AVX512
CAW_BEGIN_TARGET("avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#define CAW_LEVEL 3
namespace caw {
namespace {
#include "simd.inc"

#include "quantized.inc"

#include "quantized_vnni.inc"
}  // namespace
extern const QuantizedKernel kQuantizedVnni = {"vnni", digits, multiply};
}  // namespace caw
CAW_END_TARGET
#endif
