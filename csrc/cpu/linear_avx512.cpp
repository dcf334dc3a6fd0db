// small_linear for avx512.
#include "kernels_common.h"
#include "linear.h"

#if CAW_BUILDS_AVX512
CAW_BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#define CAW_LEVEL 3
namespace caw {
namespace {
#include "simd.inc"

#include "linear.inc"
}  // namespace
extern const LinearKernel kLinearAvx512 = {nullptr, linear};
}  // namespace caw
CAW_END_TARGET
#endif
